"""Costs, incomes, premiums and scores, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch

from lockstep.worlds.city_growth import economy
from lockstep.worlds.city_growth.catalogue import COUNCIL, DEFAULT, EDU, IND, THIRD_HUB_TYPES
from lockstep.worlds.city_growth.config import AgentConfig, Hub, LandConfig
from tests.unit.worlds.city_growth.helpers import GRID, grid, made

PRICE = torch.tensor([0.8])


def _value(
    agent: AgentConfig, kind: int, *, zone: int = 0, premium: float = 0.0
) -> tuple[int, int]:
    """Cost and monthly income at land price 0.8."""
    t = agent.types[kind]
    fixed = torch.tensor([float(t.cost + DEFAULT.zone_cost[zone])])
    gross = torch.tensor([t.revenue + DEFAULT.zone_revenue[zone] - t.opex + t.rent + premium])
    cost = economy.cost(fixed, PRICE, DEFAULT)
    return int(cost), int(economy.income(gross, PRICE, agent.price_gain))


@pytest.mark.parametrize(
    ("agent", "cost", "income"),
    [
        (IND, (2002, 2602, 3502), (162, 210, 276)),
        (EDU, (1802, 2302, 3002), (189, 286, 410)),
    ],
    ids=["ind", "edu"],
)
def test_values_in_the_near_zone_are_those_of_the_table(
    agent: AgentConfig, cost: tuple[int, ...], income: tuple[int, ...]
) -> None:
    found = [_value(agent, kind) for kind in range(3)]
    assert found == list(zip(cost, income, strict=True))


@pytest.mark.parametrize(
    ("agent", "months"), [(IND, (12.4, 12.4, 12.7)), (EDU, (9.5, 8.0, 7.3))], ids=["ind", "edu"]
)
def test_paybacks_are_those_of_the_table(agent: AgentConfig, months: tuple[float, ...]) -> None:
    for kind, expected in enumerate(months):
        cost, income = _value(agent, kind)
        assert cost / income == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("price", "index"), [(0.8, 82), (0.1, 19), (0.0, 10), (1.0, 100), (0.5, 55)]
)
def test_the_land_index_is_whole(price: float, index: int) -> None:
    assert economy.land_index(torch.tensor(price)).item() == index


def test_the_premium_halves_with_distance() -> None:
    revenue = torch.tensor([360.0, 360.0, 360.0, 360.0, 1e7])
    distance = torch.tensor([30.0, 0.0, 120.0, torch.inf, 0.0])
    found = economy.river_premium(revenue, distance, 0.2, DEFAULT)
    assert found.tolist() == [61.0, 72.0, 36.0, 0.0, 10_000.0]


def test_zones_change_at_twenty_and_fifty_pixels() -> None:
    distance = torch.tensor([0.0, 20.0, 20.1, 50.0, 50.1])
    assert economy.zone(distance, DEFAULT).tolist() == [0, 0, 1, 1, 2]


def test_the_score_is_a_weighted_min_max_over_the_pool() -> None:
    value = torch.tensor(
        [[[100.0, 200.0, 300.0, 9e9], [1.0, 1.0, 1.0, 5.0], [50.0, 40.0, 60.0, 0]]]
    )
    legal = torch.tensor([[True, True, True, False]])
    weight = torch.tensor([[0.6], [0.2], [-0.2]])
    found = economy.score(value, legal, weight)[0, :3]
    # income 0, .5, 1; prestige all .5; cost .5, 0, 1
    torch.testing.assert_close(found, torch.tensor([0.0, 0.4, 0.5]))


def test_a_pool_of_one_or_none_has_a_finite_score() -> None:
    value, weight = torch.ones(2, 3, 4), torch.tensor([[0.6], [0.2], [-0.2]])
    legal = torch.tensor([[True, False, False, False], [False] * 4])
    found = economy.score(value, legal, weight)
    assert found[0, 0].item() == pytest.approx(0.3)
    assert torch.isfinite(found).all()


def test_scores_weigh_by_agent() -> None:
    world = made(DEFAULT_ON_FEW_MAPS)
    for agent, universe in zip(DEFAULT.agents, world.tables.universes, strict=True):
        w = agent.weights
        assert universe.weight.squeeze(-1).tolist() == pytest.approx([w[0], w[1], -w[2]])


def test_candidates_carry_the_values_of_the_formulas() -> None:
    """Every candidate of a generated city, recomputed from the map by hand."""
    world = made(DEFAULT_ON_FEW_MAPS, lanes=2, seed=3)
    for agent in (IND, EDU, COUNCIL):
        world.world_state.month.fill_(9 if agent is not IND else 8)
        world._forget()
        found = world.candidates(agent.name)
        assert found.legal.sum() > 20
        for lane in range(2):
            city = world.tables.cities[int(world.world_state.map[lane])]
            rows = found.legal[lane].nonzero().flatten().tolist()
            for row in rows:
                slot, kind = int(found.slots[lane, row, 0]), agent.types[found.type[lane, row]]
                lp = max(0.1, min(1.0, float(world.world_state.field[lane, slot])))
                away = min(((city.slot_xy[slot] - hub) ** 2).sum() ** 0.5 for hub in city.hub_xy)
                zone = 0 if away <= 20 else 1 if away <= 50 else 2
                revenue = kind.revenue + (80, 40, 0)[zone]
                premium = round(revenue * agent.river_premium * 2 ** (-city.river_m[slot] / 120))
                gross = revenue - kind.opex + kind.rent + premium
                cost = kind.cost + (200, 100, 0)[zone] + 11 * round(10 + 90 * lp)
                assert abs(found.cost[lane, row].item() - cost) <= 11  # a half may round either way
                income = gross * (1 + agent.price_gain * lp)
                assert abs(found.income[lane, row].item() - income) <= 0.51
                assert found.prestige[lane, row].item() == pytest.approx(kind.prestige)


DEFAULT_ON_FEW_MAPS = replace(DEFAULT, map=replace(DEFAULT.map, n_maps=2))


def test_a_footprint_takes_the_mean_price_and_the_least_river_distance() -> None:
    pair = replace(IND.types[0], footprint="pair")
    ground = replace(GRID, river_line=((0.0, 6.0), (39.0, 6.0)))
    agent = replace(IND, types=(pair,), bank_of_hub=-1, near_least=1)
    world = made(replace(grid(agent, map=ground, land_unit=11), land=LandConfig()))
    found = world.candidates("ind")
    price = world.world_state.field[0]
    for row in found.legal[0].nonzero().flatten().tolist():
        a, b = found.slots[0, row].tolist()
        lp = max(0.1, float((price[a] + price[b]) / 2))
        city = world.tables.cities[0]
        river_m = min(city.river_m[a], city.river_m[b])
        premium = round((180 + 80) * 0.2 * 2 ** (-river_m / 120))
        assert found.cost[0, row].item() == 900 + 200 + 11 * round(10 + 90 * lp)
        expected = (180 + 80 - 100 - 25 + premium) * (1 + 0.25 * lp)
        assert abs(found.income[0, row].item() - expected) <= 0.51


def test_the_draft_rule_of_prestige_counts_nearness_adjacency_and_pollution() -> None:
    agent = replace(EDU, bank_of_hub=-1, near_px=99.0)
    world = made(grid(agent, prestige_rule="draft"))
    found = world.candidates("edu")
    assert found.prestige[0, 0].item() == pytest.approx(0.2 + 1 - 0.25 * 0.2)
    world.act("edu", {"build": torch.tensor([[[1, 0, 0]]]).expand(2, -1, -1)})  # slot 0
    world.advance()
    found = world.candidates("edu")
    other = made(grid(replace(agent, name="other"), prestige_rule="draft")).candidates("other")
    assert other.prestige[0, 0].item() == pytest.approx(0.2 + 1 - 0.2 * 0.2)
    by_slot = {
        int(s): float(q) for s, q in zip(found.slots[0, :15, 0], found.prestige[0], strict=False)
    }
    assert by_slot[1] == pytest.approx(0.2 + 2 - 0.05)
    assert by_slot[2] == pytest.approx(0.2 + 1 - 0.05)


def test_the_adjacency_bonus_is_income_of_a_neighbour() -> None:
    plain, bonus = made(grid()), made(grid(adjacency_bonus=30))
    gained = []
    for world in (plain, bonus):
        first = world.candidates("one")
        world.act("one", {"build": torch.tensor([[[1, 0, 0]]]).expand(2, -1, -1)})
        world.advance()
        second = world.candidates("one")
        gained.append((first.income[0, 1].item(), second.income[0, :2].tolist()))
    assert gained[0][0] == gained[1][0]
    lift = 1 + 0.25 * 0.1
    assert gained[1][1][0] - gained[0][1][0] >= 30 * lift - 1
    assert gained[1][1][1] == gained[0][1][1]


def test_types_of_the_third_hub_stay_around_it() -> None:
    hubs = (Hub(r0=99.0, x=20.0, y=20.0), Hub(r0=99.0, x=20.0, y=20.0),
            Hub(r0=5.0, dr=0.0, x=12.0, y=12.0, active_from=2))  # fmt: skip
    agent = replace(IND, types=(*IND.types[:1], *THIRD_HUB_TYPES), bank_of_hub=-1)
    world = made(grid(agent, map=replace(GRID, hubs=hubs)))
    assert set(world.candidates("ind").type[0][world.candidates("ind").legal[0]].tolist()) == {0}
    for _ in range(2):
        world.act("ind", {"build": torch.zeros(2, 1, 3, dtype=torch.int64)})
        world.advance()
    found = world.candidates("ind")
    special = found.legal[0] & (found.type[0] > 0)
    assert sorted(found.slots[0, special, 0].tolist()) == sorted([0, 1, 4] * 3)
