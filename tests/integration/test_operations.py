"""A run as its user meets it: stopped, crashed, out of memory, watched."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep import cli
from lockstep.errors import AuditFailure, BadInput
from lockstep.run import checkpoint, loop
from lockstep.run.config import Operations, TrainConfig
from lockstep.run.loop import Progress
from lockstep.run.record import Run
from lockstep.run.rundir import RunDir, read_json, write_json
from lockstep.run.trainer import Trainer
from lockstep.run.watching import look
from tests import tiny

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"}


def command(folder: Path, *, updates: int = 2) -> list[str]:
    flags = tiny.flags(updates=updates)
    where = [f"--root={folder.parent}", f"--name={folder.name}"]
    return [sys.executable, "-m", "lockstep", "train", "uav-mec", *flags, *where]


def started(folder: Path) -> subprocess.Popen[str]:
    """A long run that has made its first update."""
    process = subprocess.Popen(
        command(folder, updates=100_000),
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").is_file() or not (folder / "metrics.jsonl").stat().st_size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_update_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals
):
    process = started(tmp_path / "run")
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped; continue with: lockstep resume" in out
    run = Run.open(tmp_path / "run")
    updates = int(run.metrics["update"].max())
    assert checkpoint.newest(run.dir.checkpoints) == updates * tiny.STEPS_PER_UPDATE
    assert read_json(run.folder / "heartbeat.json")["phase"] == "stopped"


def test_a_second_signal_ends_it_at_once_and_leaves_a_run_that_resumes(tmp_path: Path):
    folder = tmp_path / "run"
    size = ["--learner.steps=300", "--learner.epochs=1", "--total-steps=600"]
    slow = [*size, "--ops.heartbeat-every=0.05"]
    process = subprocess.Popen(
        [*command(folder), *slow], env=ENVIRONMENT, text=True, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while look(RunDir(folder)).phase != "collect":  # in its one update, which takes seconds
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "lockstep train: interrupted\n")
    run = Run.open(folder)
    assert run.dir.metrics.read_bytes() == b""  # the update was not finished
    assert read_json(folder / "heartbeat.json")["phase"] == "stopped"
    assert not (folder / "crash").exists()
    assert loop.resume(folder).finished


def test_a_failing_update_leaves_a_report_and_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learn = Trainer.learn

    def broken(self: Trainer) -> object:
        if self.updates == 3:
            self.rollout.roles["mu"].log_prob[2, 1, 0] += 0.5
        return learn(self)

    monkeypatch.setattr(Trainer, "learn", broken)
    config = tiny.config(updates=5, checkpoint_every=2)
    with pytest.raises(AuditFailure):
        loop.train(config, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    report = read_json(run.folder / "crash" / "1.json")
    assert "G4 log_prob (mu)" in report["error"]
    assert report["gates"] == ["G4 log_prob (mu)"]
    assert report["update"] == 3
    assert any("_policy_loss" in line or "audit(" in line for line in report["stack"])
    assert set(report["last_metrics"]) >= {"world/weighted_energy", "train/mu/entropy"}
    assert report["batch"]["roles/mu/log_prob"]["shape"] == [6, 4, 4]
    assert report["batch"]["roles/mu/log_prob"]["not_finite"] == 0
    assert report["config"] == run.config.to_json()
    assert read_json(run.folder / "heartbeat.json")["phase"] == "failed"
    assert checkpoint.newest(run.dir.checkpoints) == 2 * tiny.STEPS_PER_UPDATE

    monkeypatch.undo()
    resumed = loop.resume(run.folder)
    straight = loop.train(config, tmp_path / "straight")
    assert resumed.dir.metrics.read_bytes() == straight.dir.metrics.read_bytes()


def test_settings_that_were_edited_are_refused_unless_accepted_and_then_recorded(tmp_path: Path):
    def stop(progress: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    run = loop.train(tiny.config(updates=3, checkpoint_every=1), tmp_path / "run", on_update=stop)
    config = read_json(run.dir.config)
    config["learner"]["settings"]["clip_ratio"] = 0.1
    write_json(run.dir.config, config)
    with pytest.raises(BadInput, match=r"the config has changed since .* pass --accept-changes"):
        loop.resume(run.folder)
    assert loop.resume(run.folder, accept_changes=True).finished
    assert Run(run.folder).manifest["history"][-1]["accepted"] == ["config"]


def test_the_best_checkpoint_is_chosen_by_the_metric_asked_for(tmp_path: Path):
    config = tiny.config(updates=4, checkpoint_every=1, keep_checkpoints=1)
    by = "episode/mu/return_mean"
    run = loop.train(replace(config, best_by=by), tmp_path / "run")
    tail = [run.curve(by)[:, : n + 1].mean() for n in range(4)]
    best = max(range(4), key=lambda n: tail[n]) + 1
    assert checkpoint.pointed(run.dir.checkpoints, "best") == best * tiny.STEPS_PER_UPDATE
    for key in ("train/mu/entropy", "episode/nobody/return_mean"):
        with pytest.raises(BadInput, match="best_by must be a metric of which less or more"):
            loop.train(replace(config, best_by=key), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_recording_and_watching_change_no_byte_of_the_metrics(tmp_path: Path):
    config = tiny.config(updates=3)
    none = Operations(
        heartbeat_every=0.0, resources_every=0.0, hang_after=0.0, slow_step=0.0, hints_every=0
    )
    every = Operations(
        board=True, parquet=True, heartbeat_every=0.05, heartbeat_history=True, hints_every=1
    )
    bare, full = (
        loop.train(replace(config, ops=ops), tmp_path / name)
        for name, ops in (("bare", none), ("full", every))
    )
    assert bare.dir.metrics.read_bytes() == full.dir.metrics.read_bytes()
    assert bare.summary == full.summary
    assert not (bare.folder / "heartbeat.json").exists()
    assert (full.folder / "metrics" / "latest.parquet").is_file()
    assert list((full.folder / "events").rglob("events.out.tfevents.*"))


def scarce(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """A run of two updates that may take 480 MB beyond what Python and torch hold already.

    Without oneDNN's products: where the last page is gone it may end the process by itself.
    """
    code = """
