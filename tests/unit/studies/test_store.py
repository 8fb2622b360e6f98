"""What a study keeps: each trial by itself, found by its name, trusted or refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import BadInput, UnknownName
from lockstep.run import loop
from lockstep.run.record import Run
from lockstep.run.rundir import read_json, write_json
from lockstep.studies import store
from lockstep.studies.catalogue import STUDIES, load
from lockstep.studies.store import CorruptTrial, Summary, read_curves, read_trial
from lockstep.studies.study import Study, Trial, at_precision
from tests.unit.studies import roots


@pytest.fixture
def trial(study: Study) -> Trial:
    """One that shares its pack with other bandwidths and other seeds."""
    return study.figure("band").points[0].trials[1]


def curves_of(root: Path, id: str) -> dict[str, store.Curve]:
    summary = read_trial(root, id)
    assert summary is not None
    return read_curves(root, summary)


def summary_of(root: Path, trial: Trial) -> Path:
    return store.trials_in(root) / trial.hash / store.SUMMARY


def test_every_trial_of_a_pack_has_a_result_of_its_own(study: Study, trained: Path):
    assert sorted(store.filed(trained)) == sorted(study.distinct())
    for id, trial in study.distinct().items():
        summary = read_trial(trained, id)
        assert summary is not None
        assert summary.config.hash == trial.config.hash
        assert summary.members > 1
        assert summary.updates == trial.config.updates


def test_a_result_from_a_pack_agrees_with_training_alone(
    trained: Path, trial: Trial, tmp_path: Path
):
    alone = loop.train(trial.config, tmp_path / "alone")
    mine = curves_of(trained, trial.hash)
    assert roots.ENERGY in mine
    for name, curve in mine.items():
        assert curve == pytest.approx(alone.curve(name)[0].tolist(), rel=1e-4, nan_ok=True), name
    summary = read_trial(trained, trial.hash)
    assert summary is not None
    told = alone.summary["members"][0]["tail"]
    for name in (roots.ENERGY, roots.JAIN):
        assert summary.tail[name] == pytest.approx(told[name], rel=1e-4)


def test_curves_are_short_and_true(study: Study, trained: Path):
    for id in study.distinct():
        summary = read_trial(trained, id)
        assert summary is not None
        for name, curve in curves_of(trained, id).items():
            assert all(float(f"{x:.{store.DIGITS}g}") == x for x in curve)
            mean = store.mean_of_tail(curve, summary.tail_updates)
            assert mean == pytest.approx(summary.tail[name], rel=1e-7, abs=1e-12)


def test_a_summary_comes_back_as_it_was_written(trained: Path, trial: Trial):
    summary = read_trial(trained, trial.hash)
    assert summary is not None
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    assert summary.seed == trial.seed


def test_a_trial_without_a_result_is_none(root: Path, trial: Trial):
    summary_of(root, trial).unlink()
    assert read_trial(root, trial.hash) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "cannot be used"),
        (lambda text: "[]", "it is not a table"),
        (lambda text: text.replace('"format": 1', '"format": 9'), "its format is 9"),
        (lambda text: text.replace('"members"', '"memebrs"'), "it lacks members"),
        (lambda text: text.replace('"seeds": [', '"seeds": [9, '), "must have one member"),
        (lambda text: text.replace('"hidden": 16', '"hidden": 32'), "are those of trial"),
        (lambda text: text.replace('"uav-mec"', '"uav-mac"'), "no world called 'uav-mac'"),
    ],
)
def test_a_summary_that_was_damaged_or_changed_is_not_trusted(
    root: Path, trial: Trial, change, message: str
):
    file = summary_of(root, trial)
    before = file.read_text()
    file.write_text(change(before))
    assert file.read_text() != before
    with pytest.raises(CorruptTrial, match=message) as caught:
        read_trial(root, trial.hash)
    assert "remove its folder and train it again" in str(caught.value)
    assert trial.hash not in [summary.id for summary in store.results(root)]


def test_a_result_in_the_folder_of_another_trial_is_not_trusted(
    root: Path, study: Study, trial: Trial
):
    other = study.figure("band").points[1].trials[1]
    shutil.copy(summary_of(root, other), summary_of(root, trial))
    with pytest.raises(CorruptTrial, match=f"are those of trial {other.hash[:12]}"):
        read_trial(root, trial.hash)


def test_curves_of_another_trial_are_not_trusted(root: Path, study: Study, trial: Trial):
    other = study.figure("band").points[1].trials[1]
    file = store.trials_in(root) / trial.hash / store.CURVES
    shutil.copy(store.trials_in(root) / other.hash / store.CURVES, file)
    with pytest.raises(CorruptTrial, match="does not hold the curves of trial"):
        curves_of(root, trial.hash)
    write_json(file, {"format": store.FORMAT, "id": trial.hash})
    with pytest.raises(CorruptTrial, match="does not hold the curves of trial"):
        curves_of(root, trial.hash)
    file.unlink()
    with pytest.raises(CorruptTrial, match="cannot be used: there is no such file"):
        curves_of(root, trial.hash)


def test_filing_again_changes_nothing_but_what_is_damaged(root: Path, trial: Trial):
    whole = read_trial(root, trial.hash)
    assert whole is not None
    run = Run.open(store.runs_in(root) / whole.pack)
    files = list(store.trials_in(root).rglob("*.json"))
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    broken = summary_of(root, trial)
    for damaged in (broken, broken.with_name(store.CURVES)):
        damaged.write_text("{")
        store.file_pack(root, whole.pack, run)
        assert read_trial(root, trial.hash) == whole
    for file, (content, written) in before.items():
        assert file.read_bytes() == content
        if file.parent != broken.parent:
            assert file.stat().st_mtime_ns == written


def test_a_run_of_two_versions_of_the_code_is_a_trial_of_neither(root: Path, trial: Trial):
    whole = read_trial(root, trial.hash)
    assert whole is not None
    run = Run.open(store.runs_in(root) / whole.pack)
    about = run.manifest
    about["history"].append(about["history"][0] | {"code_version": "f" * 64})
    write_json(run.dir.manifest, about)
    with pytest.raises(BadInput, match="was trained by 2 versions of the code"):
        store.file_pack(root, whole.pack, Run.open(run.folder))


def test_the_name_of_a_trial_holds_the_version_of_its_code(trial: Trial):
    assert store.trial_id(trial.config, "a") != store.trial_id(trial.config, "b")
    assert store.trial_id(trial.config) == trial.hash


def test_what_figures_show_is_kept_of_every_trial(study: Study):
    for one in (study, *map(load, STUDIES)):
        store.check_metrics(one)
    figure = replace(study.figure("band"), metrics=("episode/uav/return_mean",))
    store.check_metrics(Study(name="returns", figures=(figure,)))
    figure = replace(figure, metrics=(roots.ENERGY, "world/weighted_enrgy"))
    with pytest.raises(UnknownName, match="did you mean 'world/weighted_energy'") as refused:
        store.check_metrics(Study(name="misspelt", figures=(figure,)))
    assert "no metric of figure band called 'world/weighted_enrgy'" in str(refused.value)


def test_a_root_belongs_to_one_study(root: Path, study: Study):
    store.check_study(root, study)
    other = replace(study, name="other")
    with pytest.raises(BadInput, match="holds a study of name 'tiny', and 'other' was asked for"):
        store.write_study(root, other)
    with pytest.raises(BadInput, match="of smoke False, and True was asked for"):
        store.check_study(root, replace(study, smoke=True))
    assert read_json(root / "study.json")["name"] == "tiny"


def test_a_root_of_another_precision_is_refused(root: Path, study: Study):
    with pytest.raises(BadInput, match="holds a study of precision '', and 'tf32' was asked for"):
        store.check_study(root, at_precision(study, "tf32"))


def test_a_study_may_grow_in_its_root(root: Path):
    store.write_study(root, roots.tiny_study(seeds=(1, 2, 3)))
    assert read_json(root / "study.json")["trials"] == 18


def test_a_folder_with_something_else_is_no_root(tmp_path: Path, study: Study):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(BadInput, match="holds something else and no study"):
        store.check_study(tmp_path, study)
    with pytest.raises(BadInput, match="holds something else and no study"):
        store.write_study(tmp_path, study)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(BadInput, match=r"in .*gone; train it first: `lockstep study run` with the"):
        store.check_study(tmp_path / "gone", study)
    with pytest.raises(BadInput, match="root of a study must be a folder, got the file"):
        store.check_study(tmp_path / "thesis.tex", study)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"study.json is damaged \(.*\); restore it, or move trials"),
        ("[]", "study.json has the format None, and this version reads 1"),
        ('{"format": 9, "name": "tiny"}', "study.json has the format 9, and this version reads 1"),
    ],
)
def test_a_root_that_cannot_be_read_is_refused(
    root: Path, study: Study, content: str, message: str
):
    (root / "study.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        store.check_study(root, study)


def test_a_root_that_cannot_be_made_is_refused(tmp_path: Path, study: Study):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"file/root cannot be made: Not a directory$"):
        store.write_study(tmp_path / "file/root", study)
    for use in (store.write_study, store.check_study):
        with pytest.raises(BadInput, match=r"x{300} cannot be made: File name too long$"):
            use(tmp_path / ("x" * 300), study)


def test_nothing_that_is_stored_says_where_it_lies(trained: Path):
    """So that a root can be copied to another place, or machine, and used there."""
    files = [trained / "study.json", *store.trials_in(trained).rglob("*.json")]
    files += store.runs_in(trained).glob("*/config.json")
    assert len(files) > 20
    for file in files:
        assert str(trained) not in file.read_text(), file


def test_no_updates_have_no_mean():
    assert store.mean_of_tail([3.0, 1.0, 2.0], 2) == 1.5
    assert store.mean_of_tail([3.0, 1.0, 2.0], 5) == 2.0
    assert store.mean_of_tail([3.0, 1.0, 2.0], 0) is None  # a teacher decided in all of them
