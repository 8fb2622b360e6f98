import json
import os
import resource
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockstep.errors import DiskFull
from lockstep.run.heartbeat import FORMAT, Beat, Heartbeat, LastCheckpoint, Process
from lockstep.run.jsonable import encode
from lockstep.run.pulse import Pulse
from lockstep.run.rundir import RunDir


def heartbeat(folder: Path, **settings: object) -> Heartbeat:
    return Heartbeat(
        RunDir(folder), interval=5.0, hang_after=300.0, objective="world/energy", **settings
    )


def told() -> Pulse:
    pulse = Pulse(updates=10)
    pulse.enter("collect")
    pulse.updated(update=4, step=48, rate=100.0, value=2.5)
    pulse.saved(48)
    return pulse


def read(folder: Path) -> Beat:
    return Beat.from_json(json.loads((folder / "heartbeat.json").read_bytes()))


def test_a_heartbeat_reads_back_as_it_was_written(tmp_path: Path):
    now = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
    written = heartbeat(tmp_path, now=lambda: now).beat(told().view(), alert="slow")
    assert read(tmp_path) == written
    assert written.written == now
    assert written.time == "2026-03-01T12:30:15.250+00:00"
    assert (written.phase, written.update, written.updates, written.step) == ("collect", 4, 10, 48)
    assert (written.objective, written.value, written.alert) == ("world/energy", 2.5, "slow")
    assert written.last_checkpoint is not None
    assert written.last_checkpoint.step == 48
    assert written.process.same(Process.number(os.getpid()))
    assert [file.name for file in tmp_path.iterdir()] == ["heartbeat.json"]


def test_the_last_heartbeat_says_how_it_ended_and_promises_nothing(tmp_path: Path):
    heartbeat(tmp_path).beat(told().view(), phase="stopped")
    assert (read(tmp_path).phase, read(tmp_path).eta_s) == ("stopped", None)


def test_a_value_that_is_not_finite_is_written_as_null(tmp_path: Path):
    pulse = told()
    pulse.updated(update=5, step=60, rate=1.0, value=float("nan"))
    heartbeat(tmp_path).beat(pulse.view())
    assert json.loads((tmp_path / "heartbeat.json").read_text())["value"] is None


def test_a_heartbeat_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(descriptor: int) -> None:
        raise AssertionError("fsync takes milliseconds")

    monkeypatch.setattr("os.fsync", refuse)
    heartbeat(tmp_path, history=True).beat(told().view())
    assert read(tmp_path).update == 4


def test_a_reader_never_meets_half_a_heartbeat(tmp_path: Path):
    heart, pulse, over = heartbeat(tmp_path), told(), threading.Event()
    heart.beat(pulse.view())

    def beat() -> None:
        while not over.is_set():
            heart.beat(pulse.view())

    writer = threading.Thread(target=beat)
    writer.start()
    try:
        assert all(read(tmp_path).format == FORMAT for _ in range(300))
    finally:
        over.set()
        writer.join()


def test_the_history_holds_every_heartbeat_if_it_is_asked_for(tmp_path: Path):
    heart = heartbeat(tmp_path, history=True)
    beats = [heart.beat(told().view()) for _ in range(3)]
    lines = (tmp_path / "heartbeat.jsonl").read_text().splitlines()
    assert [Beat.from_json(json.loads(line)) for line in lines] == beats
    again = heartbeat(tmp_path, history=True).beat(told().view())  # a resumed run appends
    lines = (tmp_path / "heartbeat.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert Beat.from_json(json.loads(lines[-1])) == again


def test_a_heartbeat_of_another_form_is_refused(tmp_path: Path):
    data = encode(heartbeat(tmp_path).beat(told().view()))
    with pytest.raises(ValueError, match=f"it has format 99 and this version reads {FORMAT}"):
        Beat.from_json(data | {"format": 99})
    with pytest.raises(ValueError, match="it is not a heartbeat"):
        Beat.from_json([1, 2])
    with pytest.raises(ValueError, match=r"heartbeat\.update must be of type int"):
        Beat.from_json(data | {"update": "four"})
    with pytest.raises(ValueError, match=r"heartbeat\.time must name its time zone"):
        Beat.from_json(data | {"time": "2026-03-01T12:30:15"})


def test_a_process_is_known_by_its_start_and_not_by_its_number_alone():
    me = Process.number(os.getpid())
    recycled = replace(me, started=me.started + 500, started_after_boot=me.started_after_boot + 500)
    assert me.same(me)
    assert not me.same(recycled)
    assert not me.same(replace(me, host="elsewhere"))


def test_setting_the_clock_or_starting_the_machine_anew_changes_one_start_only():
    me = Process.number(os.getpid())
    assert me.same(replace(me, started=me.started - 3600))  # the clock was set
    assert me.same(replace(me, started_after_boot=me.started_after_boot + 3600))


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path):
    beat = heartbeat(tmp_path).beat(Pulse(updates=3).view())
    assert beat.last_checkpoint is None
    assert replace(beat, last_checkpoint=LastCheckpoint(step=1, seconds_ago=0.0)) != beat


def test_a_full_disk_leaves_the_last_heartbeat_and_nothing_beside_it(tmp_path: Path):
    heart = heartbeat(tmp_path)
    heart.beat(told().view())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(DiskFull):
            heart.beat(told().view(), alert="x" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.name for file in tmp_path.iterdir()] == ["heartbeat.json"]
    assert read(tmp_path).alert is None
