"""Everything about the cities of a pool that no step changes, as tensors `[M, ...]` to index."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from lockstep.worlds.city_growth import economy, land
from lockstep.worlds.city_growth.adjacency import footprints
from lockstep.worlds.city_growth.config import N_HUB_FEATURES, CityConfig
from lockstep.worlds.city_growth.map import WATER, City, Flags, Floats, grid_points, make_cities
from lockstep.worlds.city_growth.parties import AgentConfig, BuildingType

STATIC = ("prestige", "river", "hub_1", "hub_2", "hub_3", "near", "mid", "far", "x", "y", "level",
          "slots")  # fmt: skip
"""Features of a candidate that map and type fix, after the one-hot of the type."""

# Features of a candidate that change from month to month: name, unit of 1, and most it can be.
_CHANGING = (
    ("cost", 5_000.0, math.inf),
    ("strain", 5.0, 1.0),
    ("income", 1_000.0, math.inf),
    ("payback", 60.0, 1.0),
    ("npv", 1.0, 1.0),
    ("lag", 1_000.0, 3.0),
    ("lead", 1.0, 1.0),
    ("score", 1.0, math.inf),
    ("price", 1.0, math.inf),
    ("own", 50.0, 1.0),
    ("others", 50.0, 1.0),
    ("neighbours", 8.0, math.inf),
)
DYNAMIC = tuple(name for name, _, _ in _CHANGING)
"""Their names, after the static ones."""

POOLED = ("share", *(f"mean_{name}" for name in DYNAMIC), *(f"most_{name}" for name in DYNAMIC))
"""The numbers that stand for a whole set of candidates in the critic's input."""

HUB_SCALE_PX = 100.0
NPV_SCALE, LEAD_SCALE = 2_000.0, 4.0
BALANCE_SCALE, MONTHLY_SCALE, PRESTIGE_SCALE = 10_000.0, 2_000.0, 20.0
PRICE_MARKS = (0.25, 0.5, 0.75)


def n_features(config: CityConfig) -> int:
    """Features of a candidate."""
    return config.n_types + len(STATIC) + len(DYNAMIC)


def unrecorded(device: torch.device) -> AbstractContextManager[object]:
    """Leaves out on the CPU what gradients would need: of a single city's time about a fifth.

    Tensors made inside are for the world alone. What it hands out is made outside, since somebody
    may train on it, and so is what it keeps.
    """
    return torch.inference_mode() if device.type == "cpu" else nullcontext()


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """A carrier whose fields are all tensors."""

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Ground(Tensors):
    """M cities: N slots, E points of the land-price field, A agents, T months."""

    xy: Tensor  # [M, N, 2]
    gap_px: Tensor  # [M, N, N] distances between slots
    adjacent: Tensor  # [M, N, N] float, 1 for neighbours
    degree: Tensor  # [M, N] number of neighbours
    river: Tensor  # [M, N] 1 at the river, halving with distance
    open: Tensor  # [M, A, T, N] bool: within reach, on the right bank, of an allowed level
    open_all: Tensor  # [M, T, A, N] float: the same in another order, 1 where True
    fresh: Tensor  # [M, A, T, N] bool: the same for what came within reach this month
    base: Tensor  # [M, T, E + 2] land price without buildings, before it is brought to 0..1 by
    # the last two numbers, the least and the largest
    point_xy: Tensor  # [M, E, 2] where the field is kept
    read: Tensor  # [M, N, 4] int64: points a slot reads (itself four times when E = N)
    read_weight: Tensor  # [M, N, 4]
    feature_scale: Tensor  # [len(DYNAMIC), 1]
    feature_cap: Tensor  # [len(DYNAMIC), 1], before scaling
    slots: Tensor  # [] N
    price_marks: Tensor  # [len(PRICE_MARKS), 1]
    money_scale: Tensor  # [3 * A]: of balances, incomes and prestige in what agents see
    one_hot: Tensor  # [A, A]
    blank_pool: Tensor  # [len(POOLED)] zeros
    ledger: Tensor  # [A] int64: the ledger of each agent
    sharers: Tensor  # [A] float64: agents on that ledger
    discount: Tensor  # [A] float64
    type_count: Tensor  # [A] float64
    calendar: Tensor  # [T, 3]: share of the months passed, left, and until the next hub opens
    rank: Tensor  # [C] int32: 1, 2, ... up to the widest set
    earning: Tensor  # [T, 2]: months in which a building of this month earns; the lag at half lead


