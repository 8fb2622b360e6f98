"""Processes of this machine: their output, their environment, their end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lockstep.errors import BadInput
from lockstep.studies.jobs import Exit, Job
from lockstep.studies.local import PARENT, LocalPool, carry_out


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    made = LocalPool({"COLOUR": "green"})
    yield made
    made.stop(grace=0.0)


def job(script: str, folder: Path, name: str = "one") -> Job:
    return Job(name=name, command=("/bin/sh", "-c", script), log=folder / "logs" / f"{name}.log")


def end_of(pool: LocalPool) -> Exit:
    for _ in range(100):
        for exit in pool.wait(0.1):
            return exit
    raise AssertionError("no job ended within ten seconds")


def test_an_exit_code_comes_back_at_once(pool: LocalPool, tmp_path: Path):
    begun = time.monotonic()
    pool.start(job("exit 7", tmp_path))
    assert end_of(pool).code == 7
    assert time.monotonic() - begun < 1.0


def test_what_a_job_says_is_in_its_log_with_what_an_earlier_one_said(
    pool: LocalPool, tmp_path: Path
):
    for text in ("first", "second"):
        pool.start(job(f"echo {text}; echo aloud >&2", tmp_path))
        end_of(pool)
    assert (tmp_path / "logs/one.log").read_text() == "first\naloud\nsecond\naloud\n"


def test_a_job_gets_the_environment_and_the_number_of_its_parent(pool: LocalPool, tmp_path: Path):
    pool.start(job(f'echo "$COLOUR ${PARENT} $PYTHONUNBUFFERED"', tmp_path))
    end_of(pool)
    assert (tmp_path / "logs/one.log").read_text() == f"green {os.getpid()} 1\n"


def test_a_log_that_cannot_be_made_is_told(pool: LocalPool, tmp_path: Path):
    (tmp_path / "logs/one.log").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"logs/one.log cannot be made: Is a directory$"):
        pool.start(job("exit 0", tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"file/logs cannot be made: Not a directory$"):
        pool.start(job("exit 0", tmp_path / "file"))


def test_a_job_killed_by_a_signal_says_which(pool: LocalPool, tmp_path: Path):
    pool.start(job("kill -9 $$", tmp_path))
    assert end_of(pool).code == -signal.SIGKILL


def test_waiting_ends_after_its_time_when_nothing_does(pool: LocalPool, tmp_path: Path):
    pool.start(job("sleep 30", tmp_path))
    begun = time.monotonic()
    assert pool.wait(0.2) == []
    assert 0.1 < time.monotonic() - begun < 2.0


def test_stopping_asks_first(pool: LocalPool, tmp_path: Path):
    pool.start(job("trap 'echo bye; exit 0' TERM; echo up; sleep 30 & wait", tmp_path))
    _said(tmp_path / "logs/one.log", "up")
    (exit,) = pool.stop(grace=5.0)
    assert exit.code == 0
    assert (tmp_path / "logs/one.log").read_text() == "up\nbye\n"


def test_stopping_insists_when_asking_does_not_help(pool: LocalPool, tmp_path: Path):
    ignore = "import signal, time; signal.signal(15, signal.SIG_IGN)"
    deaf = f"{sys.executable} -c \"{ignore}; print('up'); time.sleep(60)\""
    pool.start(job(deaf, tmp_path))
    _said(tmp_path / "logs/one.log", "up")
    begun = time.monotonic()
    (exit,) = pool.stop(grace=0.3)
    assert exit.code is not None
    assert exit.code < 0
    assert time.monotonic() - begun < 3.0


def test_stopping_also_ends_what_a_job_has_started(pool: LocalPool, tmp_path: Path):
    pool.start(job("sleep 61 & echo $!; wait", tmp_path))
    child = int(_said(tmp_path / "logs/one.log", "\n"))
    pool.stop(grace=1.0)
    _gone(child)


def test_a_command_carried_out_elsewhere_gives_its_exit_code_and_log(tmp_path: Path):
    code = carry_out(["/bin/sh", "-c", "echo $X; exit 3"], {"X": "x"}, str(tmp_path / "a/b.log"))
    assert code == 3
    assert (tmp_path / "a/b.log").read_text() == "x\n"


def test_an_interrupt_stops_a_command_that_is_carried_out(tmp_path: Path):
    log = tmp_path / "b.log"

    def interrupt() -> None:
        _said(log, "\n")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        carry_out(["/bin/sh", "-c", "echo $$; exec sleep 60"], {}, str(log))
    thread.join()
    _gone(int(log.read_text()))


def _said(log: Path, text: str) -> str:
    for _ in range(500):
        if log.exists() and text in log.read_text():
            return log.read_text()
        time.sleep(0.02)
    raise AssertionError(f"{log} does not say {text!r}")


def _gone(pid: int) -> None:
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")
