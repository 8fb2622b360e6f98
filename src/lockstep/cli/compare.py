"""`lockstep compare`: solvers, learned or not, on the same scenarios."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lockstep.cli.flags import parse, print_json
from lockstep.errors import BadInput, CannotWrite

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lockstep.run.solver_report import Comparison, Contest

DESCRIPTION = """\
Play the same scenarios with several solvers: heuristics of the world by name, and runs by folder.
Differences to the baseline are taken scenario by scenario. With --out everything is written as
compare.json, and the turns of the first scenarios as CSV (what was on offer, what was chosen).

examples:
  lockstep compare city-growth --solvers random,greedy,npv --scenarios 20
  lockstep compare city-growth --solvers npv,runs/city-growth-ppo-1 --out report --pictures
  lockstep compare uav-mec --solvers greedy,random --json"""


@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """The flags of the verb."""

    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]
    """Name of the world."""
    solvers: Annotated[str, tyro.conf.arg(metavar="LIST")]
    """Heuristics and run folders, separated by commas; of a run the best member plays."""
    scenarios: int = 20
    """Scenarios that every solver plays; generated ones where the world generates them."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """Settings of the world, by name or as a TOML or JSON file; by default those of the runs."""
    seed: int = 1_000_003
    """Seed of the scenarios."""
    baseline: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """The solver that others are compared with; by default the first."""
    stochastic: bool = False
    """Let runs sample their decisions as in training, instead of the most likely ones."""
    out: Path | None = None
    """Folder for compare.json and the files of single scenarios; made if it is not there."""
    record: int = 1
    """Scenarios of which --out gets every turn."""
    pictures: bool = False
    """Also draw those scenarios: a picture for each step, and an animated replay."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Compares and prints a table."""
    flags = parse(CompareFlags, argv, verb="compare", description=DESCRIPTION)
    _check(flags)
    from lockstep.cli.report import console_for
    from lockstep.run.solver_report import compare, contest

    console = console_for(as_json=flags.json)
    asked = contest(
        flags.world,
        [part.strip() for part in flags.solvers.split(",") if part.strip()],
        scenarios=flags.scenarios,
        scenario=flags.scenario,
        seed=flags.seed,
        baseline=flags.baseline,
        deterministic=not flags.stochastic,
    )
    if flags.out is not None:
        _prepare(flags, flags.out, asked)  # before the time for playing is spent
    found = compare(
        asked,
        on_done=lambda played: console.print(
            f"{played.label}: {played.decisions} decisions in {played.seconds:.1f} s",
            highlight=False,
        ),
    )
    if flags.json:
        print_json(found.to_json())
    else:
        console.print(table_of(found))
    if flags.out is not None:
        _write(flags, flags.out, asked, found, console)
    return 0


def _check(flags: CompareFlags) -> None:
    """What can be refused before anything is imported or played."""
    if flags.scenarios < 1:
        raise BadInput(f"--scenarios must be at least 1, got {flags.scenarios}")
    if abs(flags.seed) > 2**53:
        raise BadInput(f"--seed must lie within 2^53 of 0, got {flags.seed}")
    if flags.pictures and flags.out is None:
        raise BadInput("--pictures needs a folder to draw into; name one with --out")
    if flags.pictures and flags.record == 0:
        raise BadInput("--pictures needs a scenario to draw, got --record 0")
    if not 0 <= flags.record <= flags.scenarios:
        raise BadInput(
            f"--record must be between 0 and --scenarios ({flags.scenarios}), got {flags.record}"
        )
    if flags.record > 1 and flags.out is None:
        raise BadInput("--record needs a folder to write into; name one with --out")
    if flags.out is not None and flags.out.exists() and not flags.out.is_dir():
        raise BadInput(f"--out must be a folder, got the file {flags.out}")


def _prepare(flags: CompareFlags, out: Path, asked: "Contest") -> None:
    """Makes the folder, and refuses what is known to be in the way of the report."""
    if flags.pictures:
        from lockstep.run import pictures

        pictures.check(out / "replay.gif")
    place = out / "compare.json"
    if place.is_dir():
        raise BadInput(f"{place} is in the way of the report: a file of that name is to be written")
    for policy in asked.policies:
        own = out / policy.label
        for place in (own, *(own / f"scenario-{i}" for i in range(flags.record))):
            if place.exists() and not place.is_dir():
                raise BadInput(f"{place} is in the way of the report: it must be a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {out} cannot be made: {error.strerror}") from error


def _write(
    flags: CompareFlags, out: Path, asked: "Contest", found: "Comparison", console: "Console"
) -> None:
    from lockstep.run.rundir import write_json
    from lockstep.run.solver_record import record

    try:
        write_json(out / "compare.json", found.to_json())
        files = record(asked, out, scenarios=flags.record, with_pictures=flags.pictures)
    except OSError as error:
        place = error.filename2 or error.filename or out  # of a renaming, where it was to go
        raise CannotWrite(place, error.strerror or str(error)) from error
    folders = sorted({path.parent for path in files})
    console.print(f"wrote {out / 'compare.json'}", soft_wrap=True, highlight=False)
    for folder in folders:
        count = sum(path.parent == folder for path in files)
        console.print(f"wrote {folder} ({count} files)", soft_wrap=True, highlight=False)


def table_of(found: "Comparison") -> "Table":
    """Metrics as rows and solvers as columns; below the objective its differences."""
    from rich.table import Table

    table = Table(
        title=f"{found.world} {found.scenario}: {found.scenarios} scenarios, seed {found.seed}",
        caption=f"mean ± 95 % interval over scenarios; differences to {found.baseline} are paired; "
        "times include the world's own step, all scenarios side by side on one core",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("metric", no_wrap=True)
    for played in found.solvers:
        table.add_column(played.label, justify="right", no_wrap=True)
    objective = found.shown[0]
    for metric in found.shown:
        table.add_row(metric, *[str(played.estimate(metric)) for played in found.solvers])
        if metric == objective or metric.startswith(f"{objective}_"):  # the whole, and its parts
            cells = [str(found.difference(played, metric)) for played in found.solvers]
            table.add_row(f"  minus {found.baseline}", *cells)
    table.add_section()
    speed = [f"{played.decisions / played.seconds:.0f}" for played in found.solvers]
    table.add_row("decisions per second", *speed)
    table.add_row("ms per decision", *[f"{p.ms_per_decision:.3f}" for p in found.solvers])
    return table
