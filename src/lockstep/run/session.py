"""A run that is going on: one update after another, its files, its threads, its checkpoints."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lockstep.errors import BadInput
from lockstep.run import checkpoint, crash, memory
from lockstep.run.checkpoint import FORMAT, Counters
from lockstep.run.config import TrainConfig
from lockstep.run.doctor import Finding, Hints, facts_of
from lockstep.run.lines import TAIL_UPDATES
from lockstep.run.pulse import Pulse
from lockstep.run.record import Run, sign_of, summarize, tail_mean
from lockstep.run.rundir import RunDir, write_json
from lockstep.run.sinks import Record, Recorder
from lockstep.run.trainer import Trainer
from lockstep.run.vitals import Vitals

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What one update brought, for whoever watches."""

    update: int
    updates: int
    step: int
    metrics: Mapping[str, list[float]]
    """Metric key to one number for each member."""
    objective: str
    """The key that members are compared by."""
    seconds: float
    """Wall time of this update."""
    steps_per_s: float
    """Environment steps of all members per second, in this update."""
    findings: tuple[Finding, ...] = ()
    """What the doctor has said since the update before; it looks a little behind."""


OnUpdate = Callable[[Progress], None]


class Session:
    """Drives a trainer to the end of its run, or to a stop, and keeps the folder whole."""

    def __init__(self, run: RunDir, trainer: Trainer, pulse: Pulse, start: Counters | None) -> None:
        self.run, self.trainer, self.pulse, self.start = run, trainer, pulse, start
        self.config: TrainConfig = trainer.config
        spec = trainer.world.spec
        self.objective = f"world/{spec.objective}"
        self.best_by = self.config.best_by or self.objective
        self.best_sign = sign_of(self.best_by, spec)
        self.best_step = start.best_step if start else None
        self.best_value = start.best_value if start else None
        self.saved = start.update if start else -1
        self.pauses = {"perf/write_s": 0.0, "perf/checkpoint_s": 0.0}  # since the last update
        self.last: dict[str, list[float]] = {}

    def go(self, on_update: OnUpdate | None, stopped: Callable[[], bool]) -> Run:
        """Updates until the end, or until `stopped` says so after one of them.

        A failure leaves a report and the last checkpoint.
        """
        ops, start = self.config.ops, self.start
        with ExitStack() as stack:
            self.recorder = stack.enter_context(
                Recorder(
                    self.run,
                    self.config,
                    offset=start.metrics_bytes if start else 0,
                    update=start.update if start else 0,
                    step=start.step if start else 0,
                    hints=Hints(
                        every=ops.hints_every,
                        seeds=self.config.seeds,
                        facts=facts_of(self.config.to_json()),
                        score=self.objective,
                    ),
                )
            )
            self.vitals = stack.enter_context(
                Vitals(
                    self.run,
                    self.pulse,
                    ops,
                    device=self.trainer.world.device,
                    objective=self.objective,
                )
            )
            self.tail = self._tail()
            try:
                self._updates(on_update, stopped)
            except BaseException as error:
                self._broke_off(error)
                raise
            done = self.trainer.updates == self.config.updates
            self.vitals.end("finished" if done else "stopped")
        return self._finish()

    def _broke_off(self, error: BaseException) -> None:
        """Says how the run ended; a failure is reported, and if that fails too, it is logged."""
        if self._goes_on(error):
            self.vitals.end("start")
            return
        self.vitals.end("stopped" if isinstance(error, KeyboardInterrupt) else "failed")
        if not isinstance(error, Exception):
            return
        try:
            path = crash.write_report(self.run, error, self.trainer, self.last)
        except Exception as trouble:
            log.error(
                "%s failed, and its report could not be written: %r", self.run.folder, trouble
            )
        else:
            log.error("%s failed; the report is %s", self.run.folder, path)

    def _goes_on(self, error: BaseException) -> bool:
        """Whether the memory ladder has a rung below this one, on which the run is tried again."""
        return memory.lower(self.config, error, fresh=self.saved <= 0) is not None

    def _updates(self, on_update: OnUpdate | None, stopped: Callable[[], bool]) -> None:
        if self.start is None:
            self._checkpoint()  # from here on there is something to resume from
        while self.trainer.updates < self.config.updates and not stopped():
            progress = self._update()
            done = self.trainer.updates == self.config.updates
            if done or self.trainer.updates % self.config.checkpoint_every == 0:
                self._checkpoint()
            if on_update is not None:
                on_update(replace(progress, findings=self.recorder.findings()))
        if self.saved < self.trainer.updates:  # a stop at any point
            self._checkpoint()

    def _update(self) -> Progress:
        start = time.perf_counter()
        found = self.trainer.collect()
        learned = self.trainer.learn()
        metrics = _to_host(found) | _to_host(learned)
        seconds = time.perf_counter() - start
        self.pulse.enter("write")
        began = time.perf_counter()
        self.last = metrics
        update, step = self.trainer.updates, self.step
        rate = self.config.members * self.config.steps_per_update / seconds
        perf = self._perf(seconds, rate) | self.vitals.resources()
        self.recorder.put(
            Record(update=update, step=step, seeds=self.config.seeds, metrics=metrics, perf=perf)
        )
        own = self._value_of(metrics, self.best_by)
        self.tail.append(own if update > self.config.lessons else [math.nan] * len(own))
        value = float(np.mean(metrics[self.objective]))
        self.pulse.updated(update=update, step=step, rate=rate, value=value)
        self.pauses["perf/write_s"] = time.perf_counter() - began
        return Progress(
            update=update,
            updates=self.config.updates,
            step=step,
            metrics=metrics,
            objective=self.objective,
            seconds=seconds,
            steps_per_s=rate,
        )

    @property
    def step(self) -> int:
        """Environment steps of each member so far."""
        return self.trainer.updates * self.config.steps_per_update

    def _perf(self, seconds: float, rate: float) -> dict[str, float]:
        steps = self.config.members * self.config.steps_per_update
        spent = self.trainer.seconds
        perf = {"perf/update_s": seconds, "perf/steps_per_s": rate, **self.pauses}
        perf |= {f"perf/{name}_s": value for name, value in spent.items()}
        if "env" in spent:
            perf["perf/env_steps_per_s"] = steps / spent["env"]
            perf["perf/act_steps_per_s"] = steps / (spent["env"] + spent["act"])
        self.pauses = dict.fromkeys(self.pauses, 0.0)
        return perf

    def _tail(self) -> deque[list[float]]:
        """The last values by which checkpoints are compared; of a resumed run, from its file."""
        tail: deque[list[float]] = deque(maxlen=TAIL_UPDATES)
        if self.start is not None and self.start.update:
            curve = Run(self.run.folder).own_curve(self.best_by)[:, -TAIL_UPDATES:]  # [P, updates]
            tail.extend(curve.T.tolist())
        return tail

    def _value_of(self, metrics: Mapping[str, list[float]], key: str) -> list[float]:
        if key not in metrics:
            raise BadInput(f"best_by must be a metric of the run, got '{key}'")
        return metrics[key]

    def _checkpoint(self) -> None:
        began = time.perf_counter()
        self.pulse.enter("checkpoint")
        length = self.recorder.sync()
        if self.tail:
            value = float(np.mean(tail_mean(np.array(list(self.tail)).T)))
            best = self.best_value
            better = best is None or self.best_sign * value < self.best_sign * best
            if math.isfinite(value) and better:
                self.best_step, self.best_value = self.step, value
        counters = Counters(
            format=FORMAT,
            update=self.trainer.updates,
            step=self.step,
            metrics_bytes=length,
            best_step=self.best_step,
            best_value=self.best_value,
        )
        checkpoint.save(
            self.run.checkpoints,
            counters,
            self.trainer.state_dict(),
            keep=self.config.keep_checkpoints,
            owner=self.config.hash,
        )
        self.saved = self.trainer.updates
        self.pulse.saved(self.step)
        self.pauses["perf/checkpoint_s"] = time.perf_counter() - began

    def _finish(self) -> Run:
        run = Run(self.run.folder)
        if self.trainer.updates < self.config.updates:
            log.info("stop %s at update %d", self.run.folder, self.trainer.updates)
            return run
        step = checkpoint.pointed(self.run.checkpoints, "latest")
        assert step is not None
        state = checkpoint.digest_at(self.run.checkpoints, step)
        write_json(self.run.summary, summarize(run, updates=self.trainer.updates, state=state))
        log.info("finished %s", self.run.folder)
        return run


def accompany(trainer: Trainer, start: Counters | None, stopped: Callable[[], bool]) -> None:
    """Drives the trainer of a process after the first: a session without a folder.

    It must take part in whatever the first process's session asks all of them, in that order.
    """
    updates, every = trainer.config.updates, trainer.config.checkpoint_every
    saved = start.update if start else -1
    while True:
        due = trainer.updates == updates or trainer.updates % every == 0
        if saved < trainer.updates and (due or saved < 0):
            trainer.state_dict()
            saved = trainer.updates
        if trainer.updates == updates or stopped():
            break
        trainer.update()
    if saved < trainer.updates:
        trainer.state_dict()


def _to_host(found: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Metrics in one transfer; only here does an update wait for the device."""
    if not found:
        return {}
    stacked = torch.stack([x.detach().double() for x in found.values()]).tolist()
    return dict(zip(found, stacked, strict=True))
