"""A metric over a whole run at a glance, from a file that may be long and still growing."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

CELLS = 24
"""Points of the curve at most."""

_BLOCK, _TAIL = 1 << 16, 1 << 20


@dataclass(frozen=True, kw_only=True)
class Glimpse:
    """The course of a metric, mean over members."""

    points: tuple[float | None, ...] = ()
    """From the first update to the last; None where no number was finite."""
    last: float | None = None
    """At the last update that is there for every member; None if no number was finite."""
    update: int = 0
    """That update; 0 before the first."""


def glimpse(path: Path, key: str | None) -> Glimpse:
    """The course of `key` in a metrics file; nothing but zeros if there is no such file."""
    try:
        stat = path.stat()
        return _read(path, key or "", stat.st_size, stat.st_mtime_ns)
    except OSError:
        return Glimpse()


@lru_cache(maxsize=256)
def _read(path: Path, key: str, size: int, changed: int) -> Glimpse:
    """`changed` is there so that a file written since is read again."""
    del changed
    found: dict[int, list[float | None]] = {}
    for row in _rows(path, size):
        value = row.get(key)
        values = found.setdefault(int(row["update"] or 0), [])
        values.append(None if value is None else float(value))
    if not found:
        return Glimpse()
    members = max(map(len, found.values()))
    newest = max(update for update, values in found.items() if len(values) == members)
    first = min(found)
    width = max(max(found) - first + 1, CELLS)
    cells: dict[int, list[float | None]] = {}
    for update, values in found.items():
        cells.setdefault((update - first) * CELLS // width, []).extend(values)
    return Glimpse(
        points=tuple(_mean(cells.get(cell, [])) for cell in range(max(cells) + 1)),
        last=_mean(found[newest]),
        update=newest,
    )


def _rows(path: Path, size: int) -> Iterator[dict[str, float | None]]:
    """All lines of a short file; of a long one a block from the middle of each cell, and its end.

    A line that is cut by its block, still being written or damaged is left out: whoever reads the
    run for its numbers refuses such a file, a glance need not.
    """
    spans = [(0, size)]
    if size > CELLS * _BLOCK + _TAIL:
        before = size - _TAIL
        spans = [(before * (2 * i + 1) // (2 * CELLS), _BLOCK) for i in range(CELLS)]
        spans.append((before, _TAIL))
    with path.open("rb") as file:
        for start, length in spans:
            file.seek(start)
            lines = file.read(length).split(b"\n")[1 if start else 0 : -1]
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and "update" in row:
                    yield row


def _mean(values: list[float | None]) -> float | None:
    real = [value for value in values if value is not None]
    return statistics.fmean(real) if real else None