@dataclass(frozen=True, kw_only=True)
class Universe(Tensors):
    """All U candidates that one agent can ever have in each city, in canonical order.

    Tables of rows are flat, city after city, each with a last row for "nothing": zeros, id -1.
    """

    place: Tensor  # [M, U, R] int64 slots; N where a footprint has fewer than R, N + 1 in padding
    type: Tensor  # [M, U] int64
    size: Tensor  # [M, U] slots of the footprint
    from_month: Tensor  # [M, U] int64: earlier its own hub does not reach it
    key: Tensor  # [M * (U + 1), R + 2] int64: slots (-1 where none), type, id
    money: Tensor  # [M * (U + 1), 3]: fixed cost, gross monthly income, prestige
    features: Tensor  # [M * (U + 1), F]; columns of what changes are 0
    weight: Tensor  # [3, 1] of income, prestige and cost in the score


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The pool of a world."""

    cities: tuple[City, ...]
    ground: Ground
    universes: tuple[Universe, ...]  # one per agent
    n_footprints: int
    """Footprints of the type that has most: the stride of candidate ids."""


@lru_cache(maxsize=16)
def make_tables(config: CityConfig, device: torch.device) -> Tables:
    """Generates the pool and tables it; the same for any number of lanes.

    Worlds of equal settings share the result, which nothing ever writes to.
    """
    cities = make_cities(config.map)
    grounds = [_ground(city, config) for city in cities]
    stacked = {name: _stacked([g[name] for g in grounds], device) for name in grounds[0]}
    ground = Ground(
        **stacked,
        open_all=stacked["open"].transpose(1, 2).float().contiguous(),
        **_constants(config, device),
    )
    listed = [[_footprints(city, agent) for city in cities] for agent in config.agents]
    n_footprints = max(len(fp) for agent in listed for city in agent for fp in city)
    universes = tuple(
        _universe(agent, cities, found, n_footprints, config, device)
        for agent, found in zip(config.agents, listed, strict=True)
    )
    return Tables(cities=cities, ground=ground, universes=universes, n_footprints=n_footprints)


def _stacked(arrays: list[np.ndarray], device: torch.device) -> Tensor:
    x = torch.from_numpy(np.stack(arrays))
    return (x.float() if x.is_floating_point() else x).to(device)


def _ground(city: City, config: CityConfig) -> dict[str, np.ndarray]:
    gap = np.sqrt(((city.slot_xy[:, None] - city.slot_xy[None]) ** 2).sum(axis=-1))
    whole = config.land.evaluate == "grid"
    points = grid_points(city.width, city.height) if whole else city.slot_xy
    n = len(city.slot_xy)
    if whole:
        read, weight = land.bilinear(city.slot_xy, city.width, city.height)
    else:
        read = np.repeat(np.arange(n)[:, None], 4, axis=1)
        weight = np.repeat(np.array([[1.0, 0.0, 0.0, 0.0]]), n, axis=0)
    tabled = land.base(points, city, config)
    opened = [_open(city, agent, config) for agent in config.agents]
    return {
        "xy": city.slot_xy,
        "gap_px": gap,
        "adjacent": city.adjacent.astype(np.float64),
        "degree": city.adjacent.sum(axis=1).astype(np.float64),
        "river": np.exp2(-city.river_m / config.river_half_m),
        "open": np.stack([reached for reached, _ in opened]),
        "fresh": np.stack([ring for _, ring in opened]),
        "base": np.column_stack((tabled.value, tabled.low, tabled.high)),
        "point_xy": points,
        "read": read,
        "read_weight": weight,
    }


def _constants(config: CityConfig, device: torch.device) -> dict[str, Tensor]:
    """Numbers that do not depend on the city, made once: each tensor costs as much as a step's."""
    A = len(config.agents)
    units = [unit for _, unit, _ in _CHANGING]
    caps = [unit * most for _, unit, most in _CHANGING]
    scale = [
        1.0 / unit for unit in (BALANCE_SCALE, MONTHLY_SCALE, PRESTIGE_SCALE) for _ in range(A)
    ]
    numbers = {
        "feature_scale": torch.tensor(units).reciprocal().unsqueeze(-1),
        "feature_cap": torch.tensor(caps).unsqueeze(-1),
        "slots": torch.tensor(float(config.map.slot_count)),
        "price_marks": torch.tensor(PRICE_MARKS).unsqueeze(-1),
        "money_scale": torch.tensor(scale, dtype=torch.float64),
        "one_hot": torch.eye(A),
        "blank_pool": torch.zeros(len(POOLED)),
        "ledger": torch.tensor(config.ledgers),
        "sharers": torch.tensor([config.ledgers.count(b) for b in config.ledgers]).double(),
        "discount": torch.tensor([a.discount for a in config.agents], dtype=torch.float64),
        "type_count": torch.tensor([len(a.types) for a in config.agents]).double(),
        "calendar": torch.tensor(_calendar(config)),
        "rank": 1 + torch.arange(max(config.width(a) for a in config.agents), dtype=torch.int32),
        "earning": torch.tensor(_earning(config)),
    }
    return {name: x.to(device) for name, x in numbers.items()}


