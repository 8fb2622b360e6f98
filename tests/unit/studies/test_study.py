"""What a study declares: trials, points, figures, and what is refused."""

from dataclasses import replace

import pytest

from lockstep.errors import BadInput, UnknownName
from lockstep.learners.config import LEARNERS
from lockstep.studies.study import (
    Figure,
    Point,
    Study,
    Trial,
    at_precision,
    setting,
    sweep,
    wanted,
)
from lockstep.studies.uav_paper import study as uav_paper
from tests.unit.studies.roots import ENERGY, figure, tiny_config, tiny_study


def points(name: str = "band", **options) -> tuple[Point, ...]:
    asked = {"seeds": (1, 2), "axis": "world.bandwidth_mhz", "values": (30.0, 50.0)}
    return sweep(name, {"K=4": tiny_config()}, **asked | options)


def test_a_sweep_has_a_point_for_each_series_and_value_and_a_trial_for_each_seed():
    series = {"K=4": tiny_config(), "K=5": tiny_config(n_users=5)}
    made = sweep("band", series, seeds=(7, 9), axis="world.bandwidth_mhz", values=(30.0, 50.0))
    assert [(p.series, p.x) for p in made] == [
        ("K=4", 30.0), ("K=4", 50.0), ("K=5", 30.0), ("K=5", 50.0)
    ]  # fmt: skip
    assert [[trial.seed for trial in p.trials] for p in made] == [[7, 9]] * 4
    assert [p.trials[0].config.world.bandwidth_mhz for p in made] == [30.0, 50.0] * 2
    assert made[2].trials[0].config.world.n_users == 5


def test_a_sweep_without_an_axis_has_a_point_for_each_series():
    made = points(axis="", values=())
    assert [(p.series, p.x) for p in made] == [("K=4", None)]


def test_a_sweep_needs_an_axis_for_its_values():
    with pytest.raises(ValueError, match="sweep band must have both axis and values, or neither"):
        points(axis="")


def test_a_setting_of_whole_numbers_stays_one():
    config = setting(tiny_config(), "world.n_users", 6.0)
    assert (config.world.n_users, type(config.world.n_users)) == (6, int)
    assert setting(config, "learner.lr_actor", 0.01).learner.lr_actor == 0.01


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'bandwidth_mhz'"):
        setting(tiny_config(), "world.bandwith_mhz", 1.0)
    with pytest.raises(ValueError, match=r"as world\.<name> or learner\.<name>, got x"):
        setting(tiny_config(), "x", 1.0)


def test_a_trial_has_one_seed():
    with pytest.raises(ValueError, match="a trial must have one seed, got 2"):
        Trial(config=replace(tiny_config(), seeds=(1, 2)), series="K=4")


def test_the_name_of_a_trial_follows_from_settings_and_not_from_where_it_is_shown():
    config = replace(tiny_config(), seeds=(3,))
    one = Trial(config=config, series="K=4", x=1.0)
    other = Trial(config=replace(config, device="auto", threads=2), series="B", x=None)
    assert one.hash == other.hash
    assert Trial(config=replace(config, seeds=(4,)), series="K=4").hash != one.hash


def test_points_that_coincide_are_trained_once():
    study = tiny_study()
    assert len(study.trials()) == 2 * (2 + 4 + 2)
    shared = {trial.hash for trial in study.figure("courses").trials()}
    assert shared <= {trial.hash for trial in study.figure("band").trials()}
    assert len(study.distinct()) == 2 * (4 + 2)


def test_the_digest_of_a_study_changes_with_its_trials_alone():
    assert tiny_study("one").hash == tiny_study("another").hash
    assert tiny_study(seeds=(1, 3)).hash != tiny_study().hash


def test_a_figure_that_a_study_does_not_have_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no figure of tiny called 'bend'; did you mean 'band'"):
        tiny_study().figure("bend")


