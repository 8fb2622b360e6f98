"""Pictures of a flight: playing one episode, and writing what the world's `render` draws."""

import importlib
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput, needs_extra
from lockstep.run.evaluate import EVALUATION_SEED
from lockstep.run.policy import Policy
from lockstep.worlds import registry as worlds
from lockstep.worlds.registry import WorldConfig

FORMATS = ("png", "gif", "mp4")


def play(
    policy: Policy, world: World, *, episode: int = 0, seed: int = EVALUATION_SEED
) -> list[Any]:
    """The frames of evaluation episode `episode`: one member in a world of one lane.

    The last step's outcome is not among them, since the lane has been reset by then.
    """
    if world.lanes != policy.groups or policy.groups != 1:
        raise BadInput("a picture shows one lane; give a world of one lane and a single member")
    keys = lane_keys([seed], lanes=episode + 1, device=world.device)[episode:]
    world.reset(keys)
    policy.begin(keys)
    frames = [world.frame(0)]
    for _ in range(world.spec.horizon - 1):
        step = policy.step(world)
        if bool(step.terminated[0] | step.truncated[0]):
            break
        frames.append(world.frame(0))
    return frames


def flight(policy: Policy, config: WorldConfig, *, episode: int = 0) -> list[Any]:
    """The frames of one evaluation episode in a world made for the purpose, on the CPU."""
    world = worlds.build(config, lanes=1, device=torch.device("cpu"), compile=False)
    return play(policy, world, episode=episode)


def check(path: Path) -> str:
    """The kind of file that `path` asks for; BadInput if it cannot be written here."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise BadInput(f"a picture is one of {', '.join(FORMATS)}, got '{path.name}'")
    if kind == "mp4" and shutil.which("ffmpeg") is None:
        raise BadInput("an mp4 needs the program ffmpeg, which was not found; write a gif instead")
    with needs_extra("study"):
        import matplotlib.animation  # noqa: F401
        import PIL  # noqa: F401
    return kind


def write(config: WorldConfig, frames: list[Any], path: Path, *, title: str, fps: int = 8) -> None:
    """Draws `frames` as a picture (.png) or an animation (.gif, .mp4), by the file's ending."""
    kind = check(path)
    renderer = _renderer(config)
    with needs_extra("study"):
        import matplotlib.animation
        import matplotlib.pyplot as plt
    if kind == "png":
        figure = renderer.draw(frames, config, title=title)
        figure.savefig(path, dpi=120)
    else:
        figure, animation = renderer.animate(frames, config, title=title, fps=fps)
        writer = "pillow" if kind == "gif" else "ffmpeg"
        animation.save(path, writer=matplotlib.animation.writers[writer](fps=fps), dpi=80)
    plt.close(figure)


def _renderer(config: WorldConfig) -> ModuleType:
    """The `render` module of a world, found beside its config."""
    package = type(config).__module__.rpartition(".")[0]
    try:
        return importlib.import_module(f"{package}.render")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.render":
            raise
        raise BadInput(f"world {config.name} has no pictures yet") from error
