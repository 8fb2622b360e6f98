"""A rollout as a learner reads it: members first, advantages and targets beside the rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.company import ALONE, Company
from lockstep.core.returns import Estimates, judged
from lockstep.core.rollout import Rollout
from lockstep.core.trees import mapped
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
    decided: Tensor  # 1 where the policy learns: the agent decided; 0 where it only waited
    judged: Tensor  # 1 where the critic learns: from the agent's first decision of an episode on
    memory: Tensor  # [P, N, A, Z] before the first row
    n_decided: Tensor  # [P] such rows of the whole minibatch, of which these may be a part
    n_judged: Tensor  # [P]

    def mean(self, x: Tensor) -> Tensor:
        """Mean of x over the minibatch's decisions, `[P]`; of a part of it, the part's share."""
        return weighted_mean(x, self.decided, self.n_decided)

    def map(self, rows: Change, memory: Change) -> "RoleBatch":
        """The same with `rows` applied to what has a time and `memory` to what has none."""
        decided = rows(self.decided)
        # Where every agent decides at every step the two are one tensor.
        judged = decided if self.judged is self.decided else rows(self.judged)
        return RoleBatch(
            obs=self.obs.map(rows),
            action=mapped(self.action, rows),
            log_prob=rows(self.log_prob),
            value=rows(self.value),
            advantage=rows(self.advantage),
            target=rows(self.target),
            decided=decided,
            judged=judged,
            memory=memory(self.memory),
            n_decided=_count(decided),
            n_judged=_count(judged),
        )

    def only(self, mine: Tensor) -> "RoleBatch":
        """The same rows, of which those of the lanes that are not `mine [P, N]` count nothing."""
        here = mine[:, None, :, None].to(self.decided.dtype)
        decided = self.decided * here
        judged = decided if self.judged is self.decided else self.judged * here
        return replace(
            self,
            advantage=self.advantage * here,
            decided=decided,
            judged=judged,
            n_decided=_count(decided),
            n_judged=_count(judged),
        )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """All rows of an update, or those of some of its lanes."""

    roles: dict[str, RoleBatch]
    state: Views  # view -> name -> [P, T, N, ...]
    starts: Tensor  # [P, T, N] bool
    scripted: bool = False  # whether the decisions are somebody else's, to be imitated
    stats: dict[str, Tensor] = field(default_factory=dict)  # metric key -> [P], of all rows
    rewards: dict[str, Moments] = field(default_factory=dict)  # by role, these rows included

    def map(self, rows: Change, memory: Change) -> "Batch":
        """The same with `rows` applied to what has a time and `memory` to what has none."""
        return replace(
            self,
            roles={name: role.map(rows, memory) for name, role in self.roles.items()},
            state=mapped(self.state, rows),
            starts=rows(self.starts),
        )

    def standardised(self, company: Company = ALONE) -> "Batch":
        """The same rows with each role's advantages standardised over those of all processes."""
        roles = {
            name: replace(role, advantage=standardise(role.advantage, role.decided, company))
            for name, role in self.roles.items()
        }
        return replace(self, roles=roles)

    def with_log_prob(self, log_prob: dict[str, Tensor]) -> "Batch":
        """The same rows, judged against other old log-probs `[P, T, N, A]`."""
        roles = {name: replace(role, log_prob=log_prob[name]) for name, role in self.roles.items()}
        return replace(self, roles=roles)

    def lanes(self, index: Tensor) -> "Batch":
        """The rows of lanes `index [P, n]`, each member's own choice."""
        if len(index) == 1:
            own = index[0]  # a selection is some times faster than indexing, and contiguous
            return self.map(lambda x: x.index_select(2, own), lambda x: x.index_select(1, own))
        member = torch.arange(index.shape[0], device=index.device).unsqueeze(-1)  # [P, 1]
        return self.map(
            lambda x: x.transpose(1, 2)[member, index].transpose(1, 2),  # [P, T, n, ...]
            lambda x: x[member, index],
        )

    def share(self, index: Tensor, company: Company) -> "Batch":
        """This process's rows of lanes `index [P, n]`, which number the lanes of all processes.

        How many of them lie here is chance and differs between members, so there is room for as
        many as there can be, and what is left over repeats some lane and counts nothing.
        """
        if company.size == 1:
            return self.lanes(index)
        lanes = self.starts.shape[2]
        own = index - company.index * lanes
        here = (own >= 0) & (own < lanes)  # [P, n]
        room = min(lanes, index.shape[1])
        first = (~here).to(torch.uint8).argsort(dim=1, stable=True)[:, :room]  # those here first
        found = self.lanes(own.gather(1, first).clamp(0, lanes - 1))
        mine = here.gather(1, first)
        return replace(found, roles={name: role.only(mine) for name, role in found.roles.items()})

    def parts(self, n: int) -> list["Batch"]:
        """The lanes in up to `n` parts, as views; means over one count by the rows of all.

        They are equal where `n` divides the lanes; otherwise the last is smaller.
        """
        if n == 1:
            return [self]
        lanes = self.starts.shape[2]
        size = -(-lanes // n)
        return [self._lanes_from(k, min(size, lanes - k)) for k in range(0, lanes, size)]

    def _lanes_from(self, start: int, size: int) -> "Batch":
        part = self.map(lambda x: x.narrow(2, start, size), lambda x: x.narrow(1, start, size))
        roles = {
            name: replace(
                role, n_decided=self.roles[name].n_decided, n_judged=self.roles[name].n_judged
            )
            for name, role in part.roles.items()
        }
        return replace(part, roles=roles)


def counted(batches: Sequence[Batch], company: Company) -> list[Batch]:
    """The same batches, their rows counted over all processes."""
    if company.size == 1:
        return list(batches)
    roles = [role for batch in batches for role in batch.roles.values()]
    own = torch.stack([x for role in roles for x in (role.n_decided, role.n_judged)])
    counts = iter(company.sum(own))
    return [
        replace(
            batch,
            roles={
                name: replace(role, n_decided=next(counts), n_judged=next(counts))
                for name, role in batch.roles.items()
            },
        )
        for batch in batches
    ]


def _count(weight: Tensor) -> Tensor:
    return weight.flatten(1).sum(dim=1)  # [P]


def split_lanes(x: Tensor, members: int, dim: int = 0) -> Tensor:
    """`[..., L, ...]` with its lanes at `dim` as `[..., P, N, ...]`: lanes are member-major."""
    split: Tensor = x.unflatten(dim, (members, -1))
    return split


def members_first(members: int) -> Change:
    """Turns `[T, L, ...]` into `[P, T, N, ...]`: a view for one member, one copy for more."""

    def turn(x: Tensor) -> Tensor:
        return split_lanes(x, members, dim=1).movedim(1, 0).contiguous()

    return turn


def make_batch(
    rollout: Rollout, members: int, estimates: dict[str, Estimates], *, every_step: bool
) -> Batch:
    """The rollout with its estimates `[T, L, A]`, members first and advantages as they are."""
    uncounted = rollout.elapsed.new_empty(members)  # rows are counted where members come first
    roles = {}
    for name, rows in rollout.roles.items():
        acts = rows.obs.acts
        decided = acts.to(rows.value.dtype)
        learns = decided
        if not every_step:
            ends = (rollout.terminated, rollout.truncated)
            learns = judged(acts, *(x.unsqueeze(-1).expand_as(acts) for x in ends)).to(decided)
        roles[name] = RoleBatch(
            obs=rows.obs,
            action=rows.action,
            log_prob=rows.log_prob,
            value=rows.value,
            advantage=estimates[name].advantage,
            target=estimates[name].target,
            decided=decided,
            judged=learns,
            memory=rollout.memory[name],
            n_decided=uncounted,
            n_judged=uncounted,
        )
    by_lane = Batch(
        roles=roles, state=rollout.critic, starts=rollout.starts, scripted=rollout.scripted
    )
    return by_lane.map(members_first(members), lambda x: split_lanes(x, members))


def weighted_mean(x: Tensor, weight: Tensor, count: Tensor | None = None) -> Tensor:
    """The mean of x `[P, ...]` over everything but members, counting rows by `weight`.

    `count [P]` is their number if it is known, or that of more rows, of which these are a part.
    """
    count = _count(weight) if count is None else count
    counted = torch.where(weight > 0, x * weight, 0.0)  # 0 * inf is no 0
    return counted.flatten(1).sum(dim=1) / count.clamp(min=1.0)  # [P]


def standardise(advantage: Tensor, counts: Tensor, company: Company = ALONE) -> Tensor:
    """Zero mean and unit deviation over time, lanes and agents of each member by itself.

    Lanes are those of all processes.
    """
    weight = counts.to(advantage.dtype)
    count = company.sum(_count(weight))
    lead = (-1,) + (1,) * (advantage.ndim - 1)

    def mean(x: Tensor) -> Tensor:
        return company.sum(weighted_mean(x, weight, count)).view(lead)

    centred = advantage - mean(advantage)
    deviation = mean(centred**2).sqrt()
    return centred / (deviation + 1e-8) * weight
