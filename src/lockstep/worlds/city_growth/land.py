"""The land-price field: what is fixed by map and month (host), and what buildings add (tensors).

The field is kept at E points: the slots, or every pixel. Hub, road and river depend on the month
alone, so their weighted sum is tabled before the first step; a month then costs one exp per point.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.ground import LandConfig
from lockstep.worlds.city_growth.map import City, Flags, Floats, Ints, grid_points, river_distance

Singles = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Base:
    """What hub, road and river give at the points of one city, month by month."""

    value: Floats  # [T, E] weighted sum of the three parts, each over its maximum
    low: Floats  # [T] least of that sum over the points that normalise
    high: Floats  # [T] largest


def hub_strength(month: int, land: LandConfig) -> float:
    """How much hubs lift prices: 0, then a logistic from `hub_first_strength` to 1."""
    if month < land.hub_from:
        return 0.0
    share = (month - land.hub_from) / land.hub_rise
    if share >= 1.0:
        return 1.0
    steep = -land.hub_steepness * (share - 0.5)
    rise = 1.0 / (1.0 + math.exp(min(steep, 700.0)))  # beyond, exp would overflow
    return land.hub_first_strength + (1.0 - land.hub_first_strength) * rise


def spread_px(month: int, start_px: float, rate: float, cap: float) -> float:
    """A spread that grows from `start_px` towards `cap` times it."""
    return start_px * (1.0 + (cap - 1.0) * (1.0 - math.exp(-rate * month)))


def hub_part(xy: Floats, month: int, city: City, config: CityConfig) -> Floats:
    """Largest over the active hubs of a wide kernel that rises and a core that is always there."""
    land = config.land
    sigma = spread_px(month, land.hub_sigma_px, land.hub_growth, land.hub_spread_cap)
    strength = hub_strength(month, land)
    part = np.zeros(len(xy))
    for hub, place in zip(config.map.hubs, city.hub_xy, strict=True):
        if month < hub.active_from:
            continue
        square = ((xy - place) ** 2).sum(axis=1)
        wide = strength * np.exp(-square / (2.0 * sigma**2))
        core = land.core_peak * np.exp(-square / (2.0 * land.core_sigma_px**2))
        part = np.maximum(part, hub.weight * (wide + core))
    return part


def road_part(xy: Floats, month: int, city: City, land: LandConfig) -> Floats:
    """A ridge along the segment from the first hub to the second, and nothing beyond its ends."""
    if len(city.hub_xy) < 2:
        return np.zeros(len(xy))
    start, along = city.hub_xy[0], city.hub_xy[1] - city.hub_xy[0]
    length2 = max(float(along @ along), 1e-12)
    share = (xy - start) @ along / length2
    off = xy - start - share[:, None] * along
    sigma = spread_px(month, land.road_sigma_px, land.road_growth, land.road_spread_cap)
    ridge = np.exp(-(off**2).sum(axis=1) / (2.0 * sigma**2))
    return np.where((share >= 0.0) & (share <= 1.0), ridge, 0.0)


def river_part(xy: Floats, city: City, land: LandConfig) -> Floats:
    """Decay with the distance to the river, cut off at `river_cut_px`."""
    distance, gamma = river_distance(xy, city.river), land.river_gamma_px
    near = np.minimum(distance, land.river_cut_px)  # the river may be infinitely far
    if land.river_kernel == "lorentzian":
        decay = gamma**2 / (near**2 + gamma**2)
    elif land.river_kernel == "gaussian":
        decay = np.exp(-(near**2) / (2.0 * gamma**2))
    else:
        decay = np.exp(-near / gamma)
    return np.where(distance <= land.river_cut_px, decay, 0.0)


def base(
    points: Floats, city: City, config: CityConfig, *, months: Sequence[int] | None = None
) -> Base:
    """The tabled sum at `points` `[E, 2]` for `months`, by default all of an episode.

    Maxima are taken over a coarse grid, the hubs and the points themselves.
    """
    land = config.land
    grid = grid_points(city.width, city.height, land.coarse_px)
    xy = np.vstack((points, grid, city.hub_xy))
    river = _over_maximum(river_part(xy, city, land))
    sums = []
    for month in range(config.horizon) if months is None else months:
        hub = _over_maximum(hub_part(xy, month, city, config))
        road = _over_maximum(road_part(xy, month, city, land))
        sums.append(land.hub_weight * hub + land.road_weight * road + land.river_weight * river)
    total = np.stack(sums)  # [T, E + grid]
    return Base(value=total[:, : len(points)], low=total.min(axis=1), high=total.max(axis=1))


def _over_maximum(part: Floats) -> Floats:
    largest = float(part.max())
    return part / largest if largest > 0 else part


def building_part(near_px2: Tensor, land: LandConfig) -> Tensor:
    """Largest over the buildings of their kernels, over its peak.

    The kernel falls with distance, so the nearest building decides; none is infinitely far.
    """
    return torch.exp(near_px2 * (-0.5 / land.building_sigma_px**2))


def refresh(tabled: Tensor, near_px2: Tensor, last: Tensor | None, land: LandConfig) -> Tensor:
    """The field `[L, E]` of a month, in 0..1; `last` is the month before, None at the start.

    `tabled` `[L, E + 2]` is the base, with its least and largest at the end.
    """
    value, low, high = tabled.split((tabled.shape[1] - 2, 1, 1), dim=1)
    total = torch.add(value, building_part(near_px2, land), alpha=land.building_weight)
    high = torch.maximum(high, total.amax(dim=-1, keepdim=True))
    return settle(total, low, high, last, land)


def settle(
    total: Tensor, low: Tensor, high: Tensor, last: Tensor | None, land: LandConfig
) -> Tensor:
    """A sum of parts `[L, E]` brought to 0..1 by `low`, `high` `[L, 1]`, floored, with inertia."""
    span = (high - low).clamp(min=1e-9)
    field = ((total - low) / span).clamp(0.0, 1.0)
    field.masked_fill_(field < land.floor, 0.0)
    if last is None or land.inertia == 0.0:
        return field
    return torch.lerp(field, last, land.inertia)


def picture(city: City, taken: Flags, month: int, config: CityConfig) -> Singles:
    """The field of one month on every pixel `[height, width]`, without inertia."""
    points = grid_points(city.width, city.height)
    month = min(month, config.horizon - 1)
    tabled = base(points, city, config, months=(month,))
    square = np.full(len(points), np.inf)
    for place in city.slot_xy[taken]:
        square = np.minimum(square, ((points - place) ** 2).sum(axis=1))
    given = torch.from_numpy(np.column_stack((tabled.value, tabled.low, tabled.high))).float()
    field = refresh(given, torch.from_numpy(square).float()[None], None, config.land)
    return np.asarray(field[0].numpy().reshape(city.height, city.width))


def bilinear(points: Floats, width: int, height: int) -> tuple[Ints, Floats]:
    """The four pixels around each point, as indices `[E, 4]` of a row-by-row grid, and weights."""
    x, y = points[:, 0].clip(0, width - 1), points[:, 1].clip(0, height - 1)
    x0 = np.minimum(np.floor(x), max(width - 2, 0)).astype(np.int64)
    y0 = np.minimum(np.floor(y), max(height - 2, 0)).astype(np.int64)
    x1, y1 = np.minimum(x0 + 1, width - 1), np.minimum(y0 + 1, height - 1)
    fx, fy = x - x0, y - y0
    index = np.stack((y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1), axis=1)
    weight = np.stack(((1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy), axis=1)
    return index, weight
