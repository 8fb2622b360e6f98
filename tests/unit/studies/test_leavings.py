"""What is left of a finished pack."""

import gzip
import shutil
from pathlib import Path

import pytest

from lockstep.errors import NotARun
from lockstep.run.api import load
from lockstep.run.record import Run
from lockstep.studies import leavings, store
from lockstep.studies.leavings import leave, policies, policy_run
from lockstep.studies.study import Study


def runs(root: Path) -> list[Run]:
    return [Run.open(folder) for folder in sorted(store.runs_in(root).iterdir())]


def test_policies_are_kept_for_figures_of_flights_or_for_all(study: Study):
    flights = {trial.hash for trial in study.figure("flights").trials()}
    assert policies(study, "flights") == flights
    assert len(flights) == 2
    assert policies(study, "policies") == set(study.distinct())


def test_of_a_finished_pack_results_and_asked_policies_are_left(root: Path, study: Study):
    kept = policies(study, "flights")
    heavy = {run.folder.name: _bytes(run.folder) for run in runs(root)}
    for run in runs(root):
        leave(root, run.folder.name, run, keep="flights", of=kept)
    found = {file.parent.name for file in store.trials_in(root).glob(f"*/{leavings.POLICY}")}
    assert found == kept
    for run in runs(root):
        assert run.finished
        assert [file.name for file in run.dir.checkpoints.iterdir()] == [leavings.DROPPED]
        assert _bytes(run.folder) < heavy[run.folder.name] / 3
    assert sorted(store.filed(root)) == sorted(study.distinct())


def test_what_a_finished_pack_measured_is_pressed_and_can_be_filed_again(root: Path):
    run = runs(root)[0]
    name, measured = run.folder.name, run.dir.metrics.read_bytes()
    names = leave(root, name, run, keep="flights", of=())
    pressed = run.dir.metrics.with_name(leavings.PRESSED)
    assert gzip.decompress(pressed.read_bytes()) == measured
    assert not run.dir.metrics.exists()
    assert pressed.stat().st_size < len(measured) / 2

    trial = store.trials_in(root) / names[0]
    curves = (trial / store.CURVES).read_bytes()
    shutil.rmtree(trial)
    for _ in range(2):  # also by a process that was killed before it had pressed it again
        leave(root, name, run, keep="flights", of=())
        assert (trial / store.CURVES).read_bytes() == curves
        assert not run.dir.metrics.exists()
        run.dir.metrics.write_bytes(measured)


def test_a_kept_policy_decides_as_the_packs_member_did(root: Path, study: Study):
    trial = study.figure("flights").trials()[1]
    summary = store.read_trial(root, trial.hash)
    assert summary is not None
    pack, member = policy_run(root, summary)
    assert (pack.name, member) == (summary.pack, summary.member)
    before = load(Run.open(pack), member=member).learner.state_dict()["weights"]
    run = Run.open(pack)
    leave(root, summary.pack, run, keep="flights", of=[trial.hash])

    own, member = policy_run(root, summary)
    assert (own.parent.name, member) == (trial.hash, 0)
    after = load(Run.open(own), member=0).learner.state_dict()["weights"]
    for name, value in _flat(before).items():
        assert value.equal(_flat(after)[name]), name


def test_whole_runs_are_kept_if_that_is_asked_for(root: Path, study: Study):
    for run in runs(root):
        leave(root, run.folder.name, run, keep="runs", of=policies(study, "runs"))
        assert (run.dir.checkpoints / "latest").is_file()
        assert run.dir.metrics.is_file()
    assert list(store.trials_in(root).glob(f"*/{leavings.POLICY}")) == []


def test_leaving_may_be_broken_off_anywhere_and_done_again(root: Path, study: Study):
    trial = study.figure("flights").trials()[0]
    summary = store.read_trial(root, trial.hash)
    assert summary is not None
    half = store.trials_in(root) / trial.hash / leavings.POLICY
    half.mkdir()
    (half / "config.json").write_text("{}")  # a process that was killed left it so
    run = Run.open(store.runs_in(root) / summary.pack)
    for _ in range(2):
        leave(root, summary.pack, run, keep="flights", of=[trial.hash])
    assert Run.open(half).config.hash == trial.config.hash


def test_a_policy_that_was_not_kept_is_said_to_be_gone(root: Path, study: Study):
    for run in runs(root):
        leave(root, run.folder.name, run, keep="flights", of=())
    summary = store.results(root)[0]
    with pytest.raises(NotARun, match=r"was not kept; .* with `lockstep study run --keep policies"):
        policy_run(root, summary)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _flat(tree: dict, name: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        inner = f"{name}/{key}"
        flat |= _flat(value, inner) if isinstance(value, dict) else {inner: value}
    return flat
