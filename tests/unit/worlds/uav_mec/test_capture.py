"""A whole rollout of the world as one CUDA graph."""

import pytest
import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.worlds.uav_mec.heuristics import random_actions
from lockstep.worlds.uav_mec.world import UavMec
from tests.unit.worlds.uav_mec.helpers import SMALL

SLOTS = 12


def rollout(world: UavMec) -> list[Tensor]:
    """What a collector would store of some slots under random actions."""
    rows = []
    for _ in range(SLOTS):
        actions = random_actions(world)
        critic, users = world.state("mu"), world.observe("mu")
        world.act("mu", actions["mu"])
        uavs = world.observe("uav")
        world.act("uav", actions["uav"])
        step = world.advance()
        rows += [*critic.values(), *users.tensors(), *uavs.tensors(), *step.reward.values()]
    return rows


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_rollout_continues_as_the_eager_one_does() -> None:
    eager, captured = (UavMec(SMALL, lanes=4, device="cuda") for _ in range(2))
    for world in (eager, captured):
        world.reset(lane_keys([0], lanes=4, device="cuda"))
    start = captured.state_dict()
    rollout(captured)  # warm-up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = rollout(captured)
    captured.load_state_dict(start)
    for _ in range(6):  # 72 slots: past a reset
        expected = rollout(eager)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(rows, expected, strict=True))
