"""Proof of exact resume: a run straight through beside one that is killed again and again."""

import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.errors import BadInput, LockstepError
from lockstep.run import checkpoint
from lockstep.run.config import TrainConfig
from lockstep.run.lock import NAME as LOCK
from lockstep.run.record import Run
from lockstep.run.trainer import resolve

_POLL_S = 0.002
_CHILD = """
import json, sys
from pathlib import Path
from lockstep.run import loop
from lockstep.run.config import TrainConfig
folder = Path(sys.argv[2])
if folder.exists():
    loop.resume(folder)
else:
    loop.train(TrainConfig.from_json(json.loads(Path(sys.argv[1]).read_text())), folder)
"""

Say = Callable[[str], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Blow:
    """One SIGKILL."""

    update: int
    """Updates in metrics.jsonl when it was dealt."""
    delay_s: float
    """Seconds between seeing that update and the kill."""
    landed: bool
    """False if the process was done before."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was compared."""

    what: str
    straight: str
    """Digest in the run that was never stopped."""
    resumed: str
    """Digest in the other."""
    where: str
    """The first difference; empty if there is none."""

    @property
    def equal(self) -> bool:
        """Whether the two are the same."""
        return not self.where


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a proof found."""

    rows: tuple[Row, ...]
    blows: tuple[Blow, ...]
    seed: int
    """From which the instants were drawn."""
    folder: Path | None
    """Where both runs lie; None if they were removed."""

    @property
    def equal(self) -> bool:
        """Whether everything is the same."""
        return all(row.equal for row in self.rows)

    @property
    def kills(self) -> int:
        """Kills that hit a process at work."""
        return sum(blow.landed for blow in self.blows)


def verify(
    config: TrainConfig,
    *,
    updates: int,
    kills: int = 1,
    seed: int | None = None,
    keep: bool = False,
    say: Say | None = None,
) -> Verdict:
    """Trains `2 * updates` straight, and again with `kills` kills at random instants; compares.

    Both are processes of their own. Their folder is removed unless `keep` or a difference is found.
    """
    if updates < 1 or kills < 1:
        raise BadInput(f"--updates and --kills must be at least 1, got {updates} and {kills}")
    say = log.info if say is None else say
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    config = replace(config, total_steps=2 * updates * config.steps_per_update)
    config = resolve(config)
    place = Path(tempfile.mkdtemp(prefix="lockstep-verify-"))
    try:
        (place / "config.json").write_text(json.dumps(config.to_json()))
        times = "once" if kills == 1 else f"{kills} times"
        say(f"{config.updates} updates straight, then killed {times} (instants of seed {seed})")
        pace = _straight(place, config)
        blows = _killed(place, config, kills=kills, pace=pace, dice=random.Random(seed), say=say)
        rows = tuple(compare(place / "straight", place / "killed"))
    except LockstepError:
        raise  # it names the log of the process that failed, so the folder stays
    except BaseException:
        shutil.rmtree(place)
        raise
    verdict = Verdict(rows=rows, blows=tuple(blows), seed=seed, folder=place)
    if verdict.equal and not keep:
        shutil.rmtree(place)
        verdict = replace(verdict, folder=None)
    if verdict.equal and not verdict.kills:
        raise LockstepError("the run was done before every kill; give more --updates")
    return verdict


def compare(straight: Path, resumed: Path) -> Iterator[Row]:
    """Rows for the state at the end, the metrics, the best checkpoint and the summary."""
    one, other = Run.open(straight), Run.open(resumed)
    last = [_state(run, "latest") for run in (one, other)]
    best = [_state(run, "best") for run in (one, other)]
    for what, ways in (
        ("parameters", ("learner/weights/",)),
        ("optimizer", ("learner/optimizers/",)),
        ("all other state", ()),
    ):
        named = [_part(state, ways) for state in last]
        if any(named):
            yield _tensors(what, *named)
    yield _lines(one.dir.metrics, other.dir.metrics)
    yield _tensors("best checkpoint", *best)
    yield _lines(one.dir.summary, other.dir.summary)


def _straight(place: Path, config: TrainConfig) -> float:
    """Trains to the end; seconds of an update."""
    with _child(place, "straight") as child:
        _wait_until_it_writes(place / "straight", child)
        start = time.monotonic()
        if child.wait() != 0:
            _fail(place, "straight")
    return (time.monotonic() - start) / config.updates


def _killed(
    place: Path, config: TrainConfig, *, kills: int, pace: float, dice: random.Random, say: Say
) -> list[Blow]:
    """Trains to the end with a kill at each of the instants, in the order of their updates."""
    blows: list[Blow] = []
    for update in sorted(dice.randrange(config.updates) for _ in range(kills)):
        delay = dice.random() * pace
        blow = _strike(place, config, update=update, delay=delay)
        blows.append(blow)
        after = f"{1000 * delay:.1f} ms after update {update} was seen"
        say(f"killed {after}" if blow.landed else f"done before the kill {after}")
    with _child(place, "killed") as child:
        if child.wait() != 0:
            _fail(place, "killed")
    return blows


def _strike(place: Path, config: TrainConfig, *, update: int, delay: float) -> Blow:
    """Starts or resumes, and kills `delay` seconds after `update` is seen in the metrics."""
    metrics = place / "killed" / "metrics.jsonl"
    with _child(place, "killed") as child:
        _wait_until_it_writes(place / "killed", child)
        while child.poll() is None and _updates(metrics, config.members) < update:
            time.sleep(_POLL_S)
        time.sleep(delay)
        child.kill()
        code = child.wait()
    if code not in (0, -signal.SIGKILL):
        _fail(place, "killed")
    seen = _updates(metrics, config.members)
    return Blow(update=seen, delay_s=delay, landed=code == -signal.SIGKILL)


@contextmanager
def _child(place: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that trains, or resumes what is there; it does not outlive the block."""
    arguments = [sys.executable, "-c", _CHILD, str(place / "config.json"), str(place / name)]
    source = os.pathsep.join(path for path in sys.path if path)
    with (place / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            arguments, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": source}
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def _wait_until_it_writes(run: Path, child: subprocess.Popen[bytes]) -> None:
    """Waits for a process to take the run's lock: a kill while it still imports proves nothing."""
    holder = f'"pid": {child.pid},'.encode()
    while child.poll() is None:
        lock = run / LOCK
        if lock.is_file() and holder in lock.read_bytes():
            return
        time.sleep(_POLL_S)


def _fail(place: Path, name: str) -> None:
    log = (place / f"{name}.log").read_text(errors="replace").strip().splitlines()
    raise LockstepError(
        f"the {name} run failed: {log[-1] if log else 'without a word'} (see {place / name}.log)"
    )


def _updates(metrics: Path, members: int) -> int:
    """Whole updates in a metrics file that is being written."""
    try:
        return metrics.read_bytes().count(b"\n") // members
    except FileNotFoundError:
        return 0


def _state(run: Run, pointer: str) -> dict[str, Any]:
    """Every leaf of a checkpoint's state by its way from the top; empty without one."""
    step = checkpoint.pointed(run.dir.checkpoints, pointer)
    if step is None:
        return {}
    _, state = checkpoint.load(run.dir.checkpoints, step)
    return {"step": step, **dict(_leaves(state, ""))}


def _leaves(state: Any, way: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _leaves(value, f"{way}/{key}" if way else str(key))
    else:
        yield way, state


def _part(leaves: dict[str, Any], ways: tuple[str, ...]) -> dict[str, Any]:
    """The leaves under `ways`; without any, those that no other row shows."""
    shown = ways or ("learner/weights/", "learner/optimizers/")
    return {way: leaf for way, leaf in leaves.items() if way.startswith(shown) is bool(ways)}


def _tensors(what: str, one: dict[str, Any], other: dict[str, Any]) -> Row:
    odd = sorted(set(one) ^ set(other))
    changed = [way for way in one if way in other and not _same(one[way], other[way])]
    where = f"{(odd + changed)[0]} ({len(odd) + len(changed)} parts)" if odd or changed else ""
    digests = [
        checkpoint.state_digest(leaves)[:16] if leaves else "none" for leaves in (one, other)
    ]
    return Row(what=what, straight=digests[0], resumed=digests[1], where=where)


def _same(one: Any, other: Any) -> bool:
    """Equal to the last bit, NaN included."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return checkpoint.state_digest(one) == checkpoint.state_digest(other)
    return type(one) is type(other) and bool(one == other)


def _lines(one: Path, other: Path) -> Row:
    texts = [path.read_bytes() if path.exists() else b"" for path in (one, other)]
    where = ""
    if texts[0] != texts[1]:
        lines = [text.splitlines(keepends=True) for text in texts]
        pairs = zip(*lines, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(map(len, lines)))
        where = f"line {same + 1}"
    digests = [hashlib.sha256(text).hexdigest()[:16] for text in texts]
    return Row(what=one.name, straight=digests[0], resumed=digests[1], where=where)
