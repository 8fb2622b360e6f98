"""The training loop: update, write, checkpoint; start, resume, stop."""

import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import Tensor

from lockstep.errors import BadInput, NotARun
from lockstep.run import checkpoint, manifest
from lockstep.run.checkpoint import FORMAT, Counters
from lockstep.run.config import TrainConfig
from lockstep.run.metrics import LineWriter
from lockstep.run.record import Run, summarize, tail_mean
from lockstep.run.rundir import RunDir, create, write_json
from lockstep.run.trainer import Trainer, arithmetic

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
    """The key that members are compared by; smaller is better."""
    seconds: float
    """Wall time of this update."""
    steps_per_s: float
    """Environment steps of all members per second, in this update."""


OnUpdate = Callable[[Progress], None]


def train(config: TrainConfig, folder: Path, *, on_update: OnUpdate | None = None) -> Run:
    """Trains from the beginning into a new folder.

    World and learner are built before the folder is made: settings that cannot work leave nothing
    behind. An interrupt (SIGINT) ends the run after the update in progress, with a checkpoint.
    """
    if folder.exists():
        create(folder)  # refuses
    with arithmetic(config):
        trainer = Trainer(config)
        run = create(folder)
        write_json(run.config, trainer.config.to_json())
        made_with = manifest.build(trainer.config, device=trainer.world.device)
        spec = trainer.world.spec
        made_with |= {
            "objective": spec.objective,
            "metrics": {m.name: {"unit": m.unit, "meaning": m.meaning} for m in spec.metrics},
        }
        write_json(run.manifest, made_with)
        log.info("start %s: %d updates", folder, trainer.config.updates)
        return _Loop(run, trainer, None).go(on_update)


def resume(folder: Path, *, on_update: OnUpdate | None = None, allow_new_code: bool = False) -> Run:
    """Continues a run from its latest checkpoint to its end; a finished one is left as it is.

    What was written after that checkpoint is cut off and made again, so a resumed run ends with
    the bytes of one that was never stopped. Code that has changed since would break that and is
    refused unless `allow_new_code`.
    """
    run = Run.open(folder)
    if run.finished:
        log.info("%s is finished", folder)
        return run
    config = run.config
    now = manifest.code_version(config.world)
    if now != run.manifest["code_version"] and not allow_new_code:
        raise BadInput(
            f"the code has changed since {folder} was started, so its numbers could not be those "
            "of one run; pass --allow-new-code to continue all the same"
        )
    with arithmetic(config):
        trainer = Trainer(config)
        step = checkpoint.newest(run.dir.checkpoints)
        counters = None
        if step is not None:
            counters, state = checkpoint.load(
                run.dir.checkpoints, step, device=trainer.world.device
            )
            _take_up(trainer, state, counters, folder)
        again = {"time": datetime.now(UTC).isoformat(), "step": step or 0, "code_version": now}
        write_json(
            run.dir.manifest,
            run.manifest | {"resumed_at": [*run.manifest["resumed_at"], again]},
        )
        log.info("resume %s at step %d", folder, step or 0)
        return _Loop(run.dir, trainer, counters).go(on_update)


def _take_up(trainer: Trainer, state: dict[str, object], counters: Counters, folder: Path) -> None:
    try:
        trainer.load_state_dict(state, updates=counters.update)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise NotARun(folder, f"its checkpoint does not fit its configuration: {error}") from error


class _Loop:
    """The files of a run that is going on."""

    def __init__(self, run: RunDir, trainer: Trainer, start: Counters | None) -> None:
        self.run, self.trainer, self.config = run, trainer, trainer.config
        self.lines = LineWriter(run.metrics, offset=start.metrics_bytes if start else 0)
        self.perf = LineWriter(run.perf)
        self.objective = f"world/{trainer.world.spec.objective}"
        self.saved = start.update if start else 0
        self.best_step = start.best_step if start else None
        self.best_value = start.best_value if start else None

    def go(self, on_update: OnUpdate | None) -> Run:
        """Updates until the end or an interrupt."""
        try:
            with _stop_on_interrupt() as stopped:
                while self.trainer.updates < self.config.updates and not stopped():
                    progress = self._update()
                    if self.trainer.updates % self.config.checkpoint_every == 0:
                        self._checkpoint()
                    if on_update is not None:
                        on_update(progress)
                if self.saved < self.trainer.updates:  # the end, or an interrupt at any point
                    self._checkpoint()
        finally:
            self.lines.close()
            self.perf.close()
        return self._finish()

    def _update(self) -> Progress:
        on_cpu = self.trainer.world.device.type == "cpu"
        start = time.perf_counter()
        found = self.trainer.collect()
        collected = time.perf_counter()
        learned = self.trainer.learn()
        metrics = _to_host(found) | _to_host(learned)
        seconds = time.perf_counter() - start
        rate = self.config.members * self.config.steps_per_update / seconds
        update = self.trainer.updates
        step = update * self.config.steps_per_update
        for member, seed in enumerate(self.config.seeds):
            where = {"update": update, "step": step, "member": member, "seed": seed}
            self.lines.write(where | {key: values[member] for key, values in metrics.items()})
        self.lines.flush()
        split = {"perf/collect_s": collected - start} if on_cpu else {}
        self.perf.write(
            {"update": update, "perf/update_s": seconds, **split, "perf/steps_per_s": rate}
        )
        self.perf.flush()
        return Progress(
            update=update,
            updates=self.config.updates,
            step=step,
            metrics=metrics,
            objective=self.objective,
            seconds=seconds,
            steps_per_s=rate,
        )

    def _checkpoint(self) -> None:
        step = self.trainer.updates * self.config.steps_per_update
        length = self.lines.sync()
        # The file is the memory of past values, so a resumed run judges as one never stopped.
        value = float(np.mean(tail_mean(Run(self.run.folder).curve(self.objective))))
        if math.isfinite(value) and (self.best_value is None or value < self.best_value):
            self.best_step, self.best_value = step, value
        counters = Counters(
            format=FORMAT,
            update=self.trainer.updates,
            step=step,
            metrics_bytes=length,
            best_step=self.best_step,
            best_value=self.best_value,
        )
        checkpoint.save(
            self.run.checkpoints,
            counters,
            self.trainer.state_dict(),
            keep=self.config.keep_checkpoints,
        )
        self.saved = self.trainer.updates

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


def _to_host(found: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Metrics in one transfer; only here does an update wait for the device."""
    if not found:
        return {}
    stacked = torch.stack([x.detach().double() for x in found.values()]).tolist()
    return dict(zip(found, stacked, strict=True))


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turns the first SIGINT into a request to stop; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
