"""A rollout as a learner reads it: members first, advantages and targets beside the rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.rollout import Rollout
from lockstep.core.world import Views
from lockstep.learners.normalise import Moments

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class RoleBatch:
    """One role's rows; every tensor leads with [P, T, N, A]."""

    obs: Observation
    action: Action
    log_prob: Tensor
    value: Tensor
    advantage: Tensor  # standardised before it is learned from; 0 where the agent only waited
    target: Tensor  # what the critic should have said
    weight: Tensor  # 1 where the agent decided, 0 where it only waited
    memory: Tensor  # [P, N, A, Z] before the first row
    count: Tensor  # [P] decisions of the whole minibatch, of which these may be a part

    def map(self, rows: Change, memory: Change) -> "RoleBatch":
        """The same with `rows` applied to what has a time and `memory` to what has none."""
        weight = rows(self.weight)
        return RoleBatch(
            obs=self.obs.map(rows),
            action={part: rows(x) for part, x in self.action.items()},
            log_prob=rows(self.log_prob),
            value=rows(self.value),
            advantage=rows(self.advantage),
            target=rows(self.target),
            weight=weight,
            memory=memory(self.memory),
            count=weight.flatten(1).sum(dim=1),
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """All rows of an update, or those of some of its lanes."""

    roles: dict[str, RoleBatch]
    state: Views  # view -> name -> [P, T, N, ...]
    starts: Tensor  # [P, T, N] bool
    stats: dict[str, Tensor] = field(default_factory=dict)  # metric key -> [P], of all rows
    rewards: dict[str, Moments] = field(default_factory=dict)  # by role, these rows included

    def map(self, rows: Change, memory: Change) -> "Batch":
        """The same with `rows` applied to what has a time and `memory` to what has none."""
        return replace(
            self,
            roles={name: role.map(rows, memory) for name, role in self.roles.items()},
            state={
                view: {name: rows(x) for name, x in seen.items()}
                for view, seen in self.state.items()
            },
            starts=rows(self.starts),
        )

    def standardised(self) -> "Batch":
        """The same rows with each role's advantages standardised."""
        roles = {
            name: replace(role, advantage=standardise(role.advantage, role.weight))
            for name, role in self.roles.items()
        }
        return replace(self, roles=roles)

    def with_log_prob(self, log_prob: dict[str, Tensor]) -> "Batch":
        """The same rows, judged against other old log-probs `[P, T, N, A]`."""
        roles = {name: replace(role, log_prob=log_prob[name]) for name, role in self.roles.items()}
        return replace(self, roles=roles)

    def lanes(self, index: Tensor) -> "Batch":
        """The rows of lanes `index [P, n]`, each member's own choice."""
        member = torch.arange(index.shape[0], device=index.device).unsqueeze(-1)  # [P, 1]
        return self.map(
            lambda x: x.transpose(1, 2)[member, index].transpose(1, 2),  # [P, T, n, ...]
            lambda x: x[member, index],
        )

    def parts(self, n: int) -> list["Batch"]:
        """The lanes in `n` equal parts, as views; means over one count by the rows of all."""
        if n == 1:
            return [self]
        size = self.starts.shape[2] // n
        return [self._lanes_from(k * size, size) for k in range(n)]

    def _lanes_from(self, start: int, size: int) -> "Batch":
        part = self.map(lambda x: x.narrow(2, start, size), lambda x: x.narrow(1, start, size))
        roles = {
            name: replace(role, count=self.roles[name].count) for name, role in part.roles.items()
        }
        return replace(part, roles=roles)


def members_first(members: int) -> Change:
    """Turns `[T, L, ...]` into `[P, T, N, ...]`: a view for one member, one copy for more."""

    def turn(x: Tensor) -> Tensor:
        T, L = x.shape[:2]
        return x.view(T, members, L // members, *x.shape[2:]).movedim(1, 0).contiguous()

    return turn


def make_batch(rollout: Rollout, members: int, advantage: dict[str, Tensor]) -> Batch:
    """The rollout with advantages `[T, L, A]`, members first and advantages as they are."""
    by_lane = Batch(
        roles={
            name: RoleBatch(
                obs=rows.obs,
                action=rows.action,
                log_prob=rows.log_prob,
                value=rows.value,
                advantage=advantage[name],
                target=advantage[name] + rows.value,
                weight=rows.obs.acts.to(rows.value.dtype),
                memory=rollout.memory[name],
                count=rollout.elapsed.new_empty(members),  # counted where members come first
            )
            for name, rows in rollout.roles.items()
        },
        state=rollout.critic,
        starts=rollout.starts,
    )
    return by_lane.map(members_first(members), lambda x: x.unflatten(0, (members, -1)))


def weighted_mean(x: Tensor, weight: Tensor, count: Tensor | None = None) -> Tensor:
    """The mean of x `[P, ...]` over everything but members, counting rows by `weight`.

    `count [P]` is their number if it is known, or that of more rows, of which these are a part.
    """
    count = weight.flatten(1).sum(dim=1) if count is None else count
    counted = torch.where(weight > 0, x * weight, 0.0)  # 0 * inf is no 0
    return counted.flatten(1).sum(dim=1) / count.clamp(min=1.0)  # [P]


def standardise(advantage: Tensor, counts: Tensor) -> Tensor:
    """Zero mean and unit deviation over time, lanes and agents of each member by itself."""
    weight = counts.to(advantage.dtype)
    lead = (-1,) + (1,) * (advantage.ndim - 1)
    centred = advantage - weighted_mean(advantage, weight).view(lead)
    deviation = weighted_mean(centred**2, weight).sqrt().view(lead)
    return centred / (deviation + 1e-8) * weight
