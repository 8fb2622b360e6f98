"""Members of one pack that differ in numbers of the learner."""

from dataclasses import replace

import pytest
import torch

from lockstep.core.distributions import Categorical, Exploration
from lockstep.errors import UnknownName
from lockstep.learners import registry
from lockstep.learners.config import PPOConfig
from tests.helpers import assemble, train
from tests.toys import Masked

SEEDS = [3, 3]
NUMBERS = {  # far enough apart, and from the default, to be told apart after three updates
    "lr_actor": (1e-3, 1e-2),
    "lr_critic": (1e-3, 1e-2),
    "discount": (0.5, 0.9),
    "gae_lambda": (0.3, 0.8),
    "clip_ratio": (0.001, 0.3),
    "entropy_weight": (0.0, 0.5),
    "temperature": (0.5, 2.0),
    "epsilon": (0.0, 0.3),
    "max_grad_norm": (1e-3, 1.0),
    "value_clip": (1e-3, 1e-2),
    "kl_stop_minibatch": (1e-6, 1.0),
    "kl_stop_update": (1e-6, 1.0),
}
CONFIG = PPOConfig(
    hidden=16, lanes=4, steps=6, epochs=3, minibatches=2, lr_actor=1e-2, lr_critic=1e-2
)
CONFIG = replace(CONFIG, value_clip=0.5, kl_stop_minibatch=10.0, kl_stop_update=10.0)


def world(lanes: int) -> Masked:
    return Masked(lanes=lanes, agents=2, horizon=4)


def test_every_number_that_may_vary_is_tried_here():
    assert set(NUMBERS) == set(PPOConfig.variable)


def test_no_setting_is_looked_at_before_it_is_known_whether_members_differ_in_it():
    unset = [name for name in PPOConfig.variable if getattr(PPOConfig(), name) is None]
    assert unset == ["discount", "value_clip", "kl_stop_minibatch", "kl_stop_update"]
    for name in unset:
        learn_alone_and_together(name, replace(CONFIG, **dict.fromkeys(unset)))


@pytest.mark.parametrize("name", NUMBERS)
def test_members_with_a_number_of_their_own_learn_what_they_learn_alone(name: str):
    learn_alone_and_together(name, CONFIG)


def learn_alone_and_together(name: str, config: PPOConfig) -> None:
    double, vary = torch.float64, {name: NUMBERS[name]}
    pack, *rest = assemble(world, config, SEEDS, dtype=double, vary=vary)
    train(pack, *rest, updates=3)
    ends = []
    for member, number in enumerate(NUMBERS[name]):
        alone, *rest = assemble(world, replace(config, **{name: number}), [3], dtype=double)
        train(alone, *rest, updates=3)
        for network, p in alone.packs.items():
            ours = pack.packs[network].weights[member]
            torch.testing.assert_close(ours, p.weights[0], rtol=1e-6, atol=1e-6)
        ends.append(torch.cat([p.weights[0] for p in alone.packs.values()]))
    assert (ends[0] - ends[1]).abs().max() > 1e-4  # the number matters


def test_a_member_taken_out_has_its_own_settings():
    pack, *_ = assemble(world, CONFIG, SEEDS, vary={"clip_ratio": (0.1, 0.3)})
    assert pack.member(1).config == replace(CONFIG, clip_ratio=0.3)


def test_a_setting_that_decides_the_program_cannot_vary():
    spec = world(8).spec
    with pytest.raises(UnknownName, match="'hidden'"):
        registry.build(CONFIG, spec, seeds=SEEDS, vary={"hidden": (16.0, 32.0)})


def test_a_share_of_chance_that_differs_is_for_each_member_what_it_is_alone():
    """Also 0, whose logarithm would have no gradient beside an illegal choice."""
    logits = torch.randn(2, 3, 5, requires_grad=True)
    legal = torch.tensor([True, True, False, True, False]).expand(2, 3, 5)
    epsilon = torch.tensor([0.0, 0.25]).view(2, 1)
    together = Categorical(logits, legal, Exploration(epsilon=epsilon))
    for member, share in enumerate((0.0, 0.25)):
        alone = Categorical(logits[member], legal[member], Exploration(epsilon=share))
        torch.testing.assert_close(together.log_p[member], alone.log_p)
    together.log_p[legal].sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_a_discount_of_the_learner_takes_the_place_of_the_worlds():
    own, *rest = assemble(world, replace(CONFIG, discount=world(1).spec.roles[0].discount), SEEDS)
    given, *others = assemble(world, CONFIG, SEEDS)
    train(own, *rest, updates=1)
    train(given, *others, updates=1)
    for network, pack in own.packs.items():
        assert torch.equal(pack.weights, given.packs[network].weights)
