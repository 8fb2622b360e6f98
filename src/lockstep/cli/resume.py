"""`lockstep resume`: continue a run from its latest checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.flags import parse

DESCRIPTION = """\
Continue a run from its latest checkpoint to its end. What was written after that checkpoint is cut
off and made again, so the run ends with the bytes of one that was never stopped. A finished run is
left as it is.

examples:
  lockstep resume runs/uav-mec-ab-mappo-1"""


@dataclass(frozen=True, kw_only=True)
class ResumeFlags:
    """The flags of the verb."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    allow_new_code: bool = False
    """Continue although the code has changed since the run was started."""
    json: bool = False
    """Print the run's summary as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Resumes and says where the run stands."""
    flags = parse(ResumeFlags, argv, verb="resume", description=DESCRIPTION)
    from lockstep.cli.progress import shown  # these import torch, which takes seconds
    from lockstep.cli.report import console_for, report
    from lockstep.run import loop
    from lockstep.run.record import Run

    console = console_for(as_json=flags.json)
    if Run.open(flags.run).finished:
        console.print(f"{flags.run} is finished already; nothing was done", soft_wrap=True)
    with shown(flags.run.name, console=console) as watch:
        run = loop.resume(flags.run, on_update=watch, allow_new_code=flags.allow_new_code)
    return report(run, console=console, as_json=flags.json)
