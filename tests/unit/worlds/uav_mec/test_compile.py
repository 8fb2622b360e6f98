"""The compiled world: one graph, the same numbers. In a fresh process, as tests patch functions."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from dataclasses import replace
import torch
from lockstep.core.streams import lane_keys
from lockstep.worlds.uav_mec import world as module
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.heuristics import random_actions

torch.set_num_threads(1)
if sys.argv[1] != "inductor":
    compile_ = torch.compile
    torch.compile = lambda f, **kw: compile_(f, backend=sys.argv[1], **kw)
for name in ("paper", "reference"):
    config = replace(SCENARIOS[name], n_users=8, n_uavs=3, n_slots=5, timeout_bootstrap=True)
    a, b = (module.UavMec(config, lanes=4, compile=c) for c in (False, True))
    for world in (a, b):
        world.reset(lane_keys([0], lanes=4))
    for _ in range(8):
        b.load_state_dict(a.state_dict())
        actions = random_actions(a)
        seen = []
        for world in (a, b):
            out = [*world.state("mu").values(), *world.observe("mu").tensors().values()]
            world.act("mu", actions["mu"])
            out += world.observe("uav").tensors().values()
            world.act("uav", actions["uav"])
            step = world.advance()
            rewards = [r / config.reward_scale for r in step.reward.values()]
            out += [*rewards, *step.metrics.values(), *step.final.values(), step.truncated]
            seen.append(out)
        for x, y in zip(*seen, strict=True):
            gap = (x.float() - y.float()).abs() / (1 + x.float().abs())
            assert gap.max() < 1e-5, gap.max()
if sys.argv[1] == "eager":  # more worlds of different shapes than one code object may hold
    for n_users in range(3, 13):
        config = replace(SCENARIOS["demo"], n_users=n_users)
        world = module.UavMec(config, lanes=2, compile=True)
        world.act("mu", random_actions(world)["mu"])
"""


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_slot_is_one_graph_with_the_same_numbers(backend: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, backend]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
