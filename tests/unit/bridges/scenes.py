"""Worlds of seconds for the bridges, and a way to walk through them."""

from dataclasses import replace
from typing import Any

import numpy as np

from lockstep.worlds.city_growth.catalogue import COUNCIL, SCENARIOS as CITIES, TINY_4
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.uav_mec.config import SCENARIOS as SCENES

UAV_IN_TURN = replace(SCENES["demo"], n_users=4, n_uavs=2, n_slots=6)
"""UAVs see what users just asked for."""
UAV_AT_ONCE = replace(UAV_IN_TURN, uav_obs_mask_mode="none")
CITY_ALONE = TINY_4
CITY = replace(CITIES["small"], horizon=9)
"""Industry in even months; education, and from month 6 the council, in odd ones."""
CITY_TOGETHER = CityConfig(
    agents=(CITY.agents[0], CITY.agents[1], replace(COUNCIL, active_from=0, near_least=1)),
    map=CITY.map,
    schedule="month",
    horizon=4,
    max_candidates=128,
)
"""Three who build every month, one after another, where the council may build everywhere."""


def flat(value: Any) -> bytes:
    """The bytes of an observation, a mask or an info."""
    if isinstance(value, dict):
        return b"".join(key.encode() + flat(value[key]) for key in sorted(value))
    if isinstance(value, tuple):
        return b"".join(map(flat, value))
    return np.asarray(value).tobytes()


def masked_sample(env: Any, agent: str, seen: dict[str, Any]) -> Any:
    return env.action_space(agent).sample(mask=seen.get("action_mask"))
