"""One thread beside a run that beats, watches for slow steps and hangs, and samples resources."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import torch

from lockstep.run.config import Operations
from lockstep.run.heartbeat import ENDED, FILE, Heartbeat
from lockstep.run.pulse import Pulse
from lockstep.run.resources import Resources, gauge_for
from lockstep.run.rundir import RunDir
from lockstep.run.stacks import Hangs, SlowSteps, write_stacks

log = logging.getLogger(__name__)

JOIN_S = 2.0
"""How long a run waits at its end for the last heartbeat."""

_SHORTEST_WAIT_S = 0.005


@dataclass
class _Part:
    """One of the thread's duties."""

    name: str
    make: Callable[[], Callable[[], float]]
    """Builds what does the duty and returns the seconds until it is due again."""
    every: float
    """Seconds after which one that failed is tried again."""
    due: float = 0.0
    act: Callable[[], float] | None = None
    warned: bool = False

    def run(self) -> None:
        """Does the duty; the first failure is told, and none goes further."""
        wait = self.every
        try:
            if self.act is None:
                self.act = self.make()
            wait = self.act()
        except Exception as error:  # whatever it is, the run and the other parts go on
            if not self.warned:
                log.warning("%s failed and the run goes on: %r", self.name, error)
            self.warned = True
        self.due = time.monotonic() + max(wait, _SHORTEST_WAIT_S)


class Vitals:
    """Watches a run from entering to leaving the context; nothing in it touches the results.

    On leaving, the last heartbeat says how the run ended: what `end` was told, otherwise `failed`
    after an exception, `finished` after all updates, `stopped` before or by an interrupt.
    """

    def __init__(
        self,
        run: RunDir,
        pulse: Pulse,
        ops: Operations,
        *,
        device: torch.device | str,
        objective: str,
    ) -> None:
        self._run, self._pulse, self._ops = run, pulse, ops
        self._device, self._objective = str(device), objective
        self._alert: str | None = None
        self._ending: str | None = None
        self._sample: dict[str, float] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        pulse.keep(ops.slow_of)

    def resources(self) -> dict[str, float]:
        """The newest sample of resources; empty if it has been handed out already."""
        sample, self._sample = self._sample, {}
        return sample

    def end(self, phase: str) -> None:
        """Says how the run ended: finished, stopped or failed; or `start` if it begins anew."""
        if phase not in (known := (*ENDED, "start")):
            raise ValueError(f"phase must be one of {', '.join(known)}, got '{phase}'")
        self._ending = phase

    def __enter__(self) -> "Vitals":
        if not self._ops.heartbeat_every:
            # One that an earlier process left would tell of this one what is not so.
            (self._run.folder / FILE).unlink(missing_ok=True)
        if parts := self._parts():
            self._thread = threading.Thread(
                target=self._live, args=(parts,), name="vitals", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del error, trace
        self._ending = self._ending or self._outcome(kind)
        self._over.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                log.warning("the last heartbeat could not be written within %g s", JOIN_S)

    def _outcome(self, kind: type[BaseException] | None) -> str:
        if kind is not None:
            return "failed" if issubclass(kind, Exception) else "stopped"
        view = self._pulse.view()
        return "finished" if view.update >= view.updates else "stopped"

    def _live(self, parts: dict[str, _Part]) -> None:
        """The thread: does each part when it is due, and at the end beats once more."""
        while not self._over.is_set():
            now = time.monotonic()
            for part in parts.values():
                if part.due <= now:
                    part.run()
            due = min(part.due for part in parts.values())
            self._over.wait(max(due - time.monotonic(), _SHORTEST_WAIT_S))
        if "heart" in parts:
            parts["heart"].run()

    def _parts(self) -> dict[str, _Part]:
        ops, parts = self._ops, {}
        if ops.slow_step or ops.hang_after:
            parts["watch"] = _Part("the watch for slow steps and hangs", self._watching, 5.0)
        if ops.heartbeat_every:
            parts["heart"] = _Part("the heartbeat", self._beating, ops.heartbeat_every)
        if ops.resources_every:
            parts["resources"] = _Part("sampling resources", self._sampling, ops.resources_every)
        return parts

    def _beating(self) -> Callable[[], float]:
        heartbeat = Heartbeat(
            self._run,
            interval=self._ops.heartbeat_every,
            hang_after=self._ops.hang_after,
            objective=self._objective,
            history=self._ops.heartbeat_history,
        )

        def beat() -> float:
            phase = self._ending if self._over.is_set() else None
            heartbeat.beat(self._pulse.view(), phase=phase, alert=self._alert)
            return self._ops.heartbeat_every

        return beat

    def _watching(self) -> Callable[[], float]:
        ops = self._ops
        rules: list[SlowSteps | Hangs] = []
        if ops.slow_step:
            rules.append(
                SlowSteps(
                    limit=ops.slow_step, count=ops.slow_count, of=ops.slow_of, every=ops.slow_every
                )
            )
        if ops.hang_after:
            rules.append(Hangs(after=ops.hang_after))

        def watch() -> float:
            view = self._pulse.view()
            for alarm in filter(None, [rule.look(view) for rule in rules]):
                self._alert = alarm.message  # told even if the stacks cannot be written
                path = write_stacks(self._run, alarm, view)
                self._alert = f"{alarm.message}; stacks in {path.relative_to(self._run.folder)}"
                log.warning("%s: %s", self._run.folder, self._alert)
            return min(rule.next_look(view) for rule in rules)

        return watch

    def _sampling(self) -> Callable[[], float]:
        resources = Resources(gauge_for(self._device))
        first = True

        def sample() -> float:
            nonlocal first
            if first:  # the use of the processor needs a while to be measured over
                first = False
                return min(1.0, self._ops.resources_every)
            self._sample = resources.sample()
            return self._ops.resources_every

        return sample
