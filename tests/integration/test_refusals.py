"""What resume must not take up: each gets its own sentence, exit code 2, and nothing is touched."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lockstep.cli import main
from lockstep.run import checkpoint, loop
from lockstep.run.loop import Progress
from lockstep.run.rundir import RunDir, read_json, write_json
from tests import tiny


class Killed(BaseException):
    """Stands for a process that ends without another word."""


def begun(folder: Path, **settings: object) -> RunDir:
    """A run of four updates that was killed after its third."""

    def kill(progress: Progress) -> None:
        if progress.update == 3:
            raise Killed

    config = tiny.config(updates=4, checkpoint_every=1, **settings)
    with pytest.raises(Killed):
        loop.train(config, folder, on_update=kill)
    # on_update may come before the checkpoint of its update or after it
    return RunDir(folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("original")
    begun(place / "run")
    begun(place / "other", seeds=(7, 8))
    return place


@pytest.fixture
def run(original: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(original, tmp_path / "copy")
    return RunDir(tmp_path / "copy" / "run")


def newest(run: RunDir) -> int:
    step = checkpoint.newest(run.checkpoints)
    assert step is not None
    return step


def truncated(run: RunDir) -> str:
    path = run.checkpoints / f"{newest(run)}.pt"
    os.truncate(path, 1000)
    return f"{path} is cut short: it has 1000 of"


def flipped(run: RunDir) -> str:
    path = run.checkpoints / f"{newest(run)}.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return f"{path} is damaged (its hash differs)"


def renamed(run: RunDir) -> str:
    older, step = checkpoint.steps(run.checkpoints)[-2:]
    path = run.checkpoints / f"{step}.pt"
    shutil.copy(run.checkpoints / f"{older}.pt", path)
    return f"{path} holds step {older}: it was renamed or copied"


def foreign(run: RunDir) -> str:
    other, step = RunDir(run.folder.parent / "other"), newest(run)
    for name in (f"{step}.pt", f"{step}.json"):
        shutil.copy(other.checkpoints / name, run.checkpoints / name)
    return f"{run.checkpoints / f'{step}.pt'} belongs to another run"


def lost(run: RunDir) -> str:
    path = run.checkpoints / f"{newest(run)}.json"
    path.unlink()
    return f"{path} is missing"


class Payload:
    """Would make a folder if it were ever unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("owned",)


def malicious(run: RunDir) -> str:
    step = newest(run)
    stamp = checkpoint.read_stamp(run.checkpoints, step)
    buffer = io.BytesIO()
    torch.save({"counters": {}, "owner": stamp.owner, "state": Payload()}, buffer)
    data = buffer.getvalue()
    path = run.checkpoints / f"{step}.pt"
    path.write_bytes(data)
    forged = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    write_json(path.with_suffix(".json"), read_json(path.with_suffix(".json")) | forged)
    return f"{path} holds a program (posix.mkdir), not only tensors, and was not executed"


CASES: list[Callable[[RunDir], str]] = [truncated, flipped, renamed, foreign, lost, malicious]


def files(run: RunDir) -> dict[Path, bytes]:
    found = (file for file in run.folder.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in found if file.name != ".lock"}


def untouched(run: RunDir) -> dict[Path, bytes]:
    """All but what a living run writes of itself."""
    living = (run.folder / "heartbeat.json", run.folder / ".heartbeat.json.tmp")
    return {file: data for file, data in files(run).items() if file not in living}


@pytest.mark.parametrize("spoil", CASES, ids=lambda case: case.__name__)
def test_a_bad_checkpoint_gets_its_own_refusal_and_the_way_out_works(
    spoil: Callable[[RunDir], str],
    run: RunDir,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    message = spoil(run)
    before = files(run)
    assert main(["resume", str(run.folder)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert files(run) == before
    assert not (tmp_path / "owned").exists()
    older = [step for step in checkpoint.steps(run.checkpoints) if step < newest(run)][-1]
    way = f"{run.checkpoints / f'{older}.pt'} --set-aside-newer"
    assert f"step {older} before it is whole: lockstep resume {way}" in error


@pytest.mark.parametrize("spoil", [flipped, lost], ids=lambda case: case.__name__)
def test_a_run_goes_on_from_the_older_checkpoint_that_a_refusal_names(
    spoil: Callable[[RunDir], str], run: RunDir, tmp_path: Path
):
    spoil(run)
    older = [step for step in checkpoint.steps(run.checkpoints) if step < newest(run)][-1]
    path = run.checkpoints / f"{older}.pt"
    assert main(["resume", str(path), "--set-aside-newer"]) == 0
    straight = loop.train(tiny.config(updates=4, checkpoint_every=1), tmp_path / "straight")
    assert run.metrics.read_bytes() == straight.dir.metrics.read_bytes()
    assert read_json(run.summary) == straight.summary


HOLD = """
import sys, time
from pathlib import Path
from lockstep.run import loop
from tests import tiny

def wait(progress):
    print("training", flush=True)
    time.sleep(600)

loop.train(tiny.config(updates=2), Path(sys.argv[1]), on_update=wait)
"""


def test_a_run_that_another_process_writes_is_left_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = RunDir(tmp_path / "run")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"}
    writer = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.folder)], stdout=subprocess.PIPE, env=env
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"training\n"
        deadline = time.monotonic() + 60
        while run.metrics.read_bytes().count(b"\n") < 2:  # a thread writes what is waited in
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = untouched(run)
        assert main(["resume", str(run.folder)]) == 2
        error = capsys.readouterr().err
        assert f"{run.folder} is being written by process {writer.pid} on host" in error
        assert "wait for it, or stop it" in error
        assert untouched(run) == before
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert main(["resume", str(run.folder)]) == 0  # the lock is gone with its process
