"""Small worlds, and one slot or a whole episode of them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.streams import lane_keys
from lockstep.core.world import Step
from lockstep.worlds.uav_mec.config import SCENARIOS, UavMecConfig
from lockstep.worlds.uav_mec.heuristics import HEURISTICS, random_actions
from lockstep.worlds.uav_mec.world import UavMec

SMALL = replace(SCENARIOS["paper"], n_users=8, n_uavs=3)
SMALL_REFERENCE = replace(SCENARIOS["reference"], n_users=8, n_uavs=3)


def small(*, lanes: int = 4, seed: int = 0, **changes: Any) -> UavMec:
    """A fresh small `paper` world with some settings changed."""
    return made(replace(SMALL, **changes), lanes=lanes, seed=seed)


def made(config: UavMecConfig, *, lanes: int = 4, seed: int = 0) -> UavMec:
    world = UavMec(config, lanes=lanes)
    world.reset(lane_keys([seed], lanes=lanes))
    return world


def slot(world: UavMec, actions: dict[str, Action] | None = None) -> Step:
    """One slot with the given or with random actions."""
    actions = random_actions(world) if actions is None else actions
    world.act("mu", actions["mu"])
    world.act("uav", actions["uav"])
    return world.advance()


def everything(world: UavMec, step: Step) -> list[Tensor]:
    """All that a slot returned and left behind."""
    seen = [
        *step.reward.values(),
        step.terminated,
        step.truncated,
        *step.metrics.values(),
        *world.world_state.tensors().values(),
        *world.observe("mu").tensors().values(),
        *world.state("mu").values(),
    ]
    return [x.clone() for x in seen]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def decided(world: UavMec, heuristic: str) -> dict[str, Action]:
    """What a heuristic says for both roles."""
    return {role.name: HEURISTICS[heuristic](world, role.name) for role in world.spec.roles}


def episode_means(config: UavMecConfig, heuristic: str, *, lanes: int = 48) -> dict[str, float]:
    """Means of the metrics over one episode of a heuristic."""
    world = made(config, lanes=lanes, seed=11)
    total: dict[str, float] = {}
    for _ in range(config.n_slots):
        for name, value in slot(world, decided(world, heuristic)).metrics.items():
            total[name] = total.get(name, 0.0) + float(value.mean()) / config.n_slots
    return total
