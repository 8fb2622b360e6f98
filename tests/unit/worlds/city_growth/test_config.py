"""A scenario is one validated document; what contradicts itself is refused by name."""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from lockstep.worlds.city_growth.catalogue import COUNCIL, DEFAULT, EDU, IND, SCENARIOS, TINY_4
from lockstep.worlds.city_growth.config import (
    CityConfig,
    Hub,
    LandConfig,
    MapConfig,
    PhaseConfig,
    RewardConfig,
)
from lockstep.worlds.city_growth.document import dump_scenario, load_scenario, scenario_of
from tests.unit.worlds.city_growth.helpers import PLAIN, builder, grid


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_written_scenario_loads_back_equal(name: str) -> None:
    assert load_scenario(dump_scenario(SCENARIOS[name])) == SCENARIOS[name]


def test_a_document_changes_what_it_names_and_nothing_else() -> None:
    text = 'base = "legacy-turns"\nbuilds = 2\n[map]\nn_slots = 50\nhubs = [{ r0 = 9 }, {}]'
    loaded = load_scenario(text)
    legacy = SCENARIOS["legacy-turns"]
    ground = replace(legacy.map, n_slots=50, hubs=(Hub(r0=9.0), Hub()))
    assert loaded == replace(legacy, builds=2, map=ground)


def test_without_a_base_a_document_starts_from_the_default() -> None:
    assert load_scenario("") == DEFAULT
    assert scenario_of({"horizon": 12}) == replace(DEFAULT, horizon=12)