def test_a_point_is_in_a_figure_once():
    twice = points() + points()
    with pytest.raises(ValueError, match="each point of figure band must be there once"):
        figure("band", "bars", twice, (ENERGY,))


def test_figures_that_share_a_point_share_its_trials():
    one = figure("one", "bars", points(), (ENERGY,))
    other = figure("other", "bars", points(seeds=(1, 3)), (ENERGY,))
    with pytest.raises(ValueError, match="must share its trials; name one of the sweeps otherwise"):
        Study(name="tiny", figures=(one, other))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "fig/6"}, "a figure's name must be fit for a file, got 'fig/6'"),
        ({"metrics": ()}, "figure band must measure something"),
        ({"points": ()}, "figure band must have points"),
        (
            {"points": points(axis="", values=())},
            "figure band of bars must have a value of x at every point; give its sweep an axis, or",
        ),
        (
            {"kind": "lines", "points": points() + points("all", axis="", values=())},
            "figure band of lines must have a value of x at every point",
        ),
        (
            {"kind": "curves"},
            "figure band of curves must have one curve for each series, got K=4 at x = 30.0 and "
            "50.0; make them series of their own, or draw lines",
        ),
    ],
)
def test_a_figure_refuses_what_cannot_be_drawn(change: dict[str, object], message: str):
    good = figure("band", "bars", points(), (ENERGY,))
    with pytest.raises(ValueError, match=message):
        replace(good, **change)


def test_a_curve_may_be_one_point_of_a_sweep():
    assert replace(figure("one", "lines", points()[:1], (ENERGY,)), kind="curves").points[0].x == 30


def test_a_study_without_figures_is_refused():
    with pytest.raises(ValueError, match="study empty must have a figure"):
        Study(name="empty", figures=())


def test_figures_of_flights_need_no_metric():
    assert isinstance(figure("fly", "flights", points()[:1], ()), Figure)


def test_another_precision_makes_other_trials_of_learners_that_know_it():
    learners = {"AB": "ab-mappo", "M": "maddpg", "R": "randomized"}
    base = tiny_config()
    series = {
        name: replace(base, learner=replace(LEARNERS[of], lanes=2, steps=6), algorithm=of)
        for name, of in learners.items()
    }
    points = sweep("one", series, seeds=(1,))
    figures = [figure(name, "curves", points, ("world/jain_fairness",)) for name in ("a", "b")]
    plain = Study(name="three", figures=tuple(figures))
    fast = at_precision(plain, "bf16")
    found = {t.series: getattr(t.config.learner, "precision", None) for t in fast.trials()}
    assert found == {"AB": "bf16", "M": "tf32", "R": None}
    assert len(fast.trials()) == 3  # the figures still share them
    common = set(plain.distinct()) & set(fast.distinct())
    assert common == {plain.trials()[2].hash}
    assert at_precision(plain, "fp32").distinct().keys() == plain.distinct().keys()


def test_trials_can_be_asked_for_by_figure_and_by_learner():
    study = uav_paper(smoke=True)
    found = wanted(study, ("fig6", "fig9"), ("maddpg", "b-mappo"))
    assert {trial.series for trial in found.values()} == {"MADDPG", "B-MAPPO"}
    assert set(found) < set(wanted(study, ("fig6",))) < set(study.distinct())
    with pytest.raises(UnknownName, match=r"no learner of uav-paper called 'madpg'; did you mean"):
        wanted(study, (), ("madpg",))
    with pytest.raises(BadInput, match="no trial of fig9, fig10 has the learner maddpg or b-mappo"):
        wanted(study, ("fig9", "fig10"), ("maddpg", "b-mappo"))


def test_a_learner_without_a_name_is_asked_for_by_its_kind():
    config = replace(tiny_config(), algorithm="")
    points = sweep("one", {"A": config}, seeds=(1, 2))
    study = Study(name="own", figures=(figure("one", "curves", points, (ENERGY,)),))
    assert len(wanted(study, learners=("ppo",))) == 2
