from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lockstep.learners.config import PPOConfig
from lockstep.learners.health import Seen
from lockstep.learners.loss import entropy_bonus
from tests.helpers import assemble
from tests.toys import Masked, Match

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
