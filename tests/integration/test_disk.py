"""Disks that are full, limited or read-only: the old checkpoint stays, and the user is told."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.errors import BadInput, DiskFull
from lockstep.run import checkpoint, loop
from lockstep.run.record import Run
from tests import tiny

LIMITED = """
import resource, sys
from pathlib import Path
from lockstep.errors import DiskFull
from lockstep.run import loop
from tests import tiny

def limit(progress):
    if progress.update == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))

try:
    loop.train(tiny.config(updates=4, checkpoint_every=2), Path(sys.argv[1]), on_update=limit)
except DiskFull as error:
    print(error)
    sys.exit(1)
"""


def mount(*arguments: str) -> bool:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=1M", "tmpfs", str(place)):
        pytest.skip("mounting needs to be root, and a system that lets it")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def same(one: Path, other: Path) -> None:
    first, second = Run.open(one), Run.open(other)
    assert first.dir.metrics.read_bytes() == second.dir.metrics.read_bytes()
    assert first.summary == second.summary


def test_a_limit_on_the_size_of_files_keeps_the_old_checkpoint_and_says_so(tmp_path: Path):
    folder = tmp_path / "limited"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    assert "48.pt could not be written: File too large" in done.stdout
    assert "step 24 stays in force: make room or make it writable" in done.stdout
    assert f"then continue with `lockstep resume {folder}`" in done.stdout
    assert not list(folder.rglob("*.tmp"))
    assert checkpoint.newest(folder / "checkpoints") == 24
    loop.resume(folder)
    loop.train(tiny.config(updates=4, checkpoint_every=2), tmp_path / "straight")
    same(folder, tmp_path / "straight")


def test_a_full_disk_keeps_the_old_checkpoint_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, disk: Path
):
    config = tiny.config(updates=12, checkpoint_every=1, keep_checkpoints=12)
    with pytest.raises(DiskFull, match="No space left on device") as full:
        loop.train(config, disk / "run")
    folder = disk / "run" / "checkpoints"
    held = checkpoint.newest(folder)
    assert held is not None
    assert f"step {held} stays in force" in str(full.value)
    checkpoint.load(folder, held)  # and is whole
    assert not list(disk.rglob("*.tmp"))
    assert mount("-o", "remount,size=16M", str(disk))
    loop.resume(disk / "run")
    loop.train(config, tmp_path / "straight")
    same(disk / "run", tmp_path / "straight")


def test_a_read_only_folder_is_bad_input_for_writers_and_none_for_readers(
    disk: Path, capsys: pytest.CaptureFixture[str]
):
    class Killed(BaseException):
        pass

    def kill(progress: loop.Progress) -> None:
        raise Killed

    with pytest.raises(Killed):
        loop.train(tiny.config(updates=2, checkpoint_every=1), disk / "run", on_update=kill)
    assert mount("-o", "remount,ro", str(disk))
    with pytest.raises(BadInput, match=r"cannot be made: Read-only file system"):
        loop.train(tiny.config(updates=1), disk / "other")
    assert main(["resume", str(disk / "run")]) == 2
    assert "cannot be written to (Read-only file system); make it" in capsys.readouterr().err
    assert main(["evaluate", str(disk / "run"), "--episodes=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"]


def test_a_run_cannot_be_put_into_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is not a folder, so no run can be put there"):
        loop.train(tiny.config(updates=1), tmp_path / "file" / "run")
