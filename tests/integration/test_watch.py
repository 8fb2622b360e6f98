"""Watching real processes: one that beats, is killed, is suspended, is followed to its end."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.cli import watch
from lockstep.errors import BadInput
from lockstep.run.rundir import RunDir, write_json
from lockstep.run.watching import Sight, look, span
from tests import tiny
from tests.unit.run.test_watching import beat, finding

BEATER = """
import sys, time
from pathlib import Path
from lockstep.run.heartbeat import Heartbeat
from lockstep.run.pulse import Pulse
from lockstep.run.rundir import RunDir

run, updates = RunDir(Path(sys.argv[1])), int(sys.argv[2])
heart = Heartbeat(run, interval=0.05, hang_after=300.0, objective="world/energy")
pulse = Pulse(updates=updates)
for update in range(1, updates + 1):
    pulse.enter("collect")
    time.sleep(0.05)
    pulse.updated(update=update, step=12 * update, rate=240.0, value=1.0)
    with run.metrics.open("a") as file:
        file.write('{"update":%d,"member":0,"world/energy":%r}\\n' % (update, 100.0 - update))
    heart.beat(pulse.view())
run.summary.write_text("{}")
heart.beat(pulse.view(), phase="finished")
"""

LOOK = "import sys; from lockstep.cli.watch import main; sys.exit(main(sys.argv[1:]))"


def make(folder: Path, updates: int) -> RunDir:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(tiny.config(updates).to_json()))
    (folder / "manifest.json").write_text(json.dumps({"objective": "energy"}))
    return RunDir(folder)


@contextmanager
def beating(folder: Path, *, updates: int = 100_000) -> Iterator[subprocess.Popen[bytes]]:
    """A process that pretends to train in `folder`, from its second heartbeat on."""
    run = make(folder, updates)
    child = subprocess.Popen([sys.executable, "-c", BEATER, str(folder), str(updates)])
    try:
        end = time.monotonic() + 60
        while look(run).update < 2:
            assert time.monotonic() < end, "it never beat"
            time.sleep(0.02)
        yield child
    finally:
        child.kill()
        child.wait()


def once(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Sight]]:
    code = watch.main([*argv, "--once", "--json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    return code, {Path(run["run"]).name: run for run in runs}


def test_a_run_is_running_then_stalled_when_suspended_then_dead_when_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "mine"
    with beating(folder) as child:
        flags = [str(folder), "--fail-if-stalled"]
        code, seen = once(*flags, capsys=capsys)
        assert (code, seen["mine"]["state"]) == (0, "running")

        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        code, seen = once(*flags, capsys=capsys)
        assert (code, seen["mine"]["state"]) == (1, "stalled")
        assert f"process {child.pid} is suspended" in seen["mine"]["reason"]
        code, _ = once(str(folder), capsys=capsys)
        assert code == 0  # nobody asked for a failure

        child.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        code, seen = once(*flags, capsys=capsys)
        assert (code, seen["mine"]["state"]) == (0, "running")

        child.kill()  # and nobody has waited for it: it is still in the table of processes
        time.sleep(0.2)
        code, seen = once(*flags, capsys=capsys)
        assert (code, seen["mine"]["state"]) == (1, "dead")
        assert f"process {child.pid} is gone" in seen["mine"]["reason"]
    code, seen = once(*flags, capsys=capsys)
    assert (code, seen["mine"]["state"]) == (1, "dead")


def test_a_suspended_run_on_a_machine_that_does_not_show_it_is_stalled_by_its_age(tmp_path: Path):
    """The heart stops, the process lives: what a program stuck outside Python looks like."""
    with beating(tmp_path / "mine") as child:
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        beat = tmp_path / "mine" / "heartbeat.json"
        data = json.loads(beat.read_text())
        data["process"]["host"] = "elsewhere"
        beat.write_text(json.dumps(data))
        run, now = RunDir(tmp_path / "mine"), datetime.now(UTC)
        assert look(run, now=now).state == "running"
        assert look(run, now=now + timedelta(seconds=60)).state == "stalled"


def test_one_table_shows_every_run_and_says_why_one_is_in_trouble(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with beating(tmp_path / "demo-1" / "killed") as child:
        child.kill()
        child.wait()
    done = make(tmp_path / "done", 3)
    done.summary.write_text("{}")
    done.metrics.write_text(
        "".join(f'{{"update":{u},"world/energy":{9 - u}}}\n' for u in (1, 2, 3))
    )
    found = [finding("G8", update=50), finding("G11", update=100)]
    write_json(done.findings, [one.to_json() for one in found])
    assert watch.main([f"--root={tmp_path}", "--once"]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.strip().startswith("done "))
    assert re.split(r"\s{2,}", row.strip()) == [
        "done",
        "finished",
        "3/3",
        "━━━━━━━━━━",
        "6",
        "█▅▁",
        "2: G11",
    ]
    assert "demo-1/killed" in out
    assert f"demo-1/killed is dead: process {child.pid} is gone" in out
    assert "done: G11 a name (role agent, members 0, 1): numbers; a knob" in out
    assert "G8" not in out


@pytest.mark.parametrize(("phase", "code"), [("failed", 1), ("stopped", 0)])
def test_a_run_that_failed_is_trouble_and_one_that_was_stopped_is_not(
    phase: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    beat(make(tmp_path / "mine", 10), phase=phase)
    assert watch.main([f"--root={tmp_path}", "--once", "--fail-if-stalled"]) == code
    assert f"mine  {phase}" in re.sub(r" {2,}", "  ", capsys.readouterr().out)


def test_the_help_says_which_runs_count_as_trouble(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        watch.main(["--help"])
    said = re.sub(r"\W+", " ", capsys.readouterr().out)
    assert "exit code 1 as soon as a run that is shown is stalled dead or failed" in said


def test_where_there_is_no_terminal_a_run_is_followed_in_lines_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with beating(tmp_path / "mine", updates=12):
        assert watch.main([f"--root={tmp_path}", "--every=0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert re.match(r"mine  running  update \d+/12  energy \d+  \d s left$", lines[0])
    assert lines[-1] == "mine  finished  update 12/12  energy 88"


def test_following_as_json_prints_a_line_for_each_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with beating(tmp_path / "mine", updates=12):
        assert watch.main([f"--root={tmp_path}", "--every=0.05", "--json"]) == 0
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert looks[-1]["runs"][0]["state"] == "finished"
    updates = [seen["runs"][0]["update"] for seen in looks]
    assert updates == sorted(updates)


def test_following_ends_with_one_as_soon_as_a_run_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with beating(tmp_path / "mine") as child:
        watcher = subprocess.Popen(
            [sys.executable, "-c", LOOK, str(tmp_path), "--every=0.05", "--fail-if-stalled"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watcher.stdout is not None
        assert "running" in watcher.stdout.readline()
        child.kill()
        rest, _ = watcher.communicate(timeout=30)
    assert watcher.returncode == 1
    assert "mine  dead" in rest


def test_on_a_terminal_a_table_is_drawn_again_until_the_interrupt(tmp_path: Path):
    with beating(tmp_path / "mine"):
        ours, theirs = pty.openpty()
        watcher = subprocess.Popen(
            [sys.executable, "-c", LOOK, f"--root={tmp_path}", "--every=0.1"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"},
        )
        os.close(theirs)
        try:
            shown = read_until(ours, lambda text: len(set(re.findall(r"(\d+)/100000", text))) > 2)
            watcher.send_signal(signal.SIGINT)
            shown += read_until(ours, lambda _: watcher.poll() is not None)
        finally:
            watcher.kill()
            watcher.wait()
            os.close(ours)
    assert watcher.returncode == 0
    assert "running" in shown
    assert "collect" in shown
    assert "Traceback" not in shown


def read_until(descriptor: int, enough: Callable[[str], bool], seconds: float = 60.0) -> str:
    text, end = "", time.monotonic() + seconds
    while not enough(text):
        assert time.monotonic() < end, text
        if select.select([descriptor], [], [], 0.1)[0]:
            try:
                text += os.read(descriptor, 65_536).decode(errors="replace")
            except OSError:  # the other side has closed
                break
    return text


def test_watching_needs_no_torch(tmp_path: Path):
    make(tmp_path / "mine", 3).summary.write_text("{}")
    code = (
        "import sys; from lockstep.cli.watch import main; "
        "main([sys.argv[1], '--once']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["nope"], "nope is not a run: there is no such folder"),
        ([], "there is no folder runs to look for runs in; name a run, or a folder with --root"),
        (["--every", "0"], "--every must be more than 0 seconds, got 0"),
        (["--every=nan"], "--every must be more than 0 seconds, got nan"),
    ],
)
def test_bad_input_is_one_sentence(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as error:
        watch.main(flags)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("points", "picture"),
    [
        ([], ""),
        ([None, None], ""),
        ([1.0, 2.0], "▁█"),
        ([3.0, 3.0, 3.0], "▄▄▄"),
        ([0.0, None, 7.0, 3.0], "▁ █▄"),
    ],
)
def test_a_sparkline_spans_its_curve_and_leaves_gaps(points: list[float | None], picture: str):
    assert watch.sparkline(points) == picture


def test_half_a_curve_has_the_means_of_two_points():
    assert watch.halved([1.0, 3.0, None, 5.0, None, None, 7.0]) == [2.0, 5.0, None, 7.0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (119.0, "119 s"),
        (150.0, "2.5 min"),
        (9000.0, "2.5 h"),
        (3e5, "3.47 d"),
    ],
)
def test_a_time_is_told_in_the_unit_that_suits_it(seconds: float, text: str):
    assert span(seconds) == text


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_the_table_fits_the_screen(width: int, tmp_path: Path):
    sight = Sight(
        folder=tmp_path / "uav-mec-ab-mappo-12",
        state="running",
        reason="",
        phase="checkpoint",
        update=1234,
        updates=26_666,
        steps_per_s=123_456.0,
        eta_s=86_000.0,
        checkpoint_s=50.0,
        value=123.456789,
        curve=(1.0, 1.0, 2.0, 2.0) * 6,
        findings=(),
    )
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(watch.picture([sight], tmp_path, console))
    text = console.export_text()
    assert "1234/26666" in text
    assert "running" in text
    assert "123.46" in text
    assert "uav-mec-ab-mappo-12" in text
    assert "…" not in text
    assert ("█" in text) == (width >= 80)
    assert ("checkpoint" in text) == (width >= 150)
