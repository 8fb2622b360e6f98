"""What verbs say about a run or an evaluation when they are done."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lockstep.cli.flags import print_json
from lockstep.run.config import TrainConfig
from lockstep.run.evaluate import Evaluation, interval
from lockstep.run.record import Run

_WIDE = 160


def console_for(*, as_json: bool) -> Console:
    """Standard output, or standard error where standard output belongs to a program."""
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = _WIDE  # a file has no edge at which to cut a table
    return console


def device_line(*, asked: TrainConfig, taken: TrainConfig) -> str:
    """Which device a run takes, and why."""
    if asked.device != "auto":
        return f"device: {taken.device}"
    why = "there is one" if taken.device == "cuda" else "no GPU was found; --require-gpu insists"
    return f"device: {taken.device} (auto: {why})"


def report(run: Run, *, console: Console, as_json: bool) -> int:
    """Says how a run ended: at its end, or stopped on request."""
    if not run.finished:
        console.print(f"stopped; continue with: lockstep resume {run.folder}", soft_wrap=True)
        return 0
    if as_json:
        print_json({"run": str(run.folder), **run.summary})
        return 0
    summary = run.summary
    if not summary["tail_updates"]:
        console.print(
            f"{run.folder}: a teacher decided in all updates; see what was learned with "
            f"`lockstep evaluate {run.folder}`",
            soft_wrap=True,
            highlight=False,
        )
        return 0
    key = f"world/{summary['objective']}"
    tail = [m["tail"][key] for m in summary["members"] if m["tail"][key] is not None]
    differ = ", ".join(summary["members"][0]["varied"])
    who = f"{len(tail)} {'seed' if len(tail) == 1 else 'seeds'}"
    value = str(interval(tail)) if tail else "not finite"
    if differ and tail:  # one interval over members that are not alike would mean nothing
        who = f"{len(tail)} members that differ in {differ}"
        value = f"{min(tail):.4g} to {max(tail):.4g}"
    console.print(
        f"{run.folder}: {summary['objective']} {value} "
        f"(mean of the last {summary['tail_updates']} updates, {who})",
        soft_wrap=True,
        highlight=False,
    )
    return 0


def comparison(
    evaluations: Sequence[Evaluation], metrics: dict[str, str], *, title: str, caption: str
) -> Table:
    """Policies as rows and metrics (name to heading) as columns: mean ± 95 % interval."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("policy", no_wrap=True)
    for heading in metrics.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for evaluation in evaluations:
        cells = [str(evaluation.estimate(metric)) for metric in metrics]
        table.add_row(evaluation.label, *cells)
    return table
