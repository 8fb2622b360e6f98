"""Where a run stands, told by its loop in passing and read by the thread that watches it."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 8
"""Updates over which rates are taken."""

STEPPING = "collect"
"""The phase that is made of steps."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A run at one instant; every age is in seconds and never negative."""

    phase: str
    """What the loop is doing: start, collect, learn, write, checkpoint."""
    phase_s: float
    """Since when."""
    idle_s: float
    """How long nothing has been told: no step, no phase, no update."""
    step_s: float | None
    """Age of the environment step going on; None outside collecting."""
    step_durations: tuple[float, ...]
    """Seconds of the last steps that ended, the newest last."""
    update: int
    """Updates made so far."""
    updates: int
    """Updates the run is to make."""
    step: int
    """Environment steps of a member so far."""
    steps_per_s: float | None
    """Environment steps of all members per second over the last updates; None before the first."""
    updates_per_s: float | None
    """Updates per second over the last ones, writing and checkpoints included."""
    value: float | None
    """The objective after the last update, mean over members; None before the first."""
    saved_step: int | None
    """Step of the last checkpoint; None before the first."""
    saved_s: float | None
    """Its age."""
    at: float
    """The monotonic clock at this instant."""

    @property
    def moved_at(self) -> float:
        """The monotonic clock when the run last told something."""
        return self.at - self.idle_s

    @property
    def eta_s(self) -> float | None:
        """Seconds to the end at the present rate; None while there is none."""
        left = max(0, self.updates - self.update)
        if left == 0:
            return 0.0
        return left / self.updates_per_s if self.updates_per_s else None


class Pulse:
    """What the loop tells of itself.

    Telling costs the loop some hundred nanoseconds and takes no lock: what belongs together is one
    tuple, replaced in one assignment, so a reader sees the old one or the new one. Only the
    monotonic clock is read, so no change of the wall clock can bend a rate or an age.
    """

    __slots__ = ("_clock", "_done", "_mark", "_phase", "_saved", "_steps", "_times", "updates")

    def __init__(
        self,
        *,
        updates: int,
        update: int = 0,
        step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A run of `updates`, taken up after `update` of them."""
        self.updates = updates
        self._clock = clock
        now = clock()
        self._mark = now
        self._phase = ("start", now)
        self._done: tuple[int, int, float | None] = (update, step, None)
        self._saved: tuple[int, float] | None = None
        self._steps: deque[float] = deque(maxlen=100)
        self._times: deque[tuple[float, float]] = deque(maxlen=WINDOW + 1)

    def keep(self, steps: int) -> None:
        """Remembers the durations of that many steps."""
        self._steps = deque(self._steps, maxlen=steps)

    def enter(self, phase: str) -> None:
        """The loop begins `phase`."""
        self._mark = now = self._clock()
        self._phase = (phase, now)
        if phase == STEPPING and not self._times:
            self._times.append((now, math.nan))

    def step(self) -> None:
        """One more environment step has been collected."""
        now = self._clock()
        self._steps.append(now - self._mark)
        self._mark = now

    def updated(self, *, update: int, step: int, rate: float, value: float) -> None:
        """An update is done; `rate` in environment steps of all members per second of it."""
        self._mark = now = self._clock()
        self._done = (update, step, value)
        self._times.append((now, rate))

    def saved(self, step: int) -> None:
        """The checkpoint of `step` is on disk."""
        self._mark = now = self._clock()
        self._saved = (step, now)

    def view(self) -> View:
        """The run now, for any thread."""
        # The phase before the mark, as the writer sets the mark before the phase: a step is never
        # taken to have begun before its phase.
        phase, since = self._phase
        mark, saved = self._mark, self._saved
        update, step, value = self._done
        times = tuple(self._times.copy())
        # Read last: whatever was told is older than this, so no age can be negative.
        now = self._clock()
        idle = max(0.0, now - mark)
        return View(
            phase=phase,
            phase_s=max(0.0, now - since),
            idle_s=idle,
            step_s=idle if phase == STEPPING else None,
            step_durations=tuple(self._steps.copy()),
            update=update,
            updates=self.updates,
            step=step,
            steps_per_s=_harmonic_mean([rate for _, rate in times]),
            updates_per_s=_frequency([at for at, _ in times]),
            value=value,
            saved_step=saved[0] if saved else None,
            saved_s=max(0.0, now - saved[1]) if saved else None,
            at=now,
        )


def _harmonic_mean(rates: list[float]) -> float | None:
    """The rate over updates of equal size that each had one of `rates`."""
    real = [rate for rate in rates if rate > 0 and math.isfinite(rate)]
    return len(real) / sum(1 / rate for rate in real) if real else None


def _frequency(times: list[float]) -> float | None:
    """Updates per second between the first and the last of `times`."""
    took = times[-1] - times[0] if times else 0.0
    return (len(times) - 1) / took if took > 0 else None
