"""Starting and resuming a run; `Session` then drives it update by update."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lockstep.errors import BadCheckpoint, BadInput, LockstepError, NotARun
from lockstep.run import checkpoint, manifest, memory, sinks
from lockstep.run.checkpoint import Counters
from lockstep.run.config import TrainConfig
from lockstep.run.fitting import fit
from lockstep.run.jsonable import Json
from lockstep.run.lock import RunLock
from lockstep.run.pulse import Pulse
from lockstep.run.record import Run, sign_of
from lockstep.run.rundir import RunDir, create, sweep, write_json
from lockstep.run.session import OnUpdate, Progress, Session
from lockstep.run.trainer import Trainer, arithmetic

__all__ = ["OnUpdate", "Progress", "resume", "train"]

log = logging.getLogger(__name__)


@dataclass
class _Attempt:
    """World and learner built and ready, and where the run stands."""

    trainer: Trainer
    pulse: Pulse
    start: Counters | None


def train(config: TrainConfig, folder: Path, *, on_update: OnUpdate | None = None) -> Run:
    """Trains from the beginning into a new folder.

    World and learner are built before the folder is made: settings that cannot work leave nothing
    behind. SIGINT or SIGTERM ends the run after the update in progress, with a checkpoint.
    """
    if folder.exists():
        create(folder)  # refuses
    with arithmetic(config):
        lowered: list[Json] = []
        attempt = _build(config, lowered)
        config, world = attempt.trainer.config, attempt.trainer.world
        about = manifest.build(config, world) | {"memory": lowered}
        log.info("start %s on %s: %d updates", folder, world.device, config.updates)
        del world  # whoever runs short of memory may have to part with it
        run = create(folder, {"config.json": config.to_json(), "manifest.json": about})
        with RunLock(folder):
            return _go(run, attempt, on_update)


def resume(
    folder: Path,
    *,
    step: int | None = None,
    on_update: OnUpdate | None = None,
    accept_changes: bool = False,
) -> Run:
    """Continues a run from a checkpoint, by default its newest; a finished one is left as it is.

    What was written after that checkpoint is cut off and made again, so a resumed run ends with
    the bytes of one that was never stopped. Code or settings that have changed since would break
    that and are refused unless `accept_changes`, which the manifest then records.
    """
    run = Run.open(folder)
    if run.finished:
        log.info("%s is finished", folder)
        return run
    with RunLock(folder):
        for place in (run.folder, run.dir.checkpoints):
            sweep(place)  # what a killed writer left
        changed = _changes(run)
        if changed and not accept_changes:
            raise BadInput(
                f"{_and(changed)} changed since {folder} was started, so its numbers could not be "
                "those of one run; pass --accept-changes to continue all the same"
            )
        config = run.config
        with arithmetic(config):
            start = _start(run, step)
            attempt = _build(config, [], start)
            _take_up(run, attempt, owners=None if changed else _owners(run))
            at = start.step if start else 0
            again = {
                "time": datetime.now(UTC).isoformat(),
                "step": at,
                "code_version": manifest.code_version(config.world),
                "config_hash": config.hash,
                "accepted": changed,
            }
            resumed = [*run.manifest["resumed_at"], again]
            write_json(run.dir.manifest, run.manifest | {"resumed_at": resumed})
            log.info("resume %s on %s at step %d", folder, attempt.trainer.world.device, at)
            return _go(run.dir, attempt, on_update)


def _changes(run: Run) -> list[str]:
    """What of code and settings is no longer as it was when the run was last accepted."""
    last = run.manifest["resumed_at"][-1:] or [run.manifest]
    now = {
        "code": (manifest.code_version(run.config.world), "code_version"),
        "config": (run.config.hash, "config_hash"),
    }
    return [what for what, (found, key) in now.items() if found != last[0][key]]


def _build(config: TrainConfig, lowered: list[Json], start: Counters | None = None) -> _Attempt:
    """World and learner; where memory runs out, of a lower rung, noted in `lowered`."""
    while True:
        update, step = (start.update, start.step) if start else (0, 0)
        pulse = Pulse(updates=config.updates, update=update, step=step)
        try:
            trainer = Trainer(config, pulse=pulse)
            sinks.check(config.ops)
            if config.best_by:
                sign_of(config.best_by, trainer.world.spec)
            return _Attempt(trainer=trainer, pulse=pulse, start=start)
        except (RuntimeError, MemoryError) as error:
            config = _lower(config, error, lowered, fresh=start is None)


def _start(run: Run, step: int | None) -> Counters | None:
    """Where the checkpoint at `step`, or the newest, stood; None for a run that has none yet."""
    step = checkpoint.newest(run.dir.checkpoints) if step is None else step
    if step is not None:
        return checkpoint.read_stamp(run.dir.checkpoints, step).counters
    if run.dir.metrics.exists() and run.dir.metrics.stat().st_size:
        raise NotARun(run.folder, "it has metrics but no checkpoint to continue from")
    log.warning("%s has no checkpoint yet: it starts from the beginning", run.folder)
    return None


def _owners(run: Run) -> set[str]:
    """Hashes of every configuration that the run has been accepted with."""
    return {about["config_hash"] for about in (run.manifest, *run.manifest["resumed_at"])}


def _take_up(run: Run, attempt: _Attempt, *, owners: set[str] | None) -> None:
    """Loads the checkpoint at which the attempt starts, if there is one."""
    if attempt.start is None:
        return
    folder, trainer, step = run.dir.checkpoints, attempt.trainer, attempt.start.step
    counters, state = checkpoint.load(folder, step, device=trainer.world.device, owner=owners)
    try:
        trainer.load_state_dict(fit(state, trainer.state_dict()), updates=counters.update)
    except ValueError as misfit:
        raise BadCheckpoint(
            folder / f"{step}.pt", f"does not fit the run's configuration: {misfit}"
        ) from misfit
    checkpoint.set_aside(folder, after=step)
    checkpoint.settle(folder, counters, keep=trainer.config.keep_checkpoints)


def _go(run: RunDir, attempt: _Attempt, on_update: OnUpdate | None) -> Run:
    """Runs to the end; where memory runs out and the ladder may be used, from a lower rung."""
    while True:
        config = attempt.trainer.config
        try:
            return Session(run, attempt.trainer, attempt.pulse, attempt.start).go(on_update)
        except (RuntimeError, MemoryError) as error:
            # At update 0 nothing is learned yet, and a rung with other lanes starts afresh.
            start = _start(Run(run.folder), None)
            start = start if start and start.update else None
            lowered = list(Run(run.folder).manifest["memory"])
            config = _lower(config, error, lowered, fresh=start is None)
        vars(attempt).clear()  # the caller holds it too, and the next one needs its room
        memory.release()
        attempt = _build(config, lowered, start)
        config = attempt.trainer.config
        about = Run(run.folder).manifest | {"memory": lowered, "config_hash": config.hash}
        write_json(run.manifest, about)
        write_json(run.config, config.to_json())
        _take_up(Run(run.folder), attempt, owners={config.hash})


def _lower(
    config: TrainConfig, error: Exception, lowered: list[Json], *, fresh: bool
) -> TrainConfig:
    """The next rung of the memory ladder, if memory is what `error` is about and it may be used."""
    if not memory.ran_out(error):
        raise error
    if not config.auto_memory:
        raise LockstepError(
            f"memory ran out ({error}); use --auto-memory to learn in smaller parts, or fewer lanes"
        ) from error
    if config.deterministic:
        raise LockstepError(
            "memory ran out, and --deterministic forbids what --auto-memory would change; use "
            "fewer lanes, or a larger --accumulate"
        ) from error
    below = next(memory.ladder(config, fresh=fresh), None)
    if below is None:
        raise LockstepError(
            f"memory ran out at the lowest rung of the ladder, {memory.rung(config)}; use a "
            "smaller network or fewer lanes"
        ) from error
    lowered.append({"from": memory.rung(config), "to": memory.rung(below), "error": str(error)})
    log.warning("memory ran out with %s; going on with %s", memory.rung(config), memory.rung(below))
    return below


def _and(names: list[str]) -> str:
    return "the " + " and the ".join(names) + (" have" if len(names) > 1 else " has")
