"""`lockstep study` as a user has it: planned, trained, killed, refused, taken up again."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.run import loop
from lockstep.run.lock import is_held
from lockstep.run.record import Run
from lockstep.studies import store
from lockstep.studies.catalogue import load
from lockstep.studies.packing import packs
from lockstep.studies.schedule import Scheduler, Settings
from lockstep.worlds import registry

ROOT = Path(__file__).parents[2]
PACKS = ("--device", "cpu", "--max-members", "4")

TINY = """
from dataclasses import replace
from lockstep.run.config import preset
from lockstep.studies.study import Figure, Study, sweep

def study(smoke=False):
    base = preset("uav-mec", scenario="demo", learner="ab-mappo")
    base = replace(
        base,
        world=replace(base.world, n_uavs=2, n_slots=6),
        learner=replace(base.learner, lanes=2, steps=6, hidden=16),
        total_steps=12 * UPDATES,
    )
    series = {f"K={n}": replace(base, world=replace(base.world, n_users=n)) for n in (4, 5)}
    points = sweep("band", series, seeds=(1, 2), axis="world.bandwidth_mhz", values=(30.0, 50.0))
    figure = Figure(name="band", title="", kind="lines", x_label="", y_label="",
                    metrics=("world/jain_fairness",), points=points)
    return Study(name="tiny", smoke=smoke, figures=(figure,))
"""

OF_GUESS = """
from dataclasses import replace
from lockstep.learners.config import PPOConfig
from lockstep.run.config import preset
from lockstep.studies.study import Figure, Study, sweep

def study(smoke=False):
    quick = PPOConfig(lanes=4, steps=10, hidden=8, critic="state")
    config = replace(preset("guess"), learner=quick, total_steps=80)
    points = sweep("guess", {"PPO": config}, seeds=(1, 2))
    figure = Figure(name="guess", title="", kind="curves", x_label="", y_label="",
                    metrics=("world/miss",), points=points)
    return Study(name="guess", smoke=smoke, figures=(figure,))
"""


def tiny(folder: Path, updates: int) -> str:
    """A file that declares two packs of four trials."""
    file = folder / "tiny.py"
    file.write_text(f"UPDATES = {updates}\n{TINY}")
    return str(file)


def started(*words: str) -> subprocess.Popen[str]:
    """`lockstep study run` with these words, as a process of its own."""
    command = [sys.executable, "-m", "lockstep", "study", "run", *words, *PACKS]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def logs(root: Path) -> str:
    return "".join(file.read_text() for file in sorted(store.logs_in(root).glob("*/*.log")))


def until(root: Path, words: str, times: int, process: subprocess.Popen[str]) -> None:
    for _ in range(1200):
        if logs(root).count(words) >= times:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"no log said {words!r} {times} times: {logs(root)}")


def locked(root: Path) -> bool:
    return any(is_held(folder) for folder in store.runs_in(root).iterdir())


@pytest.fixture
def process() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that must not outlive their test."""
    held: list[subprocess.Popen[str]] = []
    yield held
    for one in held:
        one.kill()
        one.communicate()


