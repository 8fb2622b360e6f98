"""A training's numbers as columns over its updates, whoever wrote them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

ROLE = "<role>"
SCORE = "score"
"""Stands for whatever column says how well the agents do."""
START_UPDATES = 10
"""The start of a training: the first updates, from whose score it has to get away."""
RECENT_UPDATES = 20
"""The present: the last updates, whose level is compared with the start."""
MOVED_BY = 3.0
"""Standard errors between start and present from which on the score counts as moved."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a training beside its numbers; None where its log does not say."""

    updates: int | None = None
    """Updates of the whole training."""
    minibatches: int | None = None
    """Minibatches of an update that is not stopped early."""
    device: str | None = None
    """`cpu` or `cuda`."""
    rewards_scaled: bool = False
    """Whether rewards are standardised before they are learned from."""


@dataclass(frozen=True, kw_only=True)
class Log:
    """Metrics of P members over U updates; NaN where nothing was written or it was no number."""

    source: str
    update: Array  # [U]
    columns: Mapping[str, Array]  # key -> [P, U]
    broken: Mapping[str, Flags] = field(default_factory=dict)  # key -> [P, U]: written, not finite
    perf: Mapping[str, Array] = field(default_factory=dict)  # key -> [V]
    score: str | None = None
    """The column that says how well the agents do: the world's objective, or the return."""
    score_start: Array | None = None  # [P, S]
    facts: Facts = Facts()
    unknown: tuple[str, ...] = ()
    """Columns of a foreign log that no rule knows."""

    @property
    def members(self) -> int:
        """P: how many learners the log is of."""
        return max((len(x) for x in self.columns.values()), default=0)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The middle names of `train/<role>/...`, in the order they were written."""
        parts = (key.split("/") for key in self.columns)
        return tuple(dict.fromkeys(p[1] for p in parts if len(p) == 3 and p[0] == "train"))

    def has(self, key: str) -> bool:
        """Whether the key, any key that begins like `prefix*`, or a `score`, was written."""
        if key == SCORE:
            return self.score in self.columns
        if key.endswith("*"):
            return any(name.startswith(key[:-1]) for name in self.columns)
        return key in self.columns or key in self.perf


@dataclass(frozen=True, kw_only=True)
class View:
    """What a rule sees: one member, one role, from after the warm-up on."""

    log: Log
    role: str | None
    member: int
    skip: int
    """Updates at the beginning that are left out."""

    def key(self, key: str) -> str:
        """The column's name: with the role put in, and that of the score."""
        if key == SCORE and self.log.score is not None:
            return self.log.score
        return key if self.role is None else key.replace(ROLE, self.role)

    def has(self, key: str) -> bool:
        """Whether there is such a column."""
        return self.log.has(key if key == SCORE else self.key(key))

    def reads(self, key: str) -> bool:
        """Whether there is such a column with a number in it, for keys that a rule can miss."""
        return self.has(key) and len(self.rows(key)[0]) > 0

    def rows(self, *keys: str) -> tuple[Array, ...]:
        """Update numbers and these columns, where all of them hold a number."""
        columns = [self.log.columns[self.key(key)][self.member] for key in keys]
        fit = self.log.update > self.skip
        for column in columns:
            fit = fit & np.isfinite(column)
        return (self.log.update[fit], *[column[fit] for column in columns])

    def perf(self, *keys: str) -> tuple[Array, ...]:
        """Columns of the clock, where all of them hold a number."""
        columns = [self.log.perf[key] for key in keys]
        fit = np.isfinite(np.stack(columns)).all(axis=0)
        return tuple(column[fit] for column in columns)

    @cached_property
    def moved(self) -> bool | None:
        """Whether the score is away from where it started; None while that cannot be told."""
        if self.log.score is None or self.log.score_start is None:
            return None
        start = self.log.score_start[self.member]
        start = start[np.isfinite(start)]
        update, score = self.rows(SCORE)
        if len(start) < START_UPDATES or len(score) < RECENT_UPDATES:
            return None
        if update[-RECENT_UPDATES] <= START_UPDATES:
            return None
        recent = score[-RECENT_UPDATES:]
        error = np.sqrt(start.var(ddof=1) / len(start) + recent.var(ddof=1) / len(recent))
        return bool(abs(recent.mean() - start.mean()) > MOVED_BY * error)


def first_of(update: Array, hit: Flags) -> int:
    """The first update at which `hit` is true."""
    return int(update[int(hit.argmax())])


def score_start(columns: Mapping[str, Array], score: str | None) -> Array | None:
    """The score of the first updates `[P, S]`, if the log has one."""
    if score is None or score not in columns:
        return None
    return np.stack([row[np.isfinite(row)][:START_UPDATES] for row in _even(columns[score])])


def _even(column: Array) -> Array:
    """Members that miss a number miss it together, so that their starts have one length."""
    return column[:, np.isfinite(column).all(axis=0)]
