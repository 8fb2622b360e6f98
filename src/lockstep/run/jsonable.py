"""Dataclasses to JSON and back, so that what is written loads back equal; imports no torch."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

Json: TypeAlias = Any
"""What `json.dumps` takes: None, bool, int, float, str, and lists and dicts of these."""


def encode(value: object) -> Json:
    """`value` as JSON; dataclasses become dicts of their fields, tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a setting of type {type(value).__name__} cannot be written as JSON")


def finite(value: Json) -> Json:
    """`value` with null for every number that is not finite, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def decode(kind: Any, value: Json, where: str = "config") -> Any:
    """The value of type `kind` that `encode` wrote as `value`; ValueError names the place."""
    origin, options = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return decode(options[0], value, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, value, where)
    if origin in (Union, types.UnionType):
        return _decode_union(options, value, where)
    if origin is Literal:
        if not any(value == option and type(value) is type(option) for option in options):
            raise ValueError(f"{where} must be one of {', '.join(map(str, options))}, got {value}")
        return value
    if origin in (tuple, list):
        return _decode_sequence(origin, options, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be a table, got {value!r}")
        return {key: decode(options[1], item, f"{where}.{key}") for key, item in value.items()}
    return _decode_scalar(kind, value, where)


def _decode_dataclass(kind: type, value: Json, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table, got {value!r}")
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [f.name for f in dataclasses.fields(kind) if f.init]
    unknown = sorted(set(value) - set(names))
    missing = sorted(set(names) - set(value))
    if unknown:
        raise ValueError(f"{where} has unknown settings: {', '.join(unknown)}")
    if missing:
        raise ValueError(f"{where} lacks the settings: {', '.join(missing)}")
    return kind(**{name: decode(hints[name], value[name], f"{where}.{name}") for name in names})


def _decode_union(options: tuple[Any, ...], value: Json, where: str) -> Any:
    problems = []
    for option in options:
        try:
            return decode(option, value, where)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; or ".join(problems))


def _decode_sequence(origin: Any, options: tuple[Any, ...], value: Json, where: str) -> Any:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {value!r}")
    if origin is list or options[-1] is Ellipsis:
        kinds = [options[0]] * len(value)
    elif len(options) == len(value):
        kinds = list(options)
    else:
        raise ValueError(f"{where} must have {len(options)} entries, got {len(value)}")
    items = zip(kinds, value, strict=True)
    return origin(decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(items))


def _decode_scalar(kind: Any, value: Json, where: str) -> Any:
    if kind in (None, type(None)):
        if value is None:
            return None
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif kind in (bool, int, str):
        if type(value) is kind:
            return value
    else:
        raise TypeError(f"{where} has type {kind}, which JSON cannot hold")
    name = "null" if kind in (None, type(None)) else kind.__name__
    raise ValueError(f"{where} must be of type {name}, got {value!r}")
