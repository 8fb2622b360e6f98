import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.run.config import Operations
from lockstep.run.heartbeat import Beat
from lockstep.run.pulse import Pulse
from lockstep.run.rundir import RunDir
from lockstep.run.vitals import Vitals

QUIET = {"heartbeat_every": 0.0, "resources_every": 0.0, "hang_after": 0.0, "slow_step": 0.0}


def vitals(folder: Path, pulse: Pulse, **settings: object) -> Vitals:
    ops = Operations(**(QUIET | settings))
    return Vitals(RunDir(folder), pulse, ops, device="cpu", objective="world/energy")


def beat(folder: Path) -> Beat:
    return Beat.from_json(json.loads((folder / "heartbeat.json").read_bytes()))


def wait_for(what: Callable[[], object], *, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "vitals"]


def test_the_heart_beats_at_once_and_then_again_and_again(tmp_path: Path):
    pulse = Pulse(updates=3)
    with vitals(tmp_path, pulse, heartbeat_every=0.02, heartbeat_history=True):
        wait_for((tmp_path / "heartbeat.json").exists)
        assert beat(tmp_path).phase == "start"
        pulse.enter("learn")
        wait_for(lambda: beat(tmp_path).phase == "learn")
        pulse.updated(update=2, step=24, rate=5.0, value=0.5)
        wait_for(lambda: beat(tmp_path).update == 2)
        assert threads() == ["vitals"]
    assert threads() == []
    assert len((tmp_path / "heartbeat.jsonl").read_text().splitlines()) >= 4


def test_the_last_heartbeat_says_how_the_run_ended(tmp_path: Path):
    pulse = Pulse(updates=3)
    with vitals(tmp_path, pulse, heartbeat_every=60.0):
        pulse.enter("collect")
    assert beat(tmp_path).phase == "stopped"
    with pytest.raises(ZeroDivisionError), vitals(tmp_path, pulse, heartbeat_every=60.0):
        _ = 1 / 0
    assert beat(tmp_path).phase == "failed"
    with pytest.raises(KeyboardInterrupt), vitals(tmp_path, pulse, heartbeat_every=60.0):
        raise KeyboardInterrupt
    assert beat(tmp_path).phase == "stopped"
    pulse.updated(update=3, step=36, rate=5.0, value=0.5)
    with vitals(tmp_path, pulse, heartbeat_every=60.0):
        pass
    assert beat(tmp_path).phase == "finished"
    with vitals(tmp_path, pulse, heartbeat_every=60.0) as watched:
        watched.end("stopped")
    assert beat(tmp_path).phase == "stopped"


def test_an_end_that_is_none_is_refused(tmp_path: Path):
    with pytest.raises(
        ValueError, match="phase must be one of finished, stopped, failed, start, got 'x'"
    ):
        vitals(tmp_path, Pulse(updates=1)).end("x")


def test_where_nothing_is_watched_there_is_no_thread_and_no_old_heartbeat(tmp_path: Path):
    (tmp_path / "heartbeat.json").write_text("of an earlier process")
    with vitals(tmp_path, Pulse(updates=1)):
        assert threads() == []
        assert list(tmp_path.iterdir()) == []


def sleeps_like_a_stuck_emulator(until: Callable[[], object]) -> None:
    wait_for(until)


def test_a_hang_leaves_one_file_of_stacks_that_names_phase_and_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    pulse = Pulse(updates=3)
    stacks = tmp_path / "stacks"
    with vitals(tmp_path, pulse, heartbeat_every=0.05, hang_after=0.1):
        pulse.enter("checkpoint")
        sleeps_like_a_stuck_emulator((stacks / "hang-1.txt").exists)
        wait_for(lambda: beat(tmp_path).alert)
        time.sleep(0.3)  # it goes on hanging
        assert [file.name for file in stacks.iterdir()] == ["hang-1.txt"]
        pulse.enter("collect")
        wait_for((stacks / "hang-2.txt").exists)  # the next one has a file of its own
    text = (stacks / "hang-1.txt").read_text()
    assert "in phase checkpoint" in text
    assert "sleeps_like_a_stuck_emulator" in text
    assert "thread MainThread" in text
    alert = beat(tmp_path).alert
    assert alert is not None
    assert alert.endswith("stacks in stacks/hang-2.txt")
    assert sum("nothing has moved" in message for message in caplog.messages) == 2


