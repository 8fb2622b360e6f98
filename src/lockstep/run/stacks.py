"""Stacks of all threads, written while a run hangs or its steps are slow."""

import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Literal

from lockstep.run.pulse import View
from lockstep.run.rundir import RunDir

FOLDER = "stacks"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """Something worth the stacks of all threads."""

    kind: Literal["slow", "hang"]
    """The rule that found it; it names the file."""
    message: str
    """What was found, in words."""


class SlowSteps:
    """`count` of the last `of` steps took more than `limit` seconds, the one going on among them.

    It answers only while a slow step goes on, so that the stacks show it, and once in `every`
    seconds.
    """

    def __init__(self, *, limit: float, count: int, of: int, every: float) -> None:
        self._limit, self._count, self._of, self._every = limit, count, of, every
        self._last: float | None = None

    def look(self, view: View) -> Alarm | None:
        """The alarm that `view` gives, if any."""
        if view.step_s is None or view.step_s <= self._limit or self._rests(view.at) > 0:
            return None
        ended = view.step_durations[-(self._of - 1) :] if self._of > 1 else ()
        slow = 1 + sum(seconds > self._limit for seconds in ended)
        if slow < self._count:
            return None
        self._last = view.at
        return Alarm(
            kind="slow",
            message=f"{slow} of the last {len(ended) + 1} steps took more than {self._limit:g} s; "
            f"the one going on has taken {view.step_s:.1f} s",
        )

    def next_look(self, view: View) -> float:
        """Seconds after which to look again, so that no slow step ends unseen.

        Half the limit falls into every step that will be slow; from there the instant at which
        it becomes slow is known.
        """
        if view.step_s is None or view.step_s > self._limit:
            return max(self._limit / 2, self._rests(view.at))
        return max(min(self._limit / 2, self._limit - view.step_s), self._rests(view.at))

    def _rests(self, at: float) -> float:
        return 0.0 if self._last is None else self._last + self._every - at


class Hangs:
    """Nothing has moved for `after` seconds; one alarm for each time that this happens."""

    def __init__(self, *, after: float) -> None:
        self._after = after
        self._reported: float | None = None

    def look(self, view: View) -> Alarm | None:
        """The alarm that `view` gives, if any."""
        if view.idle_s <= self._after:
            return None
        # One instant of the last progress is computed anew in each view, hence the tolerance.
        if self._reported is not None and view.moved_at - self._reported < 1e-3:
            return None
        self._reported = view.moved_at
        return Alarm(
            kind="hang",
            message=f"nothing has moved for {view.idle_s:.1f} s in phase {view.phase}, which "
            f"began {view.phase_s:.1f} s ago",
        )

    def next_look(self, view: View) -> float:
        """Seconds after which to look again: when the present silence would be a hang."""
        if view.idle_s > self._after:
            return self._after / 2
        return self._after - view.idle_s


def write_stacks(run: RunDir, alarm: Alarm, view: View) -> Path:
    """Writes `stacks/<kind>-<n>.txt` with the first n that is free; its path."""
    text = "".join(_report(alarm, view))
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    n = 1
    while (folder / f"{alarm.kind}-{n}.txt").exists():
        n += 1
    path = folder / f"{alarm.kind}-{n}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def _report(alarm: Alarm, view: View) -> Iterator[str]:
    frames = sys._current_frames()  # first of all: the stacks of this instant
    yield f"{alarm.message}\n\n"
    yield f"time    {datetime.now(UTC).isoformat(timespec='milliseconds')}\n"
    yield f"pid     {os.getpid()}\n"
    yield f"phase   {view.phase}, for {view.phase_s:.1f} s\n"
    yield f"update  {view.update} of {view.updates}, step {view.step}\n"
    recent = ", ".join(f"{seconds:.3g}" for seconds in view.step_durations[-10:])
    yield f"steps   {recent or 'none'} (seconds, the newest last)\n"
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, here = threading.main_thread().ident, threading.get_ident()
    order = sorted(frames, key=lambda ident: (ident != main, ident == here, ident))
    for ident in order:
        yield f"\nthread {names.get(ident, 'without a name')} ({ident}), innermost call last\n"
        yield from _stack(frames[ident])


def _stack(frame: FrameType) -> list[str]:
    return traceback.format_stack(frame)
