"""Drawings of a city: land price, river, hubs and their reach, and who built what where."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.errors import needs_extra
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.world import Frame

if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OWNERS = ("#d1495b", "#2e86ab", "#edae49", "#6a4c93", "#3a7d44", "#8d6a9f")
_MARKS = ("o", "s", "^", "D", "P", "X")
_WATER = "#8ecae6"
_KEY = "star: hub, dashed: its reach, grey: land price, dots: free slots, blue: river"
_MARGIN_PX = 8.0
_LINEAR_TO = 1_001.0  # thousand GBP; at 1,000 rounding would put ticks at 100 as well


def draw(frames: Sequence[Frame], config: CityConfig, *, title: str = "") -> "Figure":
    """The last month of an episode beside its balances over time."""
    with needs_extra("study"):
        import matplotlib.pyplot as plt
    figure, (ground, money) = plt.subplots(1, 2, figsize=(11.0, 6.2), layout="constrained")
    draw_month(ground, frames[-1], config, title=title)
    _draw_money(money, frames, config)
    return figure


def animate(
    frames: Sequence[Frame], config: CityConfig, *, title: str = "", fps: int = 8
) -> "tuple[Figure, FuncAnimation]":
    """The city month by month."""
    with needs_extra("study"):
        import matplotlib.pyplot as plt
        from matplotlib.animation import FuncAnimation
    figure, axes = plt.subplots(figsize=(6.0, 6.0), layout="constrained")

    def show(t: int) -> list[Any]:
        axes.clear()
        draw_month(axes, frames[t], config, title=title)
        return []

    return figure, FuncAnimation(figure, show, frames=len(frames), interval=1000 / fps)


def draw_month(axes: "Axes", frame: Frame, config: CityConfig, *, title: str = "") -> None:
    """One month of one city."""
    with needs_extra("study"):
        from matplotlib.patches import Circle
    city = frame.city
    axes.imshow(frame.field, origin="lower", cmap="Greys", vmin=0.0, vmax=1.4, zorder=0)
    if len(city.river):
        wide = 2.0 * config.map.river_buffer_px
        axes.plot(city.river[:, 0], city.river[:, 1], color=_WATER, lw=wide, zorder=1)
    for hub, place in zip(config.map.hubs, city.hub_xy, strict=True):
        active = frame.month >= hub.active_from
        axes.plot(*place, marker="*", ms=13, color="black" if active else "#999999", zorder=4)
        if active:
            radius = hub.r0 + hub.dr * frame.month
            axes.add_patch(Circle(tuple(place), radius, fill=False, ls="--", lw=0.8, zorder=2))
    free = frame.owner < 0
    x, y = city.slot_xy.T
    axes.scatter(x[free], y[free], s=6, color="#777777", zorder=2)
    for a, agent in enumerate(config.agents):
        for t, kind in enumerate(agent.types):
            here = (frame.owner == a) & (frame.kind == t)
            axes.scatter(x[here], y[here], s=34, color=_OWNERS[a % len(_OWNERS)],
                         marker=_MARKS[t % len(_MARKS)], edgecolor="white", lw=0.4, zorder=3,
                         label=f"{agent.name} {kind.name}")  # fmt: skip
    _frame_axes(axes, frame)
    axes.set_title(f"{title}  month {frame.month}".strip(), fontsize=10)
    axes.set_xlabel(_KEY, fontsize=7, color="#555555")
    columns = len(config.agents)  # a legend fills them one by one
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=columns, fontsize=8,
                frameon=False)  # fmt: skip


def _frame_axes(axes: "Axes", frame: Frame) -> None:
    """Shows the part of the map that has slots and hubs."""
    points = np.vstack((frame.city.slot_xy, frame.city.hub_xy))
    low, high = points.min(axis=0) - _MARGIN_PX, points.max(axis=0) + _MARGIN_PX
    axes.set_xlim(max(low[0], -0.5), min(high[0], frame.city.width - 0.5))
    axes.set_ylim(max(low[1], -0.5), min(high[1], frame.city.height - 0.5))
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_money(axes: "Axes", frames: Sequence[Frame], config: CityConfig) -> None:
    months = [frame.month for frame in frames]
    balance = np.stack([frame.balance for frame in frames])  # [T, A]
    for a, agent in enumerate(config.agents):
        axes.plot(months, balance[:, a], color=_OWNERS[a % len(_OWNERS)], label=agent.name,
                  marker="o", ms=4, markevery=[-1])  # fmt: skip
    axes.axhline(0.0, color="black", lw=0.6)
    axes.set_xlim(-0.5, config.horizon + 0.5)
    axes.set_yscale("symlog", linthresh=_LINEAR_TO)
    axes.set_xlabel("month")
    axes.set_ylabel("balance, thousand GBP (logarithmic beyond 1,000)")
    axes.legend(frameon=False)
