"""The study `uav-paper`: every training behind figures 3 to 12 of the UAV paper; no torch.

Two grids are known. `reference` is what the reference implementation sweeps, 555 runs; `paper` has
the marks that the paper itself draws, 621 runs. Both leave figure 13 to its heuristic, which needs
no training; the study `uav-flights` trains what flies there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.run.config import TrainConfig, preset
from lockstep.studies.paper import AB, AG, MADDPG, RANDOMIZED, B
from lockstep.studies.study import Figure, Point, Study, setting, sweep

LEARNERS = {
    AB: "ab-mappo",
    B: "b-mappo",
    AG: "ag-mappo",
    MADDPG: "maddpg",
    RANDOMIZED: "randomized",
}
"""The paper's names of the learners, and ours."""

WEIGHTED, TOTAL = "world/weighted_energy_mu_avg", "world/weighted_energy_mu_total"
MU_REWARD, UAV_REWARD = "world/mu_reward", "world/uav_reward"
MU_ENERGY, UAV_ENERGY, JAIN = "world/mu_energy_avg", "world/uav_energy_avg", "world/jain_fairness"

WITHOUT_TWIN = 0.5
"""Deviation rate that stands for a world without digital twin (the paper's range is ±0.5)."""

GRADIENT_STEPS = 0.2
"""Gradient steps of MADDPG for each environment step, of which the paper says nothing. One for each
would be a natural reading and take two thirds of the time of the whole study; the public code
of the paper makes one for each 300."""

EPSILON = 0.2
"""Share of agents that decide at random while MADDPG trains, so that what policies have given up is
still seen (see its page)."""

SMOKE_STEPS = 600
"""Steps of a trial in the short version: two updates."""
SMOKE_REPLAY = {"learner.warm_up": 100, "learner.updates_per_step": 1 / 300}
"""MADDPG there: a gradient step in each of them."""

_WEIGHTS = {
    "reference": (0.0, 0.002, 0.004, 0.006, 0.008, 0.009),
    "paper": (0.0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009),
}
_EDGE_GHZ = {
    "reference": (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0),
    "paper": (2.0, 5.0, 8.0, 11.0, 14.0),
}
_TASK_MBIT = {
    "reference": (1.0, 1.5, 2.0, 2.5, 3.0),
    "paper": (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0),
}
_ENERGY = "average weighted energy (J)"


def study(
    smoke: bool = False,
    grid: str = "reference",
    *,
    steps: int = 80_000,
    seeds: tuple[int, ...] = (42, 43, 44),
    gradient_steps: float = GRADIENT_STEPS,
) -> Study:
    """The paper's figures; `smoke` takes two values of each axis, one seed and two updates."""
    if grid not in _WEIGHTS:
        raise ValueError(f"grid must be one of {', '.join(_WEIGHTS)}, got {grid!r}")
    ask = _Ask(smoke=smoke, grid=grid, steps=steps, seeds=seeds, gradient_steps=gradient_steps)
    base = ask.points("base", ask.learners(but=RANDOMIZED))
    flights = Figure(
        name="fig13",
        title="Flights of the UAVs",
        kind="flights",
        x_label="x (m)",
        y_label="y (m)",
        metrics=(),
        points=base[:1],
    )
    figures = (*_courses(base), *_comparisons(ask), *_sweeps(ask), flights)
    return Study(name="uav-paper", grid=grid, smoke=smoke, figures=figures)


def trained(
    learner: str, *, steps: int, gradient_steps: float = GRADIENT_STEPS, **world: int | float
) -> TrainConfig:
    """A learner in the scenario `paper`, with other numbers where they are named."""
    config = replace(preset("uav-mec", scenario="paper", learner=learner), total_steps=steps)
    if learner == LEARNERS[MADDPG]:
        config = setting(config, "learner.updates_per_step", gradient_steps)
        config = setting(config, "learner.epsilon", EPSILON)
    for name, value in world.items():
        config = setting(config, f"world.{name}", value)
    return config


@dataclass(frozen=True, kw_only=True)
class _Ask:
    """What the study was asked for, and points made accordingly."""

    smoke: bool
    grid: str
    steps: int
    seeds: tuple[int, ...]
    gradient_steps: float

    def config(self, learner: str, **world: float) -> TrainConfig:
        steps = min(self.steps, SMOKE_STEPS) if self.smoke else self.steps
        config = trained(learner, steps=steps, gradient_steps=self.gradient_steps, **world)
        if self.smoke and learner == LEARNERS[MADDPG]:
            for name, value in SMOKE_REPLAY.items():
                config = setting(config, name, value)
        return config

    def learners(self, *, but: str = "", **world: float) -> dict[str, TrainConfig]:
        """Every learner as a series."""
        return {name: self.config(ours, **world) for name, ours in LEARNERS.items() if name != but}

    def users(self, *counts: float) -> dict[str, TrainConfig]:
        """AB-MAPPO as a series for each number of users."""
        return {f"K={K:g}": self.config(LEARNERS[AB], n_users=K) for K in self.cut(counts)}

    def cut(self, values: Sequence[float]) -> Sequence[float]:
        return values[:2] if self.smoke else values

    def points(
        self,
        name: str,
        series: Mapping[str, TrainConfig],
        axis: str = "",
        values: Sequence[float] = (),
        *,
        panel: str = "",
    ) -> tuple[Point, ...]:
        seeds = self.seeds[:1] if self.smoke else self.seeds
        place = f"world.{axis}" if axis else ""
        return sweep(name, series, seeds=seeds, axis=place, values=self.cut(values), panel=panel)


