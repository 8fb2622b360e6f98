"""Radio: line-of-sight odds, gains, and the rates of the uplink and of the relay link."""

import math

import torch
from torch import Tensor

from lockstep.worlds.uav_mec.config import UavMecConfig

MIN_BANDWIDTH_HZ = 1e3
MIN_RATE_BPS = 1e3


def los_probability(horizontal_m: Tensor, *, config: UavMecConfig) -> Tensor:
    """Chance of line of sight at a horizontal distance (elevation in degrees)."""
    elevation_deg = torch.atan(config.altitude_m / horizontal_m.clamp(min=1e-6)) * (180.0 / math.pi)
    return 1.0 / (1.0 + config.los_a * torch.exp(-config.los_b * (elevation_deg - config.los_a)))


def uplink_gain(horizontal_m: Tensor, *, config: UavMecConfig) -> Tensor:
    """Expected gain from user to UAV; the paper's second line, without the LoS term, is a slip."""
    los = los_probability(horizontal_m, config=config)
    distance_sq_m2 = (horizontal_m.square() + config.altitude_m**2).clamp(min=1.0)
    mixed = los + config.nlos_attenuation * (1.0 - los)
    # Not `pow`: on the CPU its last bit depends on an element's place in the batch, and a lane's
    # history must not depend on the lanes beside it.
    path_loss = torch.exp((0.5 * config.path_loss_exponent) * torch.log(distance_sq_m2))
    return config.gain_1m * mixed / path_loss


def relay_gain(uav_xy_m: Tensor, *, config: UavMecConfig) -> Tensor:
    """Free-space gain `[...]` from UAVs at `[..., 2]` to the base station."""
    x_m, y_m, z_m = config.station_m
    east_m, north_m = uav_xy_m.unbind(dim=-1)
    climb_m = config.altitude_m - z_m
    distance_sq_m2 = (east_m - x_m).square() + (north_m - y_m).square() + climb_m**2
    return config.gain_1m / distance_sq_m2.clamp(min=1.0)


def shannon_bps(
    bandwidth_hz: Tensor, power_w: Tensor, gain: Tensor, *, noise_w_hz: float
) -> Tensor:
    """Rate of a link, floored so that a starved link is slow instead of infinite."""
    bandwidth_hz = bandwidth_hz.clamp(min=MIN_BANDWIDTH_HZ)
    snr = power_w * gain / (bandwidth_hz * noise_w_hz)
    # log1p: far links have an SNR near 1e-3, where 1 + snr would lose half of float32's digits
    return (bandwidth_hz * (torch.log1p(snr) / math.log(2.0))).clamp(min=MIN_RATE_BPS)


def uplink_bps(
    mu_xy_m: Tensor,
    uav_xy_m: Tensor,
    bandwidth_hz: Tensor,
    *,
    power_w: Tensor,
    config: UavMecConfig,
) -> Tensor:
    """Rates `[...]` between users and UAVs at `[..., 2]` (any shapes that broadcast)."""
    horizontal_m = (mu_xy_m - uav_xy_m).square().sum(dim=-1).sqrt()
    gain = uplink_gain(horizontal_m, config=config)
    return shannon_bps(bandwidth_hz, power_w, gain, noise_w_hz=config.noise_w_hz)


def relay_bps(
    uav_xy_m: Tensor, bandwidth_hz: Tensor, *, power_w: Tensor, config: UavMecConfig
) -> Tensor:
    """Rates `[...]` from UAVs at `[..., 2]` to the base station."""
    gain = relay_gain(uav_xy_m, config=config)
    return shannon_bps(bandwidth_hz, power_w, gain, noise_w_hz=config.noise_w_hz)
