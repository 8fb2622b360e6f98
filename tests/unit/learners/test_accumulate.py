from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lockstep.collect.synchronous import Collector
from lockstep.core.actions import Observation
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests.helpers import train
from tests.toys import Masked, Match, Pool, Recall, Waiting

CONFIG = PPOConfig(hidden=8, lanes=10, steps=6, epochs=3, lr_actor=1e-2, lr_critic=1e-2)


def made(make: Any, config: PPOConfig, *, accumulate: int, seeds: tuple[int, ...] = (3, 5)) -> Any:
    world = make(lanes=len(seeds) * config.lanes)
    keys = lane_keys(seeds, lanes=config.lanes)
    world.reset(keys)
    learner = PPO(config, world.spec, seeds=seeds, dtype=torch.float64, accumulate=accumulate)
    return learner, Collector(world, learner, Streams(keys)), learner.rollout()


SCENE = partial(registry.build, replace(SCENARIOS["demo"], n_users=3, n_uavs=2, n_slots=4))


@pytest.mark.parametrize(
    ("make", "parts", "changes"),
    [
        (partial(Match, agents=2), 2, {"value_clip": 0.2, "reward_norm": "running"}),
        (partial(Match, agents=2), 5, {"minibatches": 2}),
        (partial(Pool, truncates=True), 5, {}),
        (partial(Recall, agents=2), 2, {"memory": "gru"}),
        (partial(Recall, agents=2), 5, {"memory": "gru", "minibatches": 2}),
        (partial(Waiting, agents=3), 2, {"kl_stop_minibatch": 0.01}),
        (partial(Waiting, agents=3), 5, {}),
        (SCENE, 2, {"unit_head": "gaussian_clip", "critic": "state"}),
        (SCENE, 5, {"minibatches": 2}),
    ],
)
def test_learning_in_parts_takes_the_steps_of_learning_at_once(
    make: Any, parts: int, changes: dict[str, Any]
) -> None:
    config = replace(CONFIG, **changes)
    whole, *rest = made(make, config, accumulate=1)
    expected = train(whole, *rest, updates=2)
    learner, *rest = made(make, config, accumulate=parts)
    found = train(learner, *rest, updates=2)
    for name, pack in learner.packs.items():
        # A weight without any influence has rounding for a gradient, and Adam makes much of it.
        torch.testing.assert_close(
            pack.weights, whole.packs[name].weights, rtol=1e-9, atol=1e-9, msg=name
        )
    for before, after in zip(expected, found, strict=True):
        assert list(before) == list(after)
        for name, value in before.items():
            if not name.startswith("audit/"):
                torch.testing.assert_close(after[name], value, rtol=1e-6, atol=1e-9, msg=name)


def test_a_part_without_any_decision_counts_for_nothing() -> None:
    class LateLanes(Waiting):
        def observe(self, role: str) -> Observation:
            plain = super().observe(role)
            lane = torch.arange(self.lanes).unsqueeze(-1) % 10
            return replace(plain, acts=(lane >= 5).expand_as(plain.acts))

    learner, *rest = made(LateLanes, CONFIG, accumulate=2)
    whole, *others = made(LateLanes, CONFIG, accumulate=1)
    train(learner, *rest, updates=2)
    train(whole, *others, updates=2)
    for name, pack in learner.packs.items():
        torch.testing.assert_close(pack.weights, whole.packs[name].weights, rtol=1e-9, atol=1e-11)


def kept_by_a_pass(learner: PPO, collector: Collector, rollout: Rollout) -> list[int]:
    """Bytes that each pass of an update keeps for its gradients, weights left out."""
    plain, passes = learner._loss, []
    own = {pack.weights.untyped_storage().data_ptr() for pack in learner.packs.values()}

    def counting(*args: Any, **kwargs: Any) -> Any:
        saved: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return x

        with saved_tensors_hooks(keep, lambda x: x):
            found = plain(*args, **kwargs)
        passes.append(sum(size for at, size in saved.items() if at not in own))
        return found

    learner._loss = counting
    train(learner, collector, rollout, updates=1)
    return passes


def test_a_pass_keeps_less_for_its_gradients_the_more_parts_there_are() -> None:
    whole = kept_by_a_pass(*made(Match, CONFIG, accumulate=1, seeds=(3,)))
    parts = kept_by_a_pass(*made(Match, CONFIG, accumulate=5, seeds=(3,)))
    assert len(parts) == 5 * len(whole) == 5 * CONFIG.epochs
    assert max(parts) < 0.4 * max(whole)


def test_parts_must_divide_the_lanes_of_a_minibatch() -> None:
    config = replace(CONFIG, minibatches=2)
    with pytest.raises(ValueError, match=r"accumulate \(3\) must divide the lanes of a minibatch"):
        made(Match, config, accumulate=3)
    with pytest.raises(ValueError, match=r"\(10 / 2 = 5\).*try 1"):
        made(Match, config, accumulate=3)
    with pytest.raises(ValueError, match=r"accumulate \(0\)"):
        made(Match, config, accumulate=0)


@pytest.mark.parametrize(("minibatches", "parts"), [(1, 5), (2, 5)])
def test_the_audit_of_parts_sees_every_decision_at_its_place(minibatches: int, parts: int) -> None:
    config = replace(CONFIG, minibatches=minibatches)
    learner, collector, rollout = made(Masked, config, accumulate=parts)
    collector.collect(rollout)
    replayed, _ = learner._replay(learner._batch(rollout))
    rows = rollout.roles["player"]
    torch.testing.assert_close(replayed.log_prob["player"], rows.log_prob)
    torch.testing.assert_close(replayed.entropy["player"], rows.entropy)
    torch.testing.assert_close(replayed.value["player"], rows.value)


@pytest.mark.parametrize(
    "make", [partial(Match, agents=2, truncates=True), partial(Pool, agents=2)]
)
def test_values_in_parts_are_those_of_all_lanes_at_once(make: Any) -> None:
    found = []
    for parts in (1, 5):
        learner, collector, rollout = made(make, CONFIG, accumulate=parts)
        seen: list[int] = []
        plain = learner._values

        def counting(state: Any, plain: Any = plain, seen: list[int] = seen) -> Any:
            seen.append(max(x.shape[:-2].numel() for x in state["all"].values()))
            return plain(state)

        learner._values = counting
        collector.collect(rollout)
        found.append((rollout.roles["player"], max(seen)))
    (whole, most), (pieces, fewer) = found
    assert fewer * 5 == most == 2 * CONFIG.lanes * CONFIG.steps
    torch.testing.assert_close(pieces.value, whole.value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(pieces.next_value, whole.next_value, rtol=1e-12, atol=1e-12)
