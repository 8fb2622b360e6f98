"""How a run shows that it moves: a bar on a terminal, some twenty lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress as Bar, TextColumn, TimeRemainingColumn

from lockstep.run.loop import OnUpdate, Progress

LINES = 20


@contextmanager
def shown(title: str, *, console: Console) -> Iterator[OnUpdate]:
    """A watcher for the training loop that shows each update on `console`."""
    if not console.is_terminal:
        yield lambda progress: _line(title, progress, console)
        return
    with Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} updates"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
        console=console,
    ) as bar:
        task = bar.add_task(title, total=None, numbers="")

        def show(progress: Progress) -> None:
            _findings(progress, console)
            bar.update(
                task,
                total=progress.updates,
                completed=progress.update,
                numbers=numbers(progress),
            )

        yield show


def numbers(progress: Progress) -> str:
    """The objective's mean over members, and the speed."""
    values = progress.metrics[progress.objective]
    name = progress.objective.removeprefix("world/")
    mean = sum(values) / len(values)
    return f"{name} {mean:.4f}  {progress.steps_per_s:,.0f} steps/s"


def _findings(progress: Progress, console: Console) -> None:
    """What the doctor found, above the bar; each at most once in a while."""
    for finding in progress.findings:
        console.print(f"doctor: {finding}", highlight=False, soft_wrap=True)


def _line(title: str, progress: Progress, console: Console) -> None:
    _findings(progress, console)
    every = max(1, -(-progress.updates // LINES))
    if progress.update % every == 0 or progress.update == progress.updates:
        console.print(
            f"{title}  update {progress.update}/{progress.updates}  {numbers(progress)}",
            highlight=False,
            soft_wrap=True,
        )
