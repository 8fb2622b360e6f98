"""A run as it lies on disk: folder, configuration, metrics table, summary."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.core.world import WorldSpec
from lockstep.errors import BadInput, NotARun
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json
from lockstep.run.lines import TAIL_UPDATES, Columns, by_member, columns, read_lines
from lockstep.run.rundir import RunDir, open_run, read_json

_SIGN = {"lower": 1, "higher": -1}


@dataclass(frozen=True)
class Run:
    """A training run: finished, stopped or still going. Reading it changes nothing."""

    folder: Path

    @classmethod
    def open(cls, folder: Path | str) -> "Run":
        """The run in `folder`; NotARun if there is none that can be read."""
        run = cls(open_run(Path(folder)).folder)
        _ = run.config
        return run

    @property
    def dir(self) -> RunDir:
        """Where its files lie."""
        return RunDir(self.folder)

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.dir.finished

    @cached_property
    def config(self) -> TrainConfig:
        """The configuration it was started with."""
        data = read_json(self.dir.config)
        try:
            return TrainConfig.from_json(data)
        except (ValueError, BadInput) as error:
            raise NotARun(self.folder, f"config.json does not fit this version: {error}") from error

    @cached_property
    def manifest(self) -> Json:
        """What it was made with."""
        return read_json(self.dir.manifest)

    @property
    def metrics(self) -> Columns:
        """The metrics table so far: column name to one entry per update and member."""
        return columns(read_lines(self.dir.metrics) if self.dir.metrics.exists() else [])

    @property
    def summary(self) -> Json:
        """Its result; NotARun as long as it has not finished."""
        if not self.finished:
            raise NotARun(
                self.folder,
                f"it has no summary yet; finish it with `lockstep resume {self.folder}`",
            )
        return read_json(self.dir.summary)

    @property
    def objective(self) -> str:
        """The metric by which its members are compared."""
        return str(self.manifest["objective"])

    @property
    def objective_sign(self) -> int:
        """1 where a smaller objective is better, -1 where a larger one is."""
        return _SIGN[self.manifest["metrics"][self.objective]["better"]]

    def curve(self, name: str) -> NDArray[np.float64]:
        """A metric over the updates for each member: `[P, updates]`."""
        table = self.metrics
        if name not in table:
            raise BadInput(f"{self.folder} has no metric '{name}'; it has {', '.join(table)}")
        return by_member(table, name)

    def own_curve(self, name: str) -> NDArray[np.float64]:
        """The same of what members did themselves: no number where a teacher decided for them."""
        curve = self.curve(name).copy()
        curve[:, : self.config.lessons] = np.nan
        return curve

    def best_member(self) -> int:
        """The member with the best tail mean of the objective."""
        tail = self.objective_sign * tail_mean(self.own_curve(f"world/{self.objective}"))  # [P]
        return int(np.argmin(np.where(np.isnan(tail), math.inf, tail)))

    def best_comparable(self) -> int:
        """The same, where members live in one world; BadInput where the easiest would win."""
        if varied := self.config.varied("world"):
            raise BadInput(
                f"the best member of {self.folder} cannot be told, since they live in different "
                f"worlds: they vary {', '.join(varied)}; name one with --member, or take one out "
                f"with `lockstep resume {self.folder} --member K`"
            )
        return self.best_member()

    def __repr__(self) -> str:
        state = "finished" if self.finished else "unfinished"
        seeds = ", ".join(map(str, self.config.seeds))
        return f"Run({str(self.folder)!r}, {self.config.algorithm}, seeds {seeds}, {state})"


def sign_of(key: str, spec: WorldSpec) -> int:
    """1 where a smaller value of the metric `key` is better, -1 where a larger one is."""
    ways = {f"world/{metric.name}": metric.better for metric in spec.metrics}
    ways |= {
        f"episode/{role.name}/return_{what}": "higher"
        for role in spec.roles
        for what in ("mean", "p10", "p50", "p90", "p99")
    }
    directed = {name: way for name, way in ways.items() if way != "none"}
    if key not in directed:
        raise BadInput(
            f"best_by must be a metric of which less or more is better, got '{key}'; there is "
            f"{', '.join(directed)}"
        )
    return _SIGN[directed[key]]


def tail_mean(curve: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the last updates of a curve `[P, updates]`, those without a number left out: `[P]`.

    An update in which no episode ended has no number; a member without any has NaN.
    """
    tail = curve[:, -TAIL_UPDATES:]
    told = ~np.isnan(tail)
    count = told.sum(axis=1)
    mean: NDArray[np.float64] = np.where(told, tail, 0.0).sum(axis=1) / np.maximum(count, 1)
    return np.where(count > 0, mean, np.nan)


def summarize(run: Run, *, updates: int, state: str) -> Json:
    """The summary of a finished run: like the metrics it follows from config and seeds alone."""
    table, config = run.metrics, run.config
    tails = {n: tail_mean(run.own_curve(n)) for n in table if n.startswith("world/")}
    return {
        "config_hash": config.hash,
        "code_version": run.manifest["history"][-1]["code_version"],
        "scenario": config.scenario,
        "algorithm": config.algorithm,
        "seeds": list(config.seeds),
        "updates": updates,
        "steps": updates * config.steps_per_update,
        "tail_updates": min(TAIL_UPDATES, max(updates - config.lessons, 0)),
        "objective": run.objective,
        "best_member": run.best_member(),
        "members": [
            {
                "member": member,
                "seed": seed,
                "trial": config.trial_hash(member),
                "varied": {name: values[member] for name, values in config.vary.items()},
                "tail": {
                    name: float(tail[member]) if math.isfinite(tail[member]) else None
                    for name, tail in tails.items()
                },
            }
            for member, seed in enumerate(config.seeds)
        ],
        "state": state,
    }
