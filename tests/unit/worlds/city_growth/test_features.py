"""What is told of each candidate: features with their units, fixed and changing ones."""

from dataclasses import replace

import pytest
import torch

from lockstep.worlds.city_growth.catalogue import DEFAULT
from lockstep.worlds.city_growth.config import Hub
from lockstep.worlds.city_growth.tables import DYNAMIC, STATIC, n_features
from tests.unit.worlds.city_growth.helpers import (
    GRID,
    PLAIN,
    builder,
    grid,
    made,
    play,
    random_month,
)

DEFAULT_SMALL_POOL = replace(DEFAULT, map=replace(DEFAULT.map, n_maps=2, n_slots=60))


def test_features_are_documented_finite_and_the_same_when_asked_twice() -> None:
    world = made(DEFAULT_SMALL_POOL, lanes=4)
    names = [*("type",) * 3, *STATIC, *DYNAMIC]
    assert n_features(world.config) == len(names)
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        for role in world.config.agent_names:
            first, second = world.candidates(role), world.candidates(role)
            assert torch.equal(first.features, second.features)
            assert torch.isfinite(first.features).all()
            assert not first.features[~first.legal].any()
            rows = first.features[first.legal]
            assert (rows.abs() <= 4.0).all()
            assert ((rows[:, :3] == 0) | (rows[:, :3] == 1)).all()
        random_month(world, generator)


HUBS = (Hub(r0=99.0, x=12.0, y=12.0), Hub(r0=99.0, x=24.0, y=39.0))
LEVELS = tuple((x, y, a, 3 + i % 3) for i, (x, y, a, _) in enumerate(GRID.slots))
UNEVEN = replace(GRID, hubs=HUBS, slots=LEVELS, river_line=((0.0, 2.0), (39.0, 2.0)))


def test_features_that_map_and_type_fix_say_what_their_names_say() -> None:
    """One slot, and two: place, zone and hubs are means over the slots, the river is the least."""
    kinds = (replace(PLAIN, prestige=0.7), replace(PLAIN, name="D", footprint="pair"))
    config = grid(builder(types=kinds), map=UNEVEN, near_zone_px=7.0, mid_zone_px=10.0)
    found = made(config).candidates("one")

    def told(*slots: int) -> dict[str, float]:
        key = [*slots, *[-1] * (2 - len(slots))]
        row = int((found.slots[0] == torch.tensor(key)).all(dim=-1).nonzero())
        values = found.features[0, row, : 2 + len(STATIC)].tolist()
        return dict(zip(("first", "second", *STATIC), values, strict=True))

    # Slot 5 lies at (16, 16), level 5, slot 9 at (16, 20), level 3; both nearest to the first hub.
    to_first, to_second = (32**0.5, 80**0.5), ((8**2 + 23**2) ** 0.5, (8**2 + 19**2) ** 0.5)
    one = {"first": 1, "prestige": 0.7, "river": 2 ** (-28 / 120), "hub_1": to_first[0] / 100,
           "hub_2": to_second[0] / 100, "hub_3": 1, "near": 1, "x": 16 / 40, "y": 16 / 40,
           "level": 1, "slots": 1 / 4}  # fmt: skip
    two = {"second": 1, "river": 2 ** (-28 / 120), "hub_1": sum(to_first) / 200,
           "hub_2": sum(to_second) / 200, "hub_3": 1, "mid": 1, "x": 16 / 40, "y": 18 / 40,
           "level": 1 / 2, "slots": 2 / 4}  # fmt: skip
    for slots, expected in (((5,), one), ((5, 9), two)):
        seen = told(*slots)
        assert {name: x for name, x in seen.items() if x} == pytest.approx(expected)
    assert told(10)["far"] == 1  # 11.3 px from the first hub
    assert told(4)["near"] == 1


def test_features_that_change_say_what_their_names_say() -> None:
    world = made(grid(builder("one"), builder("two")))
    play(world, one=[0], two=[15])
    found = world.candidates("one")

    def feature(name: str, slot: int) -> float:
        row = int((found.slots[0, :, 0] == slot).nonzero())
        return float(found.features[0, row, DYNAMIC.index(name) - len(DYNAMIC)])

    cost = float(found.cost[0, 0])
    assert feature("cost", 1) == pytest.approx(cost / 5000)
    balance = float(world.world_state.balance[0, 0])
    assert feature("strain", 1) == pytest.approx(min(cost / balance / 5, 1))
    income = float(found.income[0, 0])
    assert feature("income", 1) == pytest.approx(income / 1000)
    assert feature("payback", 1) == pytest.approx(cost / income / 60)
    npv = income * 5 - cost
    assert feature("npv", 1) == pytest.approx(npv / (abs(npv) + 2_000))
    assert feature("own", 1) == pytest.approx(4 / 50)
    assert feature("others", 1) == pytest.approx((8**2 + 12**2) ** 0.5 / 50)
    assert feature("neighbours", 1) == pytest.approx(2 / 8)  # of three, slot 0 is taken
    assert feature("price", 1) == pytest.approx(max(0.1, float(world.world_state.field[0, 1])))


def test_lag_and_lead_tell_how_far_a_candidate_is_behind_the_best() -> None:
    rich = replace(PLAIN, name="R", revenue=PLAIN.revenue + 40)
    world = made(grid(builder("one", types=(PLAIN, rich))))
    found = world.candidates("one")
    legal = found.legal[0]
    npv = (found.income * world.config.horizon - found.cost)[0, legal]
    behind = npv.max() - npv
    assert behind.max() > 0
    assert (found.months_left == world.config.horizon).all()
    lag, lead = (
        found.features[0, legal, DYNAMIC.index(name) - len(DYNAMIC)] for name in ("lag", "lead")
    )
    torch.testing.assert_close(lag, (behind / 1_000).clamp(max=3.0))
    torch.testing.assert_close(lead, 1 / (1 + (behind / (4 * world.config.horizon)) ** 2))
