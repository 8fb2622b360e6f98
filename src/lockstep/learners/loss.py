"""What PPO minimises, by member: the clipped surrogate, the entropy bonus, the critic's error."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from lockstep.core.actions import ActionSpec, Unit, action_dims
from lockstep.core.distributions import Joint
from lockstep.learners.batch import RoleBatch
from lockstep.learners.health import Seen


def policy_loss(
    name: str, role: RoleBatch, log_prob: Tensor, *, clip_ratio: float | Tensor, seen: Seen
) -> Tensor:
    """The clipped surrogate (Schulman et al. 2017, eq. 7) of one role, `[P]`.

    `clip_ratio` is one for all members, or broadcasts to `[P, T, N, A]`.
    """
    # A wrong shape here would broadcast every row against every advantage and learn nothing.
    assert log_prob.shape == role.log_prob.shape == role.advantage.shape
    log_ratio = torch.where(role.decided > 0, log_prob - role.log_prob, 0.0)
    ratio = log_ratio.exp()
    clipped = _clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
    surrogate = torch.minimum(ratio * role.advantage, clipped * role.advantage)
    loss = -role.mean(surrogate)
    with torch.no_grad():
        outside = ((ratio - 1).abs() > clip_ratio).to(ratio.dtype)
        k3 = ratio - 1 - log_ratio
        seen.means[f"train/{name}/policy_loss"] = loss.detach()
        seen.means[f"train/{name}/approx_kl"] = role.mean(k3)
        seen.means[f"train/{name}/clip_fraction"] = role.mean(outside)
    seen.judge(name, role, log_ratio, ratio)
    return loss


def imitation_loss(name: str, role: RoleBatch, log_prob: Tensor, *, seen: Seen) -> Tensor:
    """How unlikely one role finds what somebody else decided, `[P]`: the mean of -log-prob.

    The policy did not act, so nothing is left of it to compare with: no KL, nothing clipped.
    """
    loss = -role.mean(log_prob)
    with torch.no_grad():
        seen.means[f"train/{name}/imitation_loss"] = loss.detach()
        for what in ("policy_loss", "approx_kl", "clip_fraction"):
            seen.means[f"train/{name}/{what}"] = torch.zeros_like(loss)
    seen.judge(name, role, torch.zeros_like(log_prob), torch.ones_like(log_prob))
    return loss


def entropy_bonus(
    name: str,
    role: RoleBatch,
    law: Joint,
    entropy: Tensor,
    *,
    parts: ActionSpec,
    per: Literal["dimension", "sum", "choices"],
    seen: Seen,
) -> Tensor:
    """How undecided one role is, `[P]`, in the unit that `entropy_per` names.

    Numbers have no largest entropy, so a decision with a Unit part is not counted by its choices
    but by dimension.
    """
    mean = role.mean(entropy)
    seen.means[f"train/{name}/entropy"] = mean.detach()
    if per == "sum":
        return mean
    if per == "dimension" or any(isinstance(part, Unit) for part in parts.values()):
        return mean / action_dims(parts)
    most = law.most_entropy(role.action)  # 0 where there is nothing to choose, else >= ln 2
    share = torch.where(most > 0, entropy / most.clamp(min=0.5), 0.0)
    return role.mean(share)


def critic_loss(
    roles: Mapping[str, RoleBatch],
    values: Mapping[str, Tensor],
    *,
    value_clip: float | Tensor | None,
    seen: Seen,
) -> Tensor:
    """Half the mean squared error over the judged rows of all roles, `[P]`."""
    errors, counts = [], []
    for name, value in values.items():
        role = roles[name]
        miss = (value - role.target) ** 2
        if value_clip is not None:
            near = role.value + _clamp(value - role.value, -value_clip, value_clip)
            miss = torch.maximum(miss, (near - role.target) ** 2)
        errors.append((miss * role.judged).flatten(1).sum(dim=1))
        counts.append(role.n_judged)
    loss = 0.5 * torch.stack(errors).sum(dim=0) / torch.stack(counts).sum(dim=0).clamp(min=1.0)
    seen.means["train/value_loss"] = loss.detach()
    return loss


def _clamp(x: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """`x` between bounds that are the same for all members or each member's own."""
    return x.clamp(low, high)  # type: ignore[arg-type]  # the stubs know only two of a kind
