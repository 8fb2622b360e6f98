"""Choosing among candidates: scoring by features learns it, naming positions cannot."""

from dataclasses import replace

import pytest
import torch

from lockstep.collect.synchronous import Collector
from lockstep.core.actions import Candidates, Field
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from tests.helpers import assemble, train
from tests.toys import OneStep, Turn

CONFIG = PPOConfig(
    lanes=256,
    steps=1,
    minibatches=2,
    epochs=4,
    hidden=64,
    critic="state",
    lr_actor=3e-3,
    lr_critic=3e-3,
)
UPDATES, LAST = 30, 5


class Wide(OneStep):
    """The same task with 8 to 200 candidates."""

    CANDIDATES = 200
    action = {"pick": Candidates(max=200, over="candidate")}
    entities = {"candidate": Field(shape=(200, 6))}


def learned(make, config=CONFIG) -> tuple[PPO, float]:
    """A learner after 30 updates of 256 decisions, and the mean regret in the last five."""
    learner, collector, rollout = assemble(make, config, [0])
    train(learner, collector, rollout, UPDATES - LAST)
    late = []
    for _ in range(LAST):
        train(learner, collector, rollout, 1)
        late.append(rollout.metrics["regret"].mean())
    return learner, torch.stack(late).mean().item()


def test_a_scorer_finds_the_best_candidate_and_does_so_among_more_than_it_ever_saw():
    learner, regret = learned(OneStep)
    assert -regret > 0.9  # 0 for a uniform choice, 1 for the best
    wide = Wide(lanes=256)
    keys = lane_keys([7], lanes=256)
    wide.reset(keys)
    other = PPO(CONFIG, wide.spec, seeds=[0])
    # The weights fit any width; observations that the probe has kept do not.
    other.load_state_dict(learner.state_dict() | {"probe": other.probe.state_dict()})
    rollout = other.rollout()
    Collector(wide, other, Streams(keys)).collect(rollout)
    assert -rollout.metrics["regret"].mean() > 0.9


@pytest.mark.parametrize(
    "set_context", ["pooled", pytest.param("attention", marks=pytest.mark.slow)]
)
def test_knowing_the_other_candidates_does_not_hurt(set_context):
    _, regret = learned(OneStep, replace(CONFIG, set_context=set_context))
    assert -regret > 0.9


def test_a_head_that_names_positions_learns_nothing():
    _, regret = learned(OneStep, replace(CONFIG, candidate_head="positional"))
    assert abs(regret) < 0.05


def test_the_best_turn_of_several_picks_is_learned():
    _, regret = learned(Turn)
    assert regret < 0.03  # stopping at once: .92


def test_exploration_inside_the_distribution_still_learns():
    _, regret = learned(OneStep, replace(CONFIG, temperature=2.0, epsilon=0.05))
    assert -regret > 0.85  # one choice in twenty is uniform, which alone costs .05
