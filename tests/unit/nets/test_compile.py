"""Acting compiled, as one graph, decides what it decides eagerly. In a fresh process, as tests
patch functions.
"""

import subprocess
import sys

SCRIPT = """
import torch
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from tests.toys import Turn

torch.set_num_threads(1)
compile_ = torch.compile
torch.compile = lambda f, **kw: compile_(f, backend="eager", **kw)
config = PPOConfig(hidden=16, lanes=3, steps=2, critic="state", set_context="pooled", epsilon=0.1)
world = Turn(lanes=6)
keys = lane_keys([0, 1], lanes=3)
world.reset(keys)
found = []
for compiled in (False, True):
    learner = PPO(config, world.spec, seeds=[0, 1], compile=compiled)
    obs, starts = world.observe("player"), torch.ones(6, dtype=torch.bool)
    found.append(learner.act("player", obs, learner.memory("player"), starts, Streams(keys)))
eager, whole = found
assert torch.equal(eager.action["pick"], whole.action["pick"]), (eager.action, whole.action)
assert (eager.action["pick"][..., 1] > 0).any()
torch.testing.assert_close(whole.log_prob, eager.log_prob, atol=1e-5, rtol=0.0)
torch.testing.assert_close(whole.entropy, eager.entropy, atol=1e-5, rtol=0.0)
print("equal")
"""


def test_a_turn_of_picks_compiles_into_one_graph_and_decides_alike():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal" in done.stdout
