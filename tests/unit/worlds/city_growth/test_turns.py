"""Turns: schedules, phases, who wins a conflict, several builds, and expansion of an anchor."""

from dataclasses import replace

import pytest
import torch

from lockstep.worlds.city_growth.catalogue import COUNCIL, DEFAULT, EDU, IND
from lockstep.worlds.city_growth.config import PhaseConfig
from lockstep.worlds.city_growth.schedule import acting, world_phases
from tests.unit.worlds.city_growth.helpers import (
    PLAIN,
    SMALL,
    builder,
    grid,
    made,
    picks,
    play,
    row_at,
)

PAIR = (builder("one"), builder("two"))


def _order(months: list[list[bool]], names: str = "iec") -> list[str]:
    return ["".join(n for n, acts in zip(names, row, strict=True) if acts) for row in months]


def test_by_turns_one_agent_acts_each_month_in_order() -> None:
    two = replace(DEFAULT, agents=(IND, EDU), schedule="turns", phases=(), horizon=6)
    assert _order(acting(two), "ie") == ["i", "e", "i", "e", "i", "e"]


def test_by_turns_who_is_not_active_yet_is_passed_over() -> None:
    agents = (IND, EDU, replace(COUNCIL, active_from=3))
    three = replace(DEFAULT, agents=agents, schedule="turns", phases=(), horizon=8)
    assert _order(acting(three)) == ["i", "e", "i", "e", "c", "i", "e", "c"]


def test_within_a_month_every_active_agent_acts() -> None:
    every = replace(DEFAULT, schedule="month", phases=(), horizon=8)
    assert _order(acting(every)) == ["ie"] * 6 + ["iec"] * 2
    assert world_phases(every) == (("ind",), ("edu",), ("council",))


def test_a_cycle_of_phases_holds_each_for_its_period() -> None:
    slow = replace(DEFAULT, period=2, horizon=8)
    assert _order(acting(slow)) == ["i", "i", "e", "e", "i", "i", "ec", "ec"]
    assert _order(acting(replace(DEFAULT, horizon=8))) == ["i", "e", "i", "e", "i", "e", "i", "ec"]


def test_agents_that_act_at_once_share_a_phase() -> None:
    cycle = (PhaseConfig(agents=("edu", "council"), concurrent=True), PhaseConfig(agents=("ind",)))
    assert world_phases(replace(DEFAULT, phases=cycle)) == (("edu", "council"), ("ind",))
    assert made(replace(SMALL, phases=cycle)).spec.phases == (("edu", "council"), ("ind",))


def test_in_sequence_later_agents_see_what_earlier_ones_built() -> None:
    world = made(grid(*PAIR))
    before = world.candidates("two").count[0].item()
    critic = world.state("two")["two"]
    world.act("one", picks(world, 1, 2))
    assert world.candidates("two").count[0].item() == before - 2
    assert not torch.equal(world.state("two")["two"], critic)


def test_at_once_nobody_sees_the_others_and_the_later_one_loses_a_conflict() -> None:
    cycle = (PhaseConfig(agents=("two", "one"), concurrent=True),)
    world = made(grid(*PAIR, schedule="phases", phases=cycle))
    world.observe("two")
    world.act("two", picks(world, 1, 2))
    assert world.candidates("one").count[0].item() == 17  # it sees the old city
    world.act("one", picks(world, 2, 3))
    owner = world.world_state.owner[0]
    assert owner[:4].tolist() == [1, 1, 0, -1]  # `two` is stated first and keeps slot 1
    balance = world.world_state.balance[0].tolist()
    cost = float(world.candidates("one").cost[0, 0])
    assert balance == [1000 - cost, 1000 - 2 * cost]  # nothing is paid for what was dropped
    world.advance()
    for _ in range(4):
        play(world)
    assert play(world).metrics["conflicts"].tolist() == [6.0, 6.0]  # one, times six months


def test_a_turn_builds_up_to_its_number_in_order_and_stops_at_the_stop() -> None:
    world = made(grid(builds=3))
    world.act("one", {"build": torch.tensor([[[3, 0, 5]], [[1, 2, 3]]])})
    assert (world.world_state.owner >= 0).sum(dim=-1).tolist() == [1, 3]
    assert world.spec.role("one").action["build"].field.shape == (3,)


def test_a_row_picked_twice_is_built_once() -> None:
    world = made(grid())
    world.act("one", picks(world, 4, 4, 4))
    assert world.world_state.count[0, 0, 0].item() == 1
    world.advance()
    for _ in range(4):
        play(world)
    assert play(world).metrics["conflicts"][0].item() == 2 * 6


