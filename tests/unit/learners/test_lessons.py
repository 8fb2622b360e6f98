"""A rollout in which somebody else decided is imitated, and taken for nobody else's."""

import dataclasses

import pytest
import torch

from lockstep.core.actions import Action
from lockstep.errors import AuditFailure
from lockstep.learners.config import PPOConfig
from tests.helpers import assemble, train
from tests.toys import Masked, Match, Toy, Turn

CONFIG = PPOConfig(hidden=16, lanes=4, steps=6, lr_actor=1e-2, lr_critic=1e-2, entropy_weight=0.0)


def first_legal(world: Toy, role: str) -> Action:
    return {"pick": world.observe(role).legal["pick"].int().argmax(dim=-1)}


def half(world: Toy, role: str) -> Action:
    return {"number": torch.full_like(world.observe(role).features["obs"][..., :1], 0.5)}


def test_rows_hold_what_the_script_did_and_what_the_policy_thinks_of_it():
    learner, collector, rollout = assemble(Masked, CONFIG, [0, 1])
    collector.collect(rollout, script=first_legal)
    rows = rollout.roles["player"]
    legal = rows.obs.legal["pick"]
    assert rollout.scripted
    assert torch.equal(rows.action["pick"], legal.int().argmax(dim=-1))
    for t in range(rollout.steps):
        law, _ = learner.policy(
            "player", rows.obs.map(lambda x, t=t: x[t]), rollout.memory["player"], rollout.starts[t]
        )
        expected = law.log_prob({"pick": rows.action["pick"][t]})
        torch.testing.assert_close(rows.log_prob[t], expected)
    collector.collect(rollout)
    assert not rollout.scripted


@pytest.mark.parametrize(("world", "script"), [(Masked, first_legal), (Match, half)])
@pytest.mark.parametrize("changes", [{}, {"minibatches": 2}, {"precision": "bf16"}])
def test_lessons_make_a_policy_do_as_it_is_shown(world, script, changes):
    learner, collector, rollout = assemble(world, dataclasses.replace(CONFIG, **changes), [0, 1])
    losses = []
    for _ in range(8):
        collector.collect(rollout, script=script)
        stats = learner.update(rollout).scalars
        losses.append(stats["train/player/imitation_loss"])
        assert not stats["train/player/approx_kl"].any()
        assert not stats["train/player/policy_loss"].any()
        assert stats["train/value_loss"].isfinite().all()
    assert (losses[-1] < losses[0] - 0.15).all()
    own = train(learner, collector, rollout, updates=1)[0]
    assert "train/player/imitation_loss" not in own
    assert own["train/player/approx_kl"].any()


def test_what_an_action_earned_does_not_matter_to_a_lesson():
    """Only the critic learns from rewards."""
    one, *rest = assemble(Masked, CONFIG, [0])
    other, *also = assemble(Masked, CONFIG, [0])
    for _ in range(3):
        for learner, (collector, rollout), factor in ((one, rest, 1.0), (other, also, -7.0)):
            collector.collect(rollout, script=first_legal)
            rollout.roles["player"].reward.mul_(factor)
            learner.update(rollout)
    policies = [learner.packs["player"].weights for learner in (one, other)]
    critics = [learner.packs["critic"].weights for learner in (one, other)]
    assert torch.equal(*policies)
    assert not torch.equal(*critics)


def test_a_limit_of_kl_stops_no_lesson():
    learner, collector, rollout = assemble(
        Masked, dataclasses.replace(CONFIG, kl_stop_minibatch=1e-9, kl_stop_update=1e-9), [0]
    )
    collector.collect(rollout, script=first_legal)
    assert learner.update(rollout).scalars["train/stopped_epochs"].item() == 0


def test_a_script_that_breaks_the_rules_is_stopped_by_the_audit():
    def illegal(world: Toy, role: str) -> Action:
        return {"pick": world.observe(role).legal["pick"].int().argmin(dim=-1)}

    learner, collector, rollout = assemble(Masked, CONFIG, [0])
    collector.collect(rollout, script=illegal)
    with pytest.raises(AuditFailure, match="G5 support"):
        learner.update(rollout)


def test_several_picks_are_imitated_as_one_sequence():
    def stop(world: Toy, role: str) -> Action:
        acts = world.observe(role).acts
        return {"pick": torch.zeros(*acts.shape, 3, dtype=torch.int64)}

    learner, collector, rollout = assemble(Turn, CONFIG, [0])
    losses = []
    for _ in range(15):
        collector.collect(rollout, script=stop)
        losses.append(learner.update(rollout).scalars["train/player/imitation_loss"].item())
    assert losses[-1] < losses[0] - 0.3
