"""Runs killed at random instants and at every write: each must resume to the same bytes.

One process imports everything and forks a child for each life of a run, which takes a tenth of the
time of a fresh interpreter. It never trains itself: autograd does not survive a fork.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.learners.config import LEARNERS
from lockstep.run import checkpoint, loop
from lockstep.run.config import TrainConfig
from lockstep.run.loop import Progress
from lockstep.run.rundir import RunDir
from tests import tiny

LIVES = 3  # a run is killed at most twice before it is left to finish
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.truncate"}


def learning() -> TrainConfig:
    return tiny.config(updates=3, checkpoint_every=1, keep_checkpoints=1)


def writing() -> TrainConfig:
    """A run that does little but write, for it has nothing to learn."""
    learner = replace(LEARNERS["randomized"], lanes=2, steps=6)
    config = tiny.config(2, seeds=(0,), checkpoint_every=1, keep_checkpoints=1)
    return replace(config, learner=learner, algorithm="randomized")


CONFIGS = {"learning": learning, "writing": writing}


# What follows up to `serve` runs in the process that forks.


def live(folder: Path, config: TrainConfig) -> None:
    """Trains, or resumes what an earlier life has left."""
    if (folder / "config.json").exists():
        loop.resume(folder)
    else:
        loop.train(config, folder)


def fork(task: Callable[[], None], errors: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            task()
            os._exit(0)
        except BaseException:
            errors.write_text(traceback.format_exc())
            os._exit(1)
    return child


def ended(child: int) -> str:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"


def armed(task: Callable[[], None], root: Path, point: int | None, count: Path) -> None:
    """Does `task` and dies just before the write event number `point`; counts them without."""
    seen = 0
    sync = os.fsync

    def strike() -> None:
        nonlocal seen
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # whichever thread is here gets no further

    def hook(event: str, args: tuple[Any, ...]) -> None:
        to_write = event == "open" and isinstance(args[2], int) and args[2] & (os.O_RDWR | 1)
        if (event in EVENTS or to_write) and str(root) in str(args[0]):
            strike()

    def sync_and_count(descriptor: int) -> None:
        strike()
        sync(descriptor)

    sys.addaudithook(hook)
    os.fsync = sync_and_count
    task()
    total = seen
    count.write_text(str(total))


def scene(run: RunDir) -> str:
    """What the killed process was at, from what it left."""
    if not run.config.is_file():
        return "before the run folder"
    half = sorted(run.checkpoints.glob(".*.tmp")) or sorted(run.folder.rglob(".*.tmp"))
    if half:
        name = half[0].name[1:-4]
        kinds = {".pt": "tensors", ".json": "stamp"}
        ours = half[0].parent == run.checkpoints
        return f"writing {kinds.get(Path(name).suffix, name) if ours else name}"
    step = checkpoint.newest(run.checkpoints)
    if step is None:
        return "before the first checkpoint"
    if checkpoint.pointed(run.checkpoints, "latest") != step:
        return "between a stamp and its pointer"
    length = checkpoint.read_stamp(run.checkpoints, step).counters.metrics_bytes
    if run.metrics.is_file() and run.metrics.stat().st_size > length:
        return "after metrics, before their checkpoint"
    return "at the end" if run.finished else "training"


def random_instants(root: Path, config: TrainConfig, *, kills: int, seed: int) -> dict[str, Any]:
    dice, scenes, folders, failed = random.Random(seed), [], [], []
    start = time.monotonic()
    assert ended(fork(lambda: live(root / "straight", config), root / "straight.err")) == "done"
    took = time.monotonic() - start
    while len(scenes) < kills and not failed:
        folder = root / f"killed-{len(folders)}"
        folders.append(folder.name)
        for life in range(LIVES):
            child = fork(lambda folder=folder: live(folder, config), root / f"{folder.name}.err")
            if life < LIVES - 1 and len(scenes) < kills:
                time.sleep(dice.random() * took)
                os.kill(child, signal.SIGKILL)
            end = ended(child)
            if end == "killed":
                scenes.append(scene(RunDir(folder)))
                continue
            if end == "failed":
                failed.append((root / f"{folder.name}.err").read_text())
            break
    return {"folders": folders, "scenes": scenes, "failed": failed}


def write_points(root: Path, config: TrainConfig, *, stride: int) -> dict[str, Any]:
    count, scenes, folders, failed = root / "count", [], [], []

    def live_until(folder: Path, point: int | None) -> str:
        def task() -> None:
            armed(lambda: live(folder, config), root, point, count)

        return ended(fork(task, root / f"{folder.name}.err"))

    assert live_until(root / "straight", None) == "done"
    total = int(count.read_text())
    for point in range(1, total + 1, stride):
        folder = root / f"killed-{point}"
        end = live_until(folder, point)
        if end == "killed":
            scenes.append(scene(RunDir(folder)))
            end = ended(
                fork(lambda folder=folder: live(folder, config), root / f"{folder.name}.err")
            )
        if end != "done":
            failed.append(f"point {point}: " + (root / f"{folder.name}.err").read_text())
            break
        folders.append(folder.name)
    return {"folders": folders, "scenes": scenes, "failed": failed, "total": total}


def serve() -> None:
    import torch

    torch.set_num_threads(1)
    from lockstep.learners import ppo, randomized  # noqa: F401
    from lockstep.worlds.uav_mec import world  # noqa: F401

    order = json.loads(sys.stdin.read())
    campaign = {"random": random_instants, "points": write_points}[order["campaign"]]
    found = campaign(Path(order["root"]), CONFIGS[order["config"]](), **order["options"])
    sys.stdout.write(json.dumps(found) + "\n")


# And this in the process of the tests.


def ask(root: Path, campaign: str, config: str, **options: int) -> dict[str, Any]:
    order = {"root": str(root), "campaign": campaign, "config": config, "options": options}
    done = subprocess.run(
        [sys.executable, "-c", "from tests.integration.test_kill import serve; serve()"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not found["failed"], "\n".join(found["failed"])
    return found


def fingerprint(folder: Path) -> dict[str, Any]:
    """Everything of a run that follows from its configuration."""
    run = RunDir(folder)
    stamps = {step: checkpoint.read_stamp(run.checkpoints, step) for step in _steps(run)}
    loaded = {step: checkpoint.load(run.checkpoints, step)[1] for step in _steps(run)}
    return {
        "metrics": run.metrics.read_bytes(),
        "summary": run.summary.read_bytes(),
        "counters": {step: stamp.counters for step, stamp in stamps.items()},
        "states": {step: checkpoint.state_digest(state) for step, state in loaded.items()},
        "latest": checkpoint.pointed(run.checkpoints, "latest"),
        "best": checkpoint.pointed(run.checkpoints, "best"),
        "checkpoints": sorted(file.name for file in run.checkpoints.iterdir()),
        "left over": sorted(file.name for file in folder.rglob("*.tmp")),
    }


def _steps(run: RunDir) -> list[int]:
    return checkpoint.steps(run.checkpoints)


def all_equal(root: Path, found: dict[str, Any]) -> None:
    straight = fingerprint(root / "straight")
    assert straight["left over"] == []
    for name in found["folders"]:
        assert fingerprint(root / name) == straight, name


def test_a_run_killed_at_twenty_random_instants_always_ends_the_same(
    tmp_path: Path, record_property: Callable[[str, object], None]
):
    found = ask(tmp_path, "random", "learning", kills=20, seed=20)
    assert len(found["scenes"]) == 20
    all_equal(tmp_path, found)
    record_property("instants", dict(Counter(found["scenes"])))


def test_a_run_killed_before_any_write_ends_the_same(
    tmp_path: Path, record_property: Callable[[str, object], None]
):
    found = ask(tmp_path, "points", "writing", stride=2)
    all_equal(tmp_path, found)
    seen = Counter(found["scenes"])
    assert len(found["scenes"]) >= found["total"] // 2 - 2
    for place in ("before the run folder", "writing tensors", "writing stamp", "writing latest"):
        assert seen[place], (place, seen)
    assert seen["after metrics, before their checkpoint"]
    assert seen["between a stamp and its pointer"]
    record_property("instants", dict(seen))


@pytest.mark.slow
def test_a_run_killed_at_two_hundred_random_instants_always_ends_the_same(tmp_path: Path):
    found = ask(tmp_path, "random", "learning", kills=200, seed=200)
    assert len(found["scenes"]) == 200
    all_equal(tmp_path, found)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_a_run_killed_before_every_single_write_ends_the_same(tmp_path: Path, config: str):
    all_equal(tmp_path, ask(tmp_path, "points", config, stride=1))


def test_half_a_line_of_metrics_is_cut_off_and_written_again(tmp_path: Path):
    config = writing()
    loop.train(config, tmp_path / "straight")

    class Killed(BaseException):
        pass

    def kill(progress: Progress) -> None:
        if progress.update == 1:
            raise Killed

    with pytest.raises(Killed):
        loop.train(config, tmp_path / "killed", on_update=kill)
    with RunDir(tmp_path / "killed").metrics.open("ab") as file:
        file.write(b'{"update":2,"step":2')
    loop.resume(tmp_path / "killed")
    assert fingerprint(tmp_path / "killed") == fingerprint(tmp_path / "straight")
