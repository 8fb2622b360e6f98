"""The audit: before the first gradient step, every stored decision is rebuilt and compared.

If sampling and training disagree about a decision by more than rounding, the policy gradient is of
something that never happened. Near-uniform policies hide such errors from every other health
number, so the test is the largest difference of a log-prob, not the mean ratio.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.actions import Part, Picks, Unit, action_dims
from lockstep.core.picks import PickSet
from lockstep.core.rollout import RoleRows, Rollout
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.errors import AuditFailure

LOG_PROB_LIMIT = {"fp32": 2e-5, "tf32": 2e-2, "bf16": 1e-1}
"""Largest difference, for one action dimension; in fp32 also for each nat of the log-prob. Rounding
was measured below 5e-6 of either, tf32 at 1.6e-2 for a decision of 13."""
VALUE_LIMIT = {"fp32": 1e-4, "tf32": 5e-2, "bf16": 2e-1}
"""Largest difference of a value, relative to 1 + its size."""
FIRST_MINIBATCH_LIMIT = 1e-4
"""Largest mean KL (k3) and clip fraction of the first minibatch; 0 but for rounding."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What the learner's own function makes of the stored rows, `[T, L, A]` for each role."""

    log_prob: dict[str, Tensor]
    entropy: dict[str, Tensor]
    value: dict[str, Tensor]


def audit(
    spec: WorldSpec, rollout: Rollout, replayed: Replayed, version: Tensor, *, precision: str
) -> dict[str, Tensor]:
    """Raises AuditFailure with a diagnosis, or returns the largest differences by metric key."""
    checks: dict[str, Tensor] = {
        "G2 order": (rollout.clock[1:] != rollout.clock[:-1] + 1).any(),
        "G3 policy version": (rollout.version != version).any(),
    }
    worst: dict[str, Tensor] = {}
    for role in spec.roles:
        name, rows = role.name, rollout.roles[role.name]
        gaps = _gaps(name, rollout, replayed)
        worst |= {f"audit/{name}/{what}_gap": gap.max() for what, gap in gaps.items()}
        limits = _limits(role, rollout, precision)
        checks |= {
            f"G1 finite log-prob ({name})": ~torch.isfinite(rows.log_prob).all(),
            f"G5 support ({name})": _outside_support(role, rollout),
            f"G5 observation ({name})": (rows.obs.fingerprint() != rows.fingerprint).any(),
            f"G16 finite ({name})": ~(
                torch.isfinite(rows.reward).all() & torch.isfinite(rows.value).all()
            ),
        }
        checks |= {f"G4 {what} ({name})": ~(gaps[what] <= limits[what]).all() for what in gaps}
        if spec.every_step:
            late = (rollout.elapsed != 1).any()
            checks[f"G2 every step ({name})"] = late | ~rows.obs.acts.all()
    # The one wait for the device before the first gradient step.
    failed = torch.stack(list(checks.values())).tolist()
    if any(failed):
        broken = [name for name, bad in zip(checks, failed, strict=True) if bad]
        told = _diagnosis(spec, rollout, replayed, broken, version, precision)
        raise AuditFailure(told, gates=broken)
    return worst


