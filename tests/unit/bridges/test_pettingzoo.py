import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.test.state_test import state_test

from lockstep import make
from lockstep.bridges.pettingzoo import InTurn, aec_env, parallel_env
from lockstep.bridges.spaces import flat_state
from lockstep.core.streams import lane_keys
from lockstep.errors import BadInput, UnknownName
from lockstep.worlds import registry
from tests.toys import Match
from tests.unit.bridges.scenes import (
    CITY,
    CITY_ALONE,
    CITY_TOGETHER,
    UAV_AT_ONCE,
    UAV_IN_TURN,
    flat,
    masked_sample,
)

IN_TURN = {
    "uav": UAV_IN_TURN,
    "uav one phase": UAV_AT_ONCE,
    "city alone": CITY_ALONE,
    "city": CITY,
    "city together": CITY_TOGETHER,
}
AT_ONCE = {"uav": UAV_AT_ONCE, "city alone": CITY_ALONE, "city": CITY}

# What PettingZoo says about any environment with Dict observations, roles that differ, and no
# pictures; every other warning is an error.
EXPECTED = (
    "Observation is not a NumPy array",
    "Action mask is not a NumPy array",
    "Observation space for each agent probably should be",
    "Action space for each agent probably should be",
    "Agents have different (observation|action) space",
    "Environment has not defined a render",
    "Environment's (minimum|maximum) state space value is",
)


@pytest.fixture
def usual():
    with warnings.catch_warnings():
        for message in EXPECTED:
            warnings.filterwarnings("ignore", message=message)
        yield


def at_once(name: str, **options: Any) -> Any:
    world = AT_ONCE[name]
    return parallel_env(world, simultaneous=world is CITY, **options)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("name", IN_TURN)
def test_in_turn_it_keeps_the_api_and_its_seeds(name: str):
    api_test(aec_env(IN_TURN[name]), num_cycles=12)
    seed_test(lambda: aec_env(IN_TURN[name]), num_cycles=12)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("name", AT_ONCE)
def test_in_parallel_it_keeps_the_api_and_its_seeds(name: str):
    parallel_api_test(at_once(name), num_cycles=12)
    parallel_seed_test(lambda: at_once(name, skip_illegal=True), num_cycles=12)  # looks at no mask


@pytest.mark.usefixtures("usual")
def test_the_state_lies_in_its_space():
    state_test(aec_env(UAV_IN_TURN), parallel_env(UAV_AT_ONCE))


def test_agents_are_called_by_role_and_number_and_worlds_by_name():
    env = parallel_env("city-growth", scenario="tiny-4")
    assert env.possible_agents == ["council_0"]
    assert str(env) == "city_growth_v0"
    assert aec_env(UAV_IN_TURN).possible_agents == ["mu_0", "mu_1", "mu_2", "mu_3",
                                                    "uav_0", "uav_1"]  # fmt: skip
    with pytest.raises(UnknownName, match=r"no scenario of city-growth called 'tiny4'; did you"):
        aec_env("city-growth", scenario="tiny4")
    with pytest.raises(BadInput, match="scenario names a preset of a world; give either"):
        aec_env(CITY, scenario="small")
    with pytest.raises(BadInput, match="an environment is a world of one lane, got one of 4"):
        aec_env(Match(lanes=4))


def test_a_parallel_env_refuses_phases_and_names_the_way_out():
    with pytest.raises(BadInput, match=r"uav-mec has 2 phases.*use aec_env, or pass simultaneous"):
        parallel_env(UAV_IN_TURN)


def test_a_world_whose_later_roles_cannot_look_yet_refuses_to_be_simultaneous():
    with pytest.raises(ValueError, match=r"observe\('uav'\) must follow act\('mu'\)"):
        parallel_env(UAV_IN_TURN, simultaneous=True)


def test_rows_without_ids_cannot_be_found_again_in_a_later_phase():
    world = registry.build(CITY, lanes=1)
    roles = tuple(
        replace(role, features={k: f for k, f in role.features.items() if k != "candidate/id"})
        for role in world.spec.roles
    )
    world.spec = replace(world.spec, roles=roles)
    with pytest.raises(BadInput, match=r"simultaneous must be False.*what edu may choose"):
        parallel_env(world, simultaneous=True)


