"""Which candidates there are: reach, banks, nearness, levels, order and caps."""

from dataclasses import replace

import pytest
import torch

from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth import candidates as module
from lockstep.worlds.city_growth.candidates import cap, dense
from lockstep.worlds.city_growth.catalogue import COUNCIL, DEFAULT, EDU, IND
from lockstep.worlds.city_growth.config import Hub
from lockstep.worlds.city_growth.world import CityGrowth
from tests.unit.worlds.city_growth.helpers import (
    GRID,
    PLAIN,
    SMALL,
    builder,
    grid,
    made,
    picks,
    play,
    random_month,
)


def _slots(world: CityGrowth, role: str, lane: int = 0) -> list[int]:
    found = world.candidates(role)
    return sorted(set(found.slots[lane][found.legal[lane]].flatten().tolist()) - {-1})


def test_reach_grows_with_the_months_around_active_hubs() -> None:
    hubs = (Hub(r0=1.0, dr=4.0, x=12.0, y=12.0), Hub(r0=1.0, dr=0.0, x=24.0, y=24.0, active_from=2))
    world = made(grid(map=replace(GRID, hubs=hubs), reach_tolerance_px=0.0))
    seen = []
    for _ in range(4):
        seen.append(_slots(world, "one"))
        play(world)
    assert seen[0] == [0]
    assert seen[1] == [0, 1, 4]
    assert seen[2] == [0, 1, 2, 4, 5, 6, 8, 9, 15]  # radius 9, and the second hub wakes
    assert 15 in seen[3]


def test_each_hub_has_its_own_radius_and_growth() -> None:
    hubs = (Hub(r0=0.0, dr=0.0, x=12.0, y=12.0), Hub(r0=4.0, dr=0.0, x=24.0, y=24.0))
    world = made(grid(map=replace(GRID, hubs=hubs), reach_tolerance_px=0.5))
    assert _slots(world, "one") == [0, 11, 14, 15]


def test_the_radius_has_a_tolerance() -> None:
    hubs = (Hub(r0=3.6, dr=0.0, x=12.0, y=12.0),)  # the next slots lie 4 px away
    strict = grid(map=replace(GRID, hubs=hubs), reach_tolerance_px=0.3)
    assert _slots(made(strict), "one") == [0]
    assert _slots(made(replace(strict, reach_tolerance_px=0.5)), "one") == [0, 1, 4]


def test_a_ring_offers_what_came_within_reach_and_all_when_that_is_nothing() -> None:
    hubs = (Hub(r0=0.0, dr=4.0, x=12.0, y=12.0),)
    world = made(grid(map=replace(GRID, hubs=hubs), reach="ring", horizon=12))
    assert _slots(world, "one") == [0]
    play(world)
    assert _slots(world, "one") == [1, 4]
    for _ in range(7):
        play(world)
    assert _slots(world, "one") == list(range(16))


def test_an_agent_stays_on_the_bank_of_its_hub_unless_it_may_cross() -> None:
    world = made(replace(SMALL, map=replace(SMALL.map, n_maps=1), horizon=40))
    world.world_state.month.fill_(35)
    world._forget()
    city = world.tables.cities[0]
    for role, month in (("edu", 35), ("council", 35), ("ind", 34)):
        world.world_state.month.fill_(month)
        world._forget()
        banks = {int(b) for b in city.slot_bank[_slots(world, role)]}
        if role == "council":
            assert len(banks - {-1}) == 2
        else:
            assert banks == {int(city.hub_bank[0 if role == "ind" else 1])}


def test_nearness_applies_only_where_enough_remains() -> None:
    near = builder(near_px=4.0, near_least=4)
    world = made(grid(near))
    assert len(_slots(world, "one")) == 16  # it owns nothing
    play(world, one=[5])
    assert _slots(world, "one") == [1, 4, 6, 9]  # as many as must remain
    play(world, one=[1, 4])
    assert 15 not in _slots(world, "one")
    few = made(grid(builder(near_px=4.0, near_least=5)))
    play(few, one=[5])
    assert len(_slots(few, "one")) == 15  # only four are near


