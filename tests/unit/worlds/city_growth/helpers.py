"""Small cities, and ways to play them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.core.world import Step
from lockstep.worlds.city_growth.candidates import CandidateSet
from lockstep.worlds.city_growth.catalogue import COUNCIL, DEFAULT, EDU, IND
from lockstep.worlds.city_growth.config import (
    AgentConfig,
    BuildingType,
    CityConfig,
    Hub,
    LandConfig,
    MapConfig,
)
from lockstep.worlds.city_growth.world import CityGrowth

SMALL_MAP = MapConfig(
    width=80,
    height=80,
    n_slots=24,
    n_maps=3,
    hubs=(Hub(r0=5.0), Hub(r0=4.0), Hub(r0=3.0, active_from=4)),
)
SMALL = replace(
    DEFAULT, map=SMALL_MAP, horizon=8, agents=(IND, EDU, replace(COUNCIL, active_from=2))
)

PLAIN = BuildingType(name="P", cost=100, revenue=60, opex=10)
GRID = MapConfig(
    width=40,
    height=40,
    maps="fixed",
    adjacency="grid4",
    adjacency_px=4.0,
    hubs=(Hub(r0=100.0, dr=0.0, x=20.0, y=20.0),),
    slots=tuple((12.0 + 4.0 * (i % 4), 12.0 + 4.0 * (i // 4), 0.0, 3) for i in range(16)),
)
"""Sixteen slots on a lattice of 4 x 4, all within reach from the first month."""


def builder(name: str = "one", **changes: Any) -> AgentConfig:
    """An agent that may build one plain type anywhere."""
    plain = AgentConfig(name=name, types=(PLAIN,), start_money=1_000, near_px=1_000.0)
    return replace(plain, **changes)


def grid(*agents: AgentConfig, **changes: Any) -> CityConfig:
    """A city on the lattice; land costs nothing unless changed."""
    plain: dict[str, Any] = {
        "agents": agents or (builder(),),
        "map": GRID,
        "land": LandConfig(inertia=0.0),
        "schedule": "month",
        "horizon": 6,
        "land_unit": 0,
    }
    return CityConfig(**(plain | changes))


def made(config: CityConfig, *, lanes: int = 2, seed: int = 0) -> CityGrowth:
    world = CityGrowth(config, lanes=lanes)
    world.reset(lane_keys([seed], lanes=lanes))
    return world


def picks(world: CityGrowth, *rows: int) -> dict[str, Tensor]:
    """The same rows in every lane, counted from 1; the rest stops."""
    k = world.config.picks
    numbers = [*rows, *[0] * (k - len(rows))]
    return {"build": torch.tensor(numbers).expand(world.lanes, 1, k).clone()}


def row_at(candidates: CandidateSet, slot: int, kind: int = 0) -> int:
    """The pick (from 1) of a single-slot candidate in lane 0."""
    here = (candidates.slots[0, :, 0] == slot) & (candidates.type[0] == kind)
    return int(here.nonzero().item()) + 1


def play(world: CityGrowth, **slots: list[int]) -> Step:
    """One month: each named agent builds its first type on the slots, the others stop."""
    for phase in world.spec.phases:
        for role in phase:
            candidates = world.candidates(role)
            world.act(role, picks(world, *(row_at(candidates, s) for s in slots.get(role, []))))
    return world.advance()


def random_month(world: CityGrowth, generator: torch.Generator) -> Step:
    """One month of legal picks at random."""
    for phase in world.spec.phases:
        for role in phase:
            world.act(role, random_picks(world, role, generator))
    return world.advance()


def random_picks(world: CityGrowth, role: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Rows in random order; conflicts are possible, and the world must sort them out."""
    legal = world.observe(role).legal["build"][:, 0].float()
    k = world.config.picks
    weight = torch.cat((legal, torch.full((world.lanes, k), 1e-6)), dim=-1)
    chosen = torch.multinomial(weight, k, generator=generator)
    return {"build": torch.where(chosen < legal.shape[-1], chosen, 0).unsqueeze(1)}
