"""`lockstep watch`: runs as they go, from their folders alone."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import tyro

from lockstep.cli.flags import parse, print_json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from lockstep.run.jsonable import Json
    from lockstep.run.watching import Sight

DESCRIPTION = """\
Show runs as they go: progress, speed, time left, the course of the objective, and what the doctor
found; a run that hangs is marked stalled, one whose process is gone dead. Reads folders only, so it
disturbs nothing. Without RUN it shows all runs under --root, the newest first. It ends when no run
goes on any more, or with Ctrl-C.

examples:
  lockstep watch
  lockstep watch runs/uav-mec-ab-mappo-1 runs/demo-1
  lockstep watch --once --fail-if-stalled || mail -s 'a run is stalled' me
  lockstep watch --once --json"""

COLOURS = {
    "finished": "green",
    "running": "cyan",
    "starting": "blue",
    "stopped": "yellow",
    "failed": "red",
    "stalled": "bold yellow",
    "dead": "bold red",
    "unknown": "dim",
}
EXPLAINED = ("stalled", "dead", "failed", "unknown")
"""States whose reason is told below the table."""
BLOCKS = "▁▂▃▄▅▆▇█"
_BAR, _NAME, _WIDE = 10, 32, 160


@dataclass(frozen=True, kw_only=True)
class WatchFlags:
    """The flags of the verb."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN...]")] = ()
    """Folders of runs, or folders that hold runs; by default all under --root."""
    root: Path = Path("runs")
    """Where to look for runs when none is named."""
    once: bool = False
    """Look once and end."""
    json: bool = False
    """Print JSON: one document with --once, otherwise one line for each look."""
    fail_if_stalled: bool = False
    """End with exit code 1 as soon as a run that is shown is stalled, dead or failed; one that was
    stopped by a signal is none of these."""
    every: float = 2.0
    """Seconds between two looks."""


def main(argv: Sequence[str]) -> int:
    """Shows the runs; 1 if one is stalled, dead or failed and that was to be told."""
    flags = parse(WatchFlags, argv, verb="watch", description=DESCRIPTION)
    if not flags.every > 0:
        raise BadInput(f"--every must be more than 0 seconds, got {flags.every:g}")
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = _WIDE  # a file has no edge at which to cut a table
    if flags.json:
        sights = _as_json(flags)
    elif flags.once:
        sights = next(_looks(flags))
        console.print(picture(sights, flags.root, console))
    else:
        sights = _live(flags, console) if console.is_terminal else _lines(flags, console)
    return int(flags.fail_if_stalled and _troubled(sights))


def _looks(flags: WatchFlags) -> "Iterator[list[Sight]]":
    """The runs, again and again, until none goes on any more or trouble is to be told."""
    from lockstep.run.watching import GOING_ON, find, look

    runs = find(flags.runs, root=flags.root)
    while True:
        sights = [look(run) for run in runs]
        yield sights
        over = all(sight.state not in GOING_ON for sight in sights)
        if over or (flags.fail_if_stalled and _troubled(sights)):
            return
        time.sleep(flags.every)
        try:
            runs = find(flags.runs, root=flags.root)  # some may have been started since
        except BadInput:  # the folders are gone by now; the table says so of each run
            continue


