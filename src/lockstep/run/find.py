"""Finding the run to continue: a path that was given, or a bounded search under one folder."""

from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadInput, NotARun
from lockstep.run import checkpoint
from lockstep.run.config import TrainConfig
from lockstep.run.lock import is_held
from lockstep.run.record import Run
from lockstep.run.rundir import walk

MAX_ENTRIES = 10_000
"""Names that a search looks at before it gives up."""
MAX_DEPTH = 6
"""Folders between the root of a search and the deepest run that it finds."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A run, the checkpoint to take up, and the reason for both."""

    folder: Path
    step: int | None
    """Step of the checkpoint; None where the run has none yet and starts from its beginning."""
    why: str
    """For the user to read: what was chosen and what else there was."""


@dataclass(frozen=True, kw_only=True)
class _Search:
    """What a walk through the folders came across."""

    matching: tuple[tuple[tuple[float, ...], Path], ...]
    """Rank and folder of each, in the order of names."""
    finished: int
    held: int
    """Runs that a process is writing."""
    other: int
    """Runs with another configuration."""
    unreadable: int
    entries: int
    complete: bool


def find(
    target: Path | None,
    *,
    root: Path,
    config: TrainConfig | None = None,
    set_aside_newer: bool = False,
) -> Found:
    """The run and checkpoint that `target` means; without one, an unfinished run under `root`.

    `target` is a run folder, a checkpoint of it (`RUN/checkpoints/900.pt`), or a folder of runs.
    With `config` a search takes only runs of an equal configuration, and none that a process is
    writing at this moment. Reading changes nothing.
    """
    if target is None:
        return _search(root, config)
    if target.is_file():
        return _at_checkpoint(target, set_aside_newer=set_aside_newer)
    if target.parent.name == "checkpoints" and target.parent.is_dir():
        there = ", ".join(f"{step}.pt" for step in checkpoint.steps(target.parent)) or "none"
        raise BadInput(f"there is no checkpoint {target}; in its folder there is {there}")
    if target.is_dir() and not (target / "config.json").is_file():
        return _search(target, config)
    return _in_run(Run.open(target).folder, "it was asked for")


def _at_checkpoint(file: Path, *, set_aside_newer: bool) -> Found:
    """A checkpoint by its path, if it is the newest or the newer ones may be set aside."""
    folder = file.absolute().parent
    number = file.stem if file.suffix in (".pt", ".json") else ""
    if file.name in ("latest", "best"):
        number = str(checkpoint.pointed(folder, file.name))
    if folder.name != "checkpoints" or not (number.isascii() and number.isdecimal()):
        raise BadInput(
            f"{file} is a file, and neither a run folder nor a checkpoint such as "
            "RUN/checkpoints/900.pt"
        )
    run, step = Run.open(file.parent.parent), int(number)
    checkpoint.read_stamp(folder, step)
    newer = [other for other in checkpoint.steps(folder) if other > step]
    if newer and not set_aside_newer:
        raise BadInput(
            f"{file} is not the newest checkpoint of {run.folder} (that is step {newer[-1]}); pass "
            "--set-aside-newer to go back to it and put the newer ones aside"
        )
    aside = f"; set aside: {', '.join(map(str, newer))}" if newer else ""
    why = f"{run.folder} at step {step}: this checkpoint was asked for{aside}"
    return Found(folder=run.folder, step=step, why=why)


def _in_run(folder: Path, reason: str) -> Found:
    """The newest checkpoint of a run."""
    checkpoints = folder / "checkpoints"
    step = checkpoint.newest(checkpoints)
    if step is None:
        why = f"{folder} from its beginning: {reason}, and it has no checkpoint yet"
    elif step in checkpoint.steps(checkpoints):
        why = f"{folder} at step {step}: {reason}, and this is its newest checkpoint"
    else:
        why = f"{folder} at step {step}: {reason}, and `latest` names this checkpoint"
    return Found(folder=folder, step=step, why=why)


def _search(root: Path, config: TrainConfig | None) -> Found:
    found = _look(root, config)
    what = "unfinished run" + (" of this configuration" if config is not None else "")
    if not found.matching:
        raise BadInput(f"there is no {what} under {root}: {_seen(found)}; give the run's path")
    # Sorting keeps the order of names where ranks are equal, reversed or not.
    by_rank = sorted(found.matching, key=lambda match: match[0], reverse=True)
    ranked = [folder for _, folder in by_rank]
    reason = f"of {len(ranked)} {what}s under {root} " + (
        "it is the furthest" if config is not None else "it was written last"
    )
    if len(ranked) == 1:
        reason = f"it is the one {what} under {root}"
    others = f"; others: {', '.join(str(run) for run in ranked[1:])}" if ranked[1:] else ""
    chosen = _in_run(ranked[0], f"{reason} ({_seen(found)})")
    return Found(folder=chosen.folder, step=chosen.step, why=chosen.why + others)


def _rank(folder: Path, config: TrainConfig | None) -> tuple[float, ...]:
    """What decides between runs.

    Runs of one configuration are compared by their steps: a counter cannot go backwards as a
    clock can. Runs of different ones have only the clock in common.
    """
    checkpoints = folder / "checkpoints"
    step = checkpoint.newest(checkpoints)
    stamp = checkpoints / f"{step}.json"
    written = (stamp if stamp.is_file() else folder / "config.json").stat().st_mtime
    steps = -1.0 if step is None else float(step)
    return (steps, written) if config is not None else (written, steps)


def _look(root: Path, config: TrainConfig | None) -> _Search:
    """Walks the folders under `root` in the order of their names."""
    matching: list[tuple[tuple[float, ...], Path]] = []
    finished = held = other = unreadable = entries = 0
    complete = True
    for folder, names in walk(root, depth=MAX_DEPTH):
        entries += len(names)
        if entries > MAX_ENTRIES:
            complete = False
            break
        if "config.json" not in names:
            continue
        if "summary.json" in names:
            finished += 1
            continue
        if is_held(folder):
            held += 1
            continue
        try:
            its = Run.open(folder).config
            if config is None or its.hash == config.hash:
                matching.append((_rank(folder, config), folder))
            else:
                other += 1
        except NotARun:
            unreadable += 1
    return _Search(
        matching=tuple(matching),
        finished=finished,
        held=held,
        other=other,
        unreadable=unreadable,
        entries=min(entries, MAX_ENTRIES),
        complete=complete,
    )


def _seen(found: _Search) -> str:
    """What was looked at, for the user to read."""
    said = [f"{found.entries} names looked at"]
    for count, what in (
        (found.finished, "finished"),
        (found.held, "that a process is writing"),
        (found.other, "of another configuration"),
        (found.unreadable, "that cannot be read"),
    ):
        if count:
            said.append(f"{count} {'run' if count == 1 else 'runs'} {what}")
    if not found.complete:
        said.append(f"stopped at the limit of {MAX_ENTRIES}")
    return ", ".join(said)
