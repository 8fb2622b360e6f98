import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from lockstep import make
from lockstep.bridges.gymnasium import single_agent_env
from lockstep.errors import BadInput, UnknownName
from lockstep.worlds import registry
from tests.toys import Masked
from tests.unit.bridges.scenes import CITY, CITY_ALONE, UAV_AT_ONCE, UAV_IN_TURN, flat

CASES = {
    "a user": {"world": UAV_IN_TURN, "role": "mu", "agent": 2, "others": "greedy"},
    "a UAV": {"world": UAV_IN_TURN, "role": "uav", "others": "random"},
    "a UAV in one phase": {"world": UAV_AT_ONCE, "role": "uav", "others": "random"},
    "a city alone": {
        "world": CITY_ALONE,
        "role": "council",
        "others": "skip",
        "skip_illegal": True,
    },
    "education": {"world": CITY, "role": "edu", "others": "random", "skip_illegal": True},
}


@pytest.mark.parametrize("case", CASES)
def test_it_passes_the_checker(case: str):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Box observation space (minimum|maximum)")
        warnings.filterwarnings("ignore", message=".*Not able to test alternative render modes")
        check_env(single_agent_env(**CASES[case]))


def test_steps_in_which_the_agent_does_not_act_are_skipped():
    env = single_agent_env(CITY, role="ind", others="greedy")
    _, info = env.reset(seed=0)
    assert (info["elapsed"], info["reward_before"]) == (0.0, 0.0)
    elapsed = []
    over = False
    while not over:
        _, _, over, truncated, info = env.step(env.action_space.sample(mask=info["action_mask"]))
        elapsed.append(info["elapsed"])
        assert not truncated
    assert elapsed == [2.0, 2.0, 2.0, 2.0, 1.0]  # nine months, its own the even ones


def test_rewards_before_the_first_decision_are_told_apart():
    env = single_agent_env(CITY, role="council", others="greedy")
    _, info = env.reset(seed=0)
    assert info["elapsed"] == 7.0  # active from month 6, at work in odd ones
    _, reward, terminated, _, after = env.step(np.zeros(CITY.picks, np.int64))
    assert terminated
    assert after["elapsed"] == 2.0
    world, rule, total = make(CITY, seed=0), registry.heuristics("city-growth")["greedy"], []
    for _ in range(CITY.horizon):
        for phase in world.spec.phases:
            for role in phase:
                stops = role == "council"
                nothing = {"build": torch.zeros(1, 1, CITY.picks, dtype=torch.int64)}
                world.act(role, nothing if stops else rule(world, role))
        total.append(float(world.advance().reward["council"][0, 0]))
    assert info["reward_before"] == pytest.approx(sum(total[:7]))
    assert reward == pytest.approx(sum(total[7:]))


@pytest.mark.parametrize("role", ["mu", "uav"])
@pytest.mark.parametrize("scene", [UAV_IN_TURN, UAV_AT_ONCE], ids=["in turn", "at once"])
def test_an_agent_that_plays_the_heuristic_makes_the_world_of_the_heuristic(scene, role: str):
    rule = registry.heuristics("uav-mec")["greedy"]
    env, world = single_agent_env(scene, role=role, agent=1, others="greedy"), make(scene, seed=6)
    seen, _ = env.reset(seed=6)
    for _ in range(scene.n_slots):
        for name in (name for phase in world.spec.phases for name in phase):
            expected = world.observe(name).features["obs"][0, 1].numpy().copy()
            action = rule(world, name)
            if name == role:
                assert seen["obs"].tobytes() == expected.tobytes()
                mine = {part: x[0, 1].numpy() for part, x in action.items()}
            world.act(name, action)
        step = world.advance()
        last = seen
        seen, reward, terminated, truncated, _ = env.step(mine)
        assert reward == float(step.reward[role][0, 1])
    assert terminated
    assert not truncated
    assert flat(seen) == flat(last)
    with pytest.raises(ValueError, match="the episode is over or has not begun"):
        env.step(mine)


def test_same_seed_and_actions_give_the_same_bytes():
    def walk(env, seed: int) -> bytes:
        seen, info = env.reset(seed=seed)
        env.action_space.seed(0)
        bytes_, over = flat(seen) + flat(info), False
        while not over:
            action = env.action_space.sample(mask=info["action_mask"])
            seen, reward, over, _, info = env.step(action)
            bytes_ += flat(seen) + flat(info) + flat(reward)
        return bytes_

    first, second = (single_agent_env(CITY, role="edu", others="random") for _ in range(2))
    walk(first, 1)
    assert walk(first, 7) == walk(second, 7)
    assert walk(first, 8) != walk(second, 7)


def test_the_mask_has_a_form_for_sampling_and_a_flat_one():
    env = single_agent_env(CITY, role="ind", others="skip")
    seen, info = env.reset(seed=0)
    assert "action_mask" not in seen
    assert env.action_masks().tolist() == [bool(x) for row in info["action_mask"] for x in row]
    forbidden = int(np.flatnonzero(info["action_mask"][0] == 0)[0])
    with pytest.raises(ValueError, match=rf"build of ind_0 must be one of .*got {forbidden};"):
        env.step(np.array([forbidden, 0, 0]))


def test_a_world_of_ones_own_brings_its_heuristic():
    toy = Masked(lanes=1, agents=2, horizon=3)
    env = single_agent_env(
        toy,
        role="player",
        agent=1,
        others=lambda *_: {"pick": toy.legal().int().argmax(-1)},
    )
    _, info = env.reset()
    for _ in range(3):
        _, _, over, _, info = env.step(env.action_space.sample(mask=info["action_mask"]))
    assert over


def test_unknown_roles_agents_and_heuristics_are_named():
    with pytest.raises(UnknownName, match="no role of uav-mec called 'uva'; did you mean 'uav'"):
        single_agent_env(UAV_IN_TURN, role="uva", others="greedy")
    with pytest.raises(BadInput, match=r"agent must be in 0\.\.1, the agents of uav, got 2"):
        single_agent_env(UAV_IN_TURN, role="uav", agent=2, others="greedy")
    with pytest.raises(UnknownName, match="no heuristic of uav-mec called 'gredy'; did you mean"):
        single_agent_env(UAV_IN_TURN, role="uav", others="gredy")


def test_an_agent_that_never_acts_cannot_learn():
    late = replace(CITY, agents=(*CITY.agents[:2], replace(CITY.agents[2], active_from=99)))
    env = single_agent_env(late, role="council", others="skip")
    with pytest.raises(ValueError, match="council_0 never acts in this episode; choose another"):
        env.reset()