def test_overlapping_footprints_of_one_turn_go_to_the_first() -> None:
    """Pairs 0-1, 1-2 and 2-3: the second falls to the first, which leaves the third standing."""
    world = made(grid(builder(types=(replace(PLAIN, footprint="pair"),))))
    found = world.candidates("one")
    rows = {tuple(s): i + 1 for i, s in enumerate(found.slots[0].tolist())}
    world.act("one", picks(world, rows[0, 1], rows[1, 2], rows[2, 3]))
    assert (world.world_state.owner[0] >= 0).nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert world.world_state.count[0, 0, 0].item() == 2


def test_a_pick_that_is_not_in_the_set_builds_nothing_and_is_counted() -> None:
    world = made(SMALL)
    width = world.spec.role("ind").action["build"].n - 1
    world.act("ind", picks(world, width))
    assert (world.world_state.owner == -1).all()
    world.act("edu", picks(world, 1))  # not its month
    world.act("council", picks(world))
    assert (world.world_state.owner == -1).all()
    world.advance()
    last = [play(world) for _ in range(7)][-1]
    assert last.metrics["refused"].tolist() == [8.0, 8.0]


def test_a_hard_budget_is_spent_in_order() -> None:
    kinds = (replace(PLAIN, cost=600), replace(PLAIN, name="Q", cost=300))
    world = made(grid(builder(types=kinds), debt="hard", zone_cost=(0, 0, 0)))
    found = world.candidates("one")
    rows = [row_at(found, 0, 0), row_at(found, 1, 0), row_at(found, 2, 1)]
    world.act("one", picks(world, *rows))  # 600, 600 (too dear now), 300
    assert world.world_state.balance[0, 0].item() == 100.0
    assert world.world_state.count[0, 0].tolist() == [1, 1]


@pytest.mark.parametrize("expansion", ["none", "nearest"])
def test_a_purse_that_two_share_at_once_is_not_spent_twice(expansion: str) -> None:
    agents = (builder("one", pool="p", start_money=150), builder("two", pool="p", start_money=250))
    cycle = (PhaseConfig(agents=("one", "two"), concurrent=True),)
    config = grid(*agents, schedule="phases", phases=cycle, debt="hard", zone_cost=(0, 0, 0),
                  expansion=expansion, credit=30)  # fmt: skip
    world = made(config)
    for role in config.agent_names:
        assert world.observe(role).features["candidate/budget"][0, 0].item() == 430.0
    row = {"one": (1, 2, 3), "two": (13, 14, 15)}
    for role in config.agent_names:
        world.act(role, picks(world, *row[role][: config.picks]))
    assert world.world_state.count[0, :, 0].tolist() == [3, 1]  # the first is served first
    assert world.world_state.balance[0, 0].item() == 0.0


@pytest.mark.parametrize(("expansion", "n"), [("nearest", 4), ("cluster", 3)])
def test_an_anchor_grows_by_the_nearest_of_its_type_and_all_are_paid(
    expansion: str, n: int
) -> None:
    config = grid(expansion=expansion, builds=4, cluster_px=4.1)
    world = made(config)
    assert world.spec.role("one").action["build"].field.shape == (1,)
    cost = float(world.candidates("one").cost[0, 0])
    world.act("one", picks(world, 1))
    taken = (world.world_state.owner[0] >= 0).nonzero().flatten().tolist()
    assert taken == [0, 1, 4, 5][:n] if expansion == "nearest" else [0, 1, 4]
    assert world.world_state.balance[0, 0].item() == 1000 - n * cost


def test_an_anchor_that_stops_builds_nothing() -> None:
    world = made(grid(expansion="nearest", builds=3))
    world.act("one", picks(world, 0))
    assert (world.world_state.owner == -1).all()


def test_an_expansion_minds_a_hard_budget() -> None:
    config = grid(expansion="nearest", builds=5, debt="hard", zone_cost=(0, 0, 0))
    world = made(replace(config, agents=(builder(start_money=250),)))
    world.act("one", picks(world, 1))
    assert world.world_state.balance[0, 0].item() == 50.0


def test_the_last_role_of_a_phase_needs_the_others() -> None:
    cycle = (PhaseConfig(agents=("one", "two"), concurrent=True),)
    world = made(grid(*PAIR, schedule="phases", phases=cycle))
    with pytest.raises(ValueError, match=r"act\('two'\) must come last in its phase \(one, two\)"):
        world.act("two", picks(world))
    with pytest.raises(ValueError, match=r"advance\(\) must follow act\(\) of every role"):
        world.advance()