def test_slow_steps_leave_stacks_that_show_the_slow_one(tmp_path: Path):
    pulse = Pulse(updates=3)
    file = tmp_path / "stacks" / "slow-1.txt"
    with vitals(tmp_path, pulse, slow_step=0.2, slow_count=3, slow_of=10, slow_every=60.0):
        pulse.enter("collect")
        for _ in range(2):
            time.sleep(0.25)
            pulse.step()
        assert not file.exists()
        for _ in range(5):
            pulse.step()
        sleeps_like_a_stuck_emulator(file.exists)
        pulse.step()
        time.sleep(0.4)
        pulse.step()
    assert [found.name for found in file.parent.iterdir()] == ["slow-1.txt"]
    assert file.read_text().startswith("3 of the last 8 steps took more than 0.2 s")
    assert "sleeps_like_a_stuck_emulator" in file.read_text()


def test_steps_that_are_quick_leave_nothing(tmp_path: Path):
    pulse = Pulse(updates=3)
    with vitals(tmp_path, pulse, slow_step=0.5, slow_count=1, slow_of=10, hang_after=5.0):
        pulse.enter("collect")
        for _ in range(100):
            time.sleep(0.002)
            pulse.step()
    assert not (tmp_path / "stacks").exists()


def test_each_sample_of_resources_is_handed_out_once(tmp_path: Path):
    found: list[dict[str, float]] = []

    def taken() -> bool:
        found.append(watched.resources())
        return bool(found[-1])

    with vitals(tmp_path, Pulse(updates=3), resources_every=0.3) as watched:
        assert watched.resources() == {}
        wait_for(taken)
        assert watched.resources() == {}
        wait_for(taken)
    assert set(found[-1]) == {"res/cpu_percent", "res/rss_mb", "res/system_memory_percent"}


def test_a_part_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "heartbeat.json").mkdir()  # no file can take its place
    with vitals(tmp_path, Pulse(updates=3), heartbeat_every=0.01, resources_every=0.02) as watched:
        for _ in range(3):
            wait_for(watched.resources)
        (tmp_path / "heartbeat.json").rmdir()
        wait_for((tmp_path / "heartbeat.json").is_file)  # it is tried again
    failures = [message for message in caplog.messages if "failed" in message]
    assert len(failures) == 1
    assert failures[0].startswith("the heartbeat failed and the run goes on: ")


def test_stacks_that_cannot_be_written_still_raise_the_alert(tmp_path: Path):
    (tmp_path / "stacks").write_text("not a folder")
    with vitals(tmp_path, Pulse(updates=3), heartbeat_every=0.02, hang_after=0.05):
        wait_for(lambda: (tmp_path / "heartbeat.json").exists() and beat(tmp_path).alert)
    assert "in phase start" in str(beat(tmp_path).alert)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a pipe that nobody reads")
def test_a_disk_that_hangs_holds_up_the_end_for_two_seconds_at_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    pipe = tmp_path / ".heartbeat.json.tmp"
    os.mkfifo(pipe)  # writing waits until somebody reads: nobody does
    start = time.monotonic()
    with vitals(tmp_path, Pulse(updates=3), heartbeat_every=0.05):
        time.sleep(0.1)
    assert time.monotonic() - start < 4.0
    assert "the last heartbeat could not be written within 2 s" in caplog.messages
    with pipe.open("rb") as reader:  # let the thread go, twice: its beat and its last one
        reader.read()
    wait_for(lambda: not threads())