def test_levels_bound_types_and_agents() -> None:
    slots = tuple((x, y, a, 3 + i % 3) for i, (x, y, a, _) in enumerate(GRID.slots))
    ground = replace(GRID, slots=slots)
    ind = replace(IND, bank_of_hub=-1)
    council = replace(COUNCIL, active_from=0)
    world = made(grid(ind, replace(EDU, bank_of_hub=-1), council, map=ground))
    for role, allowed in (
        ("ind", {0: {3, 4, 5}, 1: {4, 5}, 2: {5}}),
        ("edu", {t: {3, 4, 5} for t in range(3)}),
        ("council", {t: {3} for t in range(3)}),
    ):
        found = world.candidates(role)
        for kind, levels in allowed.items():
            here = found.slots[0, found.legal[0] & (found.type[0] == kind), 0]
            assert {slots[s][3] for s in here.tolist()} == levels


def test_agents_act_from_their_month_and_otherwise_can_only_stop() -> None:
    world = made(SMALL)
    for month in range(4):
        seen = world.observe("council")
        expected = month in (3,)  # odd months, from month 2 on
        assert bool(seen.acts.all()) == expected
        assert bool(seen.legal["build"][..., 1:].any()) == expected
        assert seen.legal["build"][..., 0].all()
        play(world)


def test_taken_slots_are_no_candidates() -> None:
    world = made(grid(builder("one"), builder("two")))
    world.act("one", picks(world, 4))
    assert 3 not in _slots(world, "two")
    world.act("two", picks(world))
    world.advance()
    assert 3 not in _slots(world, "one")


