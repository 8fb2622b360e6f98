"""The money table, the three agents, and the scenarios made of them; no torch."""

from dataclasses import replace

from lockstep.worlds.city_growth.config import (
    AgentConfig,
    BuildingType,
    CityConfig,
    Hub,
    LandConfig,
    MapConfig,
    PhaseConfig,
    RewardConfig,
)

# name, cost, revenue, opex, rent, prestige, pollution, lowest level; thousand GBP
_INDUSTRY = (
    ("S", 900, 180, 100, -25, 0.2, 0.6, 3),
    ("M", 1500, 320, 180, -45, 0.1, 0.9, 4),
    ("L", 2400, 520, 300, -70, -0.1, 1.2, 5),
)
_EDUCATION = (
    ("S", 700, 140, 70, 25, 0.2, 0.2, 3),
    ("M", 1200, 260, 120, 45, 0.6, 0.4, 3),
    ("L", 1900, 420, 190, 70, 1.0, 0.6, 3),
)
_COUNCIL = (
    ("A", 570, 570, 50, 0, 0.3, 0.1, 3),
    ("B", 870, 870, 80, 0, 0.7, 0.2, 3),
    ("C", 1150, 1150, 120, 0, 1.2, 0.3, 3),
)
_THIRD_HUB = (
    ("A", 1100, 220, 120, -30, 0.3, 0.7, 3),
    ("B", 1800, 380, 200, -50, 0.2, 1.0, 3),
    ("C", 2800, 600, 350, -80, 0.0, 1.4, 3),
)

_Row = tuple[str, int, int, int, int, float, float, int]


def _types(rows: tuple[_Row, ...], *, hub: int = -1) -> tuple[BuildingType, ...]:
    return tuple(
        BuildingType(
            name=name,
            cost=cost,
            revenue=revenue,
            opex=opex,
            rent=rent,
            prestige=prestige,
            pollution=pollution,
            min_level=level,
            hub=hub,
        )
        for name, cost, revenue, opex, rent, prestige, pollution, level in rows
    )


THIRD_HUB_TYPES = _types(_THIRD_HUB, hub=2)
"""Industry around the third hub only: types to add to `IND`, for maps with three hubs."""

IND = AgentConfig(
    name="ind",
    types=_types(_INDUSTRY),
    start_money=15_000,
    bank_of_hub=0,
    near_px=15.0,
    price_gain=0.25,
    river_premium=0.20,
    weights=(0.60, 0.20, 0.20),
)
EDU = AgentConfig(
    name="edu",
    types=_types(_EDUCATION),
    start_money=10_000,
    bank_of_hub=1,
    near_px=25.0,
    price_gain=0.10,
    river_premium=0.15,
    weights=(0.45, 0.45, 0.10),
)
COUNCIL = AgentConfig(
    name="council",
    types=_types(_COUNCIL),
    start_money=5_000,
    active_from=6,
    max_level=3,
    near_px=20.0,
    price_gain=0.15,
    river_premium=0.10,
    weights=(0.45, 0.45, 0.10),
)

_CYCLE = (PhaseConfig(agents=("ind",)), PhaseConfig(agents=("edu", "council")))

DEFAULT = CityConfig(agents=(IND, EDU, COUNCIL), phases=_CYCLE, start_share=0.5)
"""A generated city of 200 slots in which money binds: three builds a turn, soft debt."""

VILLAGE = replace(
    DEFAULT,
    map=replace(DEFAULT.map, n_slots=60),
    max_candidates=128,
    builds=1,
    start_share=DEFAULT.start_share / 3,
)
"""60 slots with a third of the builds and of the money: room and means as in `DEFAULT`."""

LEGACY_TURNS = CityConfig(
    agents=(IND, EDU),
    map=MapConfig(hubs=(Hub(r0=5.0), Hub(r0=2.0))),
    schedule="turns",
    builds=1,
    reward=RewardConfig(scale=30_000.0),
)
"""Near the first version of the simulation: industry and education by turns, one build each."""

_CIVIC = replace(COUNCIL, active_from=0, max_level=5, near_least=1)
_FLAT = LandConfig(hub_from=0, hub_rise=1, inertia=0.0, coarse_px=1)

TINY_4 = CityConfig(
    agents=(replace(_CIVIC, types=_types((_COUNCIL[0], _COUNCIL[2])), start_money=1_800),),
    map=MapConfig(
        width=24,
        height=24,
        hubs=(Hub(r0=4.0, dr=4.0, x=6.0, y=12.0),),
        maps="fixed",
        mirrored=True,
        adjacency="radius",
        adjacency_px=6.5,
        slots=(
            (8.0, 12.0, 0.0, 3),
            (12.0, 14.0, 90.0, 3),
            (15.0, 9.0, 0.0, 4),
            (20.0, 12.0, 45.0, 5),
        ),
        river_line=((23.0, 0.0), (23.0, 23.0)),
    ),
    land=_FLAT,
    schedule="month",
    horizon=8,
    builds=1,
    debt="hard",
    reward=RewardConfig(scale=10_000.0),
)
"""Four slots, two types, eight months and little money: what to buy first decides."""

TINY_9 = CityConfig(
    agents=(replace(_CIVIC, types=_types((_COUNCIL[0], _COUNCIL[2])), start_money=2_000),),
    map=MapConfig(
        width=40,
        height=40,
        hubs=(Hub(r0=5.0, dr=5.0, x=12.0, y=20.0), Hub(r0=5.0, dr=2.0, x=28.0, y=20.0)),
        maps="fixed",
        mirrored=True,
        adjacency="grid4",
        adjacency_px=6.0,
        slots=tuple(
            (14.0 + 6.0 * (i % 3), 14.0 + 6.0 * (i // 3), 0.0, 3 + i % 3) for i in range(9)
        ),
        river_line=((0.0, 36.0), (39.0, 36.0)),
    ),
    land=_FLAT,
    schedule="month",
    horizon=4,
    builds=1,
    debt_penalty=0.5,
    reward=RewardConfig(scale=10_000.0),
)
"""A lattice of nine slots, two types and four months: still few enough plans to try them all."""

SCENARIOS: dict[str, CityConfig] = {
    "default": DEFAULT,
    "small": replace(DEFAULT, map=replace(DEFAULT.map, n_slots=60), max_candidates=128),
    "village": VILLAGE,
    "legacy-turns": LEGACY_TURNS,
    "tiny-4": TINY_4,
    "tiny-9": TINY_9,
}
