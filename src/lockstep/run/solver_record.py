"""Single scenarios of a comparison, turn by turn: tables as CSV, pictures, and a replay."""

import csv
import io
from pathlib import Path
from typing import Any

import torch

from lockstep.core.world import World
from lockstep.run import pictures
from lockstep.run.policy import Policy
from lockstep.run.rundir import write_atomic
from lockstep.run.solver_report import Contest, report_of
from lockstep.run.trainer import threads
from lockstep.worlds import registry as worlds

_PICTURES = ("step-*.png", "replay.gif")


def record(asked: Contest, folder: Path, *, scenarios: int, with_pictures: bool) -> list[Path]:
    """Plays the first `scenarios` again with every solver; the files written.

    They lie in `folder/<solver>/scenario-<n>/`. What an earlier report wrote there is removed once
    all of this one is written. Tables come from the world's report; a world without one has none.
    """
    report, written = report_of(asked.config), list[Path]()
    tables = [] if report is None else [f"{name}.csv" for name in report.TABLES]
    if report is not None or with_pictures:
        world = _recorded(asked)
        for policy in asked.policies:
            for index in range(scenarios):
                place = folder / policy.label / f"scenario-{index}"
                place.mkdir(parents=True, exist_ok=True)
                frames = _played(asked, policy, world, index, keep=with_pictures)
                if report is not None:
                    frames += [] if world.final_frame is None else [world.final_frame]
                    written += _write_tables(world.turns(), place)
                if with_pictures:
                    written += _draw(asked, frames, place, title=policy.label)
    for policy in asked.policies:
        for place in (folder / policy.label).glob("scenario-[0-9]*/"):
            _clear(place, (*tables, *_PICTURES), keep=written)
    return written


def _recorded(asked: Contest) -> Any:
    """One lane of the world, which notes its turns if it has a report."""
    report = report_of(asked.config)
    if report is not None:
        return report.recorded(asked.config)
    return worlds.build(asked.config, lanes=1, device=torch.device("cpu"), compile=False)


def _clear(place: Path, names: tuple[str, ...], *, keep: list[Path]) -> None:
    """Removes what an earlier report wrote, and the folder if nothing else is in it."""
    for name in names:
        for path in place.glob(name):
            if path not in keep:
                path.unlink()
    if not any(place.iterdir()):
        place.rmdir()


def _write_tables(tables: dict[str, list[dict[str, object]]], place: Path) -> list[Path]:
    written = []
    for name, rows in tables.items():
        written.append(place / f"{name}.csv")
        write_atomic(written[-1], _csv(rows))
    return written


def _draw(asked: Contest, frames: list[Any], place: Path, *, title: str) -> list[Path]:
    """A picture of each step with all that led to it, and the whole as an animation."""
    written = []
    for t in range(len(frames)):
        written.append(place / f"step-{t:03d}.png")
        pictures.write(asked.config, frames[: t + 1], written[-1], title=title)
    written.append(place / "replay.gif")
    pictures.write(asked.config, frames, written[-1], title=title, fps=4)
    return written


@torch.no_grad()
def _played(asked: Contest, policy: Policy, world: World, index: int, *, keep: bool) -> list[Any]:
    """One scenario alone; its frames, each of the moment before a step, if they are to be kept."""
    keys, frames = asked.keys[index : index + 1], []
    world.reset(keys)
    policy.begin(keys)
    with threads(1):
        for _ in range(world.spec.horizon):
            if keep:
                frames.append(world.frame(0))
            step = policy.step(world, deterministic=asked.deterministic)
            if bool(step.terminated[0] | step.truncated[0]):
                break
    return frames


def _csv(rows: list[dict[str, object]]) -> bytes:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()
