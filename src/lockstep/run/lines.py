"""Files of one JSON object per line: written whole lines at a time, read back as columns."""

import json
import logging
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import NotARun
from lockstep.run.rundir import sync_folder, writing

log = logging.getLogger(__name__)

Number: TypeAlias = float | int  # both words: types are checked while tests run
Row: TypeAlias = dict[str, Number | None]
Columns: TypeAlias = dict[str, NDArray[np.generic]]
"""Column name to one entry per line; lines that lack a key hold NaN there."""

WHOLE = ("update", "step", "member", "seed")
"""The keys that count; they are whole numbers."""
TAIL_UPDATES = 20
"""The tail of a run: the last updates, whose mean is its result."""

_PLAIN = {float, int}


class Encoder:
    """Rows as JSON lines; floats are written by repr, so equal numbers, equal bytes.

    Rows with the keys of the one before share its key texts, a fifth off the time of `json.dumps`.
    A number that is not finite becomes null, which JSON can hold.
    """

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._template = "{}\n"

    def line(self, keys: tuple[str, ...], values: Iterable[Number]) -> str:
        """The line of one row, with its end."""
        if keys != self._keys:
            pairs = (json.dumps(key).replace("%", "%%") + ":%s" for key in keys)
            self._keys, self._template = keys, "{" + ",".join(pairs) + "}\n"
        return self._template % _texts(tuple(values))


def _texts(values: tuple[Number, ...]) -> tuple[str, ...]:
    if _PLAIN.issuperset(map(type, values)) and all(map(math.isfinite, values)):
        return tuple(map(repr, values))
    return tuple(json.dumps(x if math.isfinite(x) else None) for x in values)


class LineWriter:
    """Appends one JSON object per line.

    Opening cuts the file at `offset`: what a killed run wrote after its last checkpoint is made
    again. Without an offset only a last line that lacks its end is cut, so that the next one does
    not continue it.
    """

    def __init__(self, path: Path, *, offset: int | None = None) -> None:
        held = path.stat().st_size if path.exists() else 0
        if offset is not None and held < offset:
            raise NotARun(
                path.parent,
                f"{path.name} has {held} bytes and its checkpoint expects {offset}",
            )
        if offset is None:
            offset = _whole_lines(path) if held else 0
        self._path = path
        with writing(path):
            self._file = path.open("ab", buffering=0)
            self._file.truncate(offset)
            sync_folder(path.parent)
        self._length = offset
        self._pending: list[bytes] = []
        self._encoder = Encoder()

    def write(self, row: Mapping[str, Number]) -> None:
        """Adds a line."""
        self.add(self._encoder.line(tuple(row), row.values()).encode())

    def add(self, lines: bytes) -> None:
        """Adds lines that are encoded already."""
        self._pending.append(lines)

    def flush(self) -> None:
        """Hands the lines to the operating system, so that readers see them."""
        data = b"".join(self._pending)
        self._pending.clear()
        with writing(self._path):
            write_all(self._file, data)
        self._length += len(data)

    def sync(self) -> int:
        """Makes every line durable; the file's length in bytes."""
        self.flush()
        with writing(self._path):
            os.fsync(self._file.fileno())
        return self._length

    def close(self) -> None:
        """Writes what is left and closes the file."""
        try:
            self.flush()
        finally:
            self._file.close()


def write_all(file: IO[bytes], data: bytes) -> None:
    """Writes to an unbuffered file, which may take a part at a time.

    A buffered one would try again, when it is closed, what a full disk has refused before.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def read_lines(path: Path) -> list[Row]:
    """The lines of a metrics file; a last line without its end (a writer at work) is left out."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except ValueError as error:  # not JSON, or not even text
            raise NotARun(path.parent, f"line {number} of {path.name} is damaged") from error
        if not isinstance(row, dict):
            raise NotARun(path.parent, f"line {number} of {path.name} is damaged")
        rows.append(row)
    return rows


def offset_after(path: Path, *, update: int) -> int:
    """Bytes of the lines up to `update`, for a file whose length no checkpoint holds.

    Such a file holds nothing that a run needs to go on, so one that is damaged ends, with a word in
    the log, at the first line that cannot be read.
    """
    if not path.exists():
        return 0
    kept = 0
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            at = json.loads(line)["update"]
            if at > update:
                break
        except (ValueError, TypeError, KeyError):
            log.warning("line %d of %s is damaged; what follows it is cut off", number, path)
            break
        kept += len(line) + 1
    return kept


def columns(rows: Sequence[Mapping[str, Number | None]]) -> Columns:
    """Lines as columns; counters stay whole numbers where every line has them."""
    names = dict.fromkeys(name for row in rows for name in row)
    table: Columns = {}
    for name in names:
        found = [row.get(name) for row in rows]
        if name in WHOLE and None not in found:
            table[name] = np.array(found, dtype=np.int64)
        else:
            table[name] = np.array([math.nan if x is None else x for x in found], dtype=np.float64)
    return table


def by_member(table: Columns, name: str) -> NDArray[np.float64]:
    """Column `name` as `[P, updates]`; an update that not every member has yet is left out."""
    members = int(table["member"].max()) + 1 if table["member"].size else 0
    curves = [table[name][table["member"] == m].astype(np.float64) for m in range(members)]
    shared = min(map(len, curves), default=0)
    return np.array([curve[:shared] for curve in curves]).reshape(members, shared)


def _whole_lines(path: Path) -> int:
    """Length up to the end of the last line that has one."""
    return path.read_bytes().rfind(b"\n") + 1