def _calendar(config: CityConfig) -> list[tuple[float, float, float]]:
    T, opens = config.horizon, [hub.active_from for hub in config.map.hubs]
    waits = [min([o - m for o in opens if o > m] + [T]) for m in range(T)]
    return [(m / T, 1.0 - m / T, min(wait / T, 1.0)) for m, wait in enumerate(waits)]


def _earning(config: CityConfig) -> list[tuple[float, float]]:
    left = [min(config.horizon - m, config.reward.lifetime) for m in range(config.horizon)]
    return [(float(months), LEAD_SCALE * months) for months in left]


def _within(city: City, month: int, config: CityConfig, only: int = -1) -> Flags:
    """Slots `[N]` that some active hub reaches in a month (or hub `only`, unless -1)."""
    reached = np.zeros(len(city.slot_xy), dtype=np.bool_)
    for h, (hub, place) in enumerate(zip(config.map.hubs, city.hub_xy, strict=True)):
        if month < hub.active_from or only not in (-1, h):
            continue
        radius = hub.r0 + hub.dr * month + config.reach_tolerance_px
        reached |= np.hypot(*(city.slot_xy - place).T) <= radius
    return reached


def _open(city: City, agent: AgentConfig, config: CityConfig) -> tuple[Flags, Flags]:
    """Slots `[T, N]` that an agent may use month by month, and those of them newly reached."""
    allowed = city.level <= agent.max_level
    if agent.bank_of_hub >= 0:
        bank = city.hub_bank[agent.bank_of_hub]
        allowed &= (city.slot_bank == bank) & (bank != WATER)
    reach = np.stack([_within(city, m, config) for m in range(config.horizon)])
    ring = reach.copy()
    ring[1:] &= ~reach[:-1]
    active = (np.arange(config.horizon) >= agent.active_from)[:, None]
    return reach & allowed & active, ring & allowed & active


def _footprints(city: City, agent: AgentConfig) -> list[list[tuple[int, ...]]]:
    """For each type all footprints of its shape."""
    return [footprints(city.adjacent, t.footprint, cluster=t.cluster) for t in agent.types]


def _universe(
    agent: AgentConfig,
    cities: tuple[City, ...],
    found: list[list[list[tuple[int, ...]]]],
    n_footprints: int,
    config: CityConfig,
    device: torch.device,
) -> Universe:
    rows = [
        _rows_of_city(city, agent, shapes, n_footprints, config)
        for city, shapes in zip(cities, found, strict=True)
    ]
    N, width = config.map.slot_count, max(1, *(len(r["type"]) for r in rows))
    depth = max(r["place"].shape[1] for r in rows)
    padded = [_padded(r, width, depth, N) for r in rows]
    x = {name: _stacked([p[name] for p in padded], device) for name in padded[0]}
    slots = torch.where(x["place"] < N, x["place"], -1)
    key = torch.cat((slots, x["type"].unsqueeze(-1), x["id"].unsqueeze(-1)), dim=-1)
    blank = torch.zeros(*x["type"].shape, len(DYNAMIC), device=device)
    signs = torch.tensor((1.0, 1.0, -1.0), device=device)
    money = torch.stack((x["fixed_cost"], x["gross"], x["prestige"]), dim=-1)
    return Universe(
        place=x["place"],
        type=x["type"],
        size=x["size"],
        from_month=x["from_month"],
        key=_with_nothing(key, [-1] * depth + [0, -1]),
        money=_with_nothing(money, [0.0] * 3),
        features=_with_nothing(
            torch.cat((x["features"], blank), dim=-1), [0.0] * n_features(config)
        ),
        weight=torch.tensor(agent.weights, device=device).unsqueeze(-1) * signs.unsqueeze(-1),
    )


def _with_nothing(table: Tensor, row: Sequence[float | int]) -> Tensor:
    """The rows of all cities one after another, each with a last one for "nothing"."""
    last = torch.tensor(row, dtype=table.dtype, device=table.device)
    return torch.cat((table, last.expand(len(table), 1, -1)), dim=1).flatten(0, 1)


