"""Starting and resuming a run; `Session` then drives it update by update."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.core.company import ALONE, Company
from lockstep.errors import BadCheckpoint, BadInput, LockstepError, NotARun, RunExists
from lockstep.run import checkpoint, manifest, memory, shares, sinks
from lockstep.run.checkpoint import Counters
from lockstep.run.code import present_code
from lockstep.run.config import TrainConfig
from lockstep.run.fitting import fit
from lockstep.run.jsonable import Json
from lockstep.run.lock import RunLock
from lockstep.run.pulse import Pulse
from lockstep.run.record import Run, sign_of
from lockstep.run.rundir import RunDir, create, sweep, write_json
from lockstep.run.session import OnUpdate, Progress, Session, accompany
from lockstep.run.stop import stop_on_signals
from lockstep.run.trainer import Trainer, arithmetic

__all__ = ["OnUpdate", "Progress", "follow", "resume", "train"]

log = logging.getLogger(__name__)


@dataclass
class _Attempt:
    """World and learner built and ready, and where the run stands."""

    trainer: Trainer
    pulse: Pulse
    start: Counters | None
    rungs: list[Json]
    """Steps down the memory ladder that building it took."""


def train(
    config: TrainConfig,
    folder: Path,
    *,
    on_update: OnUpdate | None = None,
    company: Company = ALONE,
) -> Run:
    """Trains from the beginning into a new folder.

    World and learner are built before the folder is made: settings that cannot work leave nothing
    behind. SIGINT or SIGTERM ends the run after the update in progress, with a checkpoint. Of
    several processes the first calls this and the others `follow`.
    """
    if folder.exists():
        raise RunExists(folder)
    shares.check(config, company)
    with arithmetic(config):
        attempt = _build(config, None, company)
        _call_together(attempt)
        config = attempt.trainer.config
        about = manifest.build(config, attempt.trainer.world)
        log.info("start %s on %s: %d updates", folder, config.device, config.updates)
        run = create(folder, {"config.json": config.to_json(), "manifest.json": about})
        with RunLock(folder):
            _note_rungs(run, attempt)
            return _go(run, attempt, on_update)


def follow(company: Company) -> None:
    """Trains beside the first process, which has the folder and says what is to be trained."""
    asked = company.told(None)
    if asked is None:
        return  # there is nothing to do
    config, start = asked
    with arithmetic(config), stop_on_signals() as stopped:
        trainer = Trainer(config, company=company)
        company.agreed(lambda: False)()  # ready
        if start is not None:
            trainer.state_dict()
            trainer.load_state_dict(company.told(None), updates=start.update)
        accompany(trainer, start, company.agreed(stopped))


def _call_together(attempt: _Attempt) -> None:
    """Tells the other processes what is to be trained, and waits until they are ready for it."""
    trainer = attempt.trainer
    trainer.company.told((trainer.config, attempt.start))
    trainer.company.agreed(lambda: False)()  # comes back when all have asked


def resume(
    folder: Path,
    *,
    step: int | None = None,
    on_update: OnUpdate | None = None,
    accept_changes: bool = False,
    company: Company = ALONE,
    **execution: str | int,
) -> Run:
    """Continues a run from a checkpoint, by default its newest; a finished one is left as it is.

    What was written after that checkpoint is cut off and made again, so a resumed run ends with
    the bytes of one that was never stopped. Code or settings that have changed since would break
    that and are refused unless `accept_changes`, which the manifest then records. `execution` says
    what of Execution is to be otherwise from here on, such as `device="cpu"`. Of several processes
    the first calls this and the others `follow`; they need not be as many as before.
    """
    run = Run.open(folder)
    if run.finished:
        log.info("%s is finished", folder)
        return run
    with RunLock(folder):
        for place in (run.folder, run.dir.checkpoints):
            sweep(place)  # what a killed writer left
        changed = changes(run, accept=accept_changes)
        config = replace(run.config, **execution)  # type: ignore[arg-type]  # checked by Execution
        shares.check(config, company)
        with arithmetic(config):
            attempt = _build(config, _start(run, step), company)
            _call_together(attempt)
            owners = None if changed else manifest.config_hashes(run.manifest)
            _take_up(run.dir, attempt, owners=owners)
            at = attempt.start.step if attempt.start else 0
            manifest.note(run.dir, "resume", attempt.trainer.config, step=at, accepted=changed)
            _note_rungs(run.dir, attempt)
            log.info("resume %s on %s at step %d", folder, attempt.trainer.config.device, at)
            return _go(run.dir, attempt, on_update)


def changes(run: Run, *, accept: bool) -> list[str]:
    """What of code and settings is not as it was when the run was last started or resumed.

    BadInput unless that is nothing, or to be accepted.
    """
    before = run.manifest["history"][-1]
    now = {
        "code": (present_code(run.config.world), before["code_version"]),
        "config": (run.config.hash, before["config_hash"]),
    }
    changed = [what for what, (found, was) in now.items() if found != was]
    if changed and not accept:
        raise BadInput(
            f"{_and(changed)} changed since {run.folder} was started, so its numbers could not be "
            "those of one run; pass --accept-changes to continue all the same"
        )
    return changed


def _build(config: TrainConfig, start: Counters | None, company: Company) -> _Attempt:
    """World and learner, of the highest rung of the memory ladder that can be built."""
    rungs: list[Json] = []
    while True:
        update, step = (start.update, start.step) if start else (0, 0)
        pulse = Pulse(updates=config.updates, update=update, step=step)
        try:
            trainer = Trainer(config, pulse=pulse, company=company)
        except (RuntimeError, MemoryError) as error:
            config = _lower(config, error, rungs, fresh=start is None)
            continue
        sinks.check(config.ops)
        if config.best_by:
            sign_of(config.best_by, trainer.world.spec)
        return _Attempt(trainer=trainer, pulse=pulse, start=start, rungs=rungs)


def _start(run: Run, step: int | None) -> Counters | None:
    """Where the checkpoint at `step`, or the newest, stood; None for a run that has none yet."""
    step = checkpoint.newest(run.dir.checkpoints) if step is None else step
    if step is not None:
        return checkpoint.read_stamp(run.dir.checkpoints, step).counters
    if run.dir.metrics.exists() and run.dir.metrics.stat().st_size:
        raise NotARun(run.folder, "it has metrics but no checkpoint to continue from")
    log.warning("%s has no checkpoint yet: it starts from the beginning", run.folder)
    return None


def _take_up(run: RunDir, attempt: _Attempt, *, owners: set[str] | None) -> None:
    """Loads the checkpoint at which the attempt starts, if there is one."""
    if attempt.start is None:
        return
    folder, trainer, step = run.checkpoints, attempt.trainer, attempt.start.step
    counters, state = checkpoint.load(folder, step, device=trainer.world.device, owner=owners)
    try:
        state = trainer.company.told(fit(state, trainer.state_dict()))
        trainer.load_state_dict(state, updates=counters.update)
    except ValueError as misfit:
        raise BadCheckpoint(
            folder / f"{step}.pt", f"does not fit the run's configuration: {misfit}"
        ) from misfit
    checkpoint.set_aside(folder, after=step)
    checkpoint.settle(folder, counters, keep=trainer.config.keep_checkpoints)


def _go(run: RunDir, attempt: _Attempt, on_update: OnUpdate | None) -> Run:
    """Runs to the end; where memory runs out and the ladder may be used, from a lower rung."""
    with stop_on_signals() as stopped:
        while True:
            config, company = attempt.trainer.config, attempt.trainer.company
            session = Session(run, attempt.trainer, attempt.pulse, attempt.start)
            try:
                return session.go(on_update, company.agreed(stopped))
            except (RuntimeError, MemoryError) as error:
                if not memory.ran_out(error):
                    raise
                # At update 0 nothing is learned yet, and a rung with other lanes starts afresh.
                start = _start(Run(run.folder), None)
                start = start if start and start.update else None
                rungs: list[Json] = []
                config = _lower(config, error, rungs, fresh=start is None)
            if stopped():
                return Run(run.folder)
            vars(attempt).clear()  # the caller holds it too, and the next one needs its room
            del session
            memory.release()
            attempt = _build(config, start, company)
            attempt.rungs = [*rungs, *attempt.rungs]
            _take_up(run, attempt, owners=manifest.config_hashes(Run(run.folder).manifest))
            _note_rungs(run, attempt)


def _lower(config: TrainConfig, error: Exception, rungs: list[Json], *, fresh: bool) -> TrainConfig:
    """The next rung of the memory ladder, added to `rungs`; raises where it may not be used."""
    if not memory.ran_out(error):
        raise error
    below = memory.lower(config, error, fresh=fresh)
    if below is None:
        raise LockstepError(f"memory ran out ({error}); {_way_out(config)}") from error
    rungs.append({"from": memory.rung(config), "to": memory.rung(below), "error": str(error)})
    before, after = memory.described(config), memory.described(below)
    log.warning("memory ran out with %s; going on with %s", before, after)
    return below


def _way_out(config: TrainConfig) -> str:
    if not config.auto_memory:
        return "use --auto-memory to learn in smaller parts, or fewer lanes"
    if config.deterministic:
        return (
            "--deterministic forbids what --auto-memory would change; use fewer lanes, or a larger "
            "--accumulate"
        )
    return (
        f"this was the lowest rung of the ladder, {memory.described(config)}; use a smaller network"
    )


def _note_rungs(run: RunDir, attempt: _Attempt) -> None:
    """Records the rungs that were taken, and the settings they led to."""
    config = attempt.trainer.config
    for taken in attempt.rungs:
        manifest.note(run, "memory", config, **taken)
    if attempt.rungs:
        write_json(run.config, config.to_json())


def _and(names: list[str]) -> str:
    return "the " + " and the ".join(names) + (" have" if len(names) > 1 else " has")
