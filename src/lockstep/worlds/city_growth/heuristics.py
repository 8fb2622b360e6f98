"""The world's policies without learning, by name; the solvers have their settings."""

from collections.abc import Callable

from lockstep.core.actions import Action
from lockstep.worlds.city_growth.solvers.look_ahead import LookAhead
from lockstep.worlds.city_growth.solvers.ranked import Greedy, Random, Skip
from lockstep.worlds.city_growth.solvers.search import Beam, Exhaustive
from lockstep.worlds.city_growth.world import CityGrowth

Heuristic = Callable[[CityGrowth, str], Action]
"""From the world as it stands and a role that is about to act, to its picks."""

HEURISTICS: dict[str, Heuristic] = {
    "random": Random(),
    "skip": Skip(),
    "greedy": Greedy(),
    "npv": Greedy(worth="npv"),
    "exhaustive": Exhaustive(),
    "beam": Beam(),
    "look-ahead": LookAhead(),
}
