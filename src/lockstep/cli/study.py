"""`lockstep study`: many trainings as one thing, from the plan to the figures."""

import difflib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from lockstep.cli.flags import parse, print_json
from lockstep.cli.study_flags import StudyFlags
from lockstep.run.jsonable import Json
from lockstep.run.watching import span
from lockstep.studies.packing import MAX_MEMBERS
from lockstep.studies.plan import GPU, TYPICAL, Plan, plan as planned
from lockstep.studies.status import counts, status as look
from lockstep.studies.store import check_study, is_there

_WIDE = 160

USAGE = """\
usage: lockstep study COMMAND STUDY [OPTIONS]

Plans, runs and aggregates the trainings of a study, and draws its figures. STUDY is the name of one
that comes with Lockstep (uav-paper, uav-flights), or a Python file that declares one.

commands:
  plan       list what is to be trained: runs, distinct trials, packs, time
  run        train what has no result yet; the same command goes on after an interruption
  status     say what has become of every trial
  aggregate  put the results of all trials into one table
  figures    draw the figures
  score      compare the results with the paper's

examples:
  lockstep study plan uav-paper
  lockstep study run uav-paper --smoke
  lockstep study status uav-paper --smoke
  lockstep study figures uav-paper --smoke --out figures

lockstep study COMMAND --help lists the options of a command."""

PLAN = """\
List what a study asks for: the runs of each sweep and the figures that show it, how many of them
are distinct, the packs in which what has no result yet would be trained, and the time that takes.
Nothing is trained.

examples:
  lockstep study plan uav-paper
  lockstep study plan uav-paper --grid paper --rate 40000
  lockstep study plan my_study.py --json"""

STATUS = """\
Say what has become of every trial of a study: done, running, stopped, failed, stale (trained with
other code), missing, duplicate (trained twice) or corrupt. Reads folders only, so it disturbs
nothing.

examples:
  lockstep study status uav-paper
  lockstep study status uav-paper --all
  lockstep study status uav-paper --json"""


@dataclass(frozen=True, kw_only=True)
class PlanFlags(StudyFlags):
    """The flags of `study plan`."""

    rate: float | None = None
    """Environment steps of all members per second, the same for every pack; by default as measured
    from finished packs, and before the first one what is typical."""
    max_members: int = MAX_MEMBERS
    """Most trials that are trained side by side in one pack; the default is that of a GPU."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


@dataclass(frozen=True, kw_only=True)
class StatusFlags(StudyFlags):
    """The flags of `study status`."""

    all: bool = False
    """List every trial, and not only those that need a look."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Runs one command of the verb."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if argv else 2
    command, rest = argv[0], argv[1:]
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else "see lockstep study --help"
        print(f"lockstep study: there is no command '{command}'; {hint}", file=sys.stderr)
        return 2
    return COMMANDS[command](rest)


def plan(argv: Sequence[str]) -> int:
    """Lists the work."""
    flags = parse(PlanFlags, argv, verb="study plan", description=PLAN)
    study, root = flags.load()
    there = is_there(root)
    if there:
        check_study(root, study)
    made = planned(
        study,
        root=root if there else None,
        rate=flags.rate,
        max_members=flags.max_members,
    )
    if flags.json:
        print_json(made.to_json())
        return 0
    console = _console()
    named = (study.name, study.grid, "smoke" * study.smoke, study.precision)
    _say(console, " ".join(filter(None, named)))
    asked = Table("sweep", "figures")
    asked.add_column("runs", justify="right")
    for name, runs in made.asked.items():
        shown = [f.name for f in study.figures if any(p.figure == name for p in f.points)]
        asked.add_row(name, " ".join(shown), str(runs))
    asked.add_row("all", "", str(made.runs), style="bold")
    console.print(asked)
    if made.packs:
        console.print(_packs(made))
    _say(
        console,
        f"{made.runs} runs, {made.distinct} distinct, {made.done} done; {len(made.packs)} packs, "
        f"{made.steps:,} steps to train; time {_time(made)}",
    )
    return 0


def _time(made: Plan) -> str:
    if made.rate is not None and made.seconds is not None:
        return f"about {span(made.seconds)} one after another ({made.rate.source})"
    places = (f"{span(made.seconds_at(rate))} on {rate.source}" for rate in TYPICAL)
    return f"about {', '.join(places)} (typical; give --rate, or train a pack first)"


def run(argv: Sequence[str]) -> int:
    """Trains what is left."""
    from lockstep.cli.study_run import main as train

    return train(argv)


def status(argv: Sequence[str]) -> int:
    """Says what has become of every trial."""
    flags = parse(StatusFlags, argv, verb="study status", description=STATUS)
    study, root = flags.load()
    check_study(root, study)
    found = look(study, root)
    totals = counts(found)
    if flags.json:
        trials = [
            {
                "trial": one.trial.hash,
                "series": one.trial.series,
                "x": one.trial.x,
                "seed": one.trial.seed,
                "state": one.state,
                "detail": one.detail,
            }
            for one in found
        ]
        about: dict[str, Json] = {"study": study.name, "root": str(root), "hash": study.hash}
        print_json(about | {"counts": dict(totals), "trials": trials})
        return 0
    console = _console()
    shown = [one for one in found if flags.all or one.state not in ("done", "missing")]
    if shown:
        table = Table("trial", "state", "series", "x", "seed", "why", title=str(root))
        for one in shown:
            x = "" if one.trial.x is None else f"{one.trial.x:g}"
            cells = one.trial.hash[:12], one.state, one.trial.series, x, str(one.trial.seed)
            table.add_row(*cells, one.detail)
        console.print(table)
    told = ", ".join(f"{count} {state}" for state, count in totals.items() if count)
    _say(console, f"{root}: {len(found)} trials: {told}")
    return 0


def aggregate(argv: Sequence[str]) -> int:
    """Writes the table of all results."""
    from lockstep.cli.study_results import aggregate as put_together

    return put_together(argv)


def figures(argv: Sequence[str]) -> int:
    """Draws."""
    from lockstep.cli.study_results import figures as drawn

    return drawn(argv)


def score(argv: Sequence[str]) -> int:
    """Compares with the paper."""
    from lockstep.cli.study_results import score as compared

    return compared(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "plan": plan,
    "run": run,
    "status": status,
    "aggregate": aggregate,
    "figures": figures,
    "score": score,
}


def _packs(made: Plan) -> Table:
    """Packs of one learner and number of members in a row."""
    rate = made.rate or GPU
    rows: dict[tuple[str, int, int], list[float]] = {}
    for pack in made.packs:
        kind = pack.config.algorithm, len(pack.trials), pack.steps
        rows.setdefault(kind, []).append(rate.seconds(pack))
    table = Table()
    table.add_column("packs", justify="right")
    table.add_column("learner")
    time_of = "time of all" if made.rate else f"time of all on {rate.source}"
    for heading in ("members", "steps of each", time_of):
        table.add_column(heading, justify="right")
    for (learner, members, steps), times in rows.items():
        table.add_row(str(len(times)), learner, str(members), f"{steps:,}", span(sum(times)))
    return table


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE  # a file has no edge at which to cut a table
    return console


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
