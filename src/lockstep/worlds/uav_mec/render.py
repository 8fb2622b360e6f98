"""Drawings of a flight: UAV trajectories over the users' tracks, with who is served by whom."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lockstep.errors import needs_extra
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.world import Frame

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREY = "#b8b8b8"
_LINK = "#7a7a7a"


def draw(frames: Sequence[Frame], config: UavMecConfig, *, title: str = "") -> "Figure":
    """The whole flight in one picture: tracks, starts and ends, and the last associations."""
    with needs_extra("study"):
        import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6.4, 6.8), layout="constrained")
    _ground(axes, config, title)
    mu_xy = np.stack([frame.mu_xy_m for frame in frames])  # [T, K, 2]
    uav_xy = np.stack([frame.uav_xy_m for frame in frames])  # [T, M, 2]
    for k in range(mu_xy.shape[1]):
        axes.plot(mu_xy[:, k, 0], mu_xy[:, k, 1], color=_GREY, lw=0.8, zorder=1)
    _links(axes, frames[-1])
    _users(axes, frames[-1])
    for m in range(uav_xy.shape[1]):
        colour = _colour(m)
        axes.plot(uav_xy[:, m, 0], uav_xy[:, m, 1], color=colour, lw=1.8, zorder=3)
        axes.scatter(uav_xy[0, m, 0], uav_xy[0, m, 1], marker="s", s=30, facecolor="white",
                     edgecolor=colour, zorder=4)  # fmt: skip
        axes.scatter(uav_xy[-1, m, 0], uav_xy[-1, m, 1], marker="^", s=80, color=colour, zorder=5)
    _legend(axes)
    return figure


def animate(
    frames: Sequence[Frame], config: UavMecConfig, *, title: str = "", fps: int = 8
) -> "tuple[Figure, FuncAnimation]":
    """The flight slot by slot, with the associations of each slot."""
    with needs_extra("study"):
        import matplotlib.pyplot as plt
        from matplotlib.animation import FuncAnimation
    figure, axes = plt.subplots(figsize=(5.6, 6.0), layout="constrained")
    uav_xy = np.stack([frame.uav_xy_m for frame in frames])  # [T, M, 2]

    def show(t: int) -> list[Any]:
        axes.clear()
        _ground(axes, config, f"{title}  slot {t}")
        _links(axes, frames[t])
        _users(axes, frames[t])
        for m in range(uav_xy.shape[1]):
            colour = _colour(m)
            axes.plot(uav_xy[: t + 1, m, 0], uav_xy[: t + 1, m, 1], color=colour, lw=1.2, zorder=3)
            axes.scatter(uav_xy[t, m, 0], uav_xy[t, m, 1], marker="^", s=70, color=colour, zorder=5)
        return []

    return figure, FuncAnimation(figure, show, frames=len(frames), interval=1000 / fps)


def _ground(axes: "Axes", config: UavMecConfig, title: str) -> None:
    """The service area, and on its edge the direction of the base station."""
    size = np.array([config.width_m, config.height_m])
    margin = 0.04 * float(size.max())
    axes.set_xlim(-2 * margin, config.width_m + margin)
    axes.set_ylim(-margin, config.height_m + margin)
    axes.set_aspect("equal")
    axes.add_patch(_rectangle(config.width_m, config.height_m))
    towards = np.array(config.station_m[:2]) - size / 2
    towards /= np.linalg.norm(towards) + 1e-9
    edge = size / 2 + towards * (size / (2 * np.abs(towards) + 1e-9)).min()
    axes.annotate("", xy=tuple(edge + 1.6 * margin * towards), xytext=tuple(edge),
                  arrowprops={"arrowstyle": "->", "color": "#222222"},
                  annotation_clip=False)  # fmt: skip
    axes.annotate("BS", xy=tuple(edge), xytext=(-14, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")
    axes.set_title(title, fontsize=10)


def _rectangle(width: float, height: float) -> Any:
    with needs_extra("study"):
        from matplotlib.patches import Rectangle
    return Rectangle((0, 0), width, height, fill=False, color="#cccccc", lw=1.0)


def _users(axes: "Axes", frame: Frame) -> None:
    """Users in the colour of the UAV that serves them; hollow if they compute locally."""
    colours = [_colour(m - 1) if m > 0 else "white" for m in frame.association.tolist()]
    edges = [_colour(m - 1) if m > 0 else "#555555" for m in frame.association.tolist()]
    axes.scatter(*_xy(frame.mu_xy_m), s=16, c=colours, edgecolors=edges, linewidths=0.8, zorder=2)


def _links(axes: "Axes", frame: Frame) -> None:
    """A line from each offloading user to its UAV; dashed if the UAV relays to the station."""
    relayed = frame.relay.tolist()
    for k, m in enumerate(frame.association.tolist()):
        if m > 0:
            x, y = _xy(np.stack((frame.mu_xy_m[k], frame.uav_xy_m[m - 1])))
            axes.plot(x, y, color=_LINK, lw=0.6, ls="--" if relayed[k] else "-", zorder=1.5)


def _legend(axes: "Axes") -> None:
    with needs_extra("study"):
        from matplotlib.lines import Line2D
    grey = "#555555"
    marks = [
        Line2D([], [], color=grey, marker="s", ls="", mfc="white", label="start of a UAV"),
        Line2D([], [], color=grey, marker="^", ls="", label="end"),
        Line2D([], [], color=_GREY, label="track of a user"),
        Line2D([], [], color=grey, marker="o", ms=4, ls="", mfc="white", label="computes locally"),
        Line2D([], [], color=_LINK, lw=0.8, label="served by"),
        Line2D([], [], color=_LINK, lw=0.8, ls="--", label="relayed to BS"),
    ]
    axes.legend(handles=marks, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=6,
                fontsize=7, frameon=False)  # fmt: skip


def _xy(points: npt.NDArray[np.float32]) -> tuple[list[float], list[float]]:
    """Columns x and y of `[n, 2]`."""
    return points[:, 0].tolist(), points[:, 1].tolist()


def _colour(m: int) -> str:
    with needs_extra("study"):
        from matplotlib import colormaps
        from matplotlib.colors import to_hex
    return to_hex(colormaps["tab10"](m % 10))
