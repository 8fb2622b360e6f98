"""What a comparison of solvers needs to know of a city: which scenarios, and what to show."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.core.streams import Streams, lane_keys
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.notes import RecordedCity
from lockstep.worlds.city_growth.world import with_maps

TABLES = ("pool", "sequences", "actions")
"""What a recorded episode is told in (`RecordedCity.turns`)."""

_KEYS_TRIED = 200  # for each city; chance leaves one out with probability e^-200


def scenarios(config: CityConfig, *, count: int, seed: int) -> tuple[CityConfig, Tensor]:
    """The scenario on `count` cities generated from `seed`, and a stream key for each `[count]`.

    Each city is played once. A map given by hand is played `count` times.
    """
    if config.map.maps == "fixed":
        return config, lane_keys([seed], lanes=count)
    fresh = with_maps(config, map_seed=seed, n_maps=count)
    keys = lane_keys([seed], lanes=_KEYS_TRIED * count)
    drawn = Streams(keys).draw("reset/map").integers(fresh.map.city_count)
    views = fresh.map.city_count // count  # a city and its mirrors follow each other
    city = (drawn // views).tolist()
    return fresh, keys[[city.index(wanted) for wanted in range(count)]]


def shown(config: CityConfig) -> tuple[str, ...]:
    """The metrics that a comparison shows, in order."""
    each = ("final_balance", "lowest_balance", "debt_months", "prestige", "skipped")
    return (
        "return",
        *(f"return_{name}" for name in config.agent_names),
        *(f"buildings_{agent.name}_{kind.name}" for agent in config.agents for kind in agent.types),
        *(f"{what}_{name}" for what in each for name in config.agent_names),
        "candidates_mean",
        "looked_at",
    )


def derived(
    config: CityConfig,  # noqa: ARG001 - part of what a report is asked
    metrics: Mapping[str, NDArray[np.float64]],
) -> dict[str, NDArray[np.float64]]:
    """`looked_at`: the share of legal candidates that caps left in the sets."""
    seen = (metrics["candidates_mean"] - 1.0) * metrics["decisions"]  # without the choice to stop
    return {"looked_at": seen / np.maximum(seen + metrics["dropped"], 1.0)}


def recorded(config: CityConfig) -> RecordedCity:
    """One city that notes down what was on offer and what was built."""
    return RecordedCity(config, lanes=1)
