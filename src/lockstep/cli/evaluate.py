"""`lockstep evaluate`: measure a run on fixed episodes, beside heuristics."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lockstep.cli.flags import parse, print_json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.run.evaluate import Evaluation

DESCRIPTION = """\
Measure a run on fixed episodes that no training saw; every policy plays the same ones. Without
--member all members play and the interval is over seeds.

examples:
  lockstep evaluate runs/uav-mec-ab-mappo-1
  lockstep evaluate runs/uav-mec-ab-mappo-1 --episodes 50 --against random,greedy
  lockstep evaluate runs/uav-mec-ab-mappo-1 --member 2 --stochastic --json"""


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """The flags of the verb."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    episodes: int = 20
    """Episodes that every policy plays."""
    member: int | None = None
    """One member of the run; by default all of them."""
    stochastic: bool = False
    """Sample decisions as in training, instead of taking the mean or most likely ones."""
    against: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ""
    """Heuristics to measure beside it, separated by commas."""
    metrics: Annotated[str, tyro.conf.arg(metavar="NAMES")] = ""
    """Metrics to show, separated by commas; by default all of the world's."""
    checkpoint: Literal["latest", "best"] = "latest"
    """Which checkpoint of the run to take."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Evaluates and prints a table."""
    flags = parse(EvaluateFlags, argv, verb="evaluate", description=DESCRIPTION)
    if flags.episodes < 1:
        raise BadInput(f"--episodes must be at least 1, got {flags.episodes}")
    from lockstep.cli.report import console_for
    from lockstep.run.api import heuristic, load, load_members
    from lockstep.run.compare import play_all
    from lockstep.run.policy import Policy
    from lockstep.run.record import Run
    from lockstep.run.trainer import own_numbers

    run = Run.open(flags.run)
    policies: list[Policy] = [
        load_members(run, pointer=flags.checkpoint)
        if flags.member is None
        else load(run, member=flags.member, pointer=flags.checkpoint)
    ]
    config = run.config if flags.member is None else run.config.member(flags.member)
    if flags.against and config.varied("world"):
        raise BadInput(
            f"--against needs --member, since members of {run.folder} live in different worlds: "
            f"they vary {', '.join(config.varied('world'))}"
        )
    policies += [heuristic(run.config.world.name, name) for name in _names(flags.against)]
    found = play_all(
        policies,
        config.world,
        episodes=flags.episodes,
        deterministic=not flags.stochastic,
        prepare=partial(own_numbers, config=config),
    )
    if flags.json:
        print_json({"run": str(run.folder), "policies": [e.to_json() for e in found]})
        return 0
    _show(found, flags, console_for(as_json=False))
    return 0


def _show(found: "list[Evaluation]", flags: EvaluateFlags, console: "Console") -> None:
    """Metrics as rows, since a world has more of them than a screen has columns."""
    from rich.table import Table

    metrics = _names(flags.metrics) or list(found[0].episodes)
    mode = "sampled" if flags.stochastic else "mean or most likely"
    table = Table(
        title=f"{flags.run}: {flags.episodes} episodes, {mode} decisions",
        caption="mean ± 95 % interval; " + ", ".join(f"{e.label} over {e.over}" for e in found),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    for evaluation in found:
        table.add_column(evaluation.label, justify="right", overflow="fold")
    for metric in metrics:
        table.add_row(metric, *[str(e.estimate(metric)) for e in found])
    console.print(table)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
