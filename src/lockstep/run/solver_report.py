"""Solvers side by side: heuristics and learned policies on the same scenarios, paired."""

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput, known
from lockstep.run.api import heuristic, load
from lockstep.run.documents import is_document, read_scenario
from lockstep.run.evaluate import EVALUATION_SEED, Estimate, Whole, interval
from lockstep.run.jsonable import Json
from lockstep.run.policy import Policy
from lockstep.run.record import Run
from lockstep.run.trainer import threads
from lockstep.worlds import registry as worlds
from lockstep.worlds.registry import WorldConfig

PerScenario: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one solver did on every scenario."""

    label: str
    metrics: dict[str, PerScenario] = field(repr=False)
    """Name to `[scenarios]`: the world's metrics, rewards by role, and what its report derives."""
    decisions: int
    """Decisions taken in all scenarios together."""
    seconds: float
    """Wall time of deciding and stepping, all scenarios side by side on one thread."""

    @property
    def ms_per_decision(self) -> float:
        """Milliseconds a decision took, the world's own step included."""
        return 1000.0 * self.seconds / self.decisions

    def estimate(self, metric: str) -> Estimate:
        """Mean over the scenarios with its 95 % interval."""
        return interval(self.metrics[metric])


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Solvers on the same scenarios."""

    world: str
    scenario: str
    scenarios: int
    seed: int
    baseline: str
    solvers: tuple[Played, ...]
    shown: tuple[str, ...]
    """Metrics worth a line in a table; the first is the objective."""

    def of(self, label: str) -> Played:
        """The solver called `label`."""
        return next(played for played in self.solvers if played.label == label)

    def difference(self, played: Played, metric: str) -> Estimate:
        """Mean difference to the baseline, scenario by scenario, with its 95 % interval."""
        return interval(played.metrics[metric] - self.of(self.baseline).metrics[metric])

    def to_json(self) -> Json:
        """Everything a program would want of it."""
        return {
            "world": self.world,
            "scenario": self.scenario,
            "scenarios": self.scenarios,
            "seed": self.seed,
            "baseline": self.baseline,
            "solvers": [self._solver_json(played) for played in self.solvers],
        }

    def _solver_json(self, played: Played) -> Json:
        return {
            "solver": played.label,
            "metrics": {name: _numbers(played.estimate(name)) for name in played.metrics},
            "difference": {
                name: _numbers(self.difference(played, name)) for name in played.metrics
            },
            "by_scenario": {name: values.tolist() for name, values in played.metrics.items()},
            "decisions": played.decisions,
            "decisions_per_s": played.decisions / played.seconds,
            "ms_per_decision": played.ms_per_decision,
        }


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Who plays, and what: everything is looked up before anything is played."""

    config: WorldConfig
    scenario: str
    seed: int
    keys: Tensor  # [scenarios] stream keys of the scenarios
    policies: tuple[Policy, ...]
    baseline: str
    deterministic: bool


def contest(
    world: str,
    solvers: Sequence[str],
    *,
    scenarios: int = 20,
    scenario: str | None = None,
    seed: int = EVALUATION_SEED,
    baseline: str | None = None,
    deterministic: bool = True,
) -> Contest:
    """Looks up solvers (heuristics by name, runs by folder) and draws the scenarios.

    `scenario` is a name or a file; without it, it is that of the runs among the solvers, or the
    world's first.
    """
    if not solvers:
        raise BadInput("solvers must name at least one heuristic or run folder, got none")
    if scenarios < 1:
        raise BadInput(f"scenarios must be at least 1, got {scenarios}")
    known("world", world, worlds.names())
    rules = worlds.heuristics(world)
    runs = {name: _run(name, world, list(rules)) for name in solvers if name not in rules}
    config, named = _config(world, scenario, list(runs.values()))
    labels = _labels([Path(name).resolve().name if name in runs else name for name in solvers])
    report = report_of(config)
    if report is None:
        keys = lane_keys([seed], lanes=scenarios)
    else:
        config, keys = report.scenarios(config, count=scenarios, seed=seed)
    policies = [
        load(runs[name], world=config) if name in runs else heuristic(world, name)
        for name in solvers
    ]
    for policy, label in zip(policies, labels, strict=True):
        policy.label = label
    return Contest(
        config=config,
        scenario=named,
        seed=seed,
        keys=keys,
        policies=tuple(policies),
        baseline=labels[0] if baseline is None else known("solver compared", baseline, labels),
        deterministic=deterministic,
    )


