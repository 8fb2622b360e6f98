"""`lockstep study aggregate`, `figures` and `score`: what is made of a study's results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from lockstep.cli.flags import parse, print_json
from lockstep.cli.study_flags import StudyFlags
from lockstep.errors import known
from lockstep.studies import paper
from lockstep.studies.aggregate import aggregate as aggregated, are_left_out, gather, write
from lockstep.studies.export import FORMATS as EXPORTS
from lockstep.studies.figures import FLIGHT_SEED, FORMATS, Mode, Request, draw
from lockstep.studies.figures.spread import Spread
from lockstep.studies.score import Scorecard, score as compared
from lockstep.studies.study import Study

_WIDE = 160

AGGREGATE = """\
Put the results of all trials of a study into one table, aggregate.json in its root. Results that
are missing, stale or damaged are listed and nothing is written, unless --allow-missing.

examples:
  lockstep study aggregate uav-paper
  lockstep study aggregate uav-paper --export csv parquet marl-eval
  lockstep study aggregate uav-paper --root results --allow-missing"""

FIGURES = """\
Draw the figures of a study from its results. Inputs that are missing, stale or mixed are listed and
nothing is drawn, unless --allow-missing, which leaves out what cannot be drawn and says so.

examples:
  lockstep study figures uav-paper --out figures
  lockstep study figures uav-paper --only fig6 fig8 --overlay-paper --spread interval
  lockstep study figures uav-paper --only fig13 --fig13-mode heuristic --fig13-seed 7"""

SCORE = """\
Compare the results of a study with what the paper shows: orders, trends, relative errors and the
verdict on each of its claims. Results that are missing, stale or damaged are listed and nothing is
said, unless --allow-missing.

examples:
  lockstep study score uav-paper
  lockstep study score uav-paper --allow-missing
  lockstep study score uav-paper --json"""


@dataclass(frozen=True, kw_only=True)
class AggregateFlags(StudyFlags):
    """The flags of `study aggregate`."""

    allow_missing: bool = False
    """Leave out trials without a usable result, and say so."""
    export: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FORMAT")] = ()
    """Write the results for other programs as well, into export in the root: csv, parquet,
    marl-eval."""


@dataclass(frozen=True, kw_only=True)
class FigureFlags(StudyFlags):
    """The flags of `study figures`."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the pictures; by default figures in the root."""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIGURE")] = ()
    """Names of the figures to draw; by default all."""
    formats: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FORMAT")] = FORMATS
    """Kinds of file: png, pdf."""
    allow_missing: bool = False
    """Leave out what cannot be drawn, and say so."""
    overlay_paper: bool = False
    """Draw the paper's values as dashed lines."""
    spread: Spread = "std"
    """Mean ± standard deviation over seeds, or interquartile mean with its 95 % interval."""
    fig13_mode: Mode = "trained"
    """Who flies in figure 13: what its trials have learned, or a script that needs no training."""
    fig13_seed: int = FLIGHT_SEED
    """Where users walk and UAVs start in figure 13; an equal seed gives an equal file."""


@dataclass(frozen=True, kw_only=True)
class ScoreFlags(StudyFlags):
    """The flags of `study score`."""

    allow_missing: bool = False
    """Leave out what has no usable result, and say so."""
    json: bool = False
    """Print the scorecard as JSON, and nothing else, on standard output."""


def aggregate(argv: Sequence[str]) -> int:
    """Writes the table of all results."""
    flags = parse(AggregateFlags, argv, verb="study aggregate", description=AGGREGATE)
    for name in flags.export:
        known("export format", name, EXPORTS)
    study, root = flags.load()
    results = gather(study, root, allow_missing=flags.allow_missing)
    files = [write(results, root)]
    if flags.export:
        from lockstep.studies.export import export

        files += export(results, root, flags.export)
    for file in files:
        print(file)
    if results.left_out:
        print(f"{are_left_out(len(results.left_out))}; the file says which")
    return 0


def figures(argv: Sequence[str]) -> int:
    """Draws."""
    flags = parse(FigureFlags, argv, verb="study figures", description=FIGURES)
    study, root = flags.load()
    asked = Request(
        allow_missing=flags.allow_missing,
        overlay_paper=flags.overlay_paper,
        spread=flags.spread,
        mode=flags.fig13_mode,
        seed=flags.fig13_seed,
    )
    out = flags.out or root / "figures"
    for file in draw(study, root, out, asked, only=flags.only, formats=flags.formats):
        print(file)
    return 0


def score(argv: Sequence[str]) -> int:
    """Compares with the paper."""
    flags = parse(ScoreFlags, argv, verb="study score", description=SCORE)
    study, root = flags.load()
    card = compared(study, root, allow_missing=flags.allow_missing)
    if flags.json:
        print_json(card.to_json())
    else:
        _show(card)
    return 0


def finish(study: Study, root: Path) -> None:
    """The table, the figures and the score of a study all of whose trials have results."""
    print(aggregated(study, root))
    for file in draw(study, root, root / "figures"):
        print(file)
    if study.name == paper.STUDY:
        _show(compared(study, root))


def _show(card: Scorecard) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE  # a file has no edge at which to cut a table
    for rows in (card.figures_table(), card.claims_table()):
        heading, *rest = rows
        table = Table(*heading)
        for row in rest:
            table.add_row(*row)
        console.print(table)
    for note in card.notes():
        console.print(note, soft_wrap=True, highlight=False, markup=False)