def test_in_turn_it_is_the_world_stepped_by_hand():
    env, world = aec_env(UAV_IN_TURN), make(UAV_IN_TURN, seed=5)
    env.reset(seed=5)
    rng = np.random.default_rng(0)
    for _ in range(UAV_IN_TURN.n_slots - 1):
        for phase in world.spec.phases:
            for name in phase:
                role, seen = world.spec.role(name), world.observe(name)
                action = _random_action(role, rng)
                for i in range(role.agents):
                    assert env.agent_selection == f"{name}_{i}"
                    shown = env.last()[0]
                    assert shown["obs"].tobytes() == seen.features["obs"][0, i].numpy().tobytes()
                    assert (
                        env.state().tobytes() == flat_state(world.spec, world.state(name)).tobytes()
                    )
                    env.step({part: x[0, i].numpy() for part, x in action.items()})
                world.act(name, action)
        step = world.advance()
        for name, agent in env.lane.agents.items():
            assert env.rewards[name] == float(step.reward[agent.role.name][0, agent.index])


def _random_action(role: Any, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    A = role.agents
    return {
        name: torch.from_numpy(rng.random((1, A, part.n), dtype=np.float32))
        if part.field.shape
        else torch.from_numpy(rng.integers(part.n, size=(1, A)))
        for name, part in role.action.items()
    }


def turns(env: InTurn, seed: int | None) -> list[tuple[str, bytes, float]]:
    """Whose turn it was, what was seen and given, under masked random actions of one seed."""
    env.reset(seed=seed)
    for i, name in enumerate(env.agents):
        env.action_space(name).seed(i)
    record = []
    for agent in env.agent_iter():
        seen, reward, terminated, truncated, info = env.last()
        record.append((agent, flat(seen) + flat(info), reward))
        over = terminated or truncated
        env.step(None if over else masked_sample(env, agent, seen))
    return record


def test_same_seed_and_actions_give_the_same_bytes():
    first, second = aec_env(CITY), aec_env(CITY, seed=8)
    turns(first, 1)
    assert turns(first, 4) == turns(second, 4)
    assert turns(first, 5) != turns(second, 4)


def test_who_does_not_act_in_a_month_has_no_turn_in_it():
    env = aec_env(CITY)
    names = [name for name, _, _ in turns(env, 0)]
    assert names[:9] == ["ind_0", "edu_0"] * 3 + ["ind_0", "edu_0", "council_0"]
    assert names[9:] == ["ind_0", "ind_0", "edu_0", "council_0"]  # month 8, and the farewells


def test_rewards_and_time_add_up_until_the_next_turn():
    env = aec_env(CITY)
    env.reset(seed=0)
    given = dict.fromkeys(env.agents, 0.0)
    for agent in env.agent_iter():
        seen, reward, terminated, _, info = env.last()
        given[agent] += reward
        if agent == "ind_0" and env.lane.views["ind_0"].acts:
            assert info["elapsed"] in (0.0, 1.0, 2.0)
        env.step(None if terminated else masked_sample(env, agent, seen) * 0)
    # Nobody builds: what the council is given in nine months does not depend on its turns.
    world = make(CITY, seed=0)
    total = dict.fromkeys(given, 0.0)
    for _ in range(CITY.horizon):
        for phase in world.spec.phases:
            for role in phase:
                world.act(role, {"build": torch.zeros(1, 1, CITY.picks, dtype=torch.int64)})
        for role, reward in world.advance().reward.items():
            total[f"{role}_0"] += float(reward[0, 0])
    assert given == pytest.approx(total)


def test_who_does_not_act_may_only_stop():
    env = parallel_env(CITY, simultaneous=True)
    seen, infos = env.reset(seed=0)
    assert [infos[name]["acts"] for name in env.agents] == [True, False, False]
    for entries in seen["edu_0"]["action_mask"]:
        assert entries.tolist() == [1] + [0] * (len(entries) - 1)
    actions = {name: masked_sample(env, name, seen[name]) for name in env.agents}
    actions["edu_0"] = actions["edu_0"] + 1
    with pytest.raises(ValueError, match=r"build of edu_0 must be one of the 1 entries \(of "):
        env.step(actions)


def test_the_last_observation_is_of_the_episode_that_ended():
    env = parallel_env(UAV_AT_ONCE)
    before, _ = env.reset(seed=2)
    for _ in range(UAV_AT_ONCE.n_slots):
        last = before
        actions = {name: env.action_space(name).sample() for name in env.agents}
        before, _, terminated, truncated, _ = env.step(actions)
    assert all(terminated.values())
    assert not any(truncated.values())
    assert env.agents == []
    assert flat(before) == flat(last)
    after, _ = env.reset()
    assert flat(after) != flat(before)
    env.reset()
    for _ in range(UAV_AT_ONCE.n_slots):
        env.step({name: env.action_space(name).sample() for name in env.agents})
    with pytest.raises(ValueError, match=r"the episode is over or has not begun; call reset\(\)"):
        env.step({})


def test_farewells_in_turn_show_what_was_seen_last():
    env = aec_env(UAV_IN_TURN)
    env.reset(seed=2)
    shown = {}
    for agent in env.agent_iter():
        seen, _, terminated, _, _ = env.last()
        if terminated:
            assert flat(seen) == shown[agent]
        shown[agent] = flat(seen)
        env.step(None if terminated else env.action_space(agent).sample())
    with pytest.raises(ValueError, match=r"the episode is over or has not begun; call reset\(\)"):
        env.step(None)


def test_the_state_after_a_truncation_is_that_of_the_last_moment():
    toy = Match(lanes=1, horizon=3, truncates=True)
    env = parallel_env(toy)
    env.reset(seed=0)
    for _ in range(3):
        before = env.state()
        _, _, terminated, truncated, _ = env.step({"player_0": np.array([0.5], np.float32)})
    assert truncated == {"player_0": True}
    assert terminated == {"player_0": False}
    by_hand = Match(lanes=1, horizon=3, truncates=True)
    by_hand.reset(lane_keys([0], lanes=1))
    for _ in range(3):
        by_hand.act("player", {"number": torch.full((1, 1, 1), 0.5)})
        final = by_hand.advance().final
    assert env.state().tobytes() == flat_state(by_hand.spec, final).tobytes()
    assert env.state().tobytes() != before.tobytes()


def test_the_next_episode_depends_on_the_seed_and_the_number_of_resets_alone():
    first, second = parallel_env(UAV_AT_ONCE, seed=3), parallel_env(UAV_AT_ONCE)
    start = first.reset()[0]
    assert flat(start) == flat(second.reset(seed=3)[0])
    for _ in range(UAV_AT_ONCE.n_slots):
        first.step({name: first.action_space(name).sample() for name in first.agents})
    following = first.reset()[0]
    assert flat(following) == flat(second.reset()[0])
    assert flat(following) != flat(start)
    by_hand = make(UAV_AT_ONCE, seed=3).observe("mu").features["obs"][0, 2]
    assert start["mu_2"]["obs"].tobytes() == by_hand.numpy().tobytes()


def test_actions_are_asked_of_every_agent_and_of_no_stranger():
    env = parallel_env(UAV_AT_ONCE)
    env.reset()
    actions = {name: env.action_space(name).sample() for name in env.agents}
    with pytest.raises(ValueError, match="each of the 6 agents, got also one of bird_0"):
        env.step(actions | {"bird_0": 1})
    del actions["mu_1"]
    with pytest.raises(ValueError, match="each of the 6 agents, got none of mu_1"):
        env.step(actions)


def test_chosen_at_once_the_earlier_role_wins_and_other_rows_are_found_again():
    env = parallel_env(CITY_TOGETHER, simultaneous=True)
    seen, _ = env.reset(seed=0)
    slot = {
        name: {int(s): e + 1 for e, s in enumerate(x["candidate/resource"][:, 0]) if s >= 0}
        for name, x in seen.items()
    }
    contested = min(set(slot["ind_0"]) & set(slot["council_0"]))
    free = max(set(slot["council_0"]) - {contested})
    want = {
        "ind_0": [slot["ind_0"][contested], 0, 0],
        "edu_0": [0, 0, 0],
        "council_0": [slot["council_0"][contested], slot["council_0"][free], 0],
    }
    *_, infos = env.step(want)
    owner = env.world.frame(0).owner
    assert {s: int(owner[s]) for s in np.flatnonzero(owner >= 0)} == {contested: 0, free: 2}
    assert [infos[name]["ignored"] for name in env.agents] == [0, 0, 1]


def test_the_state_is_asked_for_after_a_reset():
    with pytest.raises(ValueError, match=r"state\(\) must follow reset\(\), got no episode yet"):
        parallel_env(UAV_AT_ONCE).state()


def test_an_episode_in_which_nobody_acts_is_an_error():
    late = replace(CITY_ALONE, agents=(replace(CITY_ALONE.agents[0], active_from=99),))
    with pytest.raises(ValueError, match="nobody acts in this episode of city-growth"):
        aec_env(late).reset()


def test_nobody_is_shown_anything_before_its_first_phase():
    env = aec_env(UAV_IN_TURN)
    env.reset(seed=0)
    assert env.observe("uav_0") is None
    assert env.infos["uav_0"]["acts"] is False
    for _ in range(4):
        env.step(env.action_space(env.agent_selection).sample())
    assert env.agent_selection == "uav_0"
    assert env.observe("uav_0") is not None
