"""What agents and critic see of a city beside the candidates: vectors, and on request a picture."""

import torch
from torch import Tensor

from lockstep.worlds.city_growth.candidates import slot_price
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.state import State
from lockstep.worlds.city_growth.tables import PRICE_MARKS, Ground

RASTER = (5, 50, 50)


def shared_names(config: CityConfig) -> tuple[str, ...]:
    """The numbers that everybody sees, in order."""
    agents = config.agent_names
    return (
        "month",
        "months_left",
        "next_hub",
        "free",
        *(f"balance_{a}" for a in agents),
        *(f"income_{a}" for a in agents),
        *(f"prestige_{a}" for a in agents),
        *(f"count_{a}_{i}" for a in agents for i in range(config.n_types)),
    )


def own_names(config: CityConfig) -> tuple[str, ...]:
    """The numbers an agent sees of itself, in order."""
    return (
        *("own_balance", "own_income", "reachable", "price_mean"),
        *(f"price_above_{mark}" for mark in PRICE_MARKS),
        "acts",
        *(f"is_{a}" for a in config.agent_names),
    )


def overview(
    state: State, acts: Tensor, ground: Ground, config: CityConfig
) -> tuple[Tensor, Tensor]:
    """What all see `[L, S]`, and what each agent sees of itself `[L, A, O]`; `acts` is `[L, A]`."""
    L, A = len(state.owner), len(config.agents)
    balance = state.balance.index_select(1, ground.ledger) if config.shares_money else state.balance
    money = torch.cat((balance, state.income, state.prestige), dim=-1) * ground.money_scale
    money = torch.asinh(money).float()  # [L, 3 * A]
    free = (state.owner < 0).float()
    shared = torch.cat(
        (
            ground.calendar.index_select(0, state.month),
            free.sum(dim=-1, keepdim=True) / ground.slots,
            money,
            state.count.flatten(1) / ground.slots,
        ),
        dim=-1,
    )  # [L, S]

    price = slot_price(state, ground, config).unsqueeze(1)  # [L, 1, N]
    reach = ground.open_all[state.map, state.month] * free.unsqueeze(1)  # [L, A, N]
    # Counts are whole, so that a product of matrices is exact in batches of any size; the mean of
    # prices is not, and is summed row by row.
    above = torch.bmm(reach, (price > ground.price_marks).float().transpose(1, 2))  # [L, A, 3]
    count = reach.sum(dim=-1, keepdim=True)
    reachable = count.clamp(min=1.0)
    own = torch.cat(
        (
            money[:, : 2 * A].view(L, 2, A).transpose(1, 2),
            count / ground.slots,
            (reach * price).sum(dim=-1, keepdim=True) / reachable,
            above / reachable,
            acts.unsqueeze(-1),
            ground.one_hot.expand(L, A, A),
        ),
        dim=-1,
    )
    return shared, own


def raster(state: State, agent: int, ground: Ground, config: CityConfig) -> Tensor:
    """A picture `[L, 5, 50, 50]`: own and others' buildings, land price, river, reach.

    Slots fall into cells; a cell shows the largest of its slots.
    """
    channels, H, W = RASTER
    own = (state.owner == agent).float()
    others = ((state.owner >= 0) & (state.owner != agent)).float()
    near_river = ground.river[state.map]  # [L, N]
    reach = ground.open[state.map, agent, state.month].float()
    price = slot_price(state, ground, config)
    layers = torch.stack((own, others, price, near_river, reach), dim=1)  # [L, 5, N]
    xy = ground.xy[state.map]
    column = (xy[..., 0] * W / config.map.width).long().clamp(0, W - 1)
    row = (xy[..., 1] * H / config.map.height).long().clamp(0, H - 1)
    cell = (row * W + column).unsqueeze(1).expand_as(layers)
    blank = torch.zeros(len(layers), channels, H * W, device=layers.device)
    shown: Tensor = blank.scatter_reduce(2, cell, layers, reduce="amax")
    return shown.view(-1, channels, H, W)
