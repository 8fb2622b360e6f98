"""Rows of a measurement, each in a process of its own with a time limit, kept as they are made.

A row that is cut, fails or hangs loses nothing but itself: the file holds every finished row, and
who starts again measures the others alone. What is not timed may run side by side beforehand.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LAST_WORDS = 3000  # characters of a failed row's complaint that are kept


@dataclass(frozen=True, kw_only=True)
class Job:
    """One row: what to call it, how long it may take, and when all must be over."""

    name: str
    limit_s: float
    until: float = math.inf
    """On the monotonic clock."""
    flags: tuple[str, ...] = ()
    """What else its process is told."""


class Book:
    """The rows measured so far, by name, in a file that is replaced whole."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            rows = json.loads(path.read_text())["rows"]
            if any("row" not in row for row in rows):
                raise SystemExit(f"{path} has rows without names, of an earlier form; use another")
            self.rows = {row["row"]: row for row in rows}
        self._about = about

    def has(self, name: str) -> bool:
        """Whether the row is there and was no failure."""
        return name in self.rows and "error" not in self.rows[name]

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Keeps a row, in place of an earlier one of that name."""
        self.rows[name] = {"row": name, **row}
        fresh = self._path.with_suffix(".part")
        fresh.write_text(json.dumps({**self._about, "rows": list(self.rows.values())}, indent=1))
        fresh.replace(self._path)


def made(job: Job, module: str) -> dict[str, Any]:
    """The row that `python -m module --one NAME --into FILE` writes, or an `error`.

    Of a process that is cut or fails the last thing it wrote counts, if it wrote anything.
    """
    limit_s = min(job.limit_s, job.until - time.monotonic())
    if limit_s <= 0:
        return {"error": "the time for all rows was over before this one began"}
    with tempfile.TemporaryDirectory() as folder:
        into, log = Path(folder) / "row.json", Path(folder) / "log"
        command = [sys.executable, "-m", module, "--one", job.name, "--into", str(into), *job.flags]
        begun = time.monotonic()
        with log.open("wb") as out:
            # A group of its own, so that a compiler's workers end with it.
            child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, process_group=0)
            try:
                code: int | None = child.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(child)
        wall_s = round(time.monotonic() - begun, 1)
        if into.exists():
            row: dict[str, Any] = json.loads(into.read_text())
            return row | {"process_s": wall_s}
        said = log.read_text(errors="replace")[-_LAST_WORDS:]
    how = f"no result within {limit_s:.0f} s" if code is None else f"exit code {code}"
    return {"error": f"{how}: {said}", "process_s": wall_s}


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        child.wait()


def write_row(path: Path, row: dict[str, Any]) -> None:
    """What a row's process leaves to the one that started it; whole or not at all."""
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(row))
    fresh.replace(path)


def side_by_side(
    jobs: Sequence[Job], module: str, *, at_once: int, heard: Callable[[Job, dict[str, Any]], None]
) -> None:
    """Makes jobs whose time does not matter, `at_once` of them at a time, the first ones first."""
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        waiting = {pool.submit(made, job, module): job for job in jobs}
        for done in as_completed(waiting):
            heard(waiting[done], done.result())
