"""Worlds whose best policy is known: every learner configuration must come close to it."""

import pytest

from lockstep.learners.config import PPOConfig
from tests.helpers import assemble, train
from tests.toys import Masked, Match, Pool, Recall

FAST = {"hidden": 32, "lr_actor": 3e-3, "lr_critic": 3e-3}


def final_regret(make, config, seeds, updates):
    learner, collector, rollout = assemble(make, config, seeds)
    train(learner, collector, rollout, updates)
    regret = rollout.metrics["regret"].unflatten(1, (len(seeds), -1))
    return regret.mean(dim=(0, 2)).tolist()


@pytest.mark.parametrize(
    ("unit_head", "truncates"),
    [("beta", False), ("beta", True), ("gaussian_clip", False), ("gaussian_sigmoid", True)],
)
def test_saying_the_number_seen_is_learned(unit_head, truncates):
    config = PPOConfig(lanes=16, steps=10, unit_head=unit_head, critic="state", **FAST)
    regret = final_regret(
        lambda lanes: Match(lanes=lanes, truncates=truncates), config, [0, 1], updates=80
    )
    assert max(regret) < 0.03  # uniform numbers: 0.167


def test_the_best_legal_choice_is_learned():
    config = PPOConfig(lanes=16, steps=10, critic="state", **FAST)
    assert max(final_regret(Masked, config, [0, 1], updates=80)) < 0.03


def test_the_best_of_a_varying_number_of_candidates_is_learned():
    config = PPOConfig(lanes=64, steps=8, minibatches=4, epochs=4, critic="state", **FAST)
    (score,) = final_regret(Pool, config, [0], updates=60)
    assert -score > 0.9


def test_a_positional_head_learns_nothing_of_shuffled_candidates():
    config = PPOConfig(
        lanes=64, steps=8, minibatches=4, epochs=4, actor="mlp", critic="state", **FAST
    )
    (score,) = final_regret(Pool, config, [0], updates=20)
    assert abs(score) < 0.05


def test_what_was_shown_at_the_start_is_remembered_to_the_end():
    config = PPOConfig(lanes=32, steps=10, memory="gru", critic="state", **FAST)
    assert max(final_regret(Recall, config, [0, 1], updates=80)) < 0.01


def test_without_memory_the_start_is_forgotten():
    config = PPOConfig(lanes=32, steps=10, critic="state", **FAST)
    assert min(final_regret(Recall, config, [0, 1], updates=40)) > 0.03
