"""Solvers that take the best candidate, and again the best of what it leaves open."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from lockstep.core.actions import Action
from lockstep.core.picks import PickSet
from lockstep.worlds.city_growth import economy
from lockstep.worlds.city_growth.candidates import CandidateSet
from lockstep.worlds.city_growth.world import CityGrowth

Worth: TypeAlias = Literal["score", "npv"]
"""What a candidate is worth: its score within the pool, or its income to the horizon less cost."""


def pool_score(world: CityGrowth, role: str, candidates: CandidateSet) -> Tensor:
    """Score `[L, C]` of each candidate within this month's pool, by the agent's weights."""
    universe = world.tables.universes[world.config.agent_names.index(role)]
    return economy.score(candidates.money, candidates.legal, universe.weight)


def net_value(candidates: CandidateSet) -> Tensor:
    """Income to the horizon less cost `[L, C]`, in thousand GBP."""
    return candidates.income * candidates.months_left.unsqueeze(-1) - candidates.cost


def worth_of(world: CityGrowth, role: str, candidates: CandidateSet, by: Worth) -> Tensor:
    """What each candidate is worth `[L, C]`."""
    return pool_score(world, role, candidates) if by == "score" else net_value(candidates)


def options_of(candidates: CandidateSet, picks: int) -> PickSet:
    """The choice set that a policy's picks obey, so that no solver can break its rules."""
    legal = pad(candidates.legal, (1, 0), value=True)
    cost = None if candidates.budget is None else candidates.cost * candidates.legal
    return PickSet(
        legal=legal, picks=picks, resource=candidates.slots, cost=cost, budget=candidates.budget
    )


def best_first(options: PickSet, worth: Tensor) -> Tensor:
    """Picks `[L, k]` by `worth` `[L, C]`, while something open is worth more than nothing."""
    value = pad(worth, (1, 0))  # to stop is worth 0, and it wins ties
    now, picks = options.first(), []
    for _ in range(options.picks):
        picks.append(value.masked_fill(~now.entries, -torch.inf).argmax(dim=-1))
        now = options.after(now, picks[-1])
    return torch.stack(picks, dim=-1)


def as_action(picks: Tensor) -> Action:
    """Picks `[L, k]` as the role's action."""
    return {"build": picks.unsqueeze(1)}


@dataclass(frozen=True, kw_only=True)
class Random:
    """Picks uniformly among the candidates and the stop, again after each pick."""

    def __call__(self, world: CityGrowth, role: str) -> Action:
        """Picks for every lane."""
        candidates = world.candidates(role)
        # Picking uniformly without replacement is going through one random order up to the stop.
        place = world.draw(f"heuristic/{role}").uniform(candidates.legal.shape[1] + 1)
        options = options_of(candidates, world.config.picks)
        return as_action(best_first(options, place[:, 1:] - place[:, :1]))


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Never builds."""

    def __call__(self, world: CityGrowth, role: str) -> Action:  # noqa: ARG002
        """Stops for every lane."""
        stop = torch.zeros(world.lanes, world.config.picks, dtype=torch.int64, device=world.device)
        return as_action(stop)


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """The most worthy candidates, as many as a turn allows, while they are worth something."""

    worth: Worth = "score"
    """What is made large."""

    def __call__(self, world: CityGrowth, role: str) -> Action:
        """Picks for every lane."""
        candidates = world.candidates(role)
        worth = worth_of(world, role, candidates, self.worth)
        return as_action(best_first(options_of(candidates, world.config.picks), worth))
