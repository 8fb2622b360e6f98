import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import BadInput, RunBusy
from lockstep.run.lock import NAME, RunLock, is_held

HOLD = """
import sys, time
from pathlib import Path
from lockstep.run.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the lock of `tmp_path`."""
    env = os.environ | {"PYTHONPATH": "src"}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, env=env
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_second_process_is_told_who_writes_and_touches_nothing(
    tmp_path: Path, holder: subprocess.Popen[bytes]
):
    before = (tmp_path / NAME).read_bytes()
    message = (
        rf"{tmp_path} is being written by process {holder.pid} on host \S+ since \S+; "
        "wait for it, or stop it"
    )
    with pytest.raises(RunBusy, match=message), RunLock(tmp_path):
        pass
    assert (tmp_path / NAME).read_bytes() == before


def test_the_lock_ends_with_a_killed_process(tmp_path: Path, holder: subprocess.Popen[bytes]):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / NAME).read_bytes())["pid"] == os.getpid()


def test_the_lock_can_be_taken_again_after_an_error(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        raise ZeroDivisionError
    with RunLock(tmp_path):
        pass
    assert (tmp_path / NAME).read_bytes() == b""


def test_one_process_does_not_write_a_run_twice_either(tmp_path: Path):
    with RunLock(tmp_path):
        with pytest.raises(RunBusy, match=f"process {os.getpid()}"), RunLock(tmp_path):
            pass
        with pytest.raises(RunBusy), RunLock(tmp_path):  # and the refusal has not released it
            pass


def test_a_worker_does_not_keep_the_lock_of_its_parent(tmp_path: Path):
    ready, go = os.pipe(), os.pipe()
    with RunLock(tmp_path):
        worker = os.fork()
        if worker == 0:
            os.write(ready[1], b".")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        with pytest.raises(RunBusy), RunLock(tmp_path):
            pass
    try:
        with RunLock(tmp_path):  # the worker is alive, and its parent has let go
            pass
    finally:
        os.write(go[1], b".")
        os.waitpid(worker, 0)
        for end in (*ready, *go):
            os.close(end)


def test_a_folder_that_cannot_be_written_to_is_bad_input(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"file cannot be written to \(Not a directory\)"):
        RunLock(tmp_path / "file").__enter__()


def test_whether_a_run_is_held_can_be_asked_without_disturbing_it(tmp_path: Path):
    assert not is_held(tmp_path)
    assert not (tmp_path / ".lock").exists()
    with RunLock(tmp_path):
        said = (tmp_path / ".lock").read_bytes()
        assert is_held(tmp_path)
        assert (tmp_path / ".lock").read_bytes() == said
    assert not is_held(tmp_path)
    (tmp_path / ".lock").write_bytes(said)  # what a killed process leaves
    assert not is_held(tmp_path)
    with RunLock(tmp_path):
        pass
