"""Penalties and the rewards of users and UAVs (paper section IV, signs repaired)."""

import torch
from torch import Tensor

from lockstep.worlds.uav_mec.allocation import of_own_uav, per_uav
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.state import Numbers, Request


def latency_penalty(local_s: Tensor, edge_s: Tensor, *, factor: Tensor, slot_s: float) -> Tensor:
    """P_t: lateness of the local and of the offloaded part, in slots, times mu_t."""
    late_s = (local_s - slot_s).clamp(min=0.0) + (edge_s - slot_s).clamp(min=0.0)
    return factor / slot_s * late_s


def boundary_penalty(overshoot_m: Tensor, *, factor: Tensor, config: UavMecConfig) -> Tensor:
    """P_o: how far a UAV tried to leave the area."""
    unit_m = 1.0 if config.boundary_unit == "m" else config.extent_m
    return factor * (overshoot_m / unit_m)


def collision_penalty(uav_xy_m: Tensor, *, factor: Tensor, min_separation_m: float) -> Tensor:
    """P_c `[L, M]`: how much nearer than allowed the other UAVs are, as shares of d_min."""
    x_m, y_m = uav_xy_m.unbind(dim=-1)
    dx = x_m.unsqueeze(2) - x_m.unsqueeze(1)
    dy = y_m.unsqueeze(2) - y_m.unsqueeze(1)
    distance_m = (dx * dx + dy * dy).sqrt()  # [L, M, M]
    intrusion = (1.0 - distance_m / min_separation_m).clamp(min=0.0)
    other = ~torch.eye(x_m.shape[1], dtype=torch.bool, device=x_m.device)
    return factor * torch.where(other, intrusion, 0.0).sum(dim=-1)


def distance_penalty(
    uav_xy_m: Tensor, mu_xy_m: Tensor, served: Tensor, *, config: UavMecConfig
) -> Tensor:
    """P_d `[L, M]`: distance to the centroid of the UAV's users beyond d_th, in area widths."""
    n_served = served.sum(dim=-1)  # [L, M]
    users = n_served.clamp(min=1)
    dx = uav_xy_m[..., 0] - per_uav(mu_xy_m[..., 0], served) / users
    dy = uav_xy_m[..., 1] - per_uav(mu_xy_m[..., 1], served) / users
    excess = ((dx * dx + dy * dy).sqrt() - config.distance_threshold_m) / config.extent_m
    if not config.distance_bonus:
        excess = excess.clamp(min=0.0)
    return torch.where(n_served > 0, excess, 0.0)


def user_reward(
    mu_energy_j: Tensor,
    penalty: Tensor,
    uav_energy_j: Tensor,
    request: Request,
    served: Tensor,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> Tensor:
    """-(own energy + weighted energy of the chosen UAV + lateness) `[L, K]`."""
    bill_j = uav_energy_j
    if config.divide_uav_energy:
        bill_j = bill_j / served.sum(dim=-1).clamp(min=1)
    bill_j = torch.where(request.offloads, of_own_uav(bill_j, request.choice), 0.0)
    return -(mu_energy_j + numbers.energy_weight.unsqueeze(-1) * bill_j + penalty)


def uav_reward(
    mu_cost: Tensor,
    uav_energy_j: Tensor,
    safety: Tensor,
    served: Tensor,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> Tensor:
    """-(cost of the UAV's users + own weighted energy + flight penalties) `[L, M]`."""
    cost = per_uav(mu_cost, served)
    if config.uav_aggregation == "mean":
        cost = cost / served.sum(dim=-1).clamp(min=1)
    if config.uav_pays_own_energy:
        cost = cost + numbers.energy_weight.unsqueeze(-1) * uav_energy_j
    return -(cost + safety)
