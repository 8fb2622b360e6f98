"""`lockstep migrate`: bring checkpoints of older or foreign origin up to date."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.flags import parse, print_json

DESCRIPTION = """\
Bring checkpoints under ROOT up to date. Runs of Lockstep get the present format. Metadata of other
programs (a .json with `save_state` beside a .pt) gets its missing step counter: updates x lanes x
steps of a rollout, with a note of how it was worked out. The files before are kept as .bak; a
second time nothing is left to do. Exit code 1 if a file is damaged.

examples:
  lockstep migrate runs --dry-run
  lockstep migrate trained_models --assume-steps 128 --update-if-lower"""


@dataclass(frozen=True, kw_only=True)
class MigrateFlags:
    """The flags of the verb."""

    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="ROOT")]
    """Folder to go through, with everything below it."""
    dry_run: bool = False
    """Say what would be done, and write nothing."""
    no_backup: bool = False
    """Keep no .bak files."""
    update_if_lower: bool = False
    """Replace a step counter that is lower than the one worked out."""
    assume_steps: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Steps of a rollout where foreign metadata does not say."""
    json: bool = False
    """Print the outcome as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Migrates and prints a line for each file."""
    flags = parse(MigrateFlags, argv, verb="migrate", description=DESCRIPTION)
    from lockstep.run.migrate import Plan, migrate

    plan = Plan(
        dry_run=flags.dry_run,
        backup=not flags.no_backup,
        update_if_lower=flags.update_if_lower,
        assume_steps=flags.assume_steps,
    )
    outcomes = migrate(flags.root, plan)
    if flags.json:
        print_json([{"path": str(o.path), "status": o.status} for o in outcomes])
    else:
        for outcome in outcomes:
            print(f"{outcome.path}: {outcome.status}")
        print(f"{len(outcomes)} files looked at{', nothing written' if plan.dry_run else ''}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0
