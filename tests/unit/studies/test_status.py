"""The state of every trial, told from folders alone."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.run.rundir import read_json, write_json
from lockstep.studies import store
from lockstep.studies.status import STATES, TrialStatus, counts, status
from lockstep.studies.study import Study, Trial
from tests.unit.studies import roots


@pytest.fixture
def trial(study: Study) -> Trial:
    return study.trials()[0]


def of(found: list[TrialStatus], trial: Trial) -> TrialStatus:
    return next(one for one in found if one.trial.hash == trial.hash)


def unfiled(root: Path, trial: Trial) -> Path:
    """Takes the trial's result away; the folder of the run that holds it."""
    summary = store.read_trial(root, trial.hash)
    assert summary is not None
    shutil.rmtree(store.trials_in(root) / trial.hash)
    return store.runs_in(root) / summary.pack


def test_a_study_that_is_done_says_so_of_every_trial(study: Study, trained: Path):
    found = status(study, trained)
    assert counts(found) == dict.fromkeys(STATES, 0) | {"done": 12}
    assert all(one.usable for one in found)


def test_nothing_is_there_before_a_study_begins(study: Study, tmp_path: Path):
    assert counts(status(study, tmp_path))["missing"] == 12


def test_a_finished_run_that_was_not_filed_yet_is_missing(study: Study, root: Path, trial: Trial):
    run = unfiled(root, trial)
    one = of(status(study, root), trial)
    assert (one.state, one.detail) == ("missing", f"{run.name} is finished and not yet filed")
    assert not one.usable


@pytest.mark.parametrize(
    ("phase", "state"), [("stopped", "stopped"), ("failed", "failed"), ("learn", "failed")]
)
def test_a_run_that_does_not_go_on_says_why(
    study: Study, root: Path, trial: Trial, phase: str, state: str
):
    run = unfiled(root, trial)
    (run / "summary.json").unlink()
    beat = read_json(run / "heartbeat.json")
    dead = {"pid": 2**22 + 1}  # more than there can be
    write_json(run / "heartbeat.json", beat | {"phase": phase, "process": beat["process"] | dead})
    one = of(status(study, root), trial)
    assert one.state == state
    assert one.detail.startswith(f"in {run.name}, ")
    assert "at update 3 of 3" in one.detail


def test_a_run_that_goes_on_is_running(study: Study, root: Path, trial: Trial):
    """Its heart beats in a process that is there: this one."""
    from lockstep.run.heartbeat import Heartbeat
    from lockstep.run.pulse import Pulse
    from lockstep.run.rundir import RunDir

    run = unfiled(root, trial)
    (run / "summary.json").unlink()
    pulse = Pulse(updates=3, update=1, step=12)
    Heartbeat(RunDir(run), interval=5.0, hang_after=0.0, objective="x").beat(
        pulse.view(), phase="learn"
    )
    one = of(status(study, root), trial)
    assert one.state == "running"
    assert "running at update 3 of 3" in one.detail


def test_a_result_of_other_code_is_stale_and_never_used(study: Study, root: Path, trial: Trial):
    unfiled(root, trial)
    shutil.rmtree(store.runs_in(root))
    curves = {roots.ENERGY: [1.0, 1.0, 1.0]}
    roots.file(trial, root, curves, code="0" * 64)
    one = of(status(study, root), trial)
    assert (one.state, one.summary) == ("stale", None)
    assert one.detail == "pack trained it with other code"


def test_a_trial_that_was_trained_twice_is_a_duplicate(study: Study, root: Path, trial: Trial):
    summary = store.read_trial(root, trial.hash)
    assert summary is not None
    shutil.copytree(store.runs_in(root) / summary.pack, store.runs_in(root) / "again")
    one = of(status(study, root), trial)
    assert one.state == "duplicate"
    assert one.usable
    assert one.detail == f"again and {summary.pack} hold it; the result is that of {summary.pack}"


@pytest.mark.parametrize("name", [store.SUMMARY, store.CURVES])
@pytest.mark.parametrize("damage", [lambda text: text[:40], lambda text: "{}"])
def test_a_trial_with_a_damaged_file_is_corrupt(
    study: Study, root: Path, trial: Trial, name: str, damage: Callable[[str], str]
):
    file = store.trials_in(root) / trial.hash / name
    file.write_text(damage(file.read_text()))
    one = of(status(study, root), trial)
    assert (one.state, one.summary) == ("corrupt", None)
    assert one.detail.startswith(f"{name}: it")


def test_what_the_study_does_not_ask_for_is_not_told(root: Path, study: Study):
    smaller = replace(study, figures=study.figures[:1])
    assert len(status(smaller, root)) == 4


def test_a_folder_among_the_runs_that_is_none_is_passed_over(study: Study, root: Path):
    strange = store.runs_in(root) / "strange"
    strange.mkdir()
    (strange / "config.json").write_text(json.dumps({"world": "gone"}))
    assert counts(status(study, root))["done"] == 12
