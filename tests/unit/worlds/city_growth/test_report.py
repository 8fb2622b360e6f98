"""What a comparison knows of a city: scenarios that differ, and turns noted as they were."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth import report
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.config import CityConfig, PhaseConfig
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.notes import RecordedCity
from lockstep.worlds.city_growth.world import CityGrowth
from tests.unit.worlds.city_growth.helpers import GRID, PLAIN, SMALL, builder, grid, picks

PAIR = replace(PLAIN, name="D", cost=150, footprint="pair")
TOGETHER = replace(
    SMALL,
    phases=(PhaseConfig(agents=("ind", "edu", "council"), concurrent=True),),
    agents=tuple(replace(agent, pool="purse") for agent in SMALL.agents),
)
CITIES: dict[str, CityConfig] = {
    "small": SMALL,
    "anchor": replace(SMALL, expansion="nearest"),
    "one purse and one phase": TOGETHER,
    "pairs and a budget": grid(builder(types=(PLAIN, PAIR), start_money=400), debt="hard"),
}


def played(config: CityConfig, solver: str) -> tuple[RecordedCity, CityGrowth, Any]:
    """The same episode recorded and not."""
    noted, plain = RecordedCity(config, lanes=1), CityGrowth(config, lanes=1)
    for world in (noted, plain):
        world.reset(lane_keys([4], lanes=1))
        for _ in range(config.horizon):
            for phase in world.spec.phases:
                for role in phase:
                    world.act(role, HEURISTICS[solver](world, role))
            step = world.advance()
    return noted, plain, step


@pytest.mark.parametrize("name", CITIES)
def test_the_notes_add_up_to_what_the_world_reports(name: str):
    config = CITIES[name]
    noted, _, step = played(config, "greedy")
    metric = {key: float(x[0]) / config.horizon for key, x in step.metrics.items()}
    actions = [row for row in noted.turns()["actions"] if row["month"] != "total"]
    totals = {row["agent"]: row for row in noted.turns()["actions"] if row["month"] == "total"}
    assert set(totals) == set(config.agent_names)
    for agent in config.agents:
        mine = [row for row in actions if row["agent"] == agent.name]
        for kind in agent.types:
            count = sum(row["type"] == kind.name for row in mine)
            assert count == metric[f"buildings_{agent.name}_{kind.name}"]
        total = totals[agent.name]
        assert total["order"] == len(mine)
        assert total["cost"] == sum(row["cost"] for row in mine)
        assert total["prestige"] == pytest.approx(metric[f"prestige_{agent.name}"])
        assert total["balance_after"] == pytest.approx(metric[f"final_balance_{agent.name}"])
    if not config.shares_money:
        for row in totals.values():
            assert row["balance_before"] + row["npv"] == row["balance_after"]


@pytest.mark.parametrize("name", CITIES)
def test_noting_down_changes_nothing(name: str):
    noted, plain, _ = played(CITIES[name], "random")
    for field, x in plain.world_state.tensors().items():
        assert torch.equal(getattr(noted.world_state, field), x), field


@pytest.mark.parametrize("name", CITIES)
def test_balances_run_through_the_actions_of_a_month(name: str):
    noted, _, _ = played(CITIES[name], "greedy")
    actions = [row for row in noted.turns()["actions"] if row["month"] != "total"]
    assert actions
    for row in actions:
        assert row["balance_after"] == row["balance_before"] - row["cost"]
    for before, after in pairwise(actions):
        if (before["month"], before["agent"]) == (after["month"], after["agent"]):
            assert after["balance_before"] == before["balance_after"]
            assert after["order"] == before["order"] + 1


def test_the_pool_marks_what_was_built_and_the_sequences_are_sorted():
    noted, _, _ = played(SMALL, "greedy")
    tables = noted.turns()
    assert tuple(tables) == report.TABLES
    chosen = [
        (row["month"], row["agent"], row["chosen"], row["slots"], row["type"])
        for row in tables["pool"]
        if row["chosen"]
    ]
    built = [
        (row["month"], row["agent"], row["order"], row["slots"], row["type"])
        for row in tables["actions"]
        if row["month"] != "total"
    ]
    assert sorted(chosen) == sorted(built)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in tables["sequences"]:
        groups.setdefault((row["month"], row["agent"], row["length"]), []).append(row["score"])
    assert all(len(scores) <= 10 for scores in groups.values())
    assert all(scores == sorted(scores, reverse=True) for scores in groups.values())


def test_a_row_tells_place_angle_and_level_as_the_map_has_them():
    """What a 3D tool reads: the mean place of a footprint, the angle of its first slot."""
    slots = tuple((x, y, 10.0 * i, 3 + i % 3) for i, (x, y, _, _) in enumerate(GRID.slots))
    config = grid(builder(types=(PLAIN, PAIR)), map=replace(GRID, slots=slots))
    noted, _, _ = played(config, "random")
    tables = noted.turns()
    actions = [row for row in tables["actions"] if row["month"] != "total"]
    assert {row["slots"].count("+") for row in actions} == {0, 1}
    for row in tables["pool"] + actions:
        at = [slots[int(number)] for number in row["slots"].split("+")]
        assert row["x"] == sum(slot[0] for slot in at) / len(at)
        assert row["y"] == sum(slot[1] for slot in at) / len(at)
        assert row["angle"] == at[0][2]
        assert row["level"] == min(slot[3] for slot in at)


def test_a_pick_that_lost_its_slot_to_another_agent_is_not_an_action():
    phases = (PhaseConfig(agents=("one", "two"), concurrent=True),)
    config = grid(builder("one"), builder("two"), schedule="phases", phases=phases)
    world = RecordedCity(config, lanes=1)
    world.reset(lane_keys([0], lanes=1))
    world.act("one", picks(world, 3))
    world.act("two", picks(world, 3, 5))
    world.advance()
    actions = [row for row in world.turns()["actions"] if row["month"] != "total"]
    assert [(row["agent"], row["slots"], row["order"]) for row in actions] == [
        ("one", "2", 1),
        ("two", "4", 1),
    ]


def test_the_last_picture_shows_the_finished_city_and_its_final_balances():
    noted, _, step = played(SMALL, "greedy")
    frame = noted.final_frame
    assert frame is not None
    assert frame.month == SMALL.horizon
    metric = {name: float(x[0]) / SMALL.horizon for name, x in step.metrics.items()}
    buildings = [x for name, x in metric.items() if name.startswith("buildings_")]
    assert (frame.owner >= 0).sum() == sum(buildings) > 0
    final = [metric[f"final_balance_{name}"] for name in SMALL.agent_names]
    assert frame.balance.tolist() == pytest.approx(final)


def test_an_episode_that_bankruptcy_ends_is_noted_and_pictured_to_its_end():
    poor = grid(builder(start_money=0), bankruptcy="terminate", bankrupt_at=100, horizon=5)
    world = RecordedCity(poor, lanes=1)
    world.reset(lane_keys([0], lanes=1))
    world.act("one", picks(world))
    assert not world.advance().terminated.any()
    assert world.final_frame is None
    world.act("one", picks(world, 1))
    assert world.advance().terminated.all()
    frame = world.final_frame
    assert frame is not None
    assert (frame.month, (frame.owner >= 0).sum()) == (2, 1)
    built, total = world.turns()["actions"]
    assert total["balance_after"] == frame.balance[0] == built["balance_after"] + built["income"]


@pytest.mark.parametrize("mirrored", [False, True])
def test_every_scenario_is_another_city_that_no_training_saw(mirrored: bool):
    config = replace(SMALL, map=replace(SMALL.map, mirrored=mirrored))
    fresh, keys = report.scenarios(config, count=7, seed=1_000_003)
    world = CityGrowth(fresh, lanes=7)
    world.reset(keys)
    views = 4 if mirrored else 1
    assert (world.world_state.map // views).tolist() == list(range(7))
    assert fresh.map.map_seed == 1_000_003


def test_a_map_given_by_hand_is_played_as_often_as_asked():
    config = SCENARIOS["tiny-9"]
    same, keys = report.scenarios(config, count=5, seed=1)
    assert same == config
    assert len(keys.unique()) == 5


def test_what_is_shown_exists():
    _, _, step = played(SMALL, "skip")
    metrics = {name: np.array([float(x[0]) / SMALL.horizon]) for name, x in step.metrics.items()}
    metrics |= report.derived(SMALL, metrics)
    assert set(report.shown(SMALL)) <= set(metrics)
    assert metrics["looked_at"] == 1.0
    capped = replace(SMALL, agents=tuple(replace(a, cap_per_type=1) for a in SMALL.agents))
    _, _, step = played(capped, "skip")
    metrics = {name: np.array([float(x[0]) / SMALL.horizon]) for name, x in step.metrics.items()}
    assert 0.0 < report.derived(capped, metrics)["looked_at"] < 0.6


def test_what_was_looked_at_is_told_of_the_turns_there_were():
    """Bankruptcy ends this episode in its first month: 3 candidates of 16 in the only turn."""
    agent = builder(start_money=0, cap_per_type=3)
    config = grid(agent, bankruptcy="terminate", bankrupt_at=100)
    world = CityGrowth(config, lanes=1)
    world.reset(lane_keys([0], lanes=1))
    world.act("one", picks(world, 1))
    step = world.advance()
    assert step.terminated.all()
    metrics = {name: np.array([float(x[0])]) for name, x in step.metrics.items()}
    assert (metrics["decisions"], metrics["candidates_mean"]) == (1, 4)
    assert report.derived(config, metrics)["looked_at"] == 3 / 16
