"""How UAVs fly: bounded acceleration, bounded speed, walls that stop them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.worlds.uav_mec.config import UavMecConfig


@dataclass(frozen=True, kw_only=True)
class Flight:
    """Where the UAVs are after a slot."""

    xy_m: Tensor  # [L, M, 2]
    velocity_mps: Tensor  # [L, M, 2]; zero after touching a wall
    overshoot_m: Tensor  # [L, M] how far outside the area the flight would have ended


def limited(vector: Tensor, bound: Tensor, *, rule: str) -> Tensor:
    """`vector` `[..., 2]` shortened to length `bound` ("norm") or clipped on each axis ("axis")."""
    if rule == "axis":
        return torch.maximum(torch.minimum(vector, bound), -bound)
    length = vector.square().sum(dim=-1, keepdim=True).sqrt()
    return vector * (bound / length.clamp(min=1e-9)).clamp(max=1.0)


def fly(
    xy_m: Tensor,
    velocity_mps: Tensor,
    motion: Tensor,
    *,
    v_max_mps: Tensor,
    a_max_mps2: Tensor,
    config: UavMecConfig,
) -> Flight:
    """One slot of flight for motion numbers in [0, 1]; limits broadcast to `[L, M, 2]`.

    Where the speed limit shortens the velocity, the position uses the acceleration that was in
    fact applied, so that position and velocity stay consistent.
    """
    stick = 2.0 * motion - 1.0
    wanted_mps2 = (
        stick * a_max_mps2
        if config.uav_control == "accel"
        else (stick * v_max_mps - velocity_mps) / config.slot_s
    )
    acceleration_mps2 = limited(wanted_mps2, a_max_mps2, rule=config.limit)
    new_velocity_mps = limited(
        velocity_mps + acceleration_mps2 * config.slot_s, v_max_mps, rule=config.limit
    )
    free_m = xy_m + 0.5 * (velocity_mps + new_velocity_mps) * config.slot_s  # v dt + a dt^2 / 2
    x_m, y_m = free_m.unbind(dim=-1)
    inside_m = torch.stack(
        (x_m.clamp(0.0, config.width_m), y_m.clamp(0.0, config.height_m)), dim=-1
    )
    overshoot_m = (free_m - inside_m).square().sum(dim=-1).sqrt()
    return Flight(
        xy_m=inside_m,
        velocity_mps=torch.where(overshoot_m.unsqueeze(-1) > 0, 0.0, new_velocity_mps),
        overshoot_m=overshoot_m,
    )