def test_a_document_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the scenario must be a table, got \[1\]"):
        scenario_of([1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("horizn = 3", "there is no setting 'horizn'; did you mean 'horizon'?"),
        ("[map]\nn_slot = 3", "there is no setting 'n_slot' of map; did you mean 'n_slots'?"),
        (
            "[map]\nhubs = [{ weigt = 1 }]",
            r"no setting 'weigt' of map.hubs\[0\]; did you mean 'weight'",
        ),
        ('base = "defualt"', "base must name a scenario, got 'defualt'; did you mean 'default'"),
        ("base = 3", "base must name a scenario, got 3; there is default, small"),
        ('horizon = "3"', "horizon must be of type int, got '3'"),
        ("horizon = true", "horizon must be of type int, got True"),
        ('debt = "none"', "debt must be one of soft, hard, got 'none'"),
        ("map = 3", "map must be a table, got 3"),
        ("zone_cost = 3", "zone_cost must be a list, got 3"),
        ("zone_cost = [1, 2]", "zone_cost must have 3 entries, got 2"),
        ('agents = [{ name = "x" }]', r"agents\[0\] must name types, which has no default"),
        ("agents = [3]", r"agents\[0\] must be a table, got 3"),
        ("[land]\ninertia = 2.0", "land: inertia must lie in 0..1, below 1, got 2.0"),
        ("horizon = 0", "horizon must be at least 1, got 0"),
        ("horizon = ", "the scenario must be TOML"),
    ],
)
def test_a_document_with_a_mistake_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_scenario(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(PLAIN, cost=-1), "cost of building type 'P' must not be negative, got -1"),
        (lambda: replace(PLAIN, name=""), "name of building type '' must be of letters, digits, "),
        (lambda: replace(PLAIN, name="S/2"), "building type 'S/2' must be of letters, .* got 'S"),
        (lambda: builder("the one"), "name of agent 'the one' must be of letters, digits, - and _"),
        (lambda: builder("state"), "name of agent 'state' must differ from what the critic calls"),
        (lambda: replace(PLAIN, cluster=9), "cluster of building type 'P' must be 2 to 4 slots"),
        (lambda: replace(PLAIN, min_level=6), "min_level of building type 'P' must be 3, 4 or 5"),
        (
            lambda: builder(types=(replace(PLAIN, min_level=5),), max_level=4),
            r"min_level of building type 'P' must not exceed max_level of agent 'one' \(4\), got 5",
        ),
        (lambda: builder(types=()), "types of agent 'one' must name at least one, got none"),
        (lambda: builder(types=(PLAIN, PLAIN)), "types of agent 'one' must differ by name"),
        (lambda: builder(near_px=-1.0), "near_px of agent 'one' must not be negative, got -1.0"),
        (lambda: builder(near_least=0), "near_least of agent 'one' must be at least 1, got 0"),
        (lambda: builder(discount=2.0), "discount of agent 'one' must lie in 0..1, got 2.0"),
        (lambda: MapConfig(n_slots=0), "n_slots must be at least 1, got 0"),
        (lambda: MapConfig(metres_per_px=0.0), "metres_per_px must be positive, got 0.0"),
        (lambda: MapConfig(hubs=()), "hubs must name at least one, got none"),
        (lambda: replace(TINY_4.map, hubs=(Hub(),)), "hubs of a map given by hand need x and y"),
        (lambda: replace(TINY_4.map, width=9), "slots must lie on the map"),
        (
            lambda: MapConfig(hubs=(Hub(x=500.0, y=3.0),)),
            r"hubs must lie on the map, got \(500.0, 3.0\)",
        ),
        (
            lambda: replace(TINY_4.map, slots=((1.0, 1.0, 0.0, 3), (1.0, 1.0, 90.0, 4))),
            r"slots must lie in different places, got \(1.0, 1.0\) twice",
        ),
        (
            lambda: replace(TINY_4.map, slots=((1.0, 1.0, 0.0, 6),)),
            "slots must have level 3, 4 or 5, got 6",
        ),
        (lambda: replace(TINY_4.map, maps="pool"), "maps must be 'fixed' for a map given by hand"),
        (lambda: LandConfig(floor=1.0), "floor must lie in 0..1, below 1, got 1.0"),
        (lambda: LandConfig(coarse_px=0), "coarse_px must be at least 1, got 0"),
        (lambda: LandConfig(hub_sigma_px=0.0), "hub_sigma_px must be at least 0.001, got 0.0"),
        (
            lambda: LandConfig(building_sigma_px=1e-300),  # whose square is 0
            "building_sigma_px must be at least 0.001, got 1e-300",
        ),
        (lambda: LandConfig(hub_growth=-1e9), "hub_growth must not be negative, got -1000000000"),
        (lambda: LandConfig(road_growth=-0.1), "road_growth must not be negative, got -0.1"),
        (lambda: LandConfig(hub_spread_cap=0.5), "hub_spread_cap must be at least 1, got 0.5"),
        (lambda: Hub(dr=-1.0), "dr of a hub must not be negative, got -1.0"),
        (lambda: LandConfig(hub_rise=0), "hub_rise must be at least 1 month, got 0"),
        (lambda: LandConfig(hub_weight=-1.0), "weights of the land price must not be negative"),
        (lambda: RewardConfig(scale=1e-300), "scale must be at least 0.001, got 1e-300"),
        (lambda: RewardConfig(shared=1.5), "shared must lie in 0..1, got 1.5"),
        (lambda: RewardConfig(lifetime=0), "lifetime must be at least 1 month, got 0"),
        (
            lambda: RewardConfig(tail_months=3.0),
            "tail_months must be 0 under kind='npv', got 3.0",
        ),
        (lambda: grid(interest=-1.0), "interest must not be negative, got -1.0"),
        (lambda: grid(river_half_m=0.0), "river_half_m must be positive, got 0.0"),
        (lambda: grid(near_zone_px=60.0), "near_zone_px must not exceed mid_zone_px, got 60.0"),
        (lambda: grid(builder(), builder()), "agents must differ by name"),
        (lambda: CityConfig(agents=()), "agents must name at least one, got none"),
        (
            lambda: grid(builder(bank_of_hub=1)),
            "bank_of_hub of agent 'one' must be -1 or below 1, the number of hubs, got 1",
        ),
        (
            lambda: replace(DEFAULT, max_candidates=2),
            "max_candidates must hold one of each of the 3 types of ind, got 2",
        ),
        (lambda: grid(rent_share=0.1), "rent_from must be one of one, got ind"),
        (
            lambda: replace(DEFAULT, rent_share=0.1, rent_to="ind"),
            "rent_to must differ from rent_from, got ind",
        ),
        (lambda: grid(schedule="phases"), "phases must name at least one, got none"),
        (
            lambda: replace(DEFAULT, phases=(PhaseConfig(agents=("ind", "eud")),)),
            "phases must name agents among ind, edu, council, got eud",
        ),
        (
            lambda: replace(DEFAULT, phases=(PhaseConfig(agents=("ind", "edu")),)),
            "phases must name each of ind, edu, council once, got ind, edu",
        ),
        (
            lambda: replace(DEFAULT, schedule="turns"),
            "phases must be empty unless schedule is 'phases', got 2 with schedule='turns'",
        ),
    ],
)
def test_a_setting_that_cannot_hold_is_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def _numbers(settings: Any) -> Iterator[tuple[str, Any]]:
    """Each setting that holds numbers, and the settings with one of them replaced."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, float):
            yield field.name, lambda x, name=field.name: replace(settings, **{name: x})
        elif isinstance(value, tuple) and value and isinstance(value[0], float):
            yield (
                field.name,
                lambda x, name=field.name, v=value: replace(settings, **{name: (x, *v[1:])}),
            )


EVERY_KIND = (DEFAULT, DEFAULT.map, DEFAULT.land, DEFAULT.reward, IND, PLAIN, Hub())


@pytest.mark.parametrize("settings", EVERY_KIND, ids=lambda x: type(x).__name__)
def test_a_number_that_is_none_or_infinite_is_refused_wherever_it_stands(settings: Any) -> None:
    assert is_dataclass(settings)
    found = list(_numbers(settings))
    assert found
    for name, changed in found:
        for number in (math.nan, math.inf, -math.inf):
            with pytest.raises(ValueError, match=rf"^{name}( of .*)? must be finite, got "):
                changed(number)


def test_a_number_in_a_list_of_lists_is_looked_at_too() -> None:
    with pytest.raises(ValueError, match="slots must be finite, got nan"):
        replace(TINY_4.map, slots=((1.0, 1.0, math.nan, 3),))
    with pytest.raises(ValueError, match="river_line must be finite, got inf"):
        replace(TINY_4.map, river_line=((0.0, math.inf), (1.0, 1.0)))


def test_a_number_too_large_to_be_kept_exactly_is_refused() -> None:
    for make in (
        lambda: replace(IND, start_money=10**30),
        lambda: replace(DEFAULT.map, map_seed=-(2**53) - 1),
        lambda: replace(DEFAULT, grant=1e300),
    ):
        with pytest.raises(ValueError, match=r"must lie within 2\^53 of 0, got -?[19]"):
            make()


def test_agents_of_one_pool_share_a_ledger() -> None:
    shared = replace(DEFAULT, agents=(IND, replace(EDU, pool="p"), replace(COUNCIL, pool="p")))
    assert DEFAULT.ledgers == (0, 1, 2)
    assert shared.ledgers == (0, 1, 1)
    assert shared.shares_money
    assert not DEFAULT.shares_money
