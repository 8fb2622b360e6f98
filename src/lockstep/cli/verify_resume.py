"""`lockstep verify-resume`: prove on this machine that a killed run resumes to the same bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lockstep.cli.flags import bad_settings, parse, print_json
from lockstep.run.config import TrainConfig, parse_seeds, preset
from lockstep.run.jsonable import Json

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.run.verify import Verdict

DESCRIPTION = """\
Prove that a run which is killed and resumed ends as one that was never stopped: 2N updates
straight; then 2N updates with K kills (SIGKILL) at random instants, resumed each time. Parameters,
optimizer, all other state, metrics, best checkpoint and summary are compared byte for byte. Exit
code 0 if everything is equal, 1 if something differs.

On a GPU pass --deterministic: its fastest kernels do not repeat themselves.

examples:
  lockstep verify-resume uav-mec --scenario demo
  lockstep verify-resume uav-mec --updates 5 --kills 3 --device cuda --deterministic"""


@dataclass(frozen=True, kw_only=True)
class VerifyFlags:
    """The flags of the verb."""

    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]
    """The world to train in; `lockstep worlds` lists them."""
    updates: Annotated[int, tyro.conf.arg(metavar="N")] = 3
    """Half the length of the runs, in updates."""
    kills: Annotated[int, tyro.conf.arg(metavar="K")] = 2
    """How often the second run is killed."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Scenario of the world; by default its first."""
    learner: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Learner to train; by default the world's."""
    seeds: Annotated[str, tyro.conf.arg(metavar="COUNT|LIST")] = "1"
    """A number of seeds, or a list such as 3,7,9."""
    checkpoint_every: int = 1
    """Updates between checkpoints."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes the GPU if there is one."""
    deterministic: bool = False
    """Allow only deterministic kernels; needed on a GPU."""
    seed_of_instants: Annotated[int | None, tyro.conf.arg(metavar="SEED")] = None
    """Draw the instants of the kills from this seed; by default from a new one, which is shown."""
    keep: bool = False
    """Keep both runs, even if they are equal."""
    json: bool = False
    """Print the verdict as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Proves, and prints a table and a verdict."""
    flags = parse(VerifyFlags, argv, verb="verify-resume", description=DESCRIPTION)
    with bad_settings():
        config = _config(flags)
    from lockstep.cli.report import console_for
    from lockstep.run.verify import verify

    console = console_for(as_json=flags.json)
    verdict = verify(
        config,
        updates=flags.updates,
        kills=flags.kills,
        seed=flags.seed_of_instants,
        keep=flags.keep,
        say=lambda line: console.print(line, soft_wrap=True, highlight=False),
    )
    if flags.json:
        print_json(_to_json(verdict))
    else:
        _show(verdict, console)
    return 0 if verdict.equal else 1


def _config(flags: VerifyFlags) -> TrainConfig:
    base = preset(flags.world, scenario=flags.scenario, learner=flags.learner)
    return replace(
        base,
        seeds=parse_seeds(flags.seeds),
        checkpoint_every=flags.checkpoint_every,
        device=flags.device,
        deterministic=flags.deterministic,
    )


def _show(verdict: "Verdict", console: "Console") -> None:
    from rich.table import Table

    table = Table()
    for heading in ("compared", "straight", "killed and resumed", ""):
        table.add_column(heading, no_wrap=True)
    for row in verdict.rows:
        result = "equal" if row.equal else f"differs first at {row.where}"
        table.add_row(row.what, row.straight, row.resumed, result)
    console.print(table)
    kills = f"{verdict.kills} {'kill' if verdict.kills == 1 else 'kills'}"
    drawn = f"(instants drawn from seed {verdict.seed})"
    said = f"equal after {kills}" if verdict.equal else f"DIFFERENT after {kills}"
    console.print(f"{said} {drawn}", soft_wrap=True, highlight=False)
    if verdict.folder is not None:
        console.print(f"both runs are in {verdict.folder}", soft_wrap=True, highlight=False)


def _to_json(verdict: "Verdict") -> Json:
    return {
        "equal": verdict.equal,
        "kills": verdict.kills,
        "seed_of_instants": verdict.seed,
        "instants": [
            {"update": b.update, "delay_s": b.delay_s, "landed": b.landed} for b in verdict.blows
        ],
        "compared": [
            {
                "what": row.what,
                "straight": row.straight,
                "resumed": row.resumed,
                "equal": row.equal,
                "first_difference": row.where or None,
            }
            for row in verdict.rows
        ],
        "folder": None if verdict.folder is None else str(verdict.folder),
    }
