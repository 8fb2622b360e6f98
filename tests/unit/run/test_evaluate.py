import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from lockstep.core.world import Metric, Step
from lockstep.errors import BadInput
from lockstep.learners import registry as learners
from lockstep.learners.config import RandomizedConfig
from lockstep.run import api
from lockstep.run.compare import play_all
from lockstep.run.config import preset
from lockstep.run.evaluate import _t95, evaluate, interval
from lockstep.run.policy import LearnedPolicy
from lockstep.worlds import registry as worlds
from tests import tiny
from tests.toys import Match


def make(lanes: int):
    config = tiny.config()
    return worlds.build(config.world, lanes=lanes, device=torch.device("cpu"), compile=False)


def make_learner(seeds: tuple[int, ...]):
    return learners.build(tiny.config().learner, make(1).spec, seeds=seeds, device="cpu")


def test_the_interval_is_student_s():
    values = [0.3, 0.5, 0.4, 0.9]
    found = interval(values)
    low, high = scipy.stats.t.interval(0.95, 3, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-3)
    assert math.isnan(interval([1.0]).half_width)


@pytest.mark.parametrize("freedom", [1, 2, 7, 30, 31, 60, 500])
def test_student_s_t_agrees_with_scipy(freedom: int):
    assert _t95(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), abs=1e-3)


@pytest.mark.parametrize("policy", ["random", "greedy"])
def test_an_episode_is_the_same_whatever_the_number_of_lanes(policy: str):
    rule = api.heuristic("uav-mec", policy)
    together = evaluate(rule, make(5), episodes=5)
    in_turn = evaluate(rule, make(2), episodes=5)
    for name, values in together.episodes.items():
        assert values.shape == (1, 5)
        np.testing.assert_allclose(in_turn.episodes[name], values, rtol=1e-5, atol=1e-6)


def test_evaluating_twice_gives_the_same_numbers():
    policy = LearnedPolicy(make_learner((0, 1)), label="x")
    for deterministic in (True, False):
        first, second = (
            evaluate(policy, make(6), episodes=3, deterministic=deterministic) for _ in range(2)
        )
        for name, values in first.episodes.items():
            np.testing.assert_array_equal(second.episodes[name], values)


def test_one_member_asked_alone_does_what_it_does_in_the_pack():
    learner = make_learner((0, 1, 2))
    together = evaluate(LearnedPolicy(learner, label="all"), make(9), episodes=3)
    alone = evaluate(LearnedPolicy(learner, member=2, label="one"), make(3), episodes=3)
    assert together.over == "seeds"
    assert alone.over == "episodes"
    for name, values in together.episodes.items():
        np.testing.assert_allclose(alone.episodes[name][0], values[2], rtol=1e-5, atol=1e-6)


def test_members_share_episodes_and_not_their_dice():
    config = preset("uav-mec", scenario="demo", learner="randomized").learner
    learner = learners.build(config, make(1).spec, seeds=(0, 1), device="cpu")
    energy = evaluate(LearnedPolicy(learner), make(6), episodes=3).episodes["weighted_energy"]
    assert not np.allclose(energy[0], energy[1])
    alone = evaluate(LearnedPolicy(learner, member=1), make(3), episodes=3)
    np.testing.assert_allclose(alone.episodes["weighted_energy"][0], energy[1], rtol=1e-5)


def test_several_policies_meet_the_same_episodes():
    rules = [api.heuristic("uav-mec", name) for name in ("greedy", "greedy")]
    first, second = play_all(rules, tiny.config().world, episodes=3)
    for name, values in first.episodes.items():
        np.testing.assert_array_equal(second.episodes[name], values)


class Uneven(Match):
    """Lane l ends after l + 2 steps and then shows numbers that are no longer of its episode."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes=lanes, horizon=lanes + 1)
        named = ("mean", "last", "max", "min", "sum")
        metrics = tuple(
            Metric(name=over, unit="1", meaning=over, better="lower", over=over) for over in named
        )
        self.spec = replace(self.spec, metrics=metrics, objective="mean")

    def advance(self) -> Step:
        self.slot += 1
        lane = torch.arange(self.lanes)
        x = torch.where(self.slot <= lane + 2, (self.slot - 2.0) ** 2, 100.0)
        return Step(
            reward={"player": torch.zeros(self.lanes, 1)},
            terminated=self.slot == lane + 2,
            truncated=torch.zeros(self.lanes, dtype=torch.bool),
            elapsed=torch.ones(self.lanes),
            metrics={metric.name: x for metric in self.spec.metrics},
            final={},
        )


def test_a_metric_is_of_the_episode_what_it_says_it_is():
    world = Uneven(lanes=3)  # numbers 1 0, then 1 0 1, then 1 0 1 4
    learner = learners.build(RandomizedConfig(), world.spec, seeds=[0])
    found = evaluate(LearnedPolicy(learner), world, episodes=3).episodes
    assert found["mean"].tolist() == [[0.5, pytest.approx(2 / 3), 1.5]]
    assert found["last"].tolist() == [[0.0, 1.0, 4.0]]
    assert found["max"].tolist() == [[1.0, 1.0, 4.0]]
    assert found["min"].tolist() == [[0.0, 0.0, 0.0]]
    assert found["sum"].tolist() == [[1.0, 2.0, 6.0]]


def test_bad_questions_are_answered_in_a_sentence():
    learner = make_learner((0, 1))
    with pytest.raises(BadInput, match="episodes must be at least 1, got 0"):
        evaluate(LearnedPolicy(learner), make(2), episodes=0)
    with pytest.raises(BadInput, match=r"lanes \(3\) must be a multiple of the members \(2\)"):
        evaluate(LearnedPolicy(learner), make(3), episodes=1)
    with pytest.raises(BadInput, match="member must be between 0 and 1, got 2"):
        LearnedPolicy(learner, member=2)
    with pytest.raises(BadInput, match="no heuristic of uav-mec called 'gredy'; did you mean"):
        api.heuristic("uav-mec", "gredy")
    found = evaluate(api.heuristic("uav-mec", "random"), make(2), episodes=2)
    with pytest.raises(BadInput, match="there is no metric 'joy'"):
        found.estimate("joy")
    assert "random (mean ± 95 % interval over episodes)" in str(found)
