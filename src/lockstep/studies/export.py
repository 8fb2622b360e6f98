"""Results for other programs: tables as CSV and Parquet, and the JSON that marl-eval reads."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from lockstep.errors import known
from lockstep.run.jsonable import Json
from lockstep.run.parquet import load as load_parquet
from lockstep.run.rundir import write_atomic, writing
from lockstep.studies.aggregate import Mark, Results

Format: TypeAlias = Literal["csv", "parquet", "marl-eval"]
FORMATS = ("csv", "parquet", "marl-eval")

RESULTS = ("figure", "metric", "panel", "series", "x", "seed", "value", "trial")
"""Columns of the results: a row for each point of a figure and each seed."""
CURVES = ("figure", "metric", "panel", "series", "seed", "step", "value")
"""Columns of the curves: a row for each update."""

Row: TypeAlias = tuple[str | float | int | None, ...]


def export(results: Results, root: Path, formats: Sequence[str]) -> list[Path]:
    """Writes `results` in each of `formats` into `root`/export; the files."""
    for name in formats:
        known("export format", name, FORMATS)
    files: dict[str, bytes] = {}
    if "csv" in formats:
        files["results.csv"] = _csv(RESULTS, result_rows(results))
        files["curves.csv"] = _csv(CURVES, curve_rows(results))
    if "parquet" in formats:
        files["results.parquet"] = _parquet(RESULTS, result_rows(results))
        files["curves.parquet"] = _parquet(CURVES, curve_rows(results))
    if "marl-eval" in formats:
        for figure in results.figures:
            told = marl_eval(results, figure)
            if told:
                content = json.dumps(told, allow_nan=False).encode()
                files[f"marl-eval/{figure}.json"] = content
    for name, content in files.items():
        with writing(root / "export"):
            (root / "export" / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(root / "export" / name, content, durable=False)
    return [root / "export" / name for name in files]


def result_rows(results: Results) -> Iterator[Row]:
    """The rows of `RESULTS`."""
    for figure, metric, mark in _marks(results):
        place = (figure, metric, mark.panel, mark.series, mark.x)
        for seed, value, trial in zip(mark.seeds, mark.values, mark.trials, strict=True):
            yield (*place, seed, value, trial)


def curve_rows(results: Results) -> Iterator[Row]:
    """The rows of `CURVES`, of figures that show curves; an update without a number has none."""
    for figure, metric, mark in _marks(results):
        if results.study.figure(figure).kind != "curves":
            continue
        for seed, curve in zip(mark.seeds, mark.curves, strict=True):
            for step, value in zip(mark.steps.tolist(), curve.tolist(), strict=True):
                told = None if np.isnan(value) else value
                yield figure, metric, mark.panel, mark.series, seed, step, told


def marl_eval(results: Results, figure: str) -> Json:
    """A figure as marl-eval reads it: environment, task, algorithm, run, step.

    The environment is the figure, a task each value of x, an algorithm each series, a run each
    seed. Steps hold the updates, `absolute_metrics` the mean over the last of them. Names are in
    lower case, since marl-eval looks them up so. Tasks that lack an algorithm or a number are left
    out: it takes every task to have the same runs and steps.
    """
    tasks: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    metrics = results.figures[figure]
    every = {mark.series for marks in metrics.values() for mark in marks}
    for metric, marks in metrics.items():
        for mark in marks:
            if np.isnan(mark.curves).any():
                continue
            runs = tasks.setdefault(_task(mark), {}).setdefault(mark.series, {})
            for seed, value, curve in zip(mark.seeds, mark.values, mark.curves, strict=True):
                run = runs.setdefault(f"seed_{seed}", _empty_run(mark))
                name = metric.partition("/")[2]
                for index, number in enumerate(curve.tolist()):
                    run[f"step_{index}"][name] = [number]
                run["absolute_metrics"][name] = [value]
    whole = {
        task: series
        for task, series in tasks.items()
        if set(series) == every and all(_has_all(runs, len(metrics)) for runs in series.values())
    }
    return {f"{results.study.name}/{figure}".lower(): whole} if whole else {}


def _empty_run(mark: Mark) -> dict[str, Any]:
    """The steps of a run, and its absolute metrics last, where they are looked for."""
    steps = {f"step_{i}": {"step_count": step} for i, step in enumerate(mark.steps.tolist())}
    return steps | {"absolute_metrics": {}}


def _has_all(runs: dict[str, dict[str, Any]], metrics: int) -> bool:
    return all(len(run["absolute_metrics"]) == metrics for run in runs.values())


def _task(mark: Mark) -> str:
    x = "" if mark.x is None else f"x={mark.x:g}"
    return (" ".join(filter(None, (mark.panel, x))) or "all").lower()


def _marks(results: Results) -> Iterator[tuple[str, str, Mark]]:
    for figure, metrics in results.figures.items():
        for metric, marks in metrics.items():
            for mark in marks:
                yield figure, metric, mark


def _csv(columns: Sequence[str], rows: Iterator[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(columns: Sequence[str], rows: Iterator[Row]) -> bytes:
    arrow, parquet = load_parquet()
    table = list(rows)
    content = {name: [row[i] for row in table] for i, name in enumerate(columns)}
    kinds = {"seed": arrow.int64(), "step": arrow.int64(), "x": arrow.float64()}
    kinds["value"] = arrow.float64()
    schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in columns])
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(content, schema=schema), sink)
    return bytes(sink.getvalue().to_pybytes())
