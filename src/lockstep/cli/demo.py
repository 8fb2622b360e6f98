"""`lockstep demo`: from nothing to trained UAVs, a table and three pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.flags import bad_settings, parse
from lockstep.errors import RunExists
from lockstep.learners.config import PPOConfig
from lockstep.run.config import TrainConfig, parse_seeds, preset
from lockstep.run.rundir import free_folder

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.run.record import Run

DESCRIPTION = """\
Train AB-MAPPO and a randomized baseline on a small scene of users and UAVs, four seeds as one pack;
compare them with heuristics on fixed episodes; draw learning curves and a flight.

examples:
  lockstep demo
  lockstep demo --total-steps 20000 --seeds 8"""

WORLD, SCENARIO = "uav-mec", "demo"
LEARNERS = ("ab-mappo", "randomized")
HEURISTICS = ("random", "nearest_equal", "greedy")
METRICS = {
    "weighted_energy": "weighted energy (J)",
    "jain_fairness": "fairness (Jain)",
    "delay_violation_rate": "deadlines missed",
}
QUICK = {"lr_actor": 2e-3, "lr_critic": 2e-3, "hidden": 64, "minibatches": 5}
"""Larger steps than the defaults, so that two minutes show something; two settings were tried."""
BASELINE_UPDATES = 20


@dataclass(frozen=True, kw_only=True)
class DemoFlags:
    """The flags of the verb."""

    total_steps: int = 6_000
    """Environment steps of each member."""
    seeds: str = "4"
    """A number of seeds, or a list such as 3,7,9."""
    episodes: int = 20
    """Episodes of the comparison."""
    root: Path = Path("runs")
    """Folder in which the demo makes its own."""
    name: str | None = None
    """Name of that folder; by default demo-N with the first free N."""


def main(argv: Sequence[str]) -> int:
    """Trains, compares, draws."""
    flags = parse(DemoFlags, argv, verb="demo", description=DESCRIPTION)
    folder = free_folder(flags.root, "demo") if flags.name is None else flags.root / flags.name
    if folder.exists():
        raise RunExists(folder)
    with bad_settings():
        configs = [_config(name, flags) for name in LEARNERS]
    from rich.console import Console

    from lockstep.run import pictures

    for kind in ("png", "gif"):
        pictures.check(folder / f"flight.{kind}")
    console = Console()
    runs = _train(configs, folder, console)
    if not all(run.finished for run in runs):
        console.print("stopped")
        return 1
    _compare(runs, folder, flags.episodes, console)
    return 0


def _config(learner: str, flags: DemoFlags) -> TrainConfig:
    """The baseline learns nothing, so it needs no more than the updates its mean is taken over."""
    base = preset(WORLD, scenario=SCENARIO, learner=learner)
    steps = flags.total_steps
    if learner == "randomized":
        steps = min(steps, BASELINE_UPDATES * base.steps_per_update)
    learner_config = base.learner
    if isinstance(learner_config, PPOConfig):
        learner_config = replace(learner_config, **QUICK)  # type: ignore[arg-type]  # checked by PPOConfig
    return replace(
        base,
        learner=learner_config,
        total_steps=steps,
        seeds=parse_seeds(flags.seeds),
        device="cpu",
    )


def _train(configs: list[TrainConfig], folder: Path, console: "Console") -> "list[Run]":
    from lockstep.cli.progress import shown
    from lockstep.run import loop

    runs = []
    for config in configs:
        with shown(f"{config.algorithm} x {config.members} seeds", console=console) as watch:
            runs.append(loop.train(config, folder / config.algorithm, on_update=watch))
        if not runs[-1].finished:
            break
    return runs


def _compare(runs: "list[Run]", folder: Path, episodes: int, console: "Console") -> None:
    from lockstep.cli.report import comparison
    from lockstep.run import curves, pictures
    from lockstep.run.api import heuristic, load, load_members
    from lockstep.run.compare import play_all
    from lockstep.run.rundir import write_json

    trained, baseline = runs
    world = trained.config.world
    rules = [heuristic(WORLD, name) for name in HEURISTICS]
    found = play_all([*map(load_members, runs), *rules], world, episodes=episodes)
    write_json(folder / "comparison.json", [evaluation.to_json() for evaluation in found])
    title = f"{episodes} evaluation episodes: mean ± 95 % interval"
    caption = "Intervals of learners are over seeds, those of heuristics over episodes."
    console.print(comparison(found, METRICS, title=title, caption=caption))

    metric = "world/weighted_energy"
    curve = trained.curve(metric).mean(axis=0)  # [updates]
    console.print(
        f"weighted energy of ab-mappo while training: {curve[0]:.3f} J in the first update, "
        f"{curve[-1]:.3f} J in the last",
        soft_wrap=True,
    )
    levels = {e.label: e.estimate("weighted_energy").mean for e in found[2:]}
    levels["randomized"] = float(baseline.curve(metric).mean())
    curves.draw(
        [trained], folder / "curves.png", metric=metric, label="weighted energy (J)", lines=levels
    )
    policy = load(trained)
    frames = pictures.flight(policy, world)
    written = [folder / "curves.png", folder / "flight.png", folder / "flight.gif"]
    for path in written[1:]:
        pictures.write(world, frames, path, title=policy.label)
    for path in written:
        console.print(str(path), soft_wrap=True)
