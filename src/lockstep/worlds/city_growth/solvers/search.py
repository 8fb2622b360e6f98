"""Solvers that compare whole sequences: all of them, or those a beam comes upon."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.errors import BadInput
from lockstep.worlds.city_growth.candidates import CandidateSet
from lockstep.worlds.city_growth.parties import require
from lockstep.worlds.city_growth.solvers.ranked import Worth, as_action, worth_of
from lockstep.worlds.city_growth.solvers.sequences import (
    Level,
    Plan,
    Pool,
    best,
    grown,
    nothing,
    plans,
    pools,
    trimmed,
)
from lockstep.worlds.city_growth.world import CityGrowth


@dataclass(frozen=True, kw_only=True)
class Exhaustive:
    """The best of all conflict-free sequences; refuses pools that have too many."""

    worth: Worth = "score"
    """What is made large."""
    most: int = 100_000
    """Sets of candidates it goes through at most, conflicts included."""

    def __call__(self, world: CityGrowth, role: str) -> Action:
        """Picks for every lane, one after another."""
        found = pools(*_looked(world, role, self.worth))
        return _chosen([best(pool, self.levels(pool, world.config.picks)) for pool in found], world)

    def levels(self, pool: Pool, picks: int) -> list[Level]:
        """Every set of up to `picks` candidates, by length."""
        count = n_sets(len(pool), picks)
        if count > self.most:
            raise BadInput(
                f"exhaustive goes through at most {self.most} sets of candidates, got {count} "
                f"(up to {picks} of {len(pool)}); use beam, or a smaller city"
            )
        levels = [nothing(pool)]
        for _ in range(picks):
            levels.append(grown(pool, levels[-1], once=True))
        return levels


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The best sequence that a beam finds, of any length: an early end competes too."""

    width: int = 16
    """Sets that are kept at each length."""
    expansions: int = 2_000
    """Candidates it appends to sequences in one turn at most."""
    worth: Worth = "score"
    """What is made large."""

    def __post_init__(self) -> None:
        require(self.width >= 1, "width", "must be at least 1", self.width)
        require(self.expansions >= 1, "expansions", "must be at least 1", self.expansions)

    def __call__(self, world: CityGrowth, role: str) -> Action:
        """Picks for every lane, one after another."""
        found = pools(*_looked(world, role, self.worth))
        return _chosen([best(pool, self.levels(pool, world.config.picks)) for pool in found], world)

    def levels(self, pool: Pool, picks: int) -> list[Level]:
        """What was kept at each length, from 0 on."""
        levels, left = [nothing(pool)], self.expansions
        for length in range(picks):
            # An equal part for each length: short sequences must not use up all of them.
            part = -(-left // (picks - length))
            more = grown(pool, levels[-1], at_most=part)
            left -= len(more)
            if not len(more):
                break
            # Sets, not orders: otherwise the beam fills with one set in all its orders.
            levels.append(trimmed(more, self.width))
        return levels


def stratified(pool: Pool, picks: int, *, each: int = 10) -> list[list[Plan]]:
    """The `each` best sequences of every length from 1, for the report.

    Exact where the pool is small enough to go through all; otherwise what a wide beam finds.
    """
    exact, wide = Exhaustive(), Beam(width=50, expansions=30_000)
    solver = exact if n_sets(len(pool), picks) <= exact.most else wide
    levels = solver.levels(pool, picks)
    return [plans(pool, level)[:each] for level in levels[1:]]


def n_sets(size: int, picks: int) -> int:
    """How many sets of up to `picks` of `size` candidates there are."""
    return sum(math.comb(size, length) for length in range(picks + 1))


def _looked(world: CityGrowth, role: str, by: Worth) -> tuple[CandidateSet, Tensor]:
    candidates = world.candidates(role)
    return candidates, worth_of(world, role, candidates, by)


def _chosen(found: list[Plan], world: CityGrowth) -> Action:
    picks = torch.zeros(len(found), world.config.picks, dtype=torch.int64)
    for lane, plan in enumerate(found):
        picks[lane, : len(plan.rows)] = torch.tensor(plan.rows, dtype=torch.int64) + 1
    return as_action(picks.to(world.device))
