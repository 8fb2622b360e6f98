"""Which slots are neighbours, and the footprints that neighbours form. Host arrays."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Footprints = list[tuple[int, ...]]


def neighbours(
    xy: Floats, rule: Literal["grid4", "radius", "knn", "delaunay"], *, reach_px: float, k: int
) -> Flags:
    """Symmetric `[N, N]`, False on the diagonal."""
    n = len(xy)
    gap = xy[:, None, :] - xy[None, :, :]
    distance = np.sqrt((gap**2).sum(axis=-1))
    if rule == "grid4":
        step = np.rint(xy)[:, None, :] - np.rint(xy)[None, :, :]
        adjacent = np.abs(step).sum(axis=-1) == reach_px
        adjacent &= (step == 0).any(axis=-1)
    elif rule == "radius":
        adjacent = distance <= reach_px
    elif rule == "knn":
        order = np.argsort(np.where(np.eye(n, dtype=bool), np.inf, distance), axis=1, kind="stable")
        adjacent = np.zeros((n, n), dtype=bool)
        near = order[:, : min(k, n - 1)]
        adjacent[np.repeat(np.arange(n), near.shape[1]), near.ravel()] = True
        adjacent |= adjacent.T
    else:
        adjacent = np.zeros((n, n), dtype=bool)
        for a, b in _delaunay_edges(xy):
            adjacent[a, b] = adjacent[b, a] = True
    adjacent[np.arange(n), np.arange(n)] = False
    return np.asarray(adjacent)


def footprints(
    adjacent: Flags, shape: Literal["single", "pair", "block", "cluster"], *, cluster: int
) -> Footprints:
    """All sets of slots of a shape, each sorted, in lexicographic order."""
    n = len(adjacent)
    if shape == "single":
        return [(i,) for i in range(n)]
    if shape == "pair":
        return [(i, j) for i in range(n) for j in range(i + 1, n) if adjacent[i, j]]
    if shape == "block":
        return _blocks(adjacent)
    return _connected(adjacent, cluster)


def _blocks(adjacent: Flags) -> Footprints:
    """Sets of four slots with a 4-cycle: two corners that share two neighbours."""
    n = len(adjacent)
    found: set[tuple[int, ...]] = set()
    for a in range(n):
        for c in range(a + 1, n):
            shared = np.flatnonzero(adjacent[a] & adjacent[c]).tolist()
            for i, b in enumerate(shared):
                found.update(tuple(sorted((a, b, c, d))) for d in shared[i + 1 :])
    return sorted(found)


def _connected(adjacent: Flags, size: int) -> Footprints:
    """Connected sets of `size` slots: grown by one neighbour at a time."""
    near = [set(np.flatnonzero(row).tolist()) for row in adjacent]
    sets: set[tuple[int, ...]] = {(i,) for i in range(len(adjacent))}
    for _ in range(size - 1):
        sets = {
            tuple(sorted((*group, other)))
            for group in sets
            for other in set().union(*(near[i] for i in group)) - set(group)
        }
    return sorted(sets)


def _delaunay_edges(xy: Floats) -> Iterable[tuple[int, int]]:
    """Edges of the Delaunay triangulation, by inserting points one at a time (Bowyer, Watson)."""
    n = len(xy)
    if n < 3:
        return [(0, 1)] if n == 2 else []
    centre, span = xy.mean(axis=0), float(np.ptp(xy)) + 1.0
    corners = centre + 1e4 * span * np.array([[-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]])
    points = np.vstack((xy, corners))
    triangles = np.array([[n, n + 1, n + 2]])
    for i in range(n):
        inside = _in_circle(points[triangles], points[i])
        edges: dict[tuple[int, int], int] = {}
        for a, b, c in triangles[inside].tolist():
            for edge in ((a, b), (b, c), (c, a)):
                key = (min(edge), max(edge))
                edges[key] = edges.get(key, 0) + 1
        rim = [(a, b, i) for (a, b), times in edges.items() if times == 1]
        triangles = np.vstack((triangles[~inside], np.array(rim)))
    real = triangles[(triangles < n).all(axis=1)]
    sides = {tuple(sorted(pair)) for a, b, c in real.tolist() for pair in ((a, b), (b, c), (c, a))}
    return sorted((a, b) for a, b in sides)


def _in_circle(triangle: Floats, point: Floats) -> Flags:
    """Whether `point` lies within the circle through each triangle `[t, 3, 2]`."""
    d = triangle - point  # [t, 3, 2]
    square = (d**2).sum(axis=-1)
    minors = [
        square[:, i] * (d[:, j, 0] * d[:, k, 1] - d[:, k, 0] * d[:, j, 1])
        for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    ]
    turn = (triangle[:, 1, 0] - triangle[:, 0, 0]) * (triangle[:, 2, 1] - triangle[:, 0, 1]) - (
        triangle[:, 2, 0] - triangle[:, 0, 0]
    ) * (triangle[:, 1, 1] - triangle[:, 0, 1])
    return np.asarray(sum(minors) * np.sign(turn) > 1e-9)