def _live(flags: WatchFlags, console: "Console") -> "list[Sight]":
    """A table that is drawn anew at each look; Ctrl-C leaves it."""
    from rich.live import Live

    sights: list[Sight] = []
    with Live(console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        for sights in _looks(flags):
            live.update(picture(sights, flags.root, console), refresh=True)
    return sights


def _lines(flags: WatchFlags, console: "Console") -> "list[Sight]":
    """A line for a run whenever it has moved."""
    sights: list[Sight] = []
    told: dict[Path, tuple[str, int]] = {}
    with suppress(KeyboardInterrupt):
        for sights in _looks(flags):
            for sight in sights:
                if told.get(sight.folder) != (sight.state, sight.update):
                    told[sight.folder] = (sight.state, sight.update)
                    console.print(line(sight, flags.root), highlight=False, soft_wrap=True)
    return sights


def _as_json(flags: WatchFlags) -> "list[Sight]":
    sights: list[Sight] = []
    with suppress(KeyboardInterrupt):
        for sights in _looks(flags):
            data = {"runs": [to_json(sight) for sight in sights]}
            if flags.once:
                print_json(data)
                break
            print(json.dumps(data, allow_nan=False), flush=True)
    return sights


def _troubled(sights: "Sequence[Sight]") -> bool:
    from lockstep.run.watching import TROUBLED

    return any(sight.state in TROUBLED for sight in sights)


def picture(sights: "Sequence[Sight]", root: Path, console: "Console") -> "Group":
    """The runs as a table as wide as fits the console, and below it what needs words."""
    from rich.console import Group
    from rich.text import Text

    columns = dict(COLUMNS)
    table = _table(sights, root, columns)
    unbounded = console.options.update(max_width=10_000)
    for heading, shorter in SPARED:
        if console.measure(table, options=unbounded).maximum <= console.width:
            break
        columns.pop(heading)
        if shorter is not None:
            columns[heading] = shorter
        table = _table(sights, root, columns)
    return Group(table, *[Text(note) for sight in sights for note in notes(sight, root)])


def _table(sights: "Sequence[Sight]", root: Path, columns: "Columns") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("run", overflow="fold", max_width=_NAME)
    for heading in columns:
        right = heading in ("update", "steps/s", "left", "saved", "objective")
        table.add_column(heading, no_wrap=True, justify="right" if right else "left")
    for sight in sights:
        cells = {heading: Text(cell(sight)) for heading, cell in columns.items()}
        cells["state"].stylize(COLOURS[sight.state])
        table.add_row(Text(name_of(sight, root)), *cells.values())
    return table


def notes(sight: "Sight", root: Path) -> list[str]:
    """Why a run is in trouble, and what was reported of it."""
    name = name_of(sight, root)
    found = [f"{name} is {sight.state}: {sight.reason}"] if sight.state in EXPLAINED else []
    if sight.alert:
        found.append(f"{name}: {sight.alert}")
    return found + [f"{name}: {finding}" for finding in (sight.findings or ())[-1:]]


def line(sight: "Sight", root: Path) -> str:
    """A run in one line."""
    parts = [name_of(sight, root), sight.state, f"update {_update(sight)}"]
    if sight.value is not None:
        parts.append(f"{(sight.objective or 'objective').removeprefix('world/')} {sight.value:.5g}")
    if sight.eta_s is not None:
        parts.append(f"{_span(sight.eta_s)} left")
    if sight.state in EXPLAINED:
        parts.append(sight.reason)
    return "  ".join(parts)


def name_of(sight: "Sight", root: Path) -> str:
    """The folder, without the root if it lies there."""
    folder = sight.folder
    return str(
        folder.relative_to(root) if folder.is_relative_to(root) and folder != root else folder
    )


def sparkline(points: Sequence[float | None]) -> str:
    """A curve as blocks, from its lowest point to its highest; gaps where there is no number."""
    real = [point for point in points if point is not None]
    if not real:
        return ""
    low, span = min(real), max(real) - min(real)
    top = len(BLOCKS) - 1

    def block(point: float | None) -> str:
        if point is None:
            return " "
        return BLOCKS[round((point - low) / span * top) if span > 0 else top // 2]

    return "".join(map(block, points))


def halved(points: Sequence[float | None]) -> list[float | None]:
    """A curve with half as many points, each the mean of two."""
    pairs = [[p for p in points[i : i + 2] if p is not None] for i in range(0, len(points), 2)]
    return [sum(pair) / len(pair) if pair else None for pair in pairs]


def to_json(sight: "Sight") -> "Json":
    """Everything that is known of a run."""
    return {"run": str(sight.folder)} | {
        name: value for name, value in asdict(sight).items() if name != "folder"
    }


def _span(seconds: float | None) -> str:
    from lockstep.run.watching import span

    return "" if seconds is None else span(seconds)


def _phase(sight: "Sight") -> str:
    from lockstep.run.watching import GOING_ON

    return sight.phase if sight.phase and sight.state in GOING_ON else ""


def _update(sight: "Sight") -> str:
    return f"{sight.update}" if sight.updates is None else f"{sight.update}/{sight.updates}"


def _bar(sight: "Sight") -> str:
    if not sight.updates:
        return ""
    full = min(_BAR, _BAR * sight.update // sight.updates)
    return "━" * full + "─" * (_BAR - full)


def _doctor(sight: "Sight") -> str:
    if sight.findings is None:
        return ""
    return f"{len(sight.findings)}: {sight.findings[-1].id}" if sight.findings else "well"


Columns: TypeAlias = "dict[str, Callable[[Sight], str]]"

COLUMNS: Columns = {
    "state": lambda sight: sight.state,
    "phase": _phase,
    "update": _update,
    "": _bar,
    "steps/s": lambda s: "" if s.steps_per_s is None else f"{s.steps_per_s:,.0f}",
    "left": lambda sight: _span(sight.eta_s),
    "saved": lambda sight: _span(sight.checkpoint_s),
    "objective": lambda sight: "" if sight.value is None else f"{sight.value:.5g}",
    "course": lambda sight: sparkline(sight.curve),
    "doctor": _doctor,
}
"""Heading to what stands below it."""
SPARED: "tuple[tuple[str, Callable[[Sight], str] | None], ...]" = (
    ("phase", None),
    ("saved", None),
    ("", None),
    ("steps/s", None),
    ("doctor", None),
    ("course", lambda sight: sparkline(halved(sight.curve))),
    ("course", None),
)
"""What is left out, or shortened, first where the screen is narrow."""
