"""Metric keys with their meaning, and the files that hold them line by line."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lockstep.core.world import WorldSpec
from lockstep.errors import NotARun
from lockstep.run.rundir import sync_folder

Columns: TypeAlias = dict[str, NDArray[np.generic]]
"""Column name to one entry per line; lines that lack a key hold NaN there."""

TAIL_UPDATES = 20
"""The tail of a run: the last updates, whose mean is its result."""

FormOf = Literal["mean", "sum", "last", "max"]


@dataclass(frozen=True, kw_only=True)
class MetricKey:
    """What stands under a key, its unit, and how an update's samples become one number."""

    key: str
    unit: str
    reduction: FormOf
    meaning: str


COUNTERS = (
    MetricKey(key="update", unit="1", reduction="last", meaning="updates made so far"),
    MetricKey(key="step", unit="1", reduction="last", meaning="environment steps of the member"),
    MetricKey(key="member", unit="1", reduction="last", meaning="position in the pack"),
    MetricKey(key="seed", unit="1", reduction="last", meaning="the member's seed"),
)

TRAIN = (
    MetricKey(
        key="train/<role>/policy_loss", unit="1", reduction="mean", meaning="clipped surrogate"
    ),
    MetricKey(
        key="train/<role>/entropy", unit="nat", reduction="mean", meaning="entropy of a decision"
    ),
    MetricKey(
        key="train/<role>/approx_kl",
        unit="nat",
        reduction="mean",
        meaning="KL from the acting policy, estimator k3",
    ),
    MetricKey(
        key="train/<role>/clip_fraction",
        unit="1",
        reduction="mean",
        meaning="share of samples whose ratio left the clip range",
    ),
    MetricKey(
        key="train/<role>/grad_norm",
        unit="1",
        reduction="mean",
        meaning="gradient norm of the policy before clipping",
    ),
    MetricKey(
        key="train/value_loss",
        unit="1",
        reduction="mean",
        meaning="half the critic's squared error",
    ),
    MetricKey(
        key="train/critic/grad_norm",
        unit="1",
        reduction="mean",
        meaning="gradient norm of the critic before clipping",
    ),
    MetricKey(
        key="train/<role>/explained_variance",
        unit="1",
        reduction="mean",
        meaning="share of the returns' variance that the values explain",
    ),
    MetricKey(
        key="train/max_kl",
        unit="nat",
        reduction="max",
        meaning="largest KL (k3) of any minibatch and role, those that were stopped included",
    ),
    MetricKey(
        key="train/minibatches",
        unit="1",
        reduction="sum",
        meaning="minibatches the member took part in before a KL stop",
    ),
)

AUDIT = (
    MetricKey(
        key="audit/<role>/log_prob_gap",
        unit="nat",
        reduction="max",
        meaning="largest difference of a log-probability when it is rebuilt",
    ),
    MetricKey(
        key="audit/<role>/entropy_gap",
        unit="nat",
        reduction="max",
        meaning="the same of an entropy",
    ),
    MetricKey(
        key="audit/<role>/value_gap", unit="1", reduction="max", meaning="the same of a value"
    ),
    MetricKey(
        key="audit/first/<role>/approx_kl",
        unit="nat",
        reduction="mean",
        meaning="KL seen by the loss before the first step: nothing",
    ),
    MetricKey(
        key="audit/first/<role>/clip_fraction",
        unit="1",
        reduction="mean",
        meaning="clip fraction seen by the loss before the first step: nothing",
    ),
)

PERF = (
    MetricKey(key="perf/update_s", unit="s", reduction="sum", meaning="wall time of the update"),
    MetricKey(
        key="perf/collect_s",
        unit="s",
        reduction="sum",
        meaning="of which collecting; on the CPU only, where nothing runs ahead",
    ),
    MetricKey(
        key="perf/steps_per_s",
        unit="1/s",
        reduction="mean",
        meaning="environment steps of all members per second of wall time",
    ),
)


def world_keys(spec: WorldSpec) -> tuple[MetricKey, ...]:
    """The keys under which a world's own numbers are written: the mean over steps and lanes."""
    return tuple(
        MetricKey(key=f"world/{m.name}", unit=m.unit, reduction="mean", meaning=m.meaning)
        for m in spec.metrics
    )


def markdown_table(keys: Sequence[MetricKey]) -> str:
    """The table of the documentation."""
    rows = [f"| `{k.key}` | {k.unit} | {k.reduction} | {k.meaning} |" for k in keys]
    return "\n".join(["| key | unit | over an update | meaning |", "|---|---|---|---|", *rows])


def per_member(metrics: Mapping[str, Tensor], *, members: int) -> dict[str, Tensor]:
    """World metrics `[T, L]` as one number for each member: `world/<name>` to `[P]`.

    Sums are taken in float64, so that the bytes written do not hang on the order of addition.
    """
    return {
        f"world/{name}": x.double().reshape(len(x), members, -1).mean(dim=(0, 2))
        for name, x in metrics.items()
    }


class LineWriter:
    """Appends one JSON object per line; floats are written by repr, so equal numbers, equal bytes.

    Opening cuts the file at `offset`: what a killed run wrote after its last checkpoint is made
    again.
    """

    def __init__(self, path: Path, *, offset: int | None = None) -> None:
        if offset is not None and path.exists() and path.stat().st_size < offset:
            raise NotARun(
                path.parent,
                f"{path.name} has {path.stat().st_size} bytes and its checkpoint expects {offset}",
            )
        self._file: IO[bytes] = path.open("ab")
        if offset is not None:
            self._file.truncate(offset)
            self._file.seek(offset)
        sync_folder(path.parent)

    def write(self, row: Mapping[str, float | int]) -> None:
        """Adds a line; a number that is not finite becomes null, which JSON can hold."""
        finite = {k: v if math.isfinite(v) else None for k, v in row.items()}
        self._file.write(json.dumps(finite, separators=(",", ":")).encode() + b"\n")

    def flush(self) -> None:
        """Hands the lines to the operating system, so that readers see them."""
        self._file.flush()

    def sync(self) -> int:
        """Makes every line durable; the file's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, float | int | None]]:
    """The lines of a metrics file; a last line without its end (a writer at work) is left out."""
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise NotARun(path.parent, f"line {number} of {path.name} is damaged") from error
    return rows


def columns(rows: Sequence[Mapping[str, float | int | None]]) -> Columns:
    """Lines as columns; counters stay whole numbers."""
    names = dict.fromkeys(name for row in rows for name in row)
    whole = {key.key for key in COUNTERS}
    return {
        name: np.array([row[name] for row in rows], dtype=np.int64)
        if name in whole
        else np.array(
            [math.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64
        )
        for name in names
    }


def by_member(table: Columns, name: str) -> NDArray[np.float64]:
    """Column `name` as `[P, updates]`."""
    members = int(table["member"].max()) + 1 if table["member"].size else 0
    return np.stack([table[name][table["member"] == m].astype(np.float64) for m in range(members)])
