import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lockstep.cli.report import report
from lockstep.errors import BadCheckpoint, BadInput
from lockstep.run import checkpoint, loop
from lockstep.run.config import preset
from lockstep.run.loop import Progress
from lockstep.run.record import Run
from lockstep.run.rundir import read_json, write_json
from tests import tiny


class Killed(BaseException):
    """Stands for a process that ends without another word."""


def kill_after(update: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.update == update:
            raise Killed

    return watch


def same_result(one: Run, other: Run) -> None:
    assert one.dir.metrics.read_bytes() == other.dir.metrics.read_bytes()
    assert one.dir.summary.read_bytes() == other.dir.summary.read_bytes()
    step = checkpoint.pointed(one.dir.checkpoints, "latest")
    assert step is not None
    assert checkpoint.pointed(other.dir.checkpoints, "latest") == step
    assert checkpoint.digest_at(one.dir.checkpoints, step) == checkpoint.digest_at(
        other.dir.checkpoints, step
    )
    for pointer in ("best", "latest"):
        assert checkpoint.pointed(one.dir.checkpoints, pointer) == checkpoint.pointed(
            other.dir.checkpoints, pointer
        )


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_killed_run_that_is_resumed_ends_as_one_never_stopped(tmp_path: Path, killed_at: int):
    config = tiny.config(updates=4, checkpoint_every=2)
    straight = loop.train(config, tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(config, tmp_path / "killed", on_update=kill_after(killed_at))
    assert not Run.open(tmp_path / "killed").finished
    resumed = loop.resume(tmp_path / "killed")
    same_result(straight, resumed)
    assert [event["event"] for event in Run(resumed.folder).manifest["history"]] == [
        "start",
        "resume",
    ]


def test_rewards_that_are_normalised_and_memory_resume_as_well(tmp_path: Path):
    config = tiny.config(updates=3, checkpoint_every=1)
    learner = replace(config.learner, reward_norm="running", memory="gru", minibatches=2)
    config = replace(config, learner=learner)
    straight = loop.train(config, tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(config, tmp_path / "killed", on_update=kill_after(2))
    same_result(straight, loop.resume(tmp_path / "killed"))


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_run_that_is_killed_in_its_lessons_or_after_them_resumes_as_well(
    tmp_path: Path, killed_at: int
):
    config = tiny.config(updates=4, checkpoint_every=1, teacher="greedy", lessons=2)
    straight = loop.train(config, tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(config, tmp_path / "killed", on_update=kill_after(killed_at))
    same_result(straight, loop.resume(tmp_path / "killed"))
    told = straight.curve("train/mu/imitation_loss")  # [P, updates]
    assert np.isfinite(told).tolist() == [[True, True, False, False]] * 2


def test_what_a_teacher_earned_is_nobody_elses(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    key = "world/weighted_energy"
    config = tiny.config(updates=3, checkpoint_every=1, teacher="greedy", lessons=2)
    run = loop.train(config, tmp_path / "run")
    teacher, _, own = run.curve(key).T.tolist()  # each [P]
    assert max(teacher) < min(own)  # a policy that had learned nothing yet would be worse
    assert [member["tail"][key] for member in run.summary["members"]] == own
    assert run.summary["tail_updates"] == 1
    assert checkpoint.pointed(run.dir.checkpoints, "best") == 3 * tiny.STEPS_PER_UPDATE

    taught = loop.train(replace(config, lessons=3), tmp_path / "taught")
    assert [member["tail"][key] for member in taught.summary["members"]] == [None, None]
    assert checkpoint.pointed(taught.dir.checkpoints, "best") is None
    assert report(taught, console=Console(), as_json=False) == 0
    assert "a teacher decided in all updates" in capsys.readouterr().out


def test_the_baseline_resumes_as_well(tmp_path: Path):
    base = preset("uav-mec", scenario="demo", learner="randomized")
    learner = replace(base.learner, lanes=2, steps=6)
    config = replace(tiny.config(3, checkpoint_every=1), learner=learner, algorithm="randomized")
    straight = loop.train(config, tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(config, tmp_path / "killed", on_update=kill_after(1))
    same_result(straight, loop.resume(tmp_path / "killed"))


def test_an_interrupt_finishes_the_update_and_checkpoints(tmp_path: Path):
    def interrupt(progress: Progress) -> None:
        if progress.update == 1:
            os.kill(os.getpid(), signal.SIGINT)

    config = tiny.config(updates=3, checkpoint_every=10)
    before = signal.getsignal(signal.SIGINT)
    stopped = loop.train(config, tmp_path / "stopped", on_update=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert not stopped.finished
    assert checkpoint.pointed(stopped.dir.checkpoints, "latest") == tiny.STEPS_PER_UPDATE
    straight = loop.train(config, tmp_path / "straight")
    assert loop.resume(tmp_path / "stopped").summary == straight.summary


def test_a_process_killed_outright_resumes_exactly(tmp_path: Path):
    code = f"""
import os, signal
from pathlib import Path
from lockstep.run import loop
from tests import tiny

def watch(progress):
    if progress.update == 3:
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path({str(tmp_path / "killed")!r})
loop.train(tiny.config(updates=4, checkpoint_every=2), folder, on_update=watch)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, env=_env())
    assert done.returncode == -signal.SIGKILL
    straight = loop.train(tiny.config(updates=4, checkpoint_every=2), tmp_path / "straight")
    same_result(straight, loop.resume(tmp_path / "killed"))


def _env() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"}


def test_a_finished_run_is_left_as_it_is(tmp_path: Path):
    run = loop.train(tiny.config(updates=1), tmp_path / "done")
    before = {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}
    assert loop.resume(run.folder).finished
    assert before == {f: f.read_bytes() for f in run.folder.rglob("*") if f.is_file()}


def test_code_that_changed_is_refused_unless_accepted(tmp_path: Path):
    with pytest.raises(Killed):
        loop.train(tiny.config(updates=2), tmp_path / "old", on_update=kill_after(1))
    run = Run.open(tmp_path / "old")
    write_json(
        run.dir.manifest,
        run.manifest | {"history": [run.manifest["history"][0] | {"code_version": "older"}]},
    )
    with pytest.raises(BadInput, match="the code has changed since"):
        loop.resume(run.folder)
    assert loop.resume(run.folder, accept_changes=True).finished
    assert Run(run.folder).manifest["history"][-1]["accepted"] == ["code"]


def _stopped(folder: Path) -> Run:
    config = tiny.config(updates=3, checkpoint_every=1, keep_checkpoints=9)
    with pytest.raises(Killed):
        loop.train(config, folder, on_update=kill_after(2))
    return Run.open(folder)


def _with_setting(run: Run, name: str, value: object) -> None:
    config = read_json(run.dir.config)
    config["learner"]["settings"][name] = value
    write_json(run.dir.config, config)


def test_a_checkpoint_of_another_shape_is_refused_by_the_names_of_its_parts(tmp_path: Path):
    run = _stopped(tmp_path / "x")
    _with_setting(run, "hidden", 32)
    with pytest.raises(BadInput, match="the config has changed since"):
        loop.resume(run.folder)
    message = r"does not fit the run's configuration: .*learner/weights/mu must be float32 of shape"
    with pytest.raises(BadCheckpoint, match=message):
        loop.resume(run.folder, accept_changes=True)


def test_settings_that_changed_are_accepted_once_and_then_belong_to_the_run(tmp_path: Path):
    run = _stopped(tmp_path / "x")
    _with_setting(run, "clip_ratio", 0.1)
    with pytest.raises(Killed):  # before it could write a checkpoint of its own
        loop.resume(run.folder, accept_changes=True, on_update=_at_once_without_checkpoint(run))
    assert loop.resume(run.folder).finished


def _at_once_without_checkpoint(run: Run) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        for suffix in ("pt", "json"):
            (run.dir.checkpoints / f"{progress.step}.{suffix}").unlink(missing_ok=True)
        (run.dir.checkpoints / "latest").unlink()
        raise Killed

    return watch


def test_a_run_goes_back_to_an_older_checkpoint_and_ends_the_same(tmp_path: Path):
    run = _stopped(tmp_path / "x")
    config = run.config
    resumed = loop.resume(run.folder, step=tiny.STEPS_PER_UPDATE)
    assert resumed.manifest["history"][-1]["step"] == tiny.STEPS_PER_UPDATE
    assert (run.dir.checkpoints / f"{2 * tiny.STEPS_PER_UPDATE}.pt.aside").is_file()
    same_result(loop.train(config, tmp_path / "straight"), resumed)
