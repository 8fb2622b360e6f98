"""Generated cities, banks, adjacency and footprints."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from lockstep.worlds.city_growth.adjacency import footprints, neighbours
from lockstep.worlds.city_growth.catalogue import DEFAULT, TINY_9
from lockstep.worlds.city_growth.config import MapConfig
from lockstep.worlds.city_growth.map import (
    WATER,
    components,
    make_cities,
    make_city,
    river_distance,
)
from tests.unit.worlds.city_growth.helpers import SMALL_MAP

RULES: Any = ("grid4", "radius", "knn", "delaunay")


def test_a_city_follows_from_its_seed_alone() -> None:
    one, two = make_city(3, SMALL_MAP), make_city(3, SMALL_MAP)
    for name, value in vars(one).items():
        assert np.array_equal(value, getattr(two, name)), name
    assert not np.array_equal(one.slot_xy, make_city(4, SMALL_MAP).slot_xy)


@pytest.mark.parametrize("seed", range(6))
def test_a_generated_city_looks_like_the_one_it_is_modelled_on(seed: int) -> None:
    city = make_city(seed, DEFAULT.map)
    gap = np.hypot(*(city.slot_xy[:, None] - city.slot_xy[None]).transpose(2, 0, 1))
    np.fill_diagonal(gap, np.inf)
    assert len(city.slot_xy) == 200
    assert gap.min() >= 1.8
    assert 2.2 < np.median(gap.min(axis=1)) < 3.2
    assert set(np.unique(city.level)) == {3, 4, 5}
    assert 0.7 < (city.level == 3).mean() < 0.95
    assert ((city.angle_deg >= 0) & (city.angle_deg < 180)).all()
    assert city.hub_bank[0] != city.hub_bank[1]
    assert WATER not in city.hub_bank[:2]
    for bank in city.hub_bank[:2]:
        assert (city.slot_bank == bank).sum() > 50
    assert (city.slot_bank == WATER).sum() > 0


def test_the_river_cuts_the_ground_into_banks() -> None:
    ground = replace(
        SMALL_MAP,
        slots=tuple((5.0, y, 0.0, 3) for y in (5.0, 30.0, 20.0)),
        hubs=TINY_9.map.hubs,
        river_line=((0.0, 20.0), (79.0, 20.0)),
        maps="fixed",
    )
    city = make_city(0, ground)
    below, above, wet = city.slot_bank
    assert wet == WATER
    assert below != above
    assert WATER not in (below, above)
    assert city.river_m.tolist() == [30.0, 20.0, 0.0]  # two metres a pixel


def test_a_city_without_a_river_has_one_bank_far_from_water() -> None:
    city = make_city(0, replace(SMALL_MAP, river="none"))
    assert np.unique(city.bank).tolist() == [0]
    assert np.isinf(city.river_m).all()


def test_the_distance_to_a_line_is_that_to_its_nearest_point() -> None:
    line = np.array([[0.0, 0.0], [10.0, 0.0], [10.0, 10.0]])
    points = np.array([[5.0, 3.0], [-3.0, 4.0], [12.0, 5.0], [10.0, 13.0]])
    assert river_distance(points, line).tolist() == [3.0, 5.0, 2.0, 3.0]
    assert river_distance(points, line[:1])[1] == 5.0


def test_components_are_those_a_flood_would_find() -> None:
    ground = np.random.default_rng(0).random((17, 23)) > 0.42
    labels, number = components(ground), 0
    seen = np.full(ground.shape, WATER)
    for start in zip(*np.nonzero(ground), strict=True):
        if seen[start] != WATER:
            continue
        stack = [start]
        while stack:
            y, x = stack.pop()
            inside = 0 <= y < 17 and 0 <= x < 23
            if inside and ground[y, x] and seen[y, x] == WATER:
                seen[y, x] = number
                stack += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        number += 1
    assert number > 3
    assert np.array_equal(labels, seen)


@pytest.mark.parametrize("rule", RULES)
def test_neighbours_are_mutual_and_no_slot_is_its_own(rule: Any) -> None:
    xy = make_city(1, SMALL_MAP).slot_xy
    adjacent = neighbours(xy, rule, reach_px=4.0, k=3)
    assert np.array_equal(adjacent, adjacent.T)
    assert not adjacent.diagonal().any()


def test_each_rule_of_adjacency_does_what_it_says() -> None:
    xy = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, 5.0]])
    four = neighbours(xy, "grid4", reach_px=1.0, k=1)
    assert four[0].nonzero()[0].tolist() == [1, 3]  # not the diagonal
    assert not four[5].any()
    wide = neighbours(np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0]]), "grid4", reach_px=2.0, k=1)
    assert wide[0].nonzero()[0].tolist() == [2]  # as many pixels away, but not along an axis
    near = neighbours(xy, "radius", reach_px=1.5, k=1)
    assert near[0].nonzero()[0].tolist() == [1, 3, 4]
    one = neighbours(xy, "knn", reach_px=1.0, k=1)
    assert one[5].nonzero()[0].tolist() == [4]
    assert one[4, 5]


def test_delaunay_triangles_hold_no_other_slot() -> None:
    xy = make_city(2, SMALL_MAP).slot_xy
    adjacent = neighbours(xy, "delaunay", reach_px=1.0, k=1)
    n = len(xy)
    expected = np.zeros((n, n), dtype=bool)
    for i, j, k in combinations(range(n), 3):
        a = xy[[i, j, k]]
        matrix = 2.0 * (a[1:] - a[0])
        centre = np.linalg.solve(matrix, (a[1:] ** 2 - a[0] ** 2).sum(axis=1))
        radius = np.hypot(*(a[0] - centre))
        others = np.delete(np.hypot(*(xy - centre).T), [i, j, k])
        if others.min() > radius:
            for p, q in ((i, j), (j, k), (i, k)):
                expected[p, q] = expected[q, p] = True
    assert np.array_equal(adjacent, expected)


def test_footprints_of_a_lattice_are_the_ones_one_can_count() -> None:
    adjacent = make_city(0, TINY_9.map).adjacent  # 3 x 3
    assert len(footprints(adjacent, "single", cluster=3)) == 9
    assert len(footprints(adjacent, "pair", cluster=3)) == 12
    assert footprints(adjacent, "block", cluster=3) == [
        (0, 1, 3, 4), (1, 2, 4, 5), (3, 4, 6, 7), (4, 5, 7, 8),
    ]  # fmt: skip
    assert len(footprints(adjacent, "cluster", cluster=3)) == 22  # 6 rows and 16 corners


@pytest.mark.parametrize("shape", ["single", "pair", "block", "cluster"])
def test_footprints_are_sorted_unique_and_of_their_shape(shape: Any) -> None:
    adjacent = make_city(1, replace(SMALL_MAP, adjacency="delaunay")).adjacent
    found = footprints(adjacent, shape, cluster=3)
    assert found == sorted(set(found))
    assert all(list(fp) == sorted(set(fp)) for fp in found)
    expected = []
    size = {"single": 1, "pair": 2, "block": 4, "cluster": 3}[shape]
    for group in combinations(range(len(adjacent)), size):
        inner = adjacent[np.ix_(group, group)]
        if shape == "block":
            rings = ((0, 1, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3))
            fits = any(all(inner[r[i], r[(i + 1) % 4]] for i in range(4)) for r in rings)
        else:
            reach = np.linalg.matrix_power(inner + np.eye(size, dtype=int), size)
            fits = bool((reach > 0).all())
        if fits:
            expected.append(group)
    assert found == expected


def test_a_mirrored_city_has_the_same_distances_and_banks() -> None:
    cities = make_cities(replace(SMALL_MAP, n_maps=1, mirrored=True))
    assert len(cities) == 4
    for city in cities[1:]:
        assert not np.array_equal(city.slot_xy, cities[0].slot_xy)
        gap = [np.hypot(*(c.slot_xy[:, None] - c.hub_xy[None]).T) for c in (city, cities[0])]
        np.testing.assert_allclose(gap[0], gap[1])
        np.testing.assert_allclose(river_distance(city.slot_xy, city.river) * 2.0, city.river_m)
        assert np.array_equal(city.hub_bank, cities[0].hub_bank)


def test_a_pool_has_as_many_cities_as_it_says() -> None:
    ground = MapConfig(n_slots=10, n_maps=3, map_seed=5)
    cities = make_cities(ground)
    assert len(cities) == ground.city_count == 3
    assert np.array_equal(cities[1].slot_xy, make_city(6, ground).slot_xy)
    assert len(make_cities(replace(ground, maps="fixed"))) == 1