def _rows_of_city(
    city: City,
    agent: AgentConfig,
    found: list[list[tuple[int, ...]]],
    n_footprints: int,
    config: CityConfig,
) -> dict[str, np.ndarray]:
    """The rows of one agent in one city: type by type, footprints in order."""
    allowed = city.level <= agent.max_level
    if agent.bank_of_hub >= 0:
        allowed &= city.slot_bank == city.hub_bank[agent.bank_of_hub]
    depth = max((len(fp) for shape in found for fp in shape), default=1)
    blocks = []
    for t, (kind, shapes) in enumerate(zip(agent.types, found, strict=True)):
        place = np.full((len(shapes), depth), len(city.slot_xy), dtype=np.int64)
        for i, fp in enumerate(shapes):
            place[i, : len(fp)] = fp
        fits = np.append(allowed & (city.level >= kind.min_level), True)[place].all(axis=1)
        number = np.flatnonzero(fits)
        blocks.append(
            _rows(city, agent, kind, place[number], config)
            | {
                "type": np.full(len(number), t, dtype=np.int64),
                "id": t * n_footprints + number,
            }
        )
    joined = {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}
    one_hot = np.eye(config.n_types)[joined["type"]]
    return joined | {"features": np.concatenate((one_hot, joined["features"]), axis=1)}


def _rows(
    city: City, agent: AgentConfig, kind: BuildingType, slots: np.ndarray, config: CityConfig
) -> dict[str, np.ndarray]:
    """Money, prestige and fixed features of one type on footprints `slots` `[n, R]`."""
    real = slots < len(city.slot_xy)  # [n, R]
    size = real.sum(axis=1).astype(np.float64)
    slots_or_first = np.where(real, slots, slots[:, :1])

    def mean(of_slot: Floats) -> Floats:
        return np.asarray((of_slot[slots_or_first] * real).sum(axis=1) / np.maximum(size, 1.0))

    to_hub = np.sqrt(((city.slot_xy[:, None] - city.hub_xy[None]) ** 2).sum(axis=-1))  # [N, H]
    zone = economy.zone(torch.from_numpy(mean(to_hub.min(axis=1))), config).numpy()
    river_m = city.river_m[slots_or_first].min(axis=1)
    revenue = kind.revenue + np.array(config.zone_revenue, dtype=np.float64)[zone]
    premium = economy.river_premium(
        torch.from_numpy(revenue), torch.from_numpy(river_m), agent.river_premium, config
    ).numpy()
    prestige = np.full(len(slots), kind.prestige)
    if config.prestige_rule == "draft":
        share = 0.25 if agent.name == "edu" else 0.2
        prestige = prestige + (zone == 0) - share * kind.pollution
    hubs = [
        np.minimum(mean(to_hub[:, h]) / HUB_SCALE_PX, 1.0)
        if h < to_hub.shape[1]
        else np.ones(len(slots))
        for h in range(N_HUB_FEATURES)
    ]
    static = [
        prestige,
        np.exp2(-river_m / config.river_half_m),
        *hubs,
        *np.eye(3)[zone].T,
        mean(city.slot_xy[:, 0]) / city.width,
        mean(city.slot_xy[:, 1]) / city.height,
        (mean(city.level.astype(np.float64)) - 3.0) / 2.0,
        size / 4.0,
    ]
    return {
        "place": slots,
        "size": size,
        "from_month": _from_month(city, kind, slots, config),
        "fixed_cost": kind.cost + np.array(config.zone_cost, dtype=np.float64)[zone],
        "gross": revenue - kind.opex + kind.rent + premium,
        "prestige": prestige,
        "features": np.stack(static, axis=1),
    }


def _from_month(
    city: City, kind: BuildingType, slots: np.ndarray, config: CityConfig
) -> np.ndarray:
    """The first month in which the type's own hub reaches all of a footprint; 0 if it has none."""
    if kind.hub < 0:
        return np.zeros(len(slots), dtype=np.int64)
    reach = np.stack([_within(city, m, config, kind.hub) for m in range(config.horizon)])
    late = np.where(reach.any(axis=0), reach.argmax(axis=0), config.horizon)  # [N]
    return np.asarray(np.append(late, 0)[slots].max(axis=1), dtype=np.int64)


def _padded(
    rows: dict[str, np.ndarray], width: int, depth: int, n_slots: int
) -> dict[str, np.ndarray]:
    """The rows filled up to `width` with rows that can never be used."""
    out = {}
    for name, x in rows.items():
        extra = [(0, width - len(x))] + [(0, 0)] * (x.ndim - 1)
        # Short footprints are filled up first: their padding differs from that of whole rows.
        short = [(0, 0), (0, depth - x.shape[1])] if name == "place" else [(0, 0)] * x.ndim
        fill = {"place": n_slots + 1, "id": -1}.get(name, 0)
        out[name] = np.pad(np.pad(x, short, constant_values=n_slots), extra, constant_values=fill)
    return out
