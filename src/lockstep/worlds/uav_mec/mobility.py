"""How users move (Gauss-Markov with reflecting walls) and what tasks they get."""

import math

import torch
from torch import Tensor

from lockstep.core.streams import Draw
from lockstep.worlds.uav_mec.config import UavMecConfig


def gauss_markov(value: Tensor, mean: Tensor, noise: Tensor, *, memory: float) -> Tensor:
    """One step of a process that keeps its stationary spread, which is that of `noise`."""
    return memory * value + (1.0 - memory) * mean + math.sqrt(1.0 - memory * memory) * noise


def bounce(
    xy_m: Tensor, heading_rad: Tensor, *, width_m: float, height_m: float
) -> tuple[Tensor, Tensor]:
    """Positions `[..., 2]` and headings `[...]` after reflection, wall by wall.

    An x wall mirrors the heading to pi - heading, a y wall to -heading; both apply in a corner.
    """
    x_m, y_m = xy_m.unbind(dim=-1)
    x_in, hit_x = _reflect(x_m, width_m)
    y_in, hit_y = _reflect(y_m, height_m)
    heading_rad = torch.where(hit_x, math.pi - heading_rad, heading_rad)
    heading_rad = torch.where(hit_y, -heading_rad, heading_rad)
    return torch.stack((x_in, y_in), dim=-1), heading_rad


def _reflect(x_m: Tensor, extent_m: float) -> tuple[Tensor, Tensor]:
    """Coordinates mirrored at 0 and `extent_m`, and where that happened."""
    inside = torch.where(x_m < 0, -x_m, torch.where(x_m > extent_m, 2 * extent_m - x_m, x_m))
    return inside.clamp(0.0, extent_m), (x_m < 0) | (x_m > extent_m)


def in_area_m(share: Tensor, *, config: UavMecConfig) -> Tensor:
    """Positions in metres from shares `[..., 2]` of the area's width and height."""
    x, y = share.unbind(dim=-1)
    return torch.stack((x * config.width_m, y * config.height_m), dim=-1)


def walk(
    xy_m: Tensor,
    speed_mps: Tensor,
    heading_rad: Tensor,
    mean_heading_rad: Tensor,
    draw: Draw,
    *,
    mean_speed_mps: Tensor,
    config: UavMecConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, speeds and headings one slot later: refresh, then move.

    The paper moves with the old speed and refreshes afterwards; the statistics are the same.
    """
    noise = draw.normal(2, xy_m.shape[1])  # [L, 2, K]
    speed_mps = gauss_markov(
        speed_mps,
        mean_speed_mps,
        config.mu_speed_std_mps * noise[:, 0],
        memory=config.mu_speed_memory,
    ).clamp(0.0, config.mu_speed_max_mps)
    heading_rad = gauss_markov(
        heading_rad,
        mean_heading_rad,
        config.mu_heading_std_rad * noise[:, 1],
        memory=config.mu_heading_memory,
    )
    direction = torch.stack((torch.cos(heading_rad), torch.sin(heading_rad)), dim=-1)  # [L, K, 2]
    moved_m = xy_m + speed_mps.unsqueeze(-1) * direction * config.slot_s
    xy_m, heading_rad = bounce(
        moved_m, heading_rad, width_m=config.width_m, height_m=config.height_m
    )
    return xy_m, speed_mps, heading_rad


def new_tasks(
    draw: Draw, n_users: int, *, bits: tuple[Tensor, Tensor], cycles: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """A fresh task per user: bits and cycles per bit `[L, K]`, uniform in the ranges `[L, 1]`."""
    uniform = draw.uniform(2, n_users)  # [L, 2, K]
    return (
        bits[0] + (bits[1] - bits[0]) * uniform[:, 0],
        cycles[0] + (cycles[1] - cycles[0]) * uniform[:, 1],
    )
