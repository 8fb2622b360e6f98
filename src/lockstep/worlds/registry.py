"""From a world's name to its scenarios and, only when asked, to the world itself."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

from lockstep.errors import known

if TYPE_CHECKING:
    import torch

    from lockstep.core.actions import Action
    from lockstep.core.world import World

    Device = torch.device | str
    Heuristics = dict[str, Callable[[Any, str], Action]]
else:  # a scenario is looked up without importing torch, so nothing here may name its types
    World = Device = Heuristics = Any


@runtime_checkable
class WorldConfig(Protocol):
    """What every world's settings have in common.

    A class attribute `settable` may name the numbers that `world.set` takes: fields of the settings
    in which the members of a pack may differ.
    """

    name: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a world lives; paths are `module:attribute`."""

    config: str
    world: str
    scenarios: str
    heuristics: str
    summary: str
    learner: str = "ppo"
    """Name of the learner that is trained by default."""
    learner_settings: str = ""
    """Where learner settings that suit the world lie, as `{scenario: {setting: value}}`, if any."""


WORLDS: dict[str, Entry] = {
    "uav-mec": Entry(
        config="lockstep.worlds.uav_mec.config:UavMecConfig",
        world="lockstep.worlds.uav_mec.world:UavMec",
        scenarios="lockstep.worlds.uav_mec.config:SCENARIOS",
        heuristics="lockstep.worlds.uav_mec.heuristics:HEURISTICS",
        summary="Mobile users offload tasks to UAVs with edge servers; both learn.",
        learner="ab-mappo",
        learner_settings="lockstep.worlds.uav_mec.config:LEARNER_SETTINGS",
    ),
    "city-growth": Entry(
        config="lockstep.worlds.city_growth.config:CityConfig",
        world="lockstep.worlds.city_growth.world:CityGrowth",
        scenarios="lockstep.worlds.city_growth.catalogue:SCENARIOS",
        heuristics="lockstep.worlds.city_growth.heuristics:HEURISTICS",
        learner_settings="lockstep.worlds.city_growth.learning:LEARNER_SETTINGS",
        summary="Industry, education and council build a city from sets of candidates.",
    ),
}


def names() -> list[str]:
    """The worlds there are."""
    return list(WORLDS)


def summary(name: str) -> str:
    """What the world is about, in a line."""
    return _entry(name).summary


def scenarios(name: str) -> dict[str, Any]:
    """The world's settings by scenario name, the default first; imports no torch."""
    return cast(dict[str, Any], _load(_entry(name).scenarios))


def learner(name: str) -> str:
    """The learner that is trained in the world by default."""
    return _entry(name).learner


def learner_settings(name: str, scenario: str) -> dict[str, Any]:
    """Settings that suit a scenario, whichever learner has them; imports no torch."""
    path = _entry(name).learner_settings
    return cast(dict[str, Any], _load(path).get(scenario, {})) if path else {}


def heuristics(name: str) -> Heuristics:
    """The world's policies without learning: from the world and a role to that role's action."""
    return cast(Heuristics, _load(_entry(name).heuristics))


def build(
    config: WorldConfig, *, lanes: int, device: Device = "cpu", compile: bool = False
) -> World:
    """The world that `config` belongs to, imported now."""
    world = _load(_entry(config.name).world)
    return cast(World, world(config, lanes=lanes, device=device, compile=compile))


def _entry(name: str) -> Entry:
    return WORLDS[known("world", name, WORLDS)]


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
