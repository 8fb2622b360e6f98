"""Flags from dataclasses, and the same manners for every verb; imports no torch."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import tyro

from lockstep.errors import BadInput
from lockstep.run.jsonable import Json

Flags = TypeVar("Flags")


def parse(kind: type[Flags], argv: Sequence[str], *, verb: str, description: str) -> Flags:
    """The flags of a verb; an unknown one is answered with the nearest, and exit code 2."""
    with bad_settings():
        parsed: Flags = tyro.cli(
            kind,
            prog=f"lockstep {verb}",
            description=description,
            args=list(argv),
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    return parsed


@contextmanager
def bad_settings() -> Iterator[None]:
    """Turns the ValueError of a config that refuses its values into bad input."""
    try:
        yield
    except ValueError as error:
        raise BadInput(str(error)) from error


def print_json(data: Json) -> None:
    """One JSON document on standard output, for programs."""
    print(json.dumps(data, indent=2, allow_nan=False))


def named_value(argv: Sequence[str], flag: str) -> str | None:
    """The value of `--flag VALUE` or `--flag=VALUE`, before the rest can be parsed."""
    value: str | None = None
    for here, following in zip(argv, [*argv[1:], None], strict=False):
        if here == flag:
            value = following
        elif here.startswith(f"{flag}="):
            value = here.removeprefix(f"{flag}=")
    return value
