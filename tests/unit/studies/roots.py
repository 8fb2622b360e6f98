"""Roots of studies for tests: trained in a second, or filed with numbers that a test chooses."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from lockstep.run import loop
from lockstep.run.code import present_code
from lockstep.run.config import TrainConfig
from lockstep.run.rundir import write_atomic, write_json
from lockstep.studies import store
from lockstep.studies.packing import packs
from lockstep.studies.study import Figure, Study, Trial, sweep
from tests import tiny

ENERGY, JAIN = "world/weighted_energy_mu_avg", "world/jain_fairness"
Values = Callable[[Trial, str], Sequence[float | int | None]]
"""From a trial and a metric to its curve."""


def tiny_config(updates: int = 3, **world: float) -> TrainConfig:
    base = tiny.config(updates, seeds=(0,))
    return replace(base, world=replace(base.world, **world))


def tiny_study(name: str = "tiny", *, seeds: Sequence[int] = (1, 2), updates: int = 3) -> Study:
    """Four kinds of figures: eight points, of which the bars at 50 MHz coincide with the curves."""
    series = {"K=10": tiny_config(updates, n_users=5), "K=4": tiny_config(updates)}
    courses = sweep("courses", series, seeds=seeds)
    band = sweep("band", series, seeds=seeds, axis="world.bandwidth_mhz", values=(30.0, 50.0))
    clock = sweep(
        "clock", {"K=4": tiny_config(updates)}, seeds=seeds, axis="world.f_max_loc_ghz",
        values=(0.5, 2.0), panel="MU CPU",
    )  # fmt: skip
    return Study(
        name=name,
        figures=(
            figure("courses", "curves", courses, (ENERGY, JAIN)),
            figure("band", "bars", band, (ENERGY,)),
            figure("clock", "lines", clock, (ENERGY,)),
            figure("flights", "flights", courses[1:], ()),
        ),
    )


def figure(name: str, kind: str, points: tuple, metrics: tuple[str, ...]) -> Figure:
    labels = {"x_label": "x (unit)", "y_label": "y (unit)"}
    title = f"The {name}"
    return Figure(name=name, title=title, kind=kind, metrics=metrics, points=points, **labels)


def train(study: Study, root: Path) -> Path:
    """Trains every trial of the study in packs, and files them."""
    store.write_study(root, study)
    for pack in packs(study.distinct().values()):
        run = loop.train(pack.config, store.runs_in(root) / pack.name)
        store.file_pack(root, pack.name, run)
    return root


def fill(study: Study, root: Path, values: Values, trials: Iterable[Trial] | None = None) -> Path:
    """Files a result of every trial, or of `trials`, with the curves that `values` gives."""
    store.write_study(root, study)
    metrics: dict[str, dict[str, None]] = {}
    for shown in study.figures:
        for trial in shown.trials():
            metrics.setdefault(trial.hash, {}).update(dict.fromkeys(shown.metrics))
    for trial in study.distinct().values() if trials is None else trials:
        file(trial, root, {name: list(values(trial, name)) for name in metrics[trial.hash]})
    return root


def file(trial: Trial, root: Path, curves: dict[str, store.Curve], code: str = "") -> None:
    """Files the result of one trial, as `store.file_pack` does."""
    code = code or present_code(trial.config.world)
    id = store.trial_id(trial.config, code)
    updates = len(next(iter(curves.values()), []))
    tail = {name: store.mean_of_tail(curve, 20) for name, curve in curves.items()}
    summary = store.Summary(
        id=id, config=trial.config, code_version=code, tail=tail, tail_updates=min(20, updates),
        updates=updates, pack="pack", member=0, members=1, seconds=1.0,
    )  # fmt: skip
    folder = store.trials_in(root) / id
    folder.mkdir(parents=True, exist_ok=True)
    told = {"format": store.FORMAT, "id": id, "curves": curves}
    write_atomic(folder / store.CURVES, json.dumps(told).encode(), durable=False)
    write_json(folder / store.SUMMARY, summary.to_json(), durable=False)


def constant(level: Callable[[Trial, str], float]) -> Values:
    """Curves that stand at one level from beginning to end."""
    return lambda trial, metric: [level(trial, metric)] * trial.config.updates