import resource, sys
from lockstep import cli
from lockstep.run import loop

held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 480_000_000,) * 2)
sys.exit(cli.main(sys.argv[1:]))
"""
    size = ["--learner.lanes=32", "--learner.epochs=1", "--total-steps=3840", "--scenario=demo"]
    size += ["--no-kernels"]
    where = [f"--root={folder.parent}", f"--name={folder.name}", "--device=cpu"]
    return subprocess.run(
        [sys.executable, "-c", code, "train", "uav-mec", *size, *where, *flags],
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        check=False,
    )


def test_where_memory_runs_out_the_ladder_goes_on_with_smaller_parts(tmp_path: Path):
    failed = scarce(tmp_path / "failed")
    assert failed.returncode == 1
    assert "allocate memory" in failed.stderr
    assert "--auto-memory" in failed.stderr
    done = scarce(tmp_path / "run", "--auto-memory")
    assert done.returncode == 0, done.stderr
    assert "memory ran out with" in done.stderr
    run = Run.open(tmp_path / "run")
    assert run.finished
    rungs = [event for event in run.manifest["history"] if event["event"] == "memory"]
    assert rungs[0]["from"] == {"accumulate": 1, "lanes": 32, "steps": 60}
    assert run.config.accumulate == rungs[-1]["to"]["accumulate"] > 1
    assert run.config.steps_per_update == 32 * 60


def test_what_adapts_to_memory_is_off_where_results_must_repeat(tmp_path: Path):
    done = scarce(tmp_path / "run", "--auto-memory", "--deterministic")
    assert done.returncode == 1
    assert "--deterministic forbids" in done.stderr


def test_a_gpu_that_is_required_and_absent_is_bad_input(tmp_path: Path):
    done = subprocess.run(
        [*command(tmp_path / "run"), "--require-gpu", "--device=auto"],
        env=ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": ""},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no GPU is available here" in done.stderr
    assert not (tmp_path / "run").exists()
    assert cli.main([*command(tmp_path / "run")[3:], "--require-gpu", "--device=cpu"]) == 2


def runs_dry(monkeypatch: pytest.MonkeyPatch, *, at: int, below: int) -> None:
    """Makes update `at` run out of memory unless minibatches are learned from in `below` parts."""
    learn = Trainer.learn

    def dry(self: Trainer) -> object:
        if self.updates == at and self.config.accumulate < below:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return learn(self)

    monkeypatch.setattr(Trainer, "learn", dry)


def stop_after(update: int) -> loop.OnUpdate:
    def watch(progress: Progress) -> None:
        if progress.update == update:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def events(run: Run) -> list[str]:
    return [event["event"] for event in Run(run.folder).manifest["history"]]


def test_a_resumed_run_that_goes_down_the_ladder_can_be_resumed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tiny.config(updates=4, checkpoint_every=1, auto_memory=True)
    run = loop.train(config, tmp_path / "run", on_update=stop_after(1))
    runs_dry(monkeypatch, at=1, below=2)
    loop.resume(run.folder, on_update=stop_after(2))
    assert events(run) == ["start", "resume", "memory"]
    assert Run(run.folder).config.accumulate == 2
    assert loop.resume(run.folder).finished
    assert events(run) == ["start", "resume", "memory", "resume"]


def test_changes_that_were_accepted_stay_so_when_memory_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = tiny.config(updates=3, checkpoint_every=1, auto_memory=True)
    run = loop.train(config, tmp_path / "run", on_update=stop_after(1))
    data = read_json(run.dir.config)
    data["learner"]["settings"]["clip_ratio"] = 0.1
    write_json(run.dir.config, data)
    runs_dry(monkeypatch, at=1, below=2)
    assert loop.resume(run.folder, accept_changes=True).finished


def test_a_rung_taken_while_building_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build = Trainer.__init__

    def dry(self: Trainer, config: TrainConfig, **others: object) -> None:
        if config.accumulate < 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        build(self, config, **others)

    config = tiny.config(updates=2, checkpoint_every=1, auto_memory=True)
    run = loop.train(config, tmp_path / "run", on_update=stop_after(1))
    monkeypatch.setattr(Trainer, "__init__", dry)
    assert loop.resume(run.folder).finished
    assert events(run) == ["start", "resume", "memory"]
    assert Run(run.folder).config.accumulate == 2


def test_an_error_that_is_not_of_memory_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(self: Trainer) -> object:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Trainer, "learn", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        loop.train(tiny.config(auto_memory=True), tmp_path / "run")


def test_a_run_goes_on_with_other_threads_or_on_another_device(tmp_path: Path):
    run = loop.train(tiny.config(3, checkpoint_every=1), tmp_path / "run", on_update=stop_after(1))
    data = read_json(run.dir.config)
    write_json(run.dir.config, data | {"device": "cuda"})
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="no GPU is available here"):
            loop.resume(run.folder)
    assert cli.main(["resume", str(run.folder), "--device", "cpu", "--threads", "1"]) == 0
    assert Run(run.folder).manifest["history"][-1]["device"] == "cpu"
    straight = loop.train(tiny.config(3, checkpoint_every=1), tmp_path / "straight")
    assert run.dir.metrics.read_bytes() == straight.dir.metrics.read_bytes()


def test_a_member_is_taken_out_only_if_it_can_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = loop.train(tiny.config(2, checkpoint_every=1), tmp_path / "run", on_update=stop_after(1))
    started = run.manifest["history"][0] | {"code_version": "older"}
    write_json(run.dir.manifest, run.manifest | {"history": [started]})
    assert cli.main(["resume", str(run.folder), "--member", "1"]) == 2
    assert "the code has changed" in capsys.readouterr().err
    assert not (tmp_path / "run-member-1").exists()
    assert cli.main(["resume", str(run.folder), "--member", "1", "--accept-changes"]) == 0
    assert Run.open(tmp_path / "run-member-1").finished


def test_a_checkpoint_that_does_not_fit_is_refused_by_evaluation_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = loop.train(tiny.config(1), tmp_path / "run")
    data = read_json(run.dir.config)
    data["learner"]["settings"]["hidden"] = 32
    write_json(run.dir.config, data)
    assert cli.main(["evaluate", str(run.folder), "--episodes", "1"]) == 2
    assert "does not fit the run's learner: weights/mu must be" in capsys.readouterr().err


def test_two_runs_without_a_name_that_start_together_both_get_one(tmp_path: Path):
    both = [
        subprocess.Popen(
            [*command(tmp_path / "x")[:-1], "--json"], env=ENVIRONMENT, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    assert [process.communicate() and process.returncode for process in both] == [0, 0]
    names = {folder.name for folder in tmp_path.iterdir()}
    assert names == {"uav-mec-ab-mappo-1", "uav-mec-ab-mappo-2"}


def test_a_stop_that_was_asked_for_while_memory_ran_out_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learn = Trainer.learn
    tried: list[int] = []

    def dry(self: Trainer) -> object:
        tried.append(self.config.accumulate)
        if len(tried) > 1:
            return learn(self)
        os.kill(os.getpid(), signal.SIGINT)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Trainer, "learn", dry)
    run = loop.train(tiny.config(updates=2, auto_memory=True), tmp_path / "run")
    assert not run.finished
    assert tried == [1]
