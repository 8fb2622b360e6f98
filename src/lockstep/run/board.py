"""TensorBoard events, under the tags that readers of SB3 and CleanRL logs look for."""

import io
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.errors import needs_extra
from lockstep.run.config import TrainConfig
from lockstep.run.lines import Number, write_all
from lockstep.run.metrics import ALIASES, role_in
from lockstep.run.rundir import writing
from lockstep.run.sinks import Record

MOST_MEMBERS = 16
"""In a larger pack only the mean over its members is written."""

Scalars = list[tuple[str, float]]


class Tag(NamedTuple):
    """A TensorBoard tag and what is written under it: `factor` times the mean of some numbers."""

    name: str
    sources: tuple[int, ...]  # places among the keys
    factor: float


def tags(keys: Sequence[str]) -> tuple[Tag, ...]:
    """What is written for these keys: SB3's tags, CleanRL's, and keys that neither covers.

    The other libraries know one role. Where a world has several, their tags hold the mean over the
    roles, and each role's number stands under our key.
    """
    found: list[Tag] = []
    covered: set[int] = set()
    for alias in ALIASES:
        places = tuple(i for i, key in enumerate(keys) if role_in(key, alias.key) is not None)
        if not places:
            continue
        found.append(Tag(alias.sb3, places, alias.sb3_factor))
        if alias.cleanrl is not None:
            found.append(Tag(alias.cleanrl, places, 1.0))
        if len(places) == 1:
            covered.update(places)
    own = (Tag(key, (i,), 1.0) for i, key in enumerate(keys) if i not in covered)
    return (*found, *own)


class Board:
    """Writes each record for every member (`seed-<seed>`) and for the mean over them (`mean`).

    The axis is the environment steps of a member. What depends on the clock concerns the pack as a
    whole and goes to `mean`, or to the only member. A number that is not finite is left out, and so
    is a mean over members of whom one lacks it. When a run is resumed at `step`, a mark tells
    TensorBoard to forget what was written after it.
    """

    def __init__(self, folder: Path, config: TrainConfig, *, step: int = 0) -> None:
        members, self._events = config.members, load()
        text = started(config)

        def log(name: str) -> _Log:
            return _Log(folder / name, self._events, step=step, text=text)

        each = members <= MOST_MEMBERS
        self._members = [log(config.member_name(i)) for i in range(config.members)] if each else []
        self._mean = log("mean") if members > 1 else None
        clip = None if "clip_ratio" in config.varied("learner") else _clip(config)
        self._constants: Scalars = [] if clip is None else [("train/clip_range", clip)]
        self._keys: tuple[str, ...] = ()
        self._tags: tuple[Tag, ...] = ()
        self._logs = [*self._members, *([self._mean] if self._mean else [])]

    def write(self, record: Record) -> None:
        """Adds the scalars of one update."""
        keys = ("step", "update", *record.metrics)
        if keys != self._keys:
            self._keys, self._tags = keys, tags(keys)
        head = (record.step, record.update)
        rows = list(zip(*record.metrics.values(), strict=True)) or [()] * len(record.seeds)
        pack = [*self._constants, *_scalars(tags(tuple(record.perf)), tuple(record.perf.values()))]
        for log, row in zip(self._members, rows, strict=False):
            own = self._constants if self._mean else pack
            log.add(record.step, [*own, *_scalars(self._tags, (*head, *row))])
        if self._mean is not None:
            mean = [sum(values) / len(values) for values in record.metrics.values()]
            self._mean.add(record.step, [*pack, *_scalars(self._tags, (*head, *mean))])

    def sync(self) -> None:
        """Makes everything durable."""
        for log in self._logs:
            log.sync()

    def close(self) -> None:
        """Closes the files."""
        for log in self._logs:
            log.close()


def load() -> Any:
    """TensorBoard's own messages and record format; MissingExtra where it is not installed."""
    with needs_extra("board"):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

    class Events:
        Event, SessionLog = event_pb2.Event, event_pb2.SessionLog
        Summary, Records, text = summary_pb2.Summary, RecordWriter, staticmethod(text_pb)

    return Events


def started(config: TrainConfig) -> str:
    """What a run was asked to do, as Markdown."""
    head = {
        "world": f"{config.world.name} {config.scenario}".strip(),
        "learner": config.algorithm or config.learner.kind,
        "seeds": ", ".join(map(str, config.seeds)),
        "steps": config.total_steps,
        "config hash": config.hash,
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in head.items())
    settings = json.dumps(config.to_json(), indent=2).replace("\n", "\n    ")
    return f"| started | |\n|---|---|\n{rows}\n\n    {settings}\n"


class _Log:
    """One event file. Its name counts the starts of the run, so that no clock decides the order."""

    def __init__(self, folder: Path, events: Any, *, step: int, text: str) -> None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            before = len(list(folder.glob("events.out.tfevents.*")))
            self._path = folder / f"events.out.tfevents.{before:010d}.lockstep"
            self._file = self._path.open("xb", buffering=0)
        self._events = events
        self._write(file_version="brain.Event:2")
        if before:
            again = events.SessionLog(status=events.SessionLog.START)
            self._write(step=step + 1, session_log=again)
        else:
            self._write(step=step, summary=events.text("meta/started", text))

    def add(self, step: int, scalars: Scalars) -> None:
        """Adds one event with many scalars."""
        Value = self._events.Summary.Value
        values = [Value(tag=tag, simple_value=x) for tag, x in scalars]
        self._write(step=step, summary=self._events.Summary(value=values))

    def _write(self, **fields: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **fields)
        record = io.BytesIO()
        self._events.Records(record).write(event.SerializeToString())
        with writing(self._path):
            write_all(self._file, record.getvalue())

    def sync(self) -> None:
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _scalars(found: Iterable[Tag], values: Sequence[Number]) -> Scalars:
    scalars = []
    for name, sources, factor in found:
        x = factor * sum(values[i] for i in sources) / len(sources)
        if x - x == 0:  # finite
            scalars.append((name, x))
    return scalars


def _clip(config: TrainConfig) -> float | None:
    clip = getattr(config.learner, "clip_ratio", None)
    return None if clip is None else float(clip)
