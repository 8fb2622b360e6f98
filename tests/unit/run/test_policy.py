from dataclasses import replace

import torch

from lockstep.core.actions import Action
from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.run.policy import HeuristicPolicy
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
