"""`lockstep render`: draw a flight of a run as a picture or an animation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.flags import parse
from lockstep.errors import BadInput

DESCRIPTION = """\
Draw one evaluation episode of a run: a picture of the whole flight (png) and an animation (gif, or
mp4 where ffmpeg is installed), with who is served by whom.

examples:
  lockstep render runs/uav-mec-ab-mappo-1
  lockstep render runs/uav-mec-ab-mappo-1 --formats png --member 2 --episode 3
  lockstep render runs/uav-mec-ab-mappo-1 --policy greedy --out pictures"""


@dataclass(frozen=True, kw_only=True)
class RenderFlags:
    """The flags of the verb."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    member: int | None = None
    """Member that flies; by default the best."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """A heuristic that flies instead of the run's learner."""
    episode: int = 0
    """Which of the evaluation episodes to draw."""
    formats: Annotated[str, tyro.conf.arg(metavar="LIST")] = "png,gif"
    """Kinds of file to write, separated by commas: png, gif, mp4."""
    out: Path | None = None
    """Folder for the files; by default the run's own."""


def main(argv: Sequence[str]) -> int:
    """Draws and says where the files lie."""
    flags = parse(RenderFlags, argv, verb="render", description=DESCRIPTION)
    if flags.episode < 0:
        raise BadInput(f"--episode must be at least 0, got {flags.episode}")
    from lockstep.run import pictures  # imports torch, which takes seconds
    from lockstep.run.api import heuristic, load
    from lockstep.run.policy import Policy
    from lockstep.run.record import Run

    run = Run.open(flags.run)
    out = flags.out or run.folder
    if not out.is_dir():
        raise BadInput(f"--out must be a folder that exists, got {out}")
    stem = "flight" if flags.episode == 0 else f"flight-{flags.episode}"
    paths = [out / f"{stem}.{kind.strip()}" for kind in flags.formats.split(",")]
    for path in paths:
        pictures.check(path)
    policy: Policy
    if flags.policy is None:
        member = run.best_comparable() if flags.member is None else flags.member
        policy = load(run, member=member)
    else:
        member = flags.member or 0
        policy = heuristic(run.config.world.name, flags.policy)
    world = run.config.member(member).world
    frames = pictures.flight(policy, world, episode=flags.episode)
    for path in paths:
        pictures.write(world, frames, path, title=policy.label)
        print(path)
    return 0
