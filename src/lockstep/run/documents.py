"""A world's scenario from a file, for worlds that read one: TOML or JSON."""

import importlib
import json
import tomllib
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.worlds import registry as worlds
from lockstep.worlds.registry import WorldConfig

SUFFIXES = (".toml", ".json")


def is_document(scenario: str) -> bool:
    """Whether a scenario is asked for by a file rather than by its name."""
    return scenario.endswith(SUFFIXES)


def read_scenario(world: str, path: Path | str) -> WorldConfig:
    """The scenario in a file, as the world's `document` module understands it.

    That module lies beside the world's config; its `scenario_of` makes a scenario of a parsed
    document and raises ValueError where it cannot.
    """
    table = worlds.scenarios(world)
    name = f"{type(next(iter(table.values()))).__module__.rpartition('.')[0]}.document"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise BadInput(
            f"{world} reads no scenario from a file, got {path}; name one of {', '.join(table)}"
        ) from error
    try:
        found: WorldConfig = module.scenario_of(_parsed(Path(path)))
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from error
    return found


def _parsed(path: Path) -> Any:
    """What the file holds; ValueError if it is not what its name says."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the scenario {path} cannot be read: {error}") from error
    try:
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except RecursionError as error:
        raise BadInput(f"the scenario {path} is nested too deeply to be read") from error
