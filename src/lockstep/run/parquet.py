"""The newest metrics as a Parquet file: one row for each member, replaced whole."""

import time
from pathlib import Path
from typing import Any

from lockstep.errors import needs_extra
from lockstep.run.rundir import write_atomic, writing
from lockstep.run.sinks import Record


class Latest:
    """Keeps `path` at the newest record, replaced at most once in `every` seconds."""

    def __init__(self, path: Path, *, every: float = 1.0) -> None:
        self._arrow, self._parquet = load()
        self._path, self._every = path, every
        self._pending: Record | None = None
        self._next = 0.0
        with writing(path.parent):
            path.parent.mkdir(exist_ok=True)

    def offer(self, record: Record) -> None:
        """Takes the newest record; it is written now or when it is due."""
        self._pending = record
        self.write_if_due()

    @property
    def wait(self) -> float | None:
        """Seconds until something is to be written; None if nothing is."""
        return None if self._pending is None else max(0.0, self._next - time.monotonic())

    def write_if_due(self) -> None:
        """Writes the newest record unless the last one was written a moment ago."""
        if self.wait == 0.0:
            self.write()

    def write(self) -> None:
        """Writes the newest record now, if it is not yet there."""
        record, self._pending = self._pending, None
        if record is None:
            return
        members = len(record.seeds)
        columns = {
            "update": [record.update] * members,
            "step": [record.step] * members,
            "member": list(range(members)),
            "seed": list(record.seeds),
            **{key: list(map(float, values)) for key, values in record.metrics.items()},
            **{key: [float(value)] * members for key, value in record.perf.items()},
        }
        sink = self._arrow.BufferOutputStream()
        self._parquet.write_table(self._arrow.table(columns), sink)
        write_atomic(self._path, sink.getvalue().to_pybytes())
        self._next = time.monotonic() + self._every


def load() -> tuple[Any, Any]:
    """Arrow and its Parquet writer; MissingExtra where they are not installed."""
    with needs_extra("study"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
