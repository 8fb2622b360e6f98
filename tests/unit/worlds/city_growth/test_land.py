"""The land-price field: its four parts, how they mix, and that slots and pixels agree."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.worlds.city_growth import land
from lockstep.worlds.city_growth.config import Hub, LandConfig
from lockstep.worlds.city_growth.map import grid_points, make_city
from tests.unit.worlds.city_growth.helpers import (
    GRID,
    SMALL,
    builder,
    grid,
    made,
    play,
    random_month,
)

LAND = LandConfig()


def test_hubs_sleep_then_rise_along_a_logistic() -> None:
    strength = [land.hub_strength(month, LAND) for month in range(20)]
    assert strength[:7] == [0.0] * 7
    assert strength[7] == pytest.approx(0.7 + 0.3 / (1 + math.exp(5.0)))
    assert strength[10] == pytest.approx(0.85)
    assert strength[13:] == [1.0] * 7
    assert strength == sorted(strength)


def test_the_steepest_logistic_is_a_step() -> None:
    steep = replace(LAND, hub_steepness=1e9)
    strength = [land.hub_strength(month, steep) for month in (6, 7, 9, 10, 11, 13)]
    assert strength == pytest.approx([0.0, 0.7, 0.7, 0.85, 1.0, 1.0])


def test_spreads_grow_towards_their_cap() -> None:
    assert land.spread_px(0, 16.0, 0.03, 2.0) == 16.0
    assert land.spread_px(10, 16.0, 0.03, 2.0) == pytest.approx(16.0 * (2.0 - math.exp(-0.3)))
    assert land.spread_px(10_000, 16.0, 0.03, 2.0) == pytest.approx(32.0)


def test_the_hub_part_is_a_core_and_later_a_wide_kernel() -> None:
    config = grid(land=LandConfig(), horizon=30)
    city = make_city(0, config.map)
    points = city.hub_xy[0] + np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 32.0]])
    early = land.hub_part(points, 0, city, config)
    np.testing.assert_allclose(early, 1.2 * np.exp([0.0, -0.5, -(32.0**2) / 72.0]))
    late = land.hub_part(points, 20, city, config)
    sigma = land.spread_px(20, 16.0, 0.03, 2.0)
    np.testing.assert_allclose(late - early, np.exp(-np.array([0, 36, 1024]) / 2 / sigma**2))


def test_a_hub_counts_from_its_month_and_by_its_weight() -> None:
    hubs = (Hub(x=10.0, y=10.0), Hub(x=30.0, y=10.0, active_from=3, weight=0.5))
    config = grid(map=replace(GRID, hubs=hubs))
    city = make_city(0, config.map)
    at = city.hub_xy[1:]
    assert land.hub_part(at, 2, city, config)[0] < 0.01
    assert land.hub_part(at, 3, city, config)[0] == pytest.approx(0.6, abs=0.01)


def test_of_several_hubs_the_strongest_counts_at_each_point() -> None:
    one, two = Hub(x=16.0, y=20.0), Hub(x=24.0, y=20.0)
    points = grid_points(40, 40, 4)

    def part(*hubs: Hub) -> land.Floats:
        config = grid(map=replace(GRID, hubs=hubs))
        return land.hub_part(points, 5, make_city(0, config.map), config)

    np.testing.assert_allclose(part(one, two), np.maximum(part(one), part(two)))


def test_the_road_is_a_ridge_between_the_first_two_hubs_only() -> None:
    config = grid(map=replace(GRID, hubs=(Hub(x=10.0, y=20.0), Hub(x=30.0, y=20.0))))
    city = make_city(0, config.map)
    points = np.array([[20.0, 20.0], [20.0, 30.0], [31.0, 20.0], [9.0, 20.0]])
    np.testing.assert_allclose(land.road_part(points, 0, city, LAND), [1.0, math.exp(-0.5), 0, 0])
    lonely = make_city(0, GRID)
    assert not land.road_part(points, 0, lonely, LAND).any()


@pytest.mark.parametrize(
    ("kernel", "at_gamma"),
    [("lorentzian", 0.5), ("gaussian", math.exp(-0.5)), ("exponential", math.exp(-1.0))],
)
def test_the_river_part_decays_by_its_kernel_and_is_cut_off(kernel: str, at_gamma: float) -> None:
    city = make_city(0, replace(GRID, river_line=((0.0, 0.0), (39.0, 0.0))))
    settings = replace(LAND, river_kernel=kernel)  # type: ignore[arg-type]
    points = np.array([[5.0, 0.0], [5.0, 5.0], [5.0, 20.5]])
    np.testing.assert_allclose(land.river_part(points, city, settings), [1.0, at_gamma, 0.0])
    dry = make_city(0, GRID)
    assert not land.river_part(points, dry, settings).any()


def test_buildings_lift_the_price_around_them_by_the_nearest() -> None:
    square = torch.tensor([0.0, 16.0, 64.0, torch.inf])
    expected = torch.tensor([1.0, math.exp(-0.5), math.exp(-2.0), 0.0])
    torch.testing.assert_close(land.building_part(square, LAND), expected)


def test_the_sum_is_brought_to_the_unit_interval_floored_and_slowed() -> None:
    total = torch.tensor([[0.5, 1.0, 1.5, 0.52]])
    low, high = torch.tensor([[0.5]]), torch.tensor([[1.5]])
    now = land.settle(total, low, high, None, LAND)
    torch.testing.assert_close(now, torch.tensor([[0.0, 0.5, 1.0, 0.0]]))  # 0.02 is below 0.04
    last = torch.ones(1, 4)
    slowed = land.settle(total, low, high, last, LAND)
    torch.testing.assert_close(slowed, 0.75 * now + 0.25)


def test_each_part_has_its_weight() -> None:
    """With one weight alone, the table is that part over its maximum."""
    city = make_city(1, SMALL.map)
    points = city.slot_xy
    off = {"hub_weight": 0.0, "road_weight": 0.0, "river_weight": 0.0, "building_weight": 0.1}
    every = np.vstack((points, grid_points(80, 80, 4), city.hub_xy))
    for name, part in {
        "hub_weight": land.hub_part(every, 3, city, SMALL),
        "road_weight": land.road_part(every, 3, city, SMALL.land),
        "river_weight": land.river_part(every, city, SMALL.land),
    }.items():
        alone = replace(SMALL, land=replace(SMALL.land, **(off | {name: 0.7})))
        table = land.base(points, city, alone)
        expected = 0.7 * part / part.max()
        np.testing.assert_allclose(table.value[3], expected[: len(points)])
        assert table.high[3] == pytest.approx(0.7)
        assert table.low[3] == pytest.approx(expected.min())


def test_a_month_adds_buildings_by_their_weight_and_normalises_by_the_largest_of_all() -> None:
    settings = replace(LAND, building_weight=0.5, floor=0.0, inertia=0.0)
    near = torch.tensor([[0.0, 16.0, torch.inf]])  # squared pixels
    lift = 0.5 * torch.tensor([1.0, math.exp(-0.5), 0.0])
    value = torch.tensor([0.2, 0.4, 0.6])
    for high in (0.9, 0.5):  # of the tabled sum; then the slots themselves are higher
        tabled = torch.tensor([[*value.tolist(), 0.1, high]])
        total = value + lift
        top = max(high, float(total.max()))
        expected = ((total - 0.1) / (top - 0.1)).unsqueeze(0)
        torch.testing.assert_close(land.refresh(tabled, near, None, settings), expected)


def test_slots_and_pixels_agree_when_they_share_the_normaliser() -> None:
    """Slots of the lattice lie on pixels, so reading the grid there needs no interpolation."""
    config = grid(map=replace(GRID, river_line=((0.0, 2.0), (39.0, 2.0))),
                  land=LandConfig(coarse_px=1))  # fmt: skip
    city = make_city(0, config.map)
    pixels = grid_points(city.width, city.height)
    near_slots = torch.from_numpy(((city.slot_xy - city.slot_xy[5]) ** 2).sum(axis=1)).float()
    near_pixels = torch.from_numpy(((pixels - city.slot_xy[5]) ** 2).sum(axis=1)).float()
    low, high = torch.tensor([[0.1]]), torch.tensor([[1.9]])
    found = []
    for points, near in ((city.slot_xy, near_slots), (pixels, near_pixels)):
        value = torch.from_numpy(land.base(points, city, config).value[2]).float()
        total = value + 0.2 * land.building_part(near, config.land)
        found.append(land.settle(total[None], low, high, None, config.land)[0])
    index, weight = land.bilinear(city.slot_xy, city.width, city.height)
    read = (found[1][torch.from_numpy(index)] * torch.from_numpy(weight)).sum(dim=-1)
    torch.testing.assert_close(found[0], read.float(), atol=1e-6, rtol=0.0)


def test_worlds_on_slots_and_on_pixels_stay_close_and_in_the_unit_interval() -> None:
    slots = replace(SMALL, map=replace(SMALL.map, n_maps=1))
    pixels = replace(slots, land=replace(SMALL.land, evaluate="grid"))
    worlds = [made(config, lanes=1) for config in (slots, pixels)]
    for _ in range(6):
        prices = []
        for world in worlds:
            prices.append(torch.from_numpy(world.frame(0).price))
            field = world.world_state.field
            assert ((field >= 0) & (field <= 1)).all()
            random_month(world, torch.Generator().manual_seed(0))
        torch.testing.assert_close(prices[0], prices[1], atol=0.06, rtol=0.0)


def test_a_new_building_makes_the_land_around_it_dearer() -> None:
    config = grid(builder(), land=LandConfig(inertia=0.0, hub_from=99, core_peak=0.01))
    world, empty = made(config), made(config)
    play(world, one=[0])
    play(empty)
    more = world.world_state.field - empty.world_state.field
    assert (more[:, 0] > 0.05).all()
    assert (more[:, 1] < more[:, 0]).all()


def test_prices_have_inertia() -> None:
    config = grid(land=LandConfig(inertia=0.25, hub_from=1, hub_rise=1), horizon=4)
    slow, quick = made(config), made(replace(config, land=replace(config.land, inertia=0.0)))
    before = slow.world_state.field.clone()
    play(slow)
    play(quick)
    expected = 0.75 * quick.world_state.field + 0.25 * before
    torch.testing.assert_close(slow.world_state.field, expected)


def test_the_picture_of_the_field_covers_every_pixel() -> None:
    world = made(SMALL)
    frame = world.frame(0)
    assert frame.field.shape == (80, 80)
    assert frame.field.min() >= 0.0
    assert frame.field.max() == pytest.approx(1.0, abs=1e-5)
