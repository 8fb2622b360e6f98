import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.errors import BadInput
from lockstep.studies import store
from lockstep.studies.aggregate import Unusable, aggregate, gather, in_order
from lockstep.studies.status import status
from lockstep.studies.study import Study, Trial
from tests.unit.studies import roots


@pytest.fixture(scope="module")
def trained(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roots.train(study, tmp_path_factory.mktemp("studies") / "tiny")


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    without = shutil.ignore_patterns("runs", "aggregate.json")
    return shutil.copytree(trained, tmp_path / "copy", ignore=without)


def folder(root: Path, trial: Trial) -> Path:
    return store.trials_in(root) / trial.hash


def test_a_mark_holds_the_tail_mean_of_each_seed_and_what_follows_from_them(
    study: Study, trained: Path
):
    found = gather(study, trained)
    mark = found.marks("band", roots.ENERGY)[0]
    point = study.figure("band").points[2]
    told = [store.read_trial(trained, trial.hash) for trial in point.trials]
    assert (mark.series, mark.x, mark.seeds) == ("K=4", 30.0, (1, 2))
    assert list(mark.values) == [one.tail[roots.ENERGY] for one in told if one is not None]
    assert mark.mean == pytest.approx(np.mean(mark.values))
    assert mark.std == pytest.approx(np.std(mark.values, ddof=1))
    assert mark.iqm == pytest.approx(mark.mean)
    low, high = mark.interval
    assert low <= mark.mean <= high
    assert mark.trials == tuple(trial.hash for trial in point.trials)


def test_a_mark_holds_the_curve_of_each_seed_over_environment_steps(study: Study, trained: Path):
    mark = gather(study, trained).marks("courses", roots.JAIN)[0]
    assert mark.steps.tolist() == [12, 24, 36]
    assert mark.curves.shape == (2, 3)
    assert mark.curves.mean(axis=1).tolist() == pytest.approx(list(mark.values))


def test_a_single_seed_has_no_spread(tmp_path: Path):
    study = roots.tiny_study(seeds=(1,))
    root = roots.fill(study, tmp_path / "one", roots.constant(lambda trial, metric: 2.5))
    mark = gather(study, root).marks("clock", roots.ENERGY)[0]
    assert (mark.mean, mark.std, mark.interval) == (2.5, None, (2.5, 2.5))


def test_the_file_holds_every_figure_and_the_same_bytes_each_time(study: Study, trained: Path):
    file = aggregate(study, trained)
    assert file == trained / "aggregate.json"
    first = file.read_bytes()
    assert aggregate(study, trained).read_bytes() == first
    data = json.loads(first)
    assert (data["study"], data["hash"], data["left_out"]) == ("tiny", study.hash, [])
    assert list(data["figures"]) == ["courses", "band", "clock", "flights"]
    marks = data["figures"]["band"]["metrics"][roots.ENERGY]
    assert [(mark["series"], mark["x"]) for mark in marks] == [
        *[("K=4", 30.0), ("K=4", 50.0)],
        *[("K=10", 30.0), ("K=10", 50.0)],
    ]
    assert {"seeds", "values", "mean", "std", "iqm", "low", "high", "trials"} <= set(marks[0])
    assert "curves" not in marks[0]
    assert len(data["figures"]["courses"]["metrics"][roots.JAIN][0]["curves"]) == 2


def test_a_missing_trial_is_named_with_the_figure_that_lacks_it(study: Study, copy: Path):
    lost = study.figure("clock").points[1].trials[1]
    shutil.rmtree(folder(copy, lost))
    with pytest.raises(Unusable) as told:
        aggregate(study, copy)
    assert str(told.value).startswith(
        f"1 of {len(study.distinct())} trials of tiny cannot be used, so nothing is made of them:\n"
        f"  clock MU CPU K=4 at 2, seed 2 ({lost.hash[:12]}): missing, nothing is there"
    )
    assert "--allow-missing" in str(told.value)
    assert not (copy / "aggregate.json").exists()


def test_what_is_missing_may_be_left_out_and_is_recorded(study: Study, copy: Path):
    lost = study.figure("clock").points[1].trials[1]
    shutil.rmtree(folder(copy, lost))
    data = json.loads(aggregate(study, copy, allow_missing=True).read_text())
    assert [mark["x"] for mark in data["figures"]["clock"]["metrics"][roots.ENERGY]] == [0.5]
    assert len(data["figures"]["band"]["metrics"][roots.ENERGY]) == 4
    assert data["left_out"] == [
        f"clock MU CPU K=4 at 2, seed 2 ({lost.hash[:12]}): missing, nothing is there"
    ]


def test_a_stale_result_is_refused_and_never_shown(study: Study, copy: Path):
    old = study.figure("clock").points[1].trials[1]
    shutil.rmtree(folder(copy, old))
    roots.file(old, copy, {roots.ENERGY: [1.0, 2.0, 3.0]}, code="other")
    with pytest.raises(Unusable, match="stale, pack trained it with other code"):
        aggregate(study, copy)
    found = gather(study, copy, allow_missing=True)
    assert [mark.x for mark in found.marks("clock", roots.ENERGY)] == [0.5]
    assert found.lacking("clock") == 1
    assert "stale" in found.left_out[0]


@pytest.mark.parametrize("content", ["{", "[]", '{"id": "another", "curves": {}}', '{"id": "x"}'])
def test_damaged_curves_are_refused(study: Study, copy: Path, content: str):
    trial = study.figure("band").points[0].trials[0]
    (folder(copy, trial) / store.CURVES).write_text(content)
    with pytest.raises(Unusable, match=r"seed 1 .*: corrupt, curve\.json: it"):
        aggregate(study, copy)
    assert gather(study, copy, allow_missing=True).lacking("band") == 1


def test_a_damaged_summary_is_refused(study: Study, copy: Path):
    trial = study.figure("band").points[0].trials[0]
    (folder(copy, trial) / store.SUMMARY).write_text("{}")
    with pytest.raises(Unusable, match=r"corrupt, summary\.json: its format is None"):
        aggregate(study, copy)


def test_curves_that_are_shorter_than_the_training_are_refused(study: Study, copy: Path):
    trial = study.figure("band").points[0].trials[0]
    told = json.loads((folder(copy, trial) / store.CURVES).read_text())
    told["curves"][roots.ENERGY].pop()
    (folder(copy, trial) / store.CURVES).write_text(json.dumps(told))
    with pytest.raises(Unusable, match=r"corrupt, curve\.json: .* has 2 of 3 updates"):
        aggregate(study, copy)


def test_a_metric_that_was_not_measured_is_named(study: Study, trained: Path):
    asked = replace(
        study, figures=(replace(study.figure("band"), metrics=("world/happiness",)),)
    )  # fmt: skip
    with pytest.raises(BadInput, match="no world/happiness, which figure band shows; it has world"):
        gather(asked, trained)


def test_a_metric_without_a_number_is_named(tmp_path: Path):
    study = roots.tiny_study()
    root = roots.fill(study, tmp_path / "none", lambda trial, metric: [None, None, None])
    with pytest.raises(BadInput, match=r"has no number of world/\S+ in its last updates"):
        gather(study, root)


def test_an_update_without_a_number_is_a_gap_in_the_curve(tmp_path: Path):
    study = roots.tiny_study()
    root = roots.fill(study, tmp_path / "gap", lambda trial, metric: [None, 1.0, 2.0])
    mark = gather(study, root).marks("courses", roots.ENERGY)[0]
    assert np.isnan(mark.curves[:, 0]).all()
    assert mark.values == (1.5, 1.5)


def test_only_the_trials_of_the_figures_asked_for_must_be_there(study: Study, copy: Path):
    shutil.rmtree(folder(copy, study.figure("clock").points[0].trials[0]))
    assert set(gather(study, copy, only=("band",)).figures) == {"band"}
    with pytest.raises(Unusable, match="1 of 4 trials"):
        gather(study, copy, only=("clock",))


def test_a_figure_that_is_not_there_is_answered_with_the_nearest(study: Study, trained: Path):
    with pytest.raises(BadInput, match="no figure of tiny called 'bands'; did you mean 'band'"):
        gather(study, trained, only=("bands",))


def test_the_root_of_another_study_is_refused(trained: Path):
    with pytest.raises(BadInput, match="holds a study of name 'tiny', and 'other' was asked for"):
        aggregate(roots.tiny_study("other"), trained)


def test_a_root_that_is_not_there_is_refused(study: Study, tmp_path: Path):
    with pytest.raises(BadInput, match="there is no study in"):
        aggregate(study, tmp_path / "nowhere")


def test_a_result_that_was_trained_twice_is_used(study: Study, trained: Path, tmp_path: Path):
    root = shutil.copytree(trained, tmp_path / "twice")
    first = next(store.runs_in(root).iterdir())
    shutil.copytree(first, first.with_name("again"))
    assert "duplicate" in {one.state for one in status(study, root)}
    copied, alone = aggregate(study, root), aggregate(study, trained)
    assert copied.read_bytes() == alone.read_bytes()


def test_series_stand_in_the_order_of_their_numbers_or_as_declared(study: Study, trained: Path):
    assert gather(study, trained).series("band") == ["K=4", "K=10"]
    paper = ["B=30MHz w/o DT", "B=30MHz with DT", "B=5MHz with DT"]
    learners = ["AB-MAPPO", "B-MAPPO", "AG-MAPPO"]
    assert in_order(paper) == ["B=5MHz with DT", "B=30MHz w/o DT", "B=30MHz with DT"]
    assert in_order(learners) == learners