def compare(asked: Contest, *, on_done: Callable[[Played], None] | None = None) -> Comparison:
    """Plays every scenario with every solver; `on_done` hears of each solver that is through."""
    report, config = report_of(asked.config), asked.config
    world, copy = (
        worlds.build(config, lanes=len(asked.keys), device=torch.device("cpu"), compile=False)
        for _ in range(2)
    )
    found = []
    for policy in asked.policies:
        played = _play(policy, world, copy, asked.keys, deterministic=asked.deterministic)
        if not played.decisions:
            raise BadInput(f"in scenario {asked.scenario} nobody ever decides: nothing to compare")
        if report is not None:
            more = report.derived(config, played.metrics)
            played = replace(played, metrics=played.metrics | more)
        if on_done is not None:
            on_done(played)
        found.append(played)
    objective = world.spec.objective
    everything = [objective, *(name for name in found[0].metrics if name != objective)]
    return Comparison(
        world=config.name,
        scenario=asked.scenario,
        scenarios=len(asked.keys),
        seed=asked.seed,
        baseline=asked.baseline,
        solvers=tuple(found),
        shown=tuple(everything if report is None else report.shown(config)),
    )


@torch.no_grad()
def _play(
    policy: Policy, world: World, copy: World, keys: Tensor, *, deterministic: bool
) -> Played:
    """One episode of every scenario, side by side; `copy` is asked what would cost `world` time.

    The first step of a policy makes what later ones use, so one is taken before time counts.
    """
    for warm_up in (True, False):
        world.reset(keys)
        policy.begin(keys)
        if warm_up:
            policy.step(world, deterministic=deterministic)
    whole = Whole(world)
    reward = {role.name: torch.zeros(world.lanes, dtype=torch.float64) for role in world.spec.roles}
    decisions, seconds = 0, 0.0
    with threads(1):
        for _ in range(world.spec.horizon):
            decisions += _deciding(world, copy, whole.running)
            begun = time.perf_counter()
            step = policy.step(world, deterministic=deterministic)
            seconds += time.perf_counter() - begun
            for name in reward:
                mine = step.reward[name].double().sum(dim=1)
                reward[name] += torch.where(whole.running, mine, 0.0)
            whole.add(step)
    metrics = whole.read() | {f"reward/{name}": x.numpy() for name, x in reward.items()}
    return Played(label=policy.label, metrics=metrics, decisions=decisions, seconds=seconds)


def _deciding(world: World, copy: World, running: Tensor) -> int:
    """How many agents decide in this step, in the scenarios still running.

    A world may keep what it showed, so looking at `world` itself would spare some policies work.
    """
    if world.spec.every_step:
        return int(running.sum()) * sum(role.agents for role in world.spec.roles)
    copy.load_state_dict(world.state_dict())
    acts = [copy.observe(role.name).acts[running] for role in world.spec.roles]
    return sum(int(flags.sum()) for flags in acts)


def _run(name: str, world: str, rules: list[str]) -> Run:
    if not Path(name).exists():
        known(f"solver of {world} (and no run folder)", name, rules)
    run = Run.open(name)
    if run.config.world.name != world:
        raise BadInput(f"{name} is a run of {run.config.world.name}, not of {world}")
    return run


def _config(world: str, scenario: str | None, runs: list[Run]) -> tuple[WorldConfig, str]:
    """The settings to play under, and what to call them."""
    table = worlds.scenarios(world)
    if scenario is not None and is_document(scenario):
        return read_scenario(world, scenario), Path(scenario).stem
    if scenario is not None:
        chosen: WorldConfig = table[known(f"scenario of {world}", scenario, table)]
        return chosen, scenario
    if not runs:
        first = next(iter(table))
        return table[first], first
    config = runs[0].config
    if any(run.config.world != config.world for run in runs):
        raise BadInput("the runs were trained in different scenarios; name one with --scenario")
    return config.world, config.scenario or str(runs[0].folder)


def _labels(names: list[str]) -> list[str]:
    """The names, told apart where one comes twice."""
    labels: list[str] = []
    for name in names:
        label, number = name, 1
        while label in labels:
            number += 1
            label = f"{name}-{number}"
        labels.append(label)
    return labels


def report_of(config: WorldConfig) -> ModuleType | None:
    """The `report` module of a world, beside its config, if it has one.

    It draws scenarios (`scenarios`), names the metrics to show (`shown`), derives further ones
    (`derived`), and builds a world that notes down every turn (`recorded`) in some `TABLES`.
    """
    name = f"{type(config).__module__.rpartition('.')[0]}.report"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


def _numbers(estimate: Estimate) -> Json:
    half = None if math.isnan(estimate.half_width) else estimate.half_width
    return {"mean": estimate.mean, "half_width": half}
