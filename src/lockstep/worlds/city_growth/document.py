"""A scenario as one document: TOML text, or any table of names and values; no torch, no files."""

import dataclasses
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.config import CityConfig

BASE = "base"
"""Key of the document that names the scenario it starts from."""


def load_scenario(text: str) -> CityConfig:
    """The scenario that TOML `text` describes; ValueError names what is wrong and where."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the scenario must be TOML: {error}") from error
    return scenario_of(table)


def scenario_of(table: Any) -> CityConfig:
    """The scenario of a parsed document (TOML or JSON); ValueError names what is wrong and where.

    `base` names the scenario whose settings hold where the document says nothing; by default it is
    the first of the catalogue. A table changes the settings it names, a list replaces the whole
    list.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"the scenario must be a table, got {table!r}")
    rest = dict(table)
    name = rest.pop(BASE, next(iter(SCENARIOS)))
    if not isinstance(name, str) or name not in SCENARIOS:
        hint = _hint(str(name), SCENARIOS)
        raise ValueError(f"{BASE} must name a scenario, got {name!r}; {hint}")
    scenario = _changed(SCENARIOS[name], rest, "")
    assert isinstance(scenario, CityConfig)
    return scenario


def dump_scenario(config: CityConfig) -> str:
    """The whole scenario as TOML; `load_scenario` gives back an equal one."""
    return "\n".join(_lines(config, ())) + "\n"


def _changed(value: Any, table: Any, where: str) -> Any:
    """A dataclass with the settings of `table` put in place of its own."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{where or 'the scenario'} must be a table, got {table!r}")
    hints = typing.get_type_hints(type(value))
    _check_names(table, [f.name for f in dataclasses.fields(value)], where)
    given = {}
    for key, item in table.items():
        old, place = getattr(value, key), f"{where}.{key}".lstrip(".")
        nested = dataclasses.is_dataclass(old)
        given[key] = _changed(old, item, place) if nested else _read(hints[key], item, place)
    return _built(lambda: dataclasses.replace(value, **given), where)


def _read(kind: Any, item: Any, where: str) -> Any:
    """The value of type `kind` that the document gives."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _made(kind, item, where)
    if get_origin(kind) is tuple:
        return _read_list(get_args(kind), item, where)
    if get_origin(kind) is Literal:
        if item not in get_args(kind):
            names = [str(option) for option in get_args(kind)]
            raise ValueError(f"{where} must be one of {', '.join(names)}, got {item!r}")
        return item
    if kind is float and isinstance(item, int | float) and not isinstance(item, bool):
        return float(item)
    if type(item) is not kind:
        raise ValueError(f"{where} must be of type {kind.__name__}, got {item!r}")
    return item


def _read_list(kinds: tuple[Any, ...], item: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(item, Sequence) or isinstance(item, str):
        raise ValueError(f"{where} must be a list, got {item!r}")
    if kinds[-1] is not Ellipsis and len(kinds) != len(item):
        raise ValueError(f"{where} must have {len(kinds)} entries, got {len(item)}")
    each = [kinds[0]] * len(item) if kinds[-1] is Ellipsis else list(kinds)
    pairs = zip(each, item, strict=True)
    return tuple(_read(kind, x, f"{where}[{i}]") for i, (kind, x) in enumerate(pairs))


def _made(kind: type, item: Any, where: str) -> Any:
    """A new dataclass from a table; settings that it does not name keep their defaults."""
    if not isinstance(item, Mapping):
        raise ValueError(f"{where} must be a table, got {item!r}")
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    _check_names(item, [f.name for f in fields], where)
    for field in fields:
        optional = {field.default, field.default_factory} != {dataclasses.MISSING}
        if not optional and field.name not in item:
            raise ValueError(f"{where} must name {field.name}, which has no default")
    given = {key: _read(hints[key], x, f"{where}.{key}") for key, x in item.items()}
    return _built(lambda: kind(**given), where)


def _built(make: Callable[[], Any], where: str) -> Any:
    """What `make` gives; a setting that it refuses is named with its place."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from error


def _check_names(table: Mapping[str, Any], names: list[str], where: str) -> None:
    for key in table:
        if key not in names:
            place = f" of {where}" if where else ""
            raise ValueError(f"there is no setting {key!r}{place}; {_hint(key, names)}")


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"


def _lines(value: Any, path: tuple[str, ...]) -> list[str]:
    """TOML of a dataclass: plain settings first, then a table for each nested one."""
    plain, tables = [], []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if dataclasses.is_dataclass(item):
            tables += ["", f"[{'.'.join((*path, field.name))}]"]
            tables += _lines(item, (*path, field.name))
        else:
            plain.append(f"{field.name} = {_toml(item)}")
    return plain + tables


def _toml(item: Any) -> str:
    if dataclasses.is_dataclass(item):
        pairs = [f"{f.name} = {_toml(getattr(item, f.name))}" for f in dataclasses.fields(item)]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(item, tuple):
        return "[" + ", ".join(_toml(x) for x in item) + "]"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        escaped = item.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(item)
