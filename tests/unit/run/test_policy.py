import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import lockstep as ls
from lockstep.core.actions import Action
from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput
from lockstep.run.policy import HeuristicPolicy, LearnedPolicy
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.heuristics import random_action


def test_a_heuristic_is_asked_for_a_role_when_its_phase_comes():
    demo = registry.scenarios("uav-mec")["demo"]
    config = replace(demo, uav_obs_mask_mode="current_assoc")
    world = registry.build(config, lanes=2)
    assert world.spec.phases == (("mu",), ("uav",))
    world.reset(lane_keys([0], lanes=2))
    asked, seen = [], []

    def rule(world: World, role: str) -> Action:
        asked.append(role)
        seen.append(world.observe(role))  # for UAVs this needs the users' decisions of this slot
        return random_action(world, role)

    HeuristicPolicy(rule, label="curious").step(world)
    assert asked == ["mu", "uav"]

    again = registry.build(config, lanes=2)
    again.reset(lane_keys([0], lanes=2))
    again.act("mu", random_action(again, "mu"))
    assert torch.equal(again.observe("uav").features["obs"], seen[1].features["obs"])


def test_a_policy_is_refused_by_a_world_in_which_nobody_would_decide_for_somebody():
    policy = LearnedPolicy(ls.trainer("city-growth", scenario="tiny-9").learner)
    with pytest.raises(BadInput, match=r"for mu, uav$"):
        policy.step(ls.make("uav-mec", scenario="demo", lanes=2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "ls.make('uav-mec', scenario=ls.make('uav-mec', scenario='demo').config)",
            "scenario must be a name or a file, got a UavMecConfig; give settings of a world in",
        ),
        (
            "ls.trainer('uav-mec', learner={'hidden': 16})",
            "learner must be a name or a learner's config, got a dict",
        ),
    ],
)
def test_what_is_no_scenario_or_learner_is_refused_in_a_sentence(call: str, message: str):
    """In a process of its own, since here types are checked before."""
    code = f"import lockstep as ls\n{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"BadInput: {message}" in done.stderr
