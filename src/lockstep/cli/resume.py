"""`lockstep resume`: continue a run from its latest checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lockstep.cli import together
from lockstep.cli.flags import parse

DESCRIPTION = """\
Continue a run from its newest checkpoint to its end. What was written after that checkpoint is cut
off and made again, so the run ends with the bytes of one that was never stopped. A finished run is
left as it is. Without RUN, the newest unfinished run under --root is taken.

examples:
  lockstep resume runs/uav-mec-ab-mappo-1
  lockstep resume
  lockstep resume runs/uav-mec-ab-mappo-1 --member 2
  lockstep resume runs/uav-mec-ab-mappo-1 --device cpu"""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags:
    """The flags of the verb."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = None
    """Folder of the run, or one of its checkpoint files."""
    root: Path = Path("runs")
    """Folder to search when no run is named."""
    accept_changes: bool = False
    """Continue although code or settings have changed since; the manifest records it."""
    set_aside_newer: bool = False
    """With an older checkpoint as RUN: rename the newer ones and go back to it."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Where to go on; by default where the run was started."""
    threads: int | None = None
    """CPU threads from here on; by default as before."""
    member: int | None = None
    """Take this member out of the pack, as a run of its own beside it, and continue that."""
    json: bool = False
    """Print the run's summary as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Resumes and says where the run stands; of several processes, the first one does."""
    return together.run(_lead, argv)


def _lead(argv: Sequence[str], **company: Any) -> int:
    flags = parse(ResumeFlags, argv, verb="resume", description=DESCRIPTION)
    from lockstep.cli.progress import shown  # these import torch, which takes seconds
    from lockstep.cli.report import console_for, device_line, report
    from lockstep.run import loop
    from lockstep.run.find import find
    from lockstep.run.members import extract
    from lockstep.run.record import Run
    from lockstep.run.trainer import resolve

    console = console_for(as_json=flags.json)
    found = find(flags.run, root=flags.root, set_aside_newer=flags.set_aside_newer)
    folder, step = found.folder, found.step
    old = Run.open(folder)
    if old.finished and flags.member is None:
        console.print(f"{folder} is finished already; nothing was done", soft_wrap=True)
        return report(old, console=console, as_json=flags.json)
    console.print(found.why, soft_wrap=True, highlight=False)
    if flags.member is not None:
        loop.changes(old, accept=flags.accept_changes)
        folder = folder.with_name(f"{folder.name}-member-{flags.member}")
        extract(old, flags.member, folder, step=step)
        console.print(f"member {flags.member} goes on alone in {folder}", soft_wrap=True)
        step = None
    given = {"device": flags.device, "threads": flags.threads}
    how: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    asked = replace(old.config, **how)
    console.print(device_line(asked=asked, taken=resolve(asked)), soft_wrap=True)
    with shown(folder.name, console=console) as watch:
        run = loop.resume(
            folder,
            step=step,
            on_update=watch,
            accept_changes=flags.accept_changes,
            **company,
            **how,
        )
    return report(run, console=console, as_json=flags.json)
