"""What a building costs and earns, in thousand GBP; pure functions of tensors."""

import torch
from torch import Tensor

from lockstep.worlds.city_growth.config import CityConfig

LOWEST_PRICE = 0.1


def clamped_price(price: Tensor) -> Tensor:
    """The land price as the formulas use it."""
    return price.clamp(LOWEST_PRICE, 1.0)


def land_index(price: Tensor) -> Tensor:
    """Whole number 10..100 of a price in 0..1."""
    return torch.round(10.0 + 90.0 * price)


def cost(fixed: Tensor, price: Tensor, config: CityConfig) -> Tensor:
    """Paid once: `fixed` (type and zone) plus the land; `price` is clamped."""
    return torch.add(fixed, land_index(price), alpha=config.land_unit)


def river_premium(revenue: Tensor, distance_m: Tensor, share: float, config: CityConfig) -> Tensor:
    """Monthly premium on `revenue` (type and zone), halving with the distance to the river."""
    near = torch.exp2(-distance_m / config.river_half_m)
    return torch.round(revenue * share * near).clamp(0.0, float(config.river_premium_cap))


def income(gross: Tensor, price: Tensor, gain: float) -> Tensor:
    """Monthly income: `gross` (revenue, zone, opex, rent, premium, bonus) lifted by the price."""
    return torch.round(gross * (1.0 + gain * price))


def zone(distance_px: Tensor, config: CityConfig) -> Tensor:
    """0 near, 1 middle, 2 far, by the mean distance to the nearest hub."""
    return (distance_px > config.near_zone_px).long() + (distance_px > config.mid_zone_px).long()


def score(value: Tensor, legal: Tensor, weight: Tensor) -> Tensor:
    """Weighted sum of income, prestige and cost `[..., 3, C]`, each min-max over the legal ones.

    Where the range of one is nil it counts 0.5. `weight` `[3, 1]` is negative for the cost. Legal
    rows come first; the others count as the first row, so that they change no range.
    """
    pool = torch.where(legal.unsqueeze(-2), value, value[..., :1])
    low, high = torch.aminmax(pool, dim=-1, keepdim=True)
    scaled = ((pool - low) / (high - low)).nan_to_num(nan=0.5)  # 0 / 0 where the range is nil
    return (scaled * weight).sum(dim=-2)
