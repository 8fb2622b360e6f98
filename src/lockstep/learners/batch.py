"""A rollout as a learner reads it: members first, advantages and targets beside the rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.rollout import Rollout
from lockstep.core.world import Views


@dataclass(frozen=True, kw_only=True)
class RoleBatch:
    """One role's rows; every tensor leads with [P, T, N, A]."""

    obs: Observation
    action: Action
    log_prob: Tensor
    value: Tensor
    advantage: Tensor  # standardised
    target: Tensor  # what the critic should have said
    weight: Tensor  # 1 where the agent decided, 0 where it only waited
    memory: Tensor  # [P, N, A, Z] before the first row


@dataclass(frozen=True, kw_only=True)
class Batch:
    """All rows of an update, or those of some of its lanes."""

    roles: dict[str, RoleBatch]
    state: Views  # view -> name -> [P, T, N, ...]
    starts: Tensor  # [P, T, N] bool

    def with_log_prob(self, log_prob: dict[str, Tensor]) -> "Batch":
        """The same rows, judged against other old log-probs `[P, T, N, A]`."""
        roles = {name: replace(role, log_prob=log_prob[name]) for name, role in self.roles.items()}
        return replace(self, roles=roles)

    def lanes(self, index: Tensor) -> "Batch":
        """The rows of lanes `index [P, n]`, each member's own choice."""
        member = torch.arange(index.shape[0], device=index.device).unsqueeze(-1)  # [P, 1]

        def rows(x: Tensor) -> Tensor:
            return x.transpose(1, 2)[member, index].transpose(1, 2)  # [P, T, n, ...]

        return Batch(
            roles={
                name: RoleBatch(
                    obs=role.obs.map(rows),
                    action={part: rows(x) for part, x in role.action.items()},
                    log_prob=rows(role.log_prob),
                    value=rows(role.value),
                    advantage=rows(role.advantage),
                    target=rows(role.target),
                    weight=rows(role.weight),
                    memory=role.memory[member, index],
                )
                for name, role in self.roles.items()
            },
            state={
                view: {name: rows(x) for name, x in seen.items()}
                for view, seen in self.state.items()
            },
            starts=rows(self.starts),
        )


def members_first(members: int) -> Callable[[Tensor], Tensor]:
    """Turns `[T, L, ...]` into `[P, T, N, ...]`: a view for one member, one copy for more."""

    def turn(x: Tensor) -> Tensor:
        T, L = x.shape[:2]
        return x.view(T, members, L // members, *x.shape[2:]).movedim(1, 0).contiguous()

    return turn


def make_batch(rollout: Rollout, members: int, advantage: dict[str, Tensor]) -> Batch:
    """The rollout with advantages `[T, L, A]`, members first."""
    turn = members_first(members)
    return Batch(
        roles={
            name: RoleBatch(
                obs=rows.obs.map(turn),
                action={part: turn(x) for part, x in rows.action.items()},
                log_prob=turn(rows.log_prob),
                value=turn(rows.value),
                advantage=standardise(turn(advantage[name]), turn(rows.obs.acts)),
                target=turn(advantage[name] + rows.value),
                weight=turn(rows.obs.acts).to(rows.value.dtype),
                memory=rollout.memory[name].unflatten(0, (members, -1)),
            )
            for name, rows in rollout.roles.items()
        },
        state={
            view: {name: turn(x) for name, x in seen.items()}
            for view, seen in rollout.critic.items()
        },
        starts=turn(rollout.starts),
    )


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """The mean of x `[P, ...]` over everything but members, counting rows by `weight`."""
    count = weight.flatten(1).sum(dim=1).clamp(min=1.0)
    counted = torch.where(weight > 0, x * weight, 0.0)  # 0 * inf is no 0
    return counted.flatten(1).sum(dim=1) / count  # [P]


def standardise(advantage: Tensor, counts: Tensor) -> Tensor:
    """Zero mean and unit deviation over time, lanes and agents of each member by itself."""
    weight = counts.to(advantage.dtype)
    lead = (-1,) + (1,) * (advantage.ndim - 1)
    centred = advantage - weighted_mean(advantage, weight).view(lead)
    deviation = weighted_mean(centred**2, weight).sqrt().view(lead)
    return centred / (deviation + 1e-8) * weight
