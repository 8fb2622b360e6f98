"""MADDPG with collection, replay and gradient steps as graphs equals the plain one."""

from dataclasses import replace

import pytest
import torch

from lockstep.collect.synchronous import Collector
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import MADDPGConfig
from lockstep.learners.maddpg import MADDPG
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.world import UavMec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]

CONFIG = MADDPGConfig(
    lanes=4, steps=6, hidden=32, hidden_critic=32, replay=60, warm_up=24, batch=16
)


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_graphs_change_nothing_but_the_speed(seeds):
    found = []
    for graphs in (False, True):
        scene = replace(SCENARIOS["demo"], n_users=4, n_uavs=2, n_slots=4)
        world = UavMec(scene, lanes=len(seeds) * CONFIG.lanes, device="cuda")
        keys = lane_keys(seeds, lanes=CONFIG.lanes, device="cuda")
        world.reset(keys)
        learner = MADDPG(CONFIG, world.spec, seeds=seeds, device="cuda", graphs=graphs)
        collector = Collector(world, learner, Streams(keys), graphs=graphs)
        rollout = learner.rollout()
        stats = []
        for _ in range(6):  # two eager calls, the recording, and replays over a wrapped ring
            collector.collect(rollout)
            stats.append(learner.update(rollout).scalars)
        found.append((learner, stats))
    (plain, before), (fast, after) = found
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=2e-2, atol=1e-3)
    assert int(plain.replay.written) == int(fast.replay.written) == 36
    for name, pack in plain.nets.packs.items():
        torch.testing.assert_close(fast.nets.packs[name].weights, pack.weights, rtol=0, atol=5e-3)