def _courses(base: tuple[Point, ...]) -> Iterator[Figure]:
    """Figures 3 to 5: what is learned, over steps."""
    fair = tuple(point for point in base if point.series in (AB, AG))
    for name, title, y_label, metrics, points in (
        ("fig3", "Rewards of users and of UAVs", "average reward", (MU_REWARD, UAV_REWARD), base),
        ("fig4", "Average weighted energy", _ENERGY, (WEIGHTED,), base),
        ("fig5", "Fairness among users", "Jain index of user energy", (JAIN,), fair),
    ):
        yield Figure(
            name=name,
            title=title,
            kind="curves",
            x_label="environment steps",
            y_label=y_label,
            metrics=metrics,
            points=points,
        )


def _comparisons(ask: _Ask) -> Iterator[Figure]:
    """Figures 6 to 8: all learners over users, UAVs and bandwidth."""
    every, crowd = ask.learners(), ask.learners(n_users=70.0)
    users = ask.points("fig6", every, "n_users", (50.0, 60.0, 70.0, 80.0, 90.0, 100.0))
    uavs = ask.points("fig7", crowd, "n_uavs", (4.0, 6.0, 8.0, 10.0, 12.0, 14.0))
    band = ask.points("fig8", every, "bandwidth_mhz", (30.0, 40.0, 50.0, 60.0, 70.0))
    for name, title, x_label, y_label, metric, points in (
        ("fig6", "Energy over users (M=10)", "users K", "total weighted energy (J)", TOTAL, users),
        ("fig7", "Energy over UAVs (K=70)", "UAVs M", _ENERGY, WEIGHTED, uavs),
        ("fig8", "Energy over bandwidth", "bandwidth B (MHz)", _ENERGY, WEIGHTED, band),
    ):
        yield Figure(
            name=name,
            title=title,
            kind="bars",
            x_label=x_label,
            y_label=y_label,
            metrics=(metric,),
            points=points,
        )


def _sweeps(ask: _Ask) -> Iterator[Figure]:
    """Figures 9 to 12: AB-MAPPO over weights, clocks, deviations and task sizes."""
    weights = ask.points(
        "fig9", {AB: ask.config(LEARNERS[AB])}, "energy_weight", _WEIGHTS[ask.grid]
    )
    clocked = ask.users(60.0, 80.0, 100.0)
    mu_ghz = (0.5, 1.0, 1.5, 2.0, 2.5)
    clocks = (
        *ask.points("fig10", clocked, "f_max_loc_ghz", mu_ghz, panel="MU CPU"),
        *ask.points("fig10", clocked, "f_max_edge_ghz", _EDGE_GHZ[ask.grid], panel="UAV CPU"),
    )
    deviations = ask.points(
        "fig11",
        ask.users(50.0, 60.0, 70.0, 80.0),
        "deviation",
        (0.0, 0.05, 0.1, 0.15, 0.2, 0.25),
    )
    twins = {
        f"B={mhz:g}MHz {name}": ask.config(LEARNERS[AB], bandwidth_mhz=mhz, **deviation)
        for mhz in ask.cut((30.0, 50.0, 70.0))
        for name, deviation in (("with DT", {}), ("w/o DT", {"deviation": WITHOUT_TWIN}))
    }
    tasks = ask.points("fig12", twins, "task_max_mbit", _TASK_MBIT[ask.grid])
    energies = (MU_ENERGY, UAV_ENERGY)
    for name, title, x_label, y_label, metrics, points in (
        (
            "fig9",
            "User against UAV energy",
            "weight of UAV energy",
            "energy (J)",
            energies,
            weights,
        ),
        ("fig10", "Energy over CPU limits", "largest clock (GHz)", _ENERGY, (WEIGHTED,), clocks),
        ("fig11", "Energy over twin deviation", "deviation rate", _ENERGY, (WEIGHTED,), deviations),
        ("fig12", "Energy over task size", "largest task (Mbit)", _ENERGY, (WEIGHTED,), tasks),
    ):
        yield Figure(
            name=name,
            title=title,
            kind="lines",
            x_label=x_label,
            y_label=y_label,
            metrics=metrics,
            points=points,
        )
