from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lockstep.learners.config import PPOConfig
from lockstep.learners.health import Seen
from lockstep.learners.loss import critic_loss, entropy_bonus, policy_loss
from tests.helpers import assemble
from tests.toys import Masked, Match, Waiting

CONFIG = PPOConfig(hidden=8, lanes=4, steps=6)


def bonus(make: Any, per: Any) -> tuple[torch.Tensor, Any]:
    """The bonus of a fresh policy's rollout, and its rows."""
    learner, collector, rollout = assemble(make, replace(CONFIG, entropy_per=per), [0])
    collector.collect(rollout)
    batch = learner._batch(rollout)
    role = batch.roles["player"]
    law = learner._law("player", role, batch)
    parts = learner.spec.role("player").action
    found = entropy_bonus(
        "player", role, law, law.entropy(), parts=parts, per=per, seen=Seen()
    ).detach()
    return found, rollout.roles["player"]


def test_by_choices_a_uniform_pick_counts_one_however_many_there_are() -> None:
    found, rows = bonus(partial(Masked, agents=2), "choices")
    K = rows.obs.legal["pick"].sum(dim=-1)
    assert K.min() == 1
    share = torch.where(K > 1, rows.entropy / K.clamp(min=2).log(), 0.0)
    assert found.item() == pytest.approx(share.mean().item(), rel=1e-5)


def test_numbers_have_no_largest_entropy_and_count_by_dimension() -> None:
    assert torch.equal(bonus(Match, "choices")[0], bonus(Match, "dimension")[0])


def test_the_sum_is_that_of_the_whole_decision() -> None:
    found, rows = bonus(Match, "sum")
    assert found.item() == pytest.approx(rows.entropy.mean().item(), rel=1e-4)


def test_while_an_agent_waits_its_critic_learns_and_its_policy_does_not() -> None:
    learner, collector, rollout = assemble(partial(Waiting, agents=3), CONFIG, [0, 1])
    collector.collect(rollout)
    role = learner._batch(rollout).roles["player"]
    waits = (role.judged > 0) & (role.decided == 0)
    before_any = role.judged == 0
    assert waits.any()
    assert before_any.any()
    assert not (before_any & (role.decided > 0)).any()

    def losses(where: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both, once the critic should have said 5 more in some rows, which were better by 5."""
        other = replace(
            role, target=role.target + 5.0 * where, advantage=role.advantage + 5.0 * where
        )
        seen = Seen()
        critic = critic_loss({"player": other}, {"player": role.value}, value_clip=None, seen=seen)
        return critic, policy_loss("player", other, role.log_prob, clip_ratio=0.2, seen=seen)

    critic, policy = losses(torch.zeros_like(waits))
    assert not torch.isclose(losses(waits)[0], critic).any()
    assert torch.equal(losses(waits)[1], policy)
    assert torch.equal(losses(before_any)[0], critic)
