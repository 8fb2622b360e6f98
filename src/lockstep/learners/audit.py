"""The audit: before the first gradient step, every stored decision is rebuilt and compared.

If sampling and training disagree about a decision by more than rounding, the policy gradient is of
something that never happened. Near-uniform policies hide such errors from every other health
number, so the test is the largest difference of a log-prob, not the mean ratio.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.actions import Unit, action_dims
from lockstep.core.rollout import Rollout
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.errors import AuditFailure

LOG_PROB_LIMIT = {"fp32": 2e-5, "tf32": 2e-2, "bf16": 1e-1}
"""Largest difference per action dimension; rounding in fp32 was measured below 4e-6."""
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
        rows, dims = rollout.roles[role.name], action_dims(role.action)
        log_prob = replayed.log_prob[role.name]
        counts = rows.obs.acts
        gap = _gap(log_prob, rows.log_prob, counts)
        entropy_gap = _gap(replayed.entropy[role.name], rows.entropy, counts)
        value = replayed.value[role.name]
        value_gap = ((value - rows.value).abs() / (1 + rows.value.abs())).max()
        worst[f"audit/{role.name}/log_prob_gap"] = gap
        worst[f"audit/{role.name}/entropy_gap"] = entropy_gap
        worst[f"audit/{role.name}/value_gap"] = value_gap
        limit = LOG_PROB_LIMIT[precision] * dims
        checks |= {
            f"G1 valid share ({role.name})": ~torch.isfinite(rows.log_prob).all(),
            f"G5 support ({role.name})": _outside_support(role, rollout),
            f"G4 replay ({role.name})": ~(gap <= limit),
            f"G4 entropy ({role.name})": ~(entropy_gap <= limit),
            f"G4 value ({role.name})": ~(value_gap <= VALUE_LIMIT[precision]),
            f"G16 finite ({role.name})": ~(
                torch.isfinite(rows.reward).all() & torch.isfinite(rows.value).all()
            ),
        }
    # The one wait for the device before the first gradient step.
    failed = torch.stack(list(checks.values())).tolist()
    if any(failed):
        raise AuditFailure(_diagnosis(spec, rollout, replayed, list(checks), failed, version))
    return worst


def read_stats(stats: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics `[P]` on the host, in one transfer, with the last two gates.

    G6: the first minibatch, before any step, shows no KL and nothing clipped, so minibatches line
    up with what was stored. G16: everything is finite.
    """
    table = torch.stack(list(stats.values())).double().cpu()  # [names, P]
    for name, row in zip(stats, table, strict=True):
        if not torch.isfinite(row).all():
            raise AuditFailure(
                f"G16 finite: {name} of member {int((~torch.isfinite(row)).nonzero()[0])} is not a "
                "finite number after this update; the last checkpoint is older and whole; "
                "look at rewards, the learning rate and the gradient limit"
            )
        if name.startswith("audit/first/") and row.abs().max() > FIRST_MINIBATCH_LIMIT:
            raise AuditFailure(
                f"G6 first minibatch: {name} is {row.abs().max():.3g} before any step, must be 0; "
                "rows of obs, action, log-prob and advantage do not line up in the minibatch"
            )
    return dict(zip(stats, table, strict=True))


def _gap(new: Tensor, old: Tensor, counts: Tensor) -> Tensor:
    """The largest difference among the rows that count; NaN counts as infinite."""
    gap = torch.nan_to_num((new - old).abs(), nan=torch.inf, posinf=torch.inf)
    return torch.where(counts, gap, 0.0).max()


def _outside_support(role: RoleSpec, rollout: Rollout) -> Tensor:
    """Whether some stored choice was not among the stored alternatives, or is no number."""
    rows = rollout.roles[role.name]
    outside = torch.zeros((), dtype=torch.bool, device=rows.log_prob.device)
    for name, part in role.action.items():
        chosen = rows.action[name]
        if isinstance(part, Unit):
            outside = outside | ~torch.isfinite(chosen).all()
            continue
        outside = outside | (chosen < 0).any() | (chosen >= part.n).any()
        if name in rows.obs.legal:
            index = chosen.clamp(0, part.n - 1).unsqueeze(-1)
            legal = rows.obs.legal[name].gather(-1, index).squeeze(-1)
            outside = outside | (~legal & rows.obs.acts).any()
    return outside


def _diagnosis(
    spec: WorldSpec,
    rollout: Rollout,
    replayed: Replayed,
    names: list[str],
    failed: list[bool],
    version: Tensor,
) -> str:
    """What broke, the first row where it did, and what usually causes it."""
    broken = [name for name, bad in zip(names, failed, strict=True) if bad]
    lines = [f"the audit stopped the update before its first gradient step: {', '.join(broken)}"]
    if "G2 order" in broken:
        lines.append("rows are not one unbroken series of steps for each lane")
    if "G3 policy version" in broken:
        lines.append(
            f"rows were collected by policy version {rollout.version.unique().tolist()}, "
            f"the learner is at {int(version)}: the weights that acted are not those that learn"
        )
    for role in spec.roles:
        if any(f"({role.name})" in name for name in broken):
            lines.append(_first_offender(role, rollout, replayed, broken))
    return "\n".join(lines)


def _first_offender(role: RoleSpec, rollout: Rollout, replayed: Replayed, broken: list[str]) -> str:
    rows = rollout.roles[role.name]
    gap = torch.where(rows.obs.acts, (replayed.log_prob[role.name] - rows.log_prob).abs(), 0.0)
    gap = torch.nan_to_num(gap, nan=torch.inf, posinf=torch.inf)
    limit = LOG_PROB_LIMIT["fp32"] * action_dims(role.action)
    share = (gap > limit).double().mean().item()
    t, lane, agent = (int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
    same = rows.obs.fingerprint()[t, lane, agent] == rows.fingerprint[t, lane, agent]
    choices = [
        f"{name}: index {int(rows.action[name][t, lane, agent])} of "
        f"K={int(rows.obs.legal[name][t, lane, agent].sum()) if name in rows.obs.legal else part.n}"
        for name, part in role.action.items()
        if not isinstance(part, Unit)
    ]
    return (
        f"role {role.name}: {share:.1%} of rows differ; worst at step {t}, lane {lane}, "
        f"agent {agent}"
        f"{' (' + ', '.join(choices) + ')' if choices else ''}: "
        f"stored log-prob {rows.log_prob[t, lane, agent]:.6f}, "
        f"replayed {replayed.log_prob[role.name][t, lane, agent]:.6f}; "
        f"stored observation {'unchanged' if same else 'CHANGED'} since it was acted on. "
        f"{_hint(role.name, broken, bool(same))}"
    )


def _hint(role: str, broken: list[str], observation_same: bool) -> str:
    if f"G5 support ({role})" in broken:
        return "The choice is outside the stored alternatives: look at the mask or candidate set."
    if not observation_same:
        return "Look at what rewrites observations: an encoder, a normaliser, or an aliased buffer."
    if f"G16 finite ({role})" in broken or f"G1 valid share ({role})" in broken:
        return (
            "A reward, value or log-prob is not finite: look at the world's numbers and the rate."
        )
    return "Observations agree, results do not: look at the weights or the mode that acted."