def fetch(stats: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics `[P]` on the host, in one transfer, behind the last two gates.

    G6: the first minibatch, before any step, shows no KL and nothing clipped, so minibatches line
    up with what was stored. G16: everything is finite.
    """
    table = torch.stack(list(stats.values())).double().cpu()  # [names, P]
    for name, row in zip(stats, table, strict=True):
        bad = (~torch.isfinite(row)).nonzero().flatten().tolist()
        if bad:
            raise AuditFailure(
                f"G16 finite: {name} of members {bad} is not a finite number after this update; "
                "the last checkpoint is older and whole; look at rewards, the learning rate and "
                "the gradient limit",
                gates=[f"G16 finite ({name})"],
            )
        if name.startswith("audit/first/") and row.abs().max() > FIRST_MINIBATCH_LIMIT:
            raise AuditFailure(
                f"G6 first minibatch: {name} is {row.abs().max():.3g} before any step, must be 0; "
                "rows of obs, action, log-prob and advantage do not line up in the minibatch",
                gates=[f"G6 first minibatch ({name})"],
            )
    return dict(zip(stats, table, strict=True))


def _gaps(role: str, rollout: Rollout, replayed: Replayed) -> dict[str, Tensor]:
    """Differences between stored and rebuilt `[T, L, A]`; rows without a decision count 0."""
    rows = rollout.roles[role]

    def gap(new: Tensor, old: Tensor) -> Tensor:
        return torch.nan_to_num((new - old).abs(), nan=torch.inf, posinf=torch.inf)

    return {
        "log_prob": torch.where(rows.obs.acts, gap(replayed.log_prob[role], rows.log_prob), 0.0),
        "entropy": torch.where(rows.obs.acts, gap(replayed.entropy[role], rows.entropy), 0.0),
        "value": gap(replayed.value[role], rows.value) / (1 + rows.value.abs()),
    }


def _limits(role: RoleSpec, rollout: Rollout, precision: str) -> dict[str, Tensor | float]:
    """Largest differences that rounding explains: one number, or one for each row `[T, L, A]`."""
    dims, rows, limit = (
        action_dims(role.action),
        rollout.roles[role.name],
        LOG_PROB_LIMIT[precision],
    )
    value = VALUE_LIMIT[precision]
    if precision == "fp32":
        # What is unlikely comes of large scores, whose last digit is larger. An entropy is a mean
        # over all alternatives, most of them unlikely however sure the policy is.
        nats = sum(part.dims * math.log(part.n) for part in role.action.values() if _counted(part))
        return {
            "log_prob": limit * (dims + rows.log_prob.abs()),
            "entropy": limit * (dims + rows.entropy.abs().clamp(min=nats)),
            "value": value,
        }
    # Other precisions round every dimension anew, and independent errors add up by their squares;
    # their limit times 122 dimensions would let anything pass.
    decision = limit * math.sqrt(dims)
    return {"log_prob": decision, "entropy": decision, "value": value}


def _counted(part: Part) -> bool:
    """Whether it chooses among alternatives that can be counted."""
    return not isinstance(part, Unit)


def _outside_support(role: RoleSpec, rollout: Rollout) -> Tensor:
    """Whether a stored choice is not among its alternatives, is no number, or had none."""
    rows = rollout.roles[role.name]
    outside = torch.zeros((), dtype=torch.bool, device=rows.log_prob.device)
    for name, part in role.action.items():
        chosen = rows.action[name]
        if isinstance(part, Unit):
            outside = outside | ~torch.isfinite(chosen).all()
            continue
        if isinstance(part, Picks):
            options = PickSet.of(part, rows.obs.legal[name], rows.obs.features)
            outside = outside | ~options.legal[..., 0].all()  # stopping is always allowed
            outside = outside | (~options.supports(chosen) & rows.obs.acts).any()
            continue
        outside = outside | (chosen < 0).any() | (chosen >= part.n).any()
        if name in rows.obs.legal:
            outside = outside | ~rows.obs.legal[name].any(dim=-1).all()
            index = chosen.clamp(0, part.n - 1).unsqueeze(-1)
            legal = rows.obs.legal[name].gather(-1, index).squeeze(-1)
            outside = outside | (~legal & rows.obs.acts).any()
    return outside


def _diagnosis(
    spec: WorldSpec,
    rollout: Rollout,
    replayed: Replayed,
    broken: list[str],
    version: Tensor,
    precision: str,
) -> str:
    """What broke, the worst row of each role, and what usually causes it."""
    lines = [f"the audit stopped the update before its first gradient step: {', '.join(broken)}"]
    if "G2 order" in broken:
        lines.append("rows are not one unbroken series of steps for each lane")
    if "G3 policy version" in broken:
        lines.append(
            f"rows were collected by policy version {rollout.version.unique().tolist()}, "
            f"the learner is at {int(version)}: the weights that acted are not those that learn"
        )
    for role in spec.roles:
        mine = [name for name in broken if f"({role.name})" in name]
        if mine:
            lines.append(_worst_row(role, rollout, replayed, mine, precision))
    return "\n".join(lines)


def _worst_row(
    role: RoleSpec, rollout: Rollout, replayed: Replayed, broken: list[str], precision: str
) -> str:
    rows, gaps = rollout.roles[role.name], _gaps(role.name, rollout, replayed)
    what = next((what for what in gaps if f"G4 {what} ({role.name})" in broken), "log_prob")
    gap = gaps[what]
    share = (gap > _limits(role, rollout, precision)[what]).double().mean().item()
    t, lane, agent = (int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    changed = rows.obs.fingerprint() != rows.fingerprint
    stored, rebuilt = {
        "log_prob": (rows.log_prob, replayed.log_prob),
        "entropy": (rows.entropy, replayed.entropy),
        "value": (rows.value, replayed.value),
    }[what]
    choices = [
        _chosen(name, part, rows, (t, lane, agent))
        for name, part in role.action.items()
        if not isinstance(part, Unit)
    ]
    return (
        f"role {role.name}: {share:.1%} of rows differ; worst at step {t}, lane {lane}, "
        f"agent {agent}{' (' + ', '.join(choices) + ')' if choices else ''}: "
        f"stored {what} {stored[t, lane, agent]:.6f}, "
        f"replayed {rebuilt[role.name][t, lane, agent]:.6f}; stored observations "
        f"{'CHANGED' if changed.any() else 'unchanged'} since they were acted on. "
        f"{_hint(broken)}"
    )


def _chosen(name: str, part: Part, rows: RoleRows, at: tuple[int, int, int]) -> str:
    """What was chosen in one row, and among how many."""
    chosen, count = rows.action[name][at].tolist(), part.n
    if isinstance(part, Picks):
        options = PickSet.of(part, rows.obs.legal[name], rows.obs.features)
        count = int(options.first().entries[at].sum())
        return f"{name}: indices {chosen} of K={count} before the first pick"
    if part.masked:
        count = int(rows.obs.legal[name][at].sum())
    return f"{name}: index {chosen} of K={count}"


_HINTS = {
    "G5 support": "A choice is outside its alternatives, or had none: look at the mask or "
    "candidate set.",
    "G5 observation": "Look at what rewrites observations: an encoder, a normaliser, or an aliased "
    "buffer.",
    "G1 finite": "A log-prob is not finite: look at the learning rate and the observations.",
    "G16 finite": "A reward or value is not finite: look at the world's numbers.",
    "G2 every step": "The world says every_step, but some agents waited or a step took other than "
    "one unit of time: set every_step=False in its spec.",
    "G4": "Observations agree, results do not: look at the weights or the mode that acted.",
}


def _hint(broken: list[str]) -> str:
    """The likely cause, of the most telling gate."""
    return next(
        hint for gate, hint in _HINTS.items() if any(name.startswith(gate) for name in broken)
    )
