"""The doctor beside a training: takes in each update, keeps findings.json, is never in its way."""

import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeAlias

from lockstep.run.doctor.findings import Finding
from lockstep.run.doctor.hints import WINDOW, Hints
from lockstep.run.doctor.log import START_UPDATES
from lockstep.run.lines import WHOLE, Row
from lockstep.run.rundir import RunDir, write_json

log = logging.getLogger(__name__)

Metrics: TypeAlias = dict[str, list[float]]
"""Key to one number for each member."""


class Attendant:
    """Lets `hints` look at a run that continues after `update`, as if it had never stopped.

    It belongs to the thread that records the run; only `findings` is for others. Whatever goes
    wrong with it is logged once and ends the hints: no doctor may cost a training.
    """

    def __init__(self, run: RunDir, hints: Hints, *, update: int) -> None:
        self._run, self._hints, self._start = run, hints, update
        self._said: list[Finding] | None = None
        self._new: SimpleQueue[Finding] = SimpleQueue()
        self._over = not hints.every

    def see(
        self,
        *,
        update: int,
        step: int,
        metrics: Mapping[str, Sequence[float]],
        perf: Mapping[str, float],
    ) -> None:
        """Takes in one update, which has been written."""
        if self._over:
            return
        try:
            if self._said is None:
                self._said = self._take_up()
            new = self._hints.see(update=update, step=step, metrics=metrics, perf=perf)
            self._said += new
            unsaid = update % self._hints.every == 0 and not self._run.findings.exists()
            if new or unsaid:
                self._write(self._said)
            for finding in new:
                self._new.put(finding)
        except Exception as error:
            self._over = True
            log.warning("the doctor failed and the run goes on without its hints: %r", error)

    def findings(self) -> tuple[Finding, ...]:
        """What is new since this was last asked; for any thread."""
        new = []
        try:
            while True:
                new.append(self._new.get_nowait())
        except Empty:
            return tuple(new)

    def _take_up(self) -> list[Finding]:
        """Has the hints know what they knew after the update that the run continues from."""
        said = [f for f in self._read() if f.update is not None and f.update <= self._start]
        if self._run.findings.exists():
            self._write(said)
        self._hints.repeat(said)
        for update, step, metrics, perf in _past(self._run, self._hints.members, self._start):
            self._hints.recall(update=update, step=step, metrics=metrics, perf=perf)
        return said

    def _read(self) -> tuple[Finding, ...]:
        if not self._run.findings.exists():
            return ()
        try:
            return Finding.all_from(json.loads(self._run.findings.read_bytes()))
        except ValueError as error:
            log.warning("findings.json cannot be read and is begun anew: %s", error)
            return ()

    def _write(self, findings: Sequence[Finding]) -> None:
        data = [finding.to_json() for finding in findings]
        write_json(self._run.findings, data, durable=False)


def _past(
    run: RunDir, members: int, until: int
) -> Iterator[tuple[int, int, Metrics, dict[str, float]]]:
    """Update, step, metrics and clock of the first updates and of the last, up to `until`."""
    clock = {row["update"]: row for row in _ends(run.perf, head=0, tail=WINDOW)}
    rows = _ends(run.metrics, head=START_UPDATES * members, tail=WINDOW * members)
    for update, pack in groupby(rows, key=lambda row: int(row["update"] or 0)):
        lines = list(pack)
        if update > until:
            return
        keys = [key for key in lines[0] if key not in WHOLE]
        metrics = {key: [_number(line[key]) for line in lines] for key in keys}
        times = {k: _number(x) for k, x in clock.get(update, {}).items() if k != "update"}
        yield update, int(lines[0]["step"] or 0), metrics, times


def _ends(path: Path, *, head: int, tail: int) -> list[Row]:
    """So many lines from the beginning of a file and from its end, without reading all others."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        first = list(islice(file, head))
        return [json.loads(line) for line in (*first, *deque(file, maxlen=tail))]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
