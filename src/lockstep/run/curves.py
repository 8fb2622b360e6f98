"""The picture of learning: a metric over environment steps, mean over members with a band."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lockstep.errors import BadInput, needs_extra
from lockstep.run.record import Run

Curve: TypeAlias = npt.NDArray[np.float64]

_COLOURS = ("#1f6fb4", "#d1622b", "#3c8d40", "#8457a6", "#8a6d3b", "#5f5f5f")


def draw(
    runs: Sequence[Run],
    path: Path,
    *,
    metric: str,
    label: str,
    lines: Mapping[str, float] | None = None,
    smooth: int = 5,
) -> None:
    """Writes the learning curves of `runs` to `path`; `lines` are levels to compare with.

    Each curve is the mean over members of a running mean over `smooth` updates; its band spans
    the members from lowest to highest.
    """
    if not runs:
        raise BadInput("a picture of learning curves needs at least one run")
    with needs_extra("study"):
        import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    for run, colour in zip(runs, _cycled(len(runs)), strict=True):
        curve = np.stack([_running_mean(member, smooth) for member in run.curve(metric)])
        step = np.arange(1, curve.shape[1] + 1) * run.config.steps_per_update
        name = f"{run.config.algorithm} ({run.config.members} seeds)"
        axes.plot(step, curve.mean(axis=0), color=colour, lw=1.8, label=name)
        axes.fill_between(step, curve.min(axis=0), curve.max(axis=0), color=colour, alpha=0.18)
    styles = ((0, (6, 3)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 1)))
    for index, (name, level) in enumerate((lines or {}).items()):
        axes.axhline(level, color="#444444", lw=1.0, ls=styles[index % len(styles)], label=name)
    axes.set_xlabel("environment steps of a member")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.95), framealpha=0.9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _running_mean(values: Curve, width: int) -> Curve:
    """Mean over the last `width` entries, or over as many as there are."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - width)
    mean: Curve = (total[end] - total[start]) / (end - start)
    return mean


def _cycled(count: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(count)]
