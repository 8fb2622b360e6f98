import subprocess
import sys
from collections import Counter

import pytest

from lockstep.studies import paper, uav_flights
from lockstep.studies.study import Study
from lockstep.studies.uav_paper import LEARNERS, study

REFERENCE = {
    **{"base": 12, "fig6": 90, "fig7": 90, "fig8": 75, "fig9": 18},
    **{"fig10": 108, "fig11": 72, "fig12": 90},
}
PAPER = REFERENCE | {"fig9": 30, "fig10": 90, "fig12": 162}


def runs(asked: Study) -> dict[str, int]:
    return dict(Counter(point.figure for point in asked.points() for _ in point.trials))


@pytest.fixture(scope="module")
def reference() -> Study:
    return study()


@pytest.fixture(scope="module")
def drawn() -> Study:
    return study(grid="paper")


def test_the_reference_grid_asks_for_555_runs_with_the_known_count_of_each_figure(
    reference: Study,
):
    assert runs(reference) == REFERENCE
    assert len(reference.trials()) == 555


def test_the_papers_grid_asks_for_621_runs(drawn: Study):
    assert runs(drawn) == PAPER
    assert len(drawn.trials()) == 621


def test_runs_are_spread_over_the_learners_as_in_the_reference(reference: Study):
    by_learner = Counter(trial.config.algorithm for trial in reference.trials())
    assert by_learner == {
        **{"ab-mappo": 342, "b-mappo": 54, "ag-mappo": 54, "maddpg": 54, "randomized": 51}
    }


def test_settings_that_coincide_are_one_trial(reference: Study, drawn: Study):
    """Defaults come up in many figures: what coincides is counted from the grids by hand."""
    base, mhz_50, uavs_10, mu_1ghz, uav_10ghz, twin, task = 12, 15, 15, 9, 9, 12, 9
    same = base + mhz_50 + uavs_10 + mu_1ghz + uav_10ghz + twin + task
    assert len(reference.distinct()) == 555 - same
    weight_001 = 3  # a mark of the paper's grid alone, while 10 GHz is one of the reference's
    assert len(drawn.distinct()) == 621 - (same - uav_10ghz + weight_001)


def test_every_mark_that_was_read_from_the_paper_is_a_point_of_its_grid(drawn: Study):
    for (figure, metric, panel), marks in paper.MARKS.items():
        shown = drawn.figure(figure)
        assert metric in shown.metrics
        points = {(p.series, p.x) for p in shown.points if p.panel == panel}
        assert points == {(name, x) for name, row in marks.items() for x in row}


def test_every_curve_that_was_read_from_the_paper_is_a_point(reference: Study):
    for (figure, metric, _), curves in paper.CURVES.items():
        shown = reference.figure(figure)
        assert metric in shown.metrics
        assert {point.series for point in shown.points} == set(curves)


def test_the_short_version_learns_with_every_learner():
    for trial in study(smoke=True).trials():
        learner = trial.config.learner
        if trial.config.algorithm == "maddpg":
            collected = learner.lanes * learner.steps
            assert learner.warm_up + learner.lanes <= collected  # the newest row cannot be drawn
            assert learner.gradient_steps == 1
            assert trial.config.total_steps == 2 * collected


def test_without_twin_means_a_deviation_of_one_half(reference: Study):
    for point in reference.figure("fig12").points:
        world = point.trials[0].config.world
        assert world.deviation == (0.5 if "w/o" in point.series else 0.05)
        assert not world.wo_dt_noise
        assert world.task_max_mbit == point.x


def test_figures_over_users_change_the_number_of_users(reference: Study):
    for point in reference.figure("fig6").points:
        assert point.trials[0].config.world.n_users == point.x
    for point in reference.figure("fig7").points:
        world = point.trials[0].config.world
        assert (world.n_users, world.n_uavs) == (70, point.x)


def test_the_short_version_has_two_values_of_each_axis_one_seed_and_two_updates():
    short = study(smoke=True)
    assert runs(short) == {
        **{"base": 4, "fig6": 10, "fig7": 10, "fig8": 10, "fig9": 2},
        **{"fig10": 8, "fig11": 4, "fig12": 8},
    }
    assert {trial.config.seeds for trial in short.trials()} == {(42,)}
    assert {trial.config.updates for trial in short.trials()} == {2}


def test_all_five_learners_are_compared(reference: Study):
    assert {point.series for point in reference.figure("fig6").points} == set(LEARNERS)


def test_maddpg_learns_once_in_five_steps_unless_asked_for_otherwise(reference: Study):
    every = study(gradient_steps=1.0)
    for asked, rate in ((reference, 0.2), (every, 1.0)):
        learners = {trial.config.learner for trial in asked.trials() if trial.series == "MADDPG"}
        assert [learner.updates_per_step for learner in learners] == [rate]
    others = {trial.hash for trial in reference.trials() if trial.series != "MADDPG"}
    assert len(set(every.distinct()) & set(reference.distinct())) == len(others)


def test_an_unknown_grid_is_refused():
    with pytest.raises(ValueError, match="grid must be one of reference, paper, got 'fine'"):
        study(grid="fine")  # type: ignore[arg-type]


def test_flights_are_trained_in_two_scenes_one_of_which_the_paper_study_has(reference: Study):
    flights = uav_flights.study()
    small, large = (point.trials[0].config.world for point in flights.figure("fig13").points)
    assert (small.width_m, small.n_users, small.n_uavs, small.n_slots) == (500.0, 12, 3, 50)
    assert (large.width_m, large.n_users, large.n_uavs, large.n_slots) == (1000.0, 60, 10, 60)
    common = set(flights.distinct()) & set(reference.distinct())
    assert len(common) == 1


def test_declaring_the_study_imports_no_torch():
    code = "import sys; from lockstep.studies import uav_paper as u; u.study().hash; "
    check = "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], check=True)
