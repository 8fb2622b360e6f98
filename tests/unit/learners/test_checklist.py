"""Promises about how learners and collectors do their work, not only about its result."""

import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lockstep.core.streams import lane_keys
from lockstep.errors import BadInput
from lockstep.learners import ppo
from lockstep.learners.batch import standardise
from lockstep.learners.config import PPOConfig
from lockstep.run.trainer import Trainer, resolve
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests import tiny
from tests.helpers import assemble, train
from tests.toys import Masked, Match

SMALL = PPOConfig(hidden=8, lanes=4, steps=5)


def test_the_training_seed_reaches_the_world_and_each_member_has_its_own() -> None:
    one, other = Trainer(tiny.config(seeds=(3, 4))), Trainer(tiny.config(seeds=(4,)))
    apart = registry.build(one.config.world, lanes=2)
    apart.reset(lane_keys([3], lanes=2))
    first = one.world.state_dict()["state"]
    for name, x in apart.state_dict()["state"].items():
        assert torch.equal(first[name][:2], x)
    for name, x in other.world.state_dict()["state"].items():
        assert torch.equal(first[name][2:], x)
    assert not torch.equal(first["mu_xy_m"][:2], first["mu_xy_m"][2:])


def test_the_state_critic_keeps_the_state_vector_and_nothing_else() -> None:
    scene = partial(registry.build, replace(SCENARIOS["demo"], n_users=5, n_uavs=2))
    learner, collector, rollout = assemble(scene, replace(SMALL, critic="state"), [0])
    seen = collector.world.state("mu")["state"]
    collector.collect(rollout)
    (kept,) = rollout.critic.values()
    assert list(kept) == ["state"]
    assert torch.equal(kept["state"][0], seen)
    batch = learner._batch(rollout)
    assert batch.state["all"]["state"].data_ptr() == kept["state"].data_ptr()  # no copy


def test_rows_of_some_lanes_keep_shapes_types_and_each_members_own_choice() -> None:
    learner, collector, rollout = assemble(partial(Masked, agents=3), SMALL, [0, 1])
    collector.collect(rollout)
    batch = learner._batch(rollout)
    index = torch.tensor([[3, 0], [1, 2]])
    part, whole = batch.lanes(index).roles["player"], batch.roles["player"]
    for member, lanes in enumerate(index.tolist()):
        for got, stored in (
            (part.action["pick"], whole.action["pick"]),
            (part.obs.legal["pick"], whole.obs.legal["pick"]),
            (part.obs.features["obs"], whole.obs.features["obs"]),
            (part.advantage, whole.advantage),
            (part.log_prob, whole.log_prob),
        ):
            assert got.dtype == stored.dtype
            assert torch.equal(got[member], stored[member][:, lanes])


@pytest.mark.parametrize("minibatches", [1, 2])
def test_minibatches_of_an_epoch_cover_every_lane_once(minibatches: int) -> None:
    config = replace(SMALL, minibatches=minibatches)
    learner, collector, rollout = assemble(Match, config, [0, 1])
    collector.collect(rollout)
    whole = learner._batch(rollout)
    parts = learner._minibatches(whole)
    assert len(parts) == minibatches
    together = torch.cat([p.roles["player"].log_prob for p in parts], dim=2)
    assert torch.equal(
        together.flatten(1).sort(dim=1).values,
        whole.roles["player"].log_prob.flatten(1).sort(dim=1).values,
    )


def test_advantages_are_standardised_over_time_lanes_and_agents_of_a_member() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 100.0]).view(2, 1, 1, 1)
    advantage = scale * (torch.randn(2, 7, 3, 4, generator=generator) + 5.0)
    acts = torch.rand(2, 7, 3, 4, generator=generator) < 0.7
    found = standardise(advantage, acts)
    assert not found[~acts].any()
    for member in range(2):
        counted = found[member][acts[member]]
        assert counted.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert counted.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
        raw = advantage[member][acts[member]]
        assert torch.equal(counted.argsort(), raw.argsort())


def test_one_batch_is_built_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def counting(*args: Any, real: Any = ppo.gae, **kwargs: Any) -> Any:
        called.append(kwargs["gamma"])
        return real(*args, **kwargs)

    monkeypatch.setattr(ppo, "gae", counting)
    learner, *rest = assemble(Match, replace(SMALL, epochs=4, minibatches=2), [0])
    train(learner, *rest, updates=2)
    assert len(called) == 2  # one role, two updates


def test_the_critic_looks_once_at_each_step_and_once_at_the_end() -> None:
    scene = partial(registry.build, replace(SCENARIOS["demo"], n_users=5, n_uavs=2))
    _, collector, rollout = assemble(scene, SMALL, [0])
    looks = []
    plain = collector.world.state

    def counting(role: str) -> Any:
        looks.append(role)
        return plain(role)

    collector.world.state = counting
    collector.collect(rollout)
    assert looks == ["mu"] * (SMALL.steps + 1)


def test_gradients_are_not_kept_between_steps() -> None:
    learner, *rest = assemble(Match, SMALL, [0, 1])
    train(learner, *rest, updates=1)
    assert all(pack.weights.grad is None for pack in learner.packs.values())


def test_without_a_compiler_auto_does_without_and_on_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny.config()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert resolve(replace(config, compile="auto")).compile == "off"
    with pytest.raises(BadInput, match="no C\\+\\+ compiler"):
        resolve(replace(config, compile="on"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert resolve(replace(config, compile="auto")).compile == "on"
