"""What is left of a pack when it is finished: results of its trials, and the policies asked for.

A pack's checkpoints are large (some 4 MB for each member of the UAV paper, a gigabyte for each that
learns from a replay) and serve nothing once its trials are filed. Policies that a figure shows are
kept as runs of one member beside their results, as `lockstep evaluate` and `render` take them. What
was measured, a megabyte for each member, is pressed: it serves if a result is damaged.
"""

import gzip
import logging
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lockstep.errors import NotARun
from lockstep.run.rundir import RunDir, write_atomic
from lockstep.studies.store import Summary, file_pack, runs_in, trials_in
from lockstep.studies.study import Study

if TYPE_CHECKING:
    from lockstep.run.record import Run
else:  # as in `store`
    Run = Any

Keep: TypeAlias = Literal["flights", "policies", "runs"]
"""What is kept of a finished pack: the policies of figures of flights, those of all trials, or the
whole run with its checkpoints."""

POLICY = "policy"
"""Name of the run in a trial's folder that holds its policy."""
PRESSED = "metrics.jsonl.gz"
"""What metrics.jsonl of a finished pack has become."""
DROPPED = "dropped.txt"
_WHY = (
    "The checkpoints were dropped when the trials of this pack had been filed; "
    "`lockstep study run --keep runs` keeps them.\n"
)

log = logging.getLogger(__name__)


def policies(study: Study, keep: Keep) -> frozenset[str]:
    """The trials whose policies are kept."""
    if keep == "policies":
        return frozenset(study.distinct())
    flights = [figure for figure in study.figures if figure.kind == "flights"]
    return frozenset(trial.hash for figure in flights for trial in figure.trials())


def leave(root: Path, pack: str, run: Run, *, keep: Keep, of: Collection[str]) -> list[str]:
    """Files the trials of a finished pack and keeps the policies of those in `of`; their names.

    It may be done again: what is there stays. Nothing is dropped before all else is on disk.
    """
    _unpress(run.dir)
    names = file_pack(root, pack, run)
    if keep == "runs":
        return names
    for member, name in enumerate(names):
        if name in of:
            _keep_policy(trials_in(root) / name / POLICY, run, member)
    _drop_checkpoints(run.dir)
    _press(run.dir)
    return names


def policy_run(root: Path, summary: Summary) -> tuple[Path, int]:
    """The run that holds a trial's policy, and which member it is there; NotARun if none does."""
    own = trials_in(root) / summary.id / POLICY
    if _has_checkpoint(RunDir(own)):
        return own, 0
    pack = runs_in(root) / summary.pack
    if _has_checkpoint(RunDir(pack)):
        return pack, summary.member
    raise NotARun(
        own,
        f"the policy of trial {summary.id[:12]} was not kept; remove {own.parent} and train it "
        "again with `lockstep study run --keep policies`",
    )


def _keep_policy(folder: Path, run: Run, member: int) -> None:
    """The member as a run of its own; one that a killed process left half made is made again."""
    if _has_checkpoint(RunDir(folder)) or not _has_checkpoint(run.dir):
        return
    from lockstep.run.members import extract  # imports torch

    if folder.exists():
        shutil.rmtree(folder)
    extract(run, member, folder)


def _drop_checkpoints(run: RunDir) -> None:
    if not _has_checkpoint(run):
        return
    (run.checkpoints / DROPPED).write_text(_WHY)
    (run.checkpoints / "latest").unlink(missing_ok=True)  # first: what it names is about to go
    (run.checkpoints / "best").unlink(missing_ok=True)
    for file in [*run.checkpoints.glob("*.json"), *run.checkpoints.glob("*.pt")]:
        file.unlink()
    log.info("dropped the checkpoints of %s", run.folder)


def _press(run: RunDir) -> None:
    pressed = gzip.compress(run.metrics.read_bytes(), mtime=0)
    write_atomic(run.folder / PRESSED, pressed)
    run.metrics.unlink()


def _unpress(run: RunDir) -> None:
    if not run.metrics.exists() and (run.folder / PRESSED).exists():
        write_atomic(run.metrics, gzip.decompress((run.folder / PRESSED).read_bytes()))


def _has_checkpoint(run: RunDir) -> bool:
    return (run.checkpoints / "latest").is_file()
