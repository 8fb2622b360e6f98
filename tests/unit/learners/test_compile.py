"""A compiled update learns what a plain one learns; in a fresh process, as tests patch code."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from lockstep.collect.synchronous import Collector
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from tests.toys import Match, Turn

torch.set_num_threads(1)
compile_ = torch.compile
torch.compile = lambda f, **kw: compile_(f, backend="eager", **kw)
made = {"Match": Match, "Turn": Turn}[sys.argv[1]]
config = PPOConfig(hidden=16, lanes=4, steps=3, epochs=3, minibatches=int(sys.argv[2]))
weights, stats = [], []
for compiled in (False, True):
    world = made(lanes=8)
    keys = lane_keys([0, 1], lanes=4)
    world.reset(keys)
    learner = PPO(config, world.spec, seeds=[0, 1], compile=compiled)
    collector, rollout = Collector(world, learner, Streams(keys)), learner.rollout()
    for _ in range(2):
        collector.collect(rollout)
        told = learner.update(rollout).scalars
    weights.append({name: pack.weights for name, pack in learner.packs.items()})
    stats.append(told)
assert stats[0].keys() == stats[1].keys(), stats[0].keys() ^ stats[1].keys()
for one, other in (weights, stats):
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5, msg=name)
print("equal")
"""


@pytest.mark.parametrize("minibatches", [1, 2])
@pytest.mark.parametrize("world", ["Match", "Turn"])
def test_a_compiled_update_learns_what_a_plain_one_learns(world, minibatches):
    command = [sys.executable, "-c", SCRIPT, world, str(minibatches)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
