"""Energy of chips, radios and rotors, in joules."""

import torch
from torch import Tensor

from lockstep.worlds.uav_mec.config import UavMecConfig


def chip_j(work_cycles: Tensor, clock_hz: Tensor, *, kappa: float) -> Tensor:
    """Energy of computing: kappa f^2 per cycle."""
    return (kappa * clock_hz.square()) * work_cycles


def propulsion_w(speed_mps: Tensor, *, drag_ratio: Tensor, config: UavMecConfig) -> Tensor:
    """Power of a rotary wing in level flight (Zeng, Xu, Zhang, IEEE TWC 2019, eq. 12).

    The paper prints v^3 in the blade term and drops the outer root of the induced term; this is
    the model it cites.
    """
    speed_sq = speed_mps.square()
    drag = 0.5 * config.air_density_kgpm3 * config.rotor_solidity * config.rotor_area_m2
    parasite_w = drag * drag_ratio * speed_sq * speed_mps
    blade_w = config.blade_power_w * (1.0 + (3.0 / config.tip_speed_mps**2) * speed_sq)
    ratio = speed_sq / (2.0 * config.induced_speed_mps**2)
    # sqrt(1 + r^2) - r, written so that float32 does not cancel at high speed
    induced = torch.rsqrt(torch.sqrt(1.0 + ratio.square()) + ratio)
    return parasite_w + blade_w + config.induced_power_w * induced
