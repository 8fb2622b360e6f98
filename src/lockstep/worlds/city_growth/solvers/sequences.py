"""Sets of candidates that one turn can hold, grown by one candidate at a time; one lane each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.worlds.city_growth.candidates import CandidateSet

Ints: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The K candidates of one lane, most worthy first."""

    row: Ints  # [K] place in the candidate set
    worth: Reals  # [K]
    cost: Reals  # [K]
    budget: float
    """What the turn may spend; infinite under soft debt."""
    clash: Flags  # [K, K]: whether two share a slot; each does with itself

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, kw_only=True)
class Level:
    """S sequences of the same length."""

    member: Ints  # [S, length] places in the pool, in the order picked
    total: Reals  # [S]
    open: Flags  # [S, K]: what may follow without a conflict
    left: Reals  # [S] of the budget

    def __len__(self) -> int:
        return len(self.total)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One sequence and what it is worth."""

    rows: tuple[int, ...]
    """Places in the candidate set, most worthy first."""
    total: float


def pools(candidates: CandidateSet, worth: Tensor) -> list[Pool]:
    """The pool of each lane; `worth` is `[L, C]`."""
    legal, slots = candidates.legal.cpu().numpy(), candidates.slots.cpu().numpy()
    value, cost = worth.double().cpu().numpy(), candidates.cost.double().cpu().numpy()
    budget = None if candidates.budget is None else candidates.budget.double().cpu().numpy()
    return [
        _pool(
            legal[lane],
            slots[lane],
            value[lane],
            cost[lane],
            math.inf if budget is None else float(budget[lane]),
        )
        for lane in range(len(legal))
    ]


def _pool(legal: Flags, slots: Ints, value: Reals, cost: Reals, budget: float) -> Pool:
    row = np.flatnonzero(legal)
    row = row[np.argsort(-value[row], kind="stable")]
    place = slots[row]  # [K, R]
    same = place[:, None, :, None] == place[None, :, None, :]
    clash = (same & (place >= 0)[:, None, :, None]).any(axis=(2, 3))
    return Pool(row=row, worth=value[row], cost=cost[row], budget=budget, clash=clash)


def nothing(pool: Pool) -> Level:
    """The empty sequence, from which all others grow."""
    return Level(
        member=np.zeros((1, 0), dtype=np.int64),
        total=np.zeros(1),
        open=np.ones((1, len(pool)), dtype=bool),
        left=np.full(1, pool.budget),
    )


def grown(pool: Pool, level: Level, *, once: bool = False, at_most: int | None = None) -> Level:
    """The sequences of `level` with one more candidate.

    `once` leaves out those whose set another order gives as well. `at_most` limits their number:
    every old sequence gets an equal part of it for the most worthy candidates.
    """
    able = level.open & (pool.cost <= level.left[:, None])
    if once and level.member.shape[1]:
        able &= np.arange(len(pool)) > level.member[:, -1:]
    if at_most is not None:
        able &= able.cumsum(axis=1) <= max(1, at_most // len(level))
    old, new = np.nonzero(able)
    old, new = old[:at_most], new[:at_most]
    return Level(
        member=np.concatenate((level.member[old], new[:, None]), axis=1),
        total=level.total[old] + pool.worth[new],
        open=level.open[old] & ~pool.clash[new],
        left=level.left[old] - pool.cost[new],
    )


def trimmed(level: Level, width: int) -> Level:
    """The `width` best of different sets; of equal ones the first."""
    kept: dict[frozenset[int], int] = {}
    for i in np.argsort(-level.total, kind="stable"):
        kept.setdefault(frozenset(level.member[i].tolist()), int(i))
        if len(kept) == width:
            break
    index = np.array(list(kept.values()), dtype=np.int64)
    return Level(
        member=level.member[index],
        total=level.total[index],
        open=level.open[index],
        left=level.left[index],
    )


def plans(pool: Pool, level: Level) -> list[Plan]:
    """The sequences of a level, best first."""
    order = np.argsort(-level.total, kind="stable")
    return [
        Plan(rows=tuple(pool.row[np.sort(level.member[i])].tolist()), total=float(level.total[i]))
        for i in order
    ]


def best(pool: Pool, levels: Sequence[Level]) -> Plan:
    """The best sequence of any length; of equal ones the shorter."""
    contenders = [(level, int(level.total.argmax())) for level in levels if len(level)]
    level, i = max(contenders, key=lambda found: found[0].total[found[1]])
    rows = pool.row[np.sort(level.member[i])]
    return Plan(rows=tuple(rows.tolist()), total=float(level.total[i]))
