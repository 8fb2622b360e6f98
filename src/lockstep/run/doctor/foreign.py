"""Logs that others wrote: a CSV, lines of JSON, TensorBoard events; SB3's and CleanRL's names."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from lockstep.errors import BadInput, needs_extra
from lockstep.run.doctor.aliases import MADE, POLICY, RETURN, foreign_names
from lockstep.run.doctor.log import ROLE, Array, Facts, Flags, Log, score_start
from lockstep.run.doctor.rules import RULES

COUNTERS = ("step", MADE, "episode/finished")
"""Columns of which an update keeps the last number, not the mean."""

Points = dict[float, float]
"""Position (a row, or an environment step) to what was logged there."""


def read_csv(path: Path) -> Log:
    """A table with a header line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read as CSV: {error}") from error
    return from_rows(str(path), [{k: _number(v) for k, v in row.items() if k} for row in rows])


def read_jsonl(path: Path) -> Log:
    """One JSON object a line; a last line without its end (a writer at work) is left out."""
    rows = []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise BadInput(f"line {number} of {path} is no JSON") from error
        if not isinstance(row, dict):
            raise BadInput(f"line {number} of {path} must be a JSON object, got {row!r:.40}")
        rows.append({key: _number(value) for key, value in row.items()})
    return from_rows(str(path), rows)


def read_events(path: Path) -> Log:
    """The scalars of one TensorBoard run, a folder or an events file."""
    with needs_extra("board"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    series = {
        tag: {float(point.step): float(point.value) for point in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }
    if series and "global_step" not in series:
        steps = sorted(set(chain.from_iterable(series.values())))
        series["global_step"] = {step: step for step in steps}
    return _log(str(path), series)


def from_rows(source: str, rows: Sequence[Mapping[str, float | None]]) -> Log:
    """A log of one learner from its rows; None is an entry that was left empty."""
    series: dict[str, Points] = {}
    for position, row in enumerate(rows):
        for name, value in row.items():
            points = series.setdefault(name, {})
            if value is not None:
                points[float(position)] = value
    return _log(source, series)


def _log(source: str, series: Mapping[str, Points]) -> Log:
    named: dict[str, Points] = {}
    known = ours(series)
    for name, (key, factor) in known.items():
        if series[name] and key not in named:
            named[key] = {at: value * factor for at, value in series[name].items()}
    unknown = tuple(n for n in series if n not in known and n not in foreign_names())
    telling = [key for key in named if key not in COUNTERS]
    if not telling:
        shown = ", ".join(unknown[:8]) or "none"
        raise BadInput(
            f"{source} has no column that the doctor knows (its columns: {shown}); it reads the "
            "names of SB3, CleanRL and Lockstep, such as train/approx_kl or losses/entropy"
        )
    axis = _axis(named, telling)
    aligned = {key: _aligned(points, axis, key) for key, points in named.items()}
    columns = {k: x for k, (x, _) in aligned.items() if not k.startswith(("perf/", "res/"))}
    score = RETURN if RETURN in columns else None
    return Log(
        source=source,
        update=np.arange(1.0, len(axis) + 1),
        columns={key: x[None] for key, x in columns.items()},
        broken={key: aligned[key][1][None] for key in columns},
        perf={k: x for k, (x, _) in aligned.items() if k not in columns},
        score=score,
        score_start=score_start({key: x[None] for key, x in columns.items()}, score),
        facts=Facts(updates=len(axis)),
        unknown=unknown,
    )


def ours(names: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Column to our key and the factor to it, for every column that a rule can read.

    A log in which all names are ours is ours, whatever one of them (`train/value_loss`) means
    elsewhere. Events of ours have both: a number for each role, and for others the mean over them.
    Where the roles' own are there, the mean adds nothing; where there is one role, it is its.
    """
    given = dict.fromkeys(names)
    own = {name for name in given if _OWN.fullmatch(name)}
    theirs = {name: foreign_names()[name] for name in given if name in foreign_names()}
    if own and own.issuperset(theirs):
        theirs = {}
    parts = [name.split("/") for name in own if name not in theirs]
    roles = {part[1] for part in parts if part[0] == "train" and len(part) == 3}
    found: dict[str, tuple[str, float]] = {}
    for name in given:
        if name not in theirs:
            if name in own:
                found[name] = (name, 1.0)
            continue
        key, factor = theirs[name].ours, theirs[name].factor
        if key.startswith(f"train/{POLICY}/"):
            of_roles = [key.replace(POLICY, role, 1) for role in roles]
            if not given.keys().isdisjoint(of_roles):
                continue
            key = of_roles[0] if len(of_roles) == 1 else key
        found[name] = (key, factor)
    return found


def _own_keys(keys: Iterable[str]) -> re.Pattern[str]:
    """What the rules read, under the names they have in a run of ours."""
    forms = (re.escape(k).replace(re.escape(ROLE), "[^/]+").replace(r"\*", ".+") for k in keys)
    return re.compile("|".join(forms))


_ANY = {"score", "train/*"}
"""What stands for whatever is there, and so says nothing about a column."""
_OWN = _own_keys({key for rule in RULES for key in (*rule.needs, *rule.also)} - _ANY)


def _axis(named: Mapping[str, Points], telling: Sequence[str]) -> Array:
    """Where updates are: the positions of the training number that was logged most often."""
    train = [key for key in telling if key.startswith("train/")] or telling
    longest = max(train, key=lambda key: len(named[key]))
    return np.array(sorted(named[longest]))


def _aligned(points: Points, axis: Array, key: str) -> tuple[Array, Flags]:
    """A number for each update from what was logged since the one before, and where it broke.

    Episodes end between updates and are logged when they do, so their mean belongs to the next.
    """
    at = np.array(sorted(points))
    value = np.array([points[position] for position in at])
    bins = np.searchsorted(axis, at, side="left")
    inside = bins < len(axis)
    bins, value = bins[inside], value[inside]
    finite = np.isfinite(value)
    broken = np.zeros(len(axis), dtype=np.bool_)
    broken[bins[~finite]] = True
    column = np.full(len(axis), np.nan)
    if key in COUNTERS:
        column[bins[finite]] = value[finite]
        return column, broken
    count = np.bincount(bins[finite], minlength=len(axis))
    total = np.bincount(bins[finite], weights=value[finite], minlength=len(axis))
    column[count > 0] = total[count > 0] / count[count > 0]
    return column, broken


def _number(value: object) -> float | None:
    """The number of a cell; None for an empty one and for what is no number."""
    if isinstance(value, bool | int | float):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None
