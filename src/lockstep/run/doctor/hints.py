"""The doctor's looks during training: a sliding window, and nothing said twice in it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lockstep.run.doctor.findings import Finding
from lockstep.run.doctor.log import START_UPDATES, Array, Facts, Log
from lockstep.run.doctor.rules import examine

WINDOW = 200
"""Updates a look goes back, and for which a finding is not repeated."""
MEMBERS_A_LOOK = 8
"""Members that one look examines; larger packs take turns, so that a look stays cheap."""


class Hints:
    """Fed with every update; every so often it looks and says what is new."""

    def __init__(
        self,
        *,
        every: int,
        seeds: Sequence[int],
        facts: Facts | None = None,
        score: str | None = None,
    ) -> None:
        """Looks every `every` updates, 0 never; `score` is the key members are compared by."""
        self.every, self.members = every, len(seeds)
        self.facts, self.score = facts or Facts(), score
        self._rows: deque[tuple[int, int, Mapping[str, Sequence[float]], Mapping[str, float]]]
        self._rows = deque(maxlen=WINDOW)
        self._start: list[Sequence[float]] = []
        self._from_the_start = False
        self._said: dict[tuple[str, str | None], int] = {}

    def see(
        self,
        *,
        update: int,
        step: int,
        metrics: Mapping[str, Sequence[float]],
        perf: Mapping[str, float],
    ) -> list[Finding]:
        """Takes in one update (metrics: key to one number for each member); what is new, if any."""
        if not self.every:
            return []
        self.recall(update=update, step=step, metrics=metrics, perf=perf)
        return self._look(update) if update % self.every == 0 else []

    def recall(
        self,
        *,
        update: int,
        step: int,
        metrics: Mapping[str, Sequence[float]],
        perf: Mapping[str, float],
    ) -> None:
        """Takes in an update that was looked at before the run was stopped."""
        self._from_the_start |= update == 1
        score = None if self.score is None else metrics.get(self.score)
        if self._from_the_start and len(self._start) < START_UPDATES and score is not None:
            self._start.append(score)
        self._rows.append((update, step, metrics, perf))

    def repeat(self, findings: Iterable[Finding]) -> None:
        """Takes these to have been said already, each at its update, the newest last."""
        self._said |= {(f.id, f.role): f.update for f in findings if f.update is not None}

    def _look(self, update: int) -> list[Finding]:
        count = min(self.members, MEMBERS_A_LOOK)
        # By the update, so that the turns of a resumed run are those of a straight one.
        turn = (update // self.every - 1) * count
        members = {(turn + i) % self.members for i in range(count)}
        found = examine(self._log(), members=sorted(members)).findings
        old = self._said
        new = [f for f in found if update - old.get((f.id, f.role), -WINDOW) >= WINDOW]
        new = [replace(finding, update=update) for finding in new]
        self.repeat(new)
        return new

    def _log(self) -> Log:
        """The window as columns."""
        updates = np.array([row[0] for row in self._rows], dtype=np.float64)
        metrics = [row[2] for row in self._rows]
        clock = [row[3] for row in self._rows]
        keys = dict.fromkeys(key for row in metrics for key in row)
        nothing = [np.nan] * self.members
        columns: dict[str, Array] = {
            key: np.array([row.get(key, nothing) for row in metrics], dtype=np.float64).T
            for key in keys
        }
        columns["step"] = np.tile([float(row[1]) for row in self._rows], (self.members, 1))
        broken = {
            key: ~np.isfinite(x) & np.array([key in row for row in metrics])
            for key, x in columns.items()
            if key in keys and not np.isfinite(x).all()
        }
        times = dict.fromkeys(key for row in clock for key in row)
        start = np.array(self._start, dtype=np.float64).T if self._start else None
        return Log(
            source="training",
            update=updates,
            columns=columns,
            broken=broken,
            perf={k: np.array([row.get(k, np.nan) for row in clock], dtype=float) for k in times},
            score=self.score if self.score in columns else None,
            score_start=start,
            facts=self.facts,
        )
