"""The sign of life of a run: one small file, replaced whole every few seconds."""

import json
import math
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from lockstep.run.jsonable import Json, decode, encode
from lockstep.run.pulse import View
from lockstep.run.rundir import RunDir, write_json

FORMAT = 1
FILE = "heartbeat.json"
HISTORY = "heartbeat.jsonl"
ENDED = ("finished", "stopped", "failed")
"""Phases of a last heartbeat."""

_SAME_START_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Process:
    """Which process beats; a number alone may have been given to another one since."""

    pid: int
    """Its number."""
    host: str
    """The machine it runs on."""
    started: float
    """When it started, in seconds since 1970; it shifts when the wall clock is set."""
    started_after_boot: float
    """The same since the machine was started, which no clock moves but a restart repeats."""

    @classmethod
    def number(cls, pid: int) -> "Process":
        """The process `pid` of this machine; psutil.NoSuchProcess if there is none."""
        started = psutil.Process(pid).create_time()
        return cls(
            pid=pid,
            host=platform.node(),
            started=started,
            started_after_boot=started - psutil.boot_time(),
        )

    def same(self, other: "Process") -> bool:
        """Whether both are one process: one of the two starting times agrees."""
        return (self.pid, self.host) == (other.pid, other.host) and (
            abs(self.started - other.started) < _SAME_START_S
            or abs(self.started_after_boot - other.started_after_boot) < _SAME_START_S
        )


@dataclass(frozen=True, kw_only=True)
class LastCheckpoint:
    """The newest checkpoint when the heart beat."""

    step: int
    """Environment steps of a member at that checkpoint."""
    seconds_ago: float
    """Its age."""


@dataclass(frozen=True, kw_only=True)
class Beat:
    """One heartbeat, as it stands in the file."""

    format: int
    """Number of this form."""
    time: str
    """When it was written: UTC, ISO 8601."""
    process: Process
    """Who wrote it."""
    phase: str
    """What the run is doing, or how it ended: finished, stopped, failed."""
    phase_s: float
    """Seconds in that phase."""
    idle_s: float
    """Seconds without any progress."""
    update: int
    """Updates made so far."""
    updates: int
    """Updates to make."""
    step: int
    """Environment steps of a member so far."""
    steps_per_s: float | None
    """Environment steps of all members per second, over the last updates."""
    eta_s: float | None
    """Seconds to the end at the present rate."""
    objective: str
    """The metric that members are compared by."""
    value: float | None
    """Its mean over members after the last update; null if that is not finite."""
    last_checkpoint: LastCheckpoint | None
    """The newest checkpoint of this process."""
    interval: float
    """Seconds between two heartbeats."""
    hang_after: float
    """Seconds without progress that count as a hang; 0 if none does."""
    alert: str | None
    """The last report of slow steps or of a hang."""

    @property
    def written(self) -> datetime:
        """The time of writing."""
        return datetime.fromisoformat(self.time)

    @classmethod
    def from_json(cls, data: Json) -> "Beat":
        """The heartbeat that `encode` wrote; ValueError says what does not fit."""
        if not isinstance(data, dict) or "format" not in data:
            raise ValueError("it is not a heartbeat")
        if data["format"] != FORMAT:
            raise ValueError(f"it has format {data['format']} and this version reads {FORMAT}")
        beat: Beat = decode(cls, data, "heartbeat")
        if beat.written.tzinfo is None:
            raise ValueError(f"heartbeat.time must name its time zone, got {beat.time}")
        return beat


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Heartbeat:
    """Writes the heartbeats of this process into a run folder."""

    def __init__(
        self,
        run: RunDir,
        *,
        interval: float,
        hang_after: float,
        objective: str,
        history: bool = False,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """`now` tells the time that stands in the file; nothing is computed from it."""
        self._file = run.folder / FILE
        self._history = run.folder / HISTORY if history else None
        self._interval, self._hang_after, self._objective = interval, hang_after, objective
        self._now = now
        self._process = Process.number(os.getpid())

    def beat(self, view: View, *, phase: str | None = None, alert: str | None = None) -> Beat:
        """Writes what `view` shows; `phase` overrides its phase at the end of a run."""
        beat = Beat(
            format=FORMAT,
            time=self._now().isoformat(timespec="milliseconds"),
            process=self._process,
            phase=phase or view.phase,
            phase_s=round(0.0 if phase else view.phase_s, 3),
            idle_s=round(view.idle_s, 3),
            update=view.update,
            updates=view.updates,
            step=view.step,
            steps_per_s=view.steps_per_s,
            eta_s=None if phase else view.eta_s,
            objective=self._objective,
            value=view.value if view.value is not None and math.isfinite(view.value) else None,
            last_checkpoint=LastCheckpoint(
                step=view.saved_step, seconds_ago=round(view.saved_s or 0.0, 3)
            )
            if view.saved_step is not None
            else None,
            interval=self._interval,
            hang_after=self._hang_after,
            alert=alert,
        )
        data = encode(beat)
        write_json(self._file, data, durable=False)
        if self._history is not None:
            line = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
            with self._history.open("ab") as file:
                file.write(line + b"\n")
        return beat