def test_rows_stand_in_canonical_order_with_unique_keys() -> None:
    world = made(DEFAULT_SMALL_POOL, lanes=4)
    generator = torch.Generator().manual_seed(1)
    stride = world.tables.n_footprints
    for _ in range(6):
        for role in world.config.agent_names:
            found = world.candidates(role)
            for lane in range(4):
                ids = found.id[lane][found.legal[lane]]
                assert (ids[1:] > ids[:-1]).all()
                assert torch.equal(ids // stride, found.type[lane][found.legal[lane]])
                assert torch.equal(ids % stride, found.slots[lane, found.legal[lane], 0])
                assert (found.id[lane][~found.legal[lane]] == -1).all()
                k = int(found.legal[lane].sum())
                assert found.legal[lane, :k].all()
        random_month(world, generator)


DEFAULT_SMALL_POOL = replace(DEFAULT, map=replace(DEFAULT.map, n_maps=2, n_slots=60))


def test_equal_cities_have_equal_fingerprints_and_a_building_changes_it() -> None:
    one, two = made(grid()), made(grid())
    assert torch.equal(one.observe("one").fingerprint(), two.observe("one").fingerprint())
    play(two, one=[3])
    play(one)
    assert not torch.equal(one.observe("one").fingerprint(), two.observe("one").fingerprint())


def test_the_empty_set_is_what_would_have_been_enumerated() -> None:
    for debt in ("soft", "hard"):
        world = made(replace(SMALL, debt=debt))  # type: ignore[arg-type]
        nobody = torch.zeros(2, dtype=torch.bool)
        quick = world.candidates("edu")  # month 0 belongs to industry
        slow = module.enumerate_set(world.world_state, 1, nobody, world.tables, world.config)
        for name, x in slow.tensors().items():
            y = getattr(quick, name)
            assert (x is None and y is None) or torch.equal(x, y), name


def test_a_cap_keeps_the_dearest_land_of_each_type_and_says_how_many_it_cut() -> None:
    agent = builder(types=(PLAIN, replace(PLAIN, name="Q")), cap_per_type=3)
    capped, free = made(grid(agent)), made(grid(replace(agent, cap_per_type=0)))
    few, every = capped.candidates("one"), free.candidates("one")
    assert every.count.tolist() == [33, 33]
    assert few.count.tolist() == [7, 7]
    assert few.dropped.tolist() == [26, 26]
    price = capped.world_state.field[0]
    order = sorted(range(16), key=lambda slot: (-float(price[slot]), slot))[:3]
    assert few.slots[0, :6, 0].tolist() == sorted(order) * 2
    assert few.type[0, :6].tolist() == [0] * 3 + [1] * 3


def test_a_set_that_does_not_fit_is_cut_to_equal_parts_of_the_width() -> None:
    agent = builder(types=(PLAIN, replace(PLAIN, name="Q"), replace(PLAIN, name="R")))
    world = made(grid(agent, max_candidates=20))
    found = world.candidates("one")
    assert found.legal.shape[1] == 20
    assert found.count.tolist() == [19, 19]  # 6 of each, and the stop
    assert found.dropped.tolist() == [30, 30]
    world.act("one", picks(world))
    for _ in range(5):
        world.advance()
        world.act("one", picks(world))
    assert world.advance().metrics["dropped"][0].item() == pytest.approx(30 * 6 * 6)


def test_the_quick_way_out_of_the_cap_gives_the_same_as_the_ranking() -> None:
    world = made(grid(max_candidates=15))
    universe, own = world.tables.universes[0], world.config.agents[0]
    legal = torch.ones(2, 16, dtype=torch.bool)
    legal[0, 3:] = False
    price, city = world.world_state.field, world.world_state.map
    kept, dropped = cap(legal, price, city, universe, own, width=15)
    assert dropped.tolist() == [0, 1]
    assert torch.equal(kept[0], legal[0])
    assert torch.equal(kept, module._dearest(legal, price, city, universe, own, width=15))


def test_dense_rows_keep_their_order() -> None:
    generator = torch.Generator().manual_seed(0)
    legal = torch.rand(5, 40, generator=generator) > 0.6
    rank, city = torch.arange(1, 31, dtype=torch.int32), torch.tensor([0, 1, 0, 2, 1])
    row, count = dense(legal, rank, city=city)
    for lane in range(5):
        first = 41 * int(city[lane])  # 40 rows of a city, and the one for nothing
        expected = (legal[lane].nonzero().flatten() + first).tolist()
        assert row[lane].tolist() == expected + [first + 40] * (30 - len(expected))
        assert count[lane].item() == len(expected)


def test_a_hard_budget_offers_only_what_it_can_pay() -> None:
    cheap, dear = replace(PLAIN, cost=300), replace(PLAIN, name="Q", cost=900)
    agent = builder(types=(cheap, dear), start_money=1_000)
    world = made(grid(agent, debt="hard", zone_cost=(0, 0, 0)))
    seen = world.observe("one")
    assert seen.features["candidate/budget"].tolist() == [[1000.0], [1000.0]]
    assert (seen.features["candidate/cost"][seen.legal["build"][..., 1:]] <= 1000).all()
    play(world, one=[0])
    assert set(world.candidates("one").type[0][world.candidates("one").legal[0]].tolist()) == {0}
    allowed = made(grid(agent, debt="hard", credit=500, zone_cost=(0, 0, 0)))
    play(allowed, one=[0])
    assert 1 in allowed.candidates("one").type[0][allowed.candidates("one").legal[0]].tolist()


def test_pairs_blocks_and_clusters_are_offered_while_all_their_slots_are_free() -> None:
    shapes = {"pair": 24, "block": 9, "cluster": 52}
    for shape, n in shapes.items():
        kind = replace(PLAIN, footprint=shape)  # type: ignore[arg-type]
        world = made(grid(builder(types=(kind,))))
        found = world.candidates("one")
        assert found.count.tolist() == [n + 1] * 2
        taken = set(found.slots[0, 0].tolist()) - {-1}
        world.act("one", picks(world, 1))
        world.advance()
        assert set((world.world_state.owner[0] == 0).nonzero().flatten().tolist()) == taken
        left = world.candidates("one")
        assert not taken & set(left.slots[0][left.legal[0]].flatten().tolist())


def test_types_of_different_footprints_share_one_set() -> None:
    agent = builder(types=(PLAIN, replace(PLAIN, name="Q", footprint="pair")))
    world = made(grid(agent))
    seen = world.observe("one")
    resource = seen.features["candidate/resource"][0, 0]
    assert (resource[:16, 1] == -1).all()
    assert (resource[16:40] >= 0).all()
    world.act("one", picks(world, 17, 1))  # the pair of slots 0 and 1, then slot 0 alone
    world.advance()
    assert world.world_state.count[0, 0].tolist() == [0, 1]


def test_a_lane_sees_the_candidates_of_its_own_city() -> None:
    world = made(SMALL, lanes=8, seed=1)
    assert len(set(world.world_state.map.tolist())) > 1
    found = world.candidates("ind")
    for lane in range(8):
        alone = CityGrowth(SMALL, lanes=1)
        alone.reset(lane_keys([1], lanes=8)[lane : lane + 1])
        assert torch.equal(alone.candidates("ind").features[0], found.features[lane])
