import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lockstep.errors import BadInput, NotARun
from lockstep.run import glimpse
from lockstep.run.doctor import Finding
from lockstep.run.glimpse import CELLS
from lockstep.run.heartbeat import Beat, Heartbeat, Process
from lockstep.run.jsonable import encode
from lockstep.run.pulse import Pulse
from lockstep.run.rundir import RunDir, write_json
from lockstep.run.watching import find, look
from tests import tiny

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
HERE = platform.node()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of this process that has made 4 of its 10 updates."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.config(10).to_json()))
    (folder / "manifest.json").write_text(json.dumps({"objective": "energy"}))
    return RunDir(folder)


def beat(run: RunDir, **changes: object) -> Beat:
    """Writes a heartbeat of NOW with `changes` made to it."""
    pulse = Pulse(updates=10)
    pulse.enter("collect")
    pulse.updated(update=4, step=48, rate=100.0, value=2.5)
    heart = Heartbeat(
        run, interval=5.0, hang_after=300.0, objective="world/energy", now=lambda: NOW
    )
    written = replace(heart.beat(pulse.view()), **changes)
    (run.folder / "heartbeat.json").write_text(json.dumps(encode(written)))
    return written


def finding(id: str, *, update: int) -> Finding:
    return Finding(
        id=id,
        name="a name",
        severity="warn",
        role="agent",
        members=(0, 1),
        evidence="numbers",
        first_update=update - 3,
        values={"x": 1.5},
        cause="a cause",
        knob="a knob",
        update=update,
    )


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def gone() -> Process:
    """A process of this host that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.number(child.pid)
    child.communicate()
    return process


def elsewhere() -> Process:
    return Process(pid=1, host=f"not-{HERE}", started=0.0, started_after_boot=0.0)


def test_a_fresh_heartbeat_of_a_living_process_is_a_running_run(run: RunDir):
    beat(run)
    sight = look(run, now=later(3))
    assert (sight.state, sight.reason) == ("running", "the last heartbeat is 3 s old")
    assert (sight.phase, sight.update, sight.updates, sight.step) == ("collect", 4, 10, 48)
    assert (sight.heartbeat_s, sight.value, sight.steps_per_s) == (3.0, 2.5, 100.0)


def test_a_run_before_its_first_update_is_starting(run: RunDir):
    beat(run, phase="start")
    assert look(run, now=later(3)).state == "starting"


def test_an_old_heartbeat_of_a_living_process_is_a_stalled_run(run: RunDir):
    beat(run)
    assert look(run, now=later(29)).state == "running"
    sight = look(run, now=later(31))
    assert sight.state == "stalled"
    assert sight.reason == "the last heartbeat is 31 s old, more than 30 s"


def test_a_run_that_beats_seldom_is_given_six_intervals(run: RunDir):
    beat(run, interval=60.0)
    assert look(run, now=later(350)).state == "running"
    assert look(run, now=later(370)).state == "stalled"


def test_a_run_whose_heart_beats_while_nothing_moves_is_stalled(run: RunDir):
    beat(run, idle_s=400.0, phase="learn")
    sight = look(run, now=later(1))
    assert (sight.state, sight.reason) == (
        "stalled",
        "nothing has moved for 6.67 min in phase learn",
    )
    beat(run, idle_s=400.0, hang_after=0.0)
    assert look(run, now=later(1)).state == "running"


def test_a_run_whose_process_has_ended_is_dead_at_once(run: RunDir):
    process = gone()
    beat(run, process=process)
    sight = look(run, now=later(1))
    assert sight.state == "dead"
    assert sight.reason == f"process {process.pid} is gone; the last heartbeat is 1 s old"
    assert sight.eta_s is None


def test_a_process_that_got_the_number_of_a_dead_one_is_not_taken_for_it(run: RunDir):
    me = Process.number(os.getpid())
    earlier = replace(
        me, started=me.started - 9000, started_after_boot=me.started_after_boot - 9000
    )
    beat(run, process=earlier)
    sight = look(run, now=later(1))
    assert sight.state == "dead"
    assert f"process {me.pid} is another one by now" in sight.reason


def test_on_another_host_only_the_age_speaks(run: RunDir):
    beat(run, process=elsewhere())
    assert look(run, now=later(5)).state == "running"
    assert look(run, now=later(31)).state == "stalled"


def test_a_heartbeat_from_the_future_is_judged_by_its_process(run: RunDir):
    beat(run)
    sight = look(run, now=later(-3600))
    assert sight.state == "running"
    assert sight.reason == (
        "the last heartbeat is 60 min in the future, so a clock was set or differs"
    )
    assert sight.heartbeat_s is None
    beat(run, process=gone())
    assert look(run, now=later(-3600)).state == "dead"


def test_a_heartbeat_from_the_future_of_another_host_is_unknown_unless_clocks_nearly_agree(
    run: RunDir,
):
    beat(run, process=elsewhere())
    assert look(run, now=later(-5)).state == "running"
    sight = look(run, now=later(-3600))
    assert sight.state == "unknown"
    assert sight.reason.endswith("and its process cannot be seen from here")


@pytest.mark.parametrize("seconds", [-3600.0, 0.0, 10.0])
def test_no_age_and_no_time_left_is_ever_negative(run: RunDir, seconds: float):
    pulse = Pulse(updates=10)
    pulse.saved(12)
    checkpoint = Heartbeat(run, interval=5.0, hang_after=0.0, objective="x").beat(pulse.view())
    beat(run, eta_s=4.0, last_checkpoint=checkpoint.last_checkpoint)
    sight = look(run, now=later(seconds))
    assert sight.checkpoint_s is not None
    assert sight.checkpoint_s >= 0
    assert sight.eta_s == max(0.0, 4.0 - max(0.0, seconds))


@pytest.mark.parametrize("phase", ["stopped", "failed"])
def test_a_run_that_said_how_it_ended_is_believed(run: RunDir, phase: str):
    beat(run, phase=phase, process=gone())
    sight = look(run, now=later(86_400))
    assert (sight.state, sight.reason) == (
        phase,
        f"it said so at {NOW.isoformat('T', 'milliseconds')}",
    )


def test_a_summary_makes_a_run_finished_whatever_its_heartbeat_says(run: RunDir):
    beat(run, process=gone())
    run.summary.write_text("{}")
    assert look(run, now=later(9999)).state == "finished"


def test_a_last_heartbeat_without_its_summary_is_no_finished_run(run: RunDir):
    beat(run, phase="finished")
    assert look(run, now=later(1)).state == "running"
    beat(run, phase="finished", process=gone())
    assert look(run, now=later(1)).state == "dead"


def test_a_young_folder_is_starting_and_an_old_one_without_heartbeat_unknown(run: RunDir):
    made = datetime.fromtimestamp(run.config.stat().st_mtime, UTC)
    assert look(run, now=made + timedelta(seconds=10)).state == "starting"
    for age in (-10, 200):
        sight = look(run, now=made + timedelta(seconds=age))
        assert sight.state == "unknown"
        assert sight.reason.startswith("it has no heartbeat.json: it ended while starting")
    assert sight.updates == 10


def test_heartbeats_that_are_switched_off_are_said_to_be(run: RunDir):
    config = tiny.config(10)
    config = replace(config, ops=replace(config.ops, heartbeat_every=0.0))
    run.config.write_text(json.dumps(config.to_json()))
    sight = look(run)
    assert sight.state == "unknown"
    assert sight.reason == "its heartbeats are switched off (ops.heartbeat_every is 0)"


def test_damaged_files_are_named_and_stop_nobody(run: RunDir):
    (run.folder / "heartbeat.json").write_text("{")
    (run.folder / "findings.json").write_text('[{"id": 1}]')
    run.manifest.write_text("{")
    run.config.write_text("{}")
    run.metrics.write_text('{"update": 1\n{"update":2,"world/energy":1.0}\n')
    sight = look(run)
    assert sight.state == "unknown"
    assert sight.reason.startswith("its heartbeat.json cannot be read: ")
    assert sight.updates is None
    assert sight.findings is None
    assert sight.alert is not None
    assert sight.alert.startswith("findings.json cannot be read: ")


def test_what_the_doctor_found_is_shown(run: RunDir):
    assert look(run).findings is None
    found = [finding("G9", update=50), finding("G8", update=100)]
    write_json(run.findings, [one.to_json() for one in found])
    assert look(run).findings == tuple(found)


def lines(updates: range, *, members: int = 2, pad: str = "") -> str:
    return "".join(
        json.dumps({"update": u, "member": m, "world/energy": 100.0 - u + m, "pad": pad}) + "\n"
        for u in updates
        for m in range(members)
    )


def test_the_curve_is_the_mean_over_members_for_each_update(run: RunDir):
    run.metrics.write_text(lines(range(1, 4)))
    sight = look(run)
    assert sight.curve == (99.5, 98.5, 97.5)
    assert (sight.value, sight.update, sight.objective) == (97.5, 3, "world/energy")


def test_an_update_that_is_not_there_for_all_members_is_not_the_last(run: RunDir):
    text = lines(range(1, 4))
    run.metrics.write_text(text[: text.rindex("{") + 20])
    assert (look(run).value, look(run).update) == (98.5, 2)


def test_numbers_that_are_not_finite_leave_a_gap(run: RunDir):
    rows = [{"update": 1, "world/energy": 1.0}, {"update": 2, "world/energy": None}]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert look(run).curve == (1.0, None)
    assert look(run).value is None


def test_a_file_that_has_grown_is_read_again(run: RunDir):
    run.metrics.write_text(lines(range(1, 4)))
    assert look(run).update == 3
    run.metrics.write_text(lines(range(1, 9)))
    assert look(run).update == 8
    run.metrics.write_text(lines(range(1, 3)))  # cut by a resume
    assert look(run).update == 2


def test_the_curve_of_a_long_file_needs_only_a_part_of_it(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
):
    run.metrics.write_text(lines(range(1, 2001), pad="x" * 50))
    whole = glimpse.glimpse(run.metrics, "world/energy")
    assert len(whole.points) == CELLS
    monkeypatch.setattr(glimpse, "_BLOCK", 1000)
    monkeypatch.setattr(glimpse, "_TAIL", 3000)
    glimpse._read.cache_clear()
    rows = list(glimpse._rows(run.metrics, run.metrics.stat().st_size))
    assert len(rows) < 400
    part = glimpse.glimpse(run.metrics, "world/energy")
    assert (part.last, part.update) == (whole.last, 2000)
    assert part.points == pytest.approx(whole.points, abs=60)  # a cell spans 83


def make(folder: Path, *, age: float = 0.0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    stamp = NOW.timestamp() - age
    os.utime(folder / "config.json", (stamp, stamp))
    return folder


def test_without_paths_all_runs_under_the_root_are_found_the_newest_first(tmp_path: Path):
    old, new = make(tmp_path / "a", age=50), make(tmp_path / "z", age=1)
    inner = make(tmp_path / "demo-1" / "ab-mappo", age=20)
    make(tmp_path / "far" / "too" / "deep")
    make(tmp_path / ".next.starting")
    (tmp_path / "notes.txt").write_text("")
    assert [run.folder for run in find([], root=tmp_path)] == [new, inner, old]
    assert [run.folder for run in find([], root=new)] == [new]


def test_paths_are_runs_or_folders_that_hold_runs_and_none_is_shown_twice(tmp_path: Path):
    alone = make(tmp_path / "a")
    old, new = make(tmp_path / "demo" / "x", age=9), make(tmp_path / "demo" / "y", age=1)
    found = find([alone, tmp_path / "demo", new], root=Path("nowhere"))
    assert [run.folder for run in found] == [alone, new, old]


def test_where_there_is_no_run_it_is_said_in_one_sentence(tmp_path: Path):
    with pytest.raises(NotARun, match="there is no such folder"):
        find([tmp_path / "nope"], root=tmp_path)
    with pytest.raises(NotARun, match=r"it has no config\.json, and no folder in it has one"):
        find([tmp_path], root=tmp_path)
    with pytest.raises(BadInput, match=r"there is no folder .*nope to look for runs in"):
        find([], root=tmp_path / "nope")
    with pytest.raises(BadInput, match=r"there are no runs in .*; start one with `lockstep train`"):
        find([], root=tmp_path)