def test_the_study_on_its_page_is_planned_trained_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (ROOT / "docs/studies.md").read_text()
    ((name, text),) = re.findall(r'```python title="(.+?)"\n(.*?)```', page, flags=re.S)
    (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(["study", "plan", name]) == 0
    assert "20 runs, 20 distinct, 0 done" in capsys.readouterr().out
    assert main(["study", "run", name, "--smoke", *PACKS]) == 0
    said = capsys.readouterr().out
    assert "0 trials done, 8 to train in 2 packs, 0 of them taken up" in said
    assert said.endswith("every trial has a result\n")
    assert main(["study", "status", name, "--smoke", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"]["done"] == 8
    assert main(["study", "run", name, "--smoke", *PACKS]) == 0
    assert "8 trials done, 0 to train in 0 packs" in capsys.readouterr().out

    # A damaged result is found, and filed again from the run that holds it.
    trial = told["trials"][0]["trial"]
    summary = Path("studies/band-smoke/trials") / trial / "summary.json"
    whole = summary.read_bytes()
    summary.write_bytes(whole[:100])
    assert main(["study", "status", name, "--smoke"]) == 0
    assert "8 trials: 7 done, 1 corrupt" in capsys.readouterr().out
    assert main(["study", "run", name, "--smoke", *PACKS]) == 0
    assert summary.read_bytes() == whole


def test_the_python_at_the_end_of_the_page_runs(capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs/studies.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    exec(compile(block, "docs/studies.md", "exec"), {})
    assert capsys.readouterr().out.startswith("555 474 ")


def test_every_flag_of_the_page_is_one(capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs/studies.md").read_text()
    (table,) = re.findall(r"\| flag \| meaning \|\n(.*?)\n\n", page, flags=re.S)
    assert main(["study", "run", "--help"]) == 0
    known = capsys.readouterr().out
    flags = re.findall(r"^\| `(--[a-z-]+)", table, flags=re.M)
    assert len(flags) > 8
    assert [flag for flag in flags if flag not in known] == []


def test_a_study_whose_scheduler_is_killed_ends_as_if_nothing_had_happened(
    tmp_path: Path, process: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", tiny(tmp_path, updates=30)
    words = file, "--root", str(root), "--jobs", "2", "--keep", "runs"
    process.append(started(*words, "--checkpoint-every", "2"))
    until(root, "checkpoint at step 24", 2, process[0])
    process[0].send_signal(signal.SIGKILL)
    process[0].wait()
    assert main(["study", "run", *words, *PACKS]) == 0
    assert "2 of them taken up where they stopped" in capsys.readouterr().out
    study = load(file)
    assert sorted(store.filed(root)) == sorted(study.distinct())
    for pack in packs(study.trials()):
        run = Run.open(store.runs_in(root) / pack.name)
        assert [event["event"] for event in run.manifest["history"]] == ["start", "resume"]
    whole = loop.train(pack.config, tmp_path / pack.name)
    assert run.dir.metrics.read_bytes() == whole.dir.metrics.read_bytes()
    assert run.summary["state"] == whole.summary["state"]


@pytest.mark.parametrize("world", ["guessing.py", "guess.py"])
def test_a_study_may_bring_a_world_of_its_own(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """In its own file, or in one beside it."""
    monkeypatch.setattr(registry, "WORLDS", dict(registry.WORLDS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    page = (ROOT / "docs/worlds/your_own.md").read_text()
    (text,) = re.findall(r'```python title="guess.py"\n(.*?)```', page, flags=re.S)
    file = tmp_path / "guessing.py"
    file.write_text(f"import guess\n{OF_GUESS}")
    (tmp_path / world).write_text(text)
    if world == file.name:
        file.write_text(f"{text}{OF_GUESS}")
    words = str(file), "--root", str(tmp_path / "root")
    try:
        assert main(["study", "plan", *words]) == 0
        assert "2 runs, 2 distinct, 0 done; 1 packs" in capsys.readouterr().out
        assert main(["study", "run", *words, *PACKS]) == 0
        assert main(["study", "status", *words]) == 0
        assert "2 trials: 2 done" in capsys.readouterr().out
    finally:
        for name in ("guess", "guessing"):
            sys.modules.pop(name, None)


def test_a_second_scheduler_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", tiny(tmp_path, updates=2)
    with Scheduler(load(file), root, Settings()):
        before = sorted(root.rglob("*"))
        assert main(["study", "run", file, "--root", str(root), "--device", "cpu"]) == 2
        assert sorted(root.rglob("*")) == before
    said = capsys.readouterr().err.strip()
    assert re.fullmatch(r"lockstep study: .*root is being written by process \d+ on .*", said)


def test_a_study_that_was_asked_to_stop_goes_on_in_another_place(
    tmp_path: Path, process: list[subprocess.Popen[str]], capsys: pytest.CaptureFixture[str]
):
    root, file = tmp_path / "root", tiny(tmp_path, updates=40)
    process.append(started(file, "--root", str(root), "--jobs", "2"))
    until(root, "checkpoint at step 0", 2, process[0])
    process[0].send_signal(signal.SIGINT)
    out, _ = process[0].communicate(timeout=60)
    assert process[0].returncode == 0
    assert "stopped before the end; the same command goes on from here" in out
    assert out.count("stopped ") == 3  # each of the packs, and the whole
    assert re.findall(r"\(0 of (\d+) packs done", out) == ["2"] * 4
    assert not locked(root)
    assert main(["study", "status", file, "--root", str(root)]) == 0
    assert "8 trials: 8 stopped" in capsys.readouterr().out

    moved = Path(shutil.move(root, tmp_path / "elsewhere"))
    assert main(["study", "run", file, "--root", str(moved), *PACKS]) == 0
    assert sorted(store.filed(moved)) == sorted(load(file).distinct())


def test_a_pack_that_fails_ends_the_others_and_is_named(
    tmp_path: Path, process: list[subprocess.Popen[str]]
):
    root, file = tmp_path / "root", tiny(tmp_path, updates=3000)
    large, small = packs(load(file).trials())
    (store.runs_in(root) / small.name).mkdir(parents=True)
    (root / "study.json").write_text('{"format": 1, "name": "tiny", "grid": "", "smoke": false}')
    process.append(started(file, "--root", str(root), "--jobs", "2"))
    out, _ = process[0].communicate(timeout=60)
    assert process[0].returncode == 1
    (log,) = store.logs_in(root).glob(f"*/{small.name}.log")
    (failed,) = re.findall(r"^failed: (.*)$", out, flags=re.M)
    assert failed.startswith(f"{small.name} failed: ")
    assert "is not a run: it has no config.json (exit code 2)" in failed
    assert failed.endswith(f"; its log is {log}")
    assert f"stopped {large.name}" in out
    assert not locked(root)


def test_a_pack_that_takes_too_long_ends_the_study(
    tmp_path: Path, process: list[subprocess.Popen[str]]
):
    root, file = tmp_path / "root", tiny(tmp_path, updates=3000)
    begun = time.monotonic()
    process.append(started(file, "--root", str(root), "--timeout", "1.5"))
    out, _ = process[0].communicate(timeout=60)
    assert process[0].returncode == 1
    assert "took longer than the timeout of 1.5 s; its log is" in out
    assert time.monotonic() - begun < 30.0


def test_time_that_is_up_is_no_failure(tmp_path: Path, process: list[subprocess.Popen[str]]):
    root, file = tmp_path / "root", tiny(tmp_path, updates=3000)
    process.append(started(file, "--root", str(root), "--jobs", "1", "--stop-after", "1"))
    out, _ = process[0].communicate(timeout=60)
    assert process[0].returncode == 0
    assert "stopped before the end; the same command goes on from here" in out


def test_a_dry_run_prints_what_slurm_would_get(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("submitit")
    flags = ["--root", str(tmp_path / "root"), "--backend", "slurm", "--slurm-partition", "night"]
    flags += ["--device", "cuda", "--dry-run"]
    words = ["study", "run", "uav-paper", "--smoke", "--only", "fig9", *flags]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("#!/bin/bash") == 1
    assert "#SBATCH --partition=night" in said
    assert "#SBATCH --gpus-per-node=1" in said
    assert "-m lockstep.studies.worker" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "uav-papr"], "no study called 'uav-papr'; did you mean 'uav-paper'"),
        (["run", "uav-paper", "--only", "fig66"], "no figure of uav-paper called 'fig66'"),
        (["run", "uav-paper", "--jobs", "-1"], "jobs must be 0 or more, got -1"),
        (["run", "uav-paper", "--timeout", "nan"], "timeout must be 0 or more, got nan"),
        (["run", "uav-paper", "--stop-after", "nan"], "stop_after must be 0 or more, got nan"),
        (
            ["run", "uav-paper", "--backend", "slurm", "--timeout", "9"],
            "timeout does not go with --backend slurm",
        ),
        (
            ["run", "uav-paper", "--slurm-partition", "night"],
            "slurm_partition goes with --backend slurm, got local",
        ),
        (["run", "uav-paper", "--dry-run"], "dry_run goes with --backend slurm, got local"),
        (["run", "uav-paper", "--ray-address", "auto"], "ray_address goes with --backend ray"),
        (["run", "uav-paper", "--device", "cuda"], "device is cuda, but no GPU is available here"),
        (["status", "uav-paper", "--root", "gone"], "there is no study in gone; train it first: "),
        (["plan", "uav-flights", "--root", "x" * 300], "x cannot be made: File name too long"),
        (["status", "uav-flights", "--root", "x" * 300], "x cannot be made: File name too long"),
        (["plann"], "there is no command 'plann'; did you mean 'plan'"),
    ],
)
def test_bad_input_is_answered_in_a_sentence(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["study", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_kind_of_figure_that_there_is_not_is_refused_before_training(tmp_path: Path):
    """In a process of its own: here every type is checked, before a figure can."""
    file, root = tiny(tmp_path, updates=2), tmp_path / "root"
    Path(file).write_text(Path(file).read_text().replace('kind="lines"', 'kind="line"'))
    for verb in ("plan", "run"):
        words = ["study", verb, file, "--root", str(root)]
        command = [sys.executable, "-m", "lockstep", *words]
        ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 2
        assert ended.stderr == (
            f"lockstep study: {file} cannot be declared: the kind of figure band must be one of "
            "bars, lines, curves, flights, got 'line'\n"
        )
    assert not root.exists()


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("world/jain_fairnes", "'world/jain_fairnes'; did you mean 'world/jain_fairness'?"),
        ("train/value_loss", "no metric of figure band called 'train/value_loss'"),  # is not kept
    ],
)
def test_a_metric_that_no_trial_will_have_is_refused_before_training(
    metric: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file, root = tiny(tmp_path, updates=2), tmp_path / "root"
    text = Path(file).read_text().replace("world/jain_fairness", metric)
    Path(file).write_text(text)
    assert main(["study", "run", file, "--root", str(root), *PACKS]) == 2
    assert message in capsys.readouterr().err
    assert not root.exists()


@pytest.mark.slow
def test_the_papers_study_is_trained_in_its_short_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = tmp_path / "root"
    words = ["uav-paper", "--smoke", "--root", str(root)]
    assert main(["study", "run", *words, "--only", "fig9", "--device", "cpu"]) == 0
    assert main(["study", "status", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.split("every trial has a result\n")[1])
    assert told["counts"]["done"] == len(load("uav-paper", smoke=True).figure("fig9").trials())
