"""What a turn does: checking the picks, expanding an anchor, and putting up the buildings."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.worlds.city_growth.candidates import CandidateSet, budget_of
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.state import FREE, NEVER, State
from lockstep.worlds.city_growth.tables import Ground, Tensors

_NEIGHBOUR_PX = (5.0, 20.0)


@dataclass(frozen=True, kw_only=True)
class Built(Tensors):
    """What one agent did in its turn; sums over its new buildings."""

    spent: Tensor  # [L] float64
    earned: Tensor  # [L] float64: monthly income of the new buildings
    credited: Tensor  # [L] float64: income to the horizon, less cost
    prestige: Tensor  # [L] float64
    neighbours: Tensor | None  # [L] others' buildings 5 to 20 px from the new ones, if rewarded
    picks: Tensor  # [L, 3] int64: how many stand, were in the set, and were made before a stop


def expand(
    picks: Tensor, candidates: CandidateSet, city: Tensor, ground: Ground, config: CityConfig
) -> Tensor:
    """The anchor `[L, 1]` and up to `builds - 1` more rows of its type, nearest first.

    A row joins if it is legal, takes no slot taken before, and the budget still holds. Equally
    near ones go by their order. Costs are paid in full for each.
    """
    anchor = (picks[:, :1] - 1).clamp(min=0)
    placed = picks[:, :1] > 0
    first = candidates.slots[..., 0].clamp(min=0)  # [L, C]
    away_px = ground.gap_px[city.unsqueeze(-1), first.gather(1, anchor), first]  # [L, C]
    fits = candidates.legal & (candidates.type == candidates.type.gather(1, anchor)) & placed
    if config.expansion == "cluster":
        fits = fits & (away_px <= config.cluster_px)
    left = None if candidates.budget is None else candidates.budget.unsqueeze(-1)
    chosen, row = [picks[:, :1]], anchor
    for _ in range(config.builds - 1):
        fits = fits & ~_shares(candidates.slots, row)
        able = fits
        if left is not None:
            left = left - candidates.cost.gather(1, row) * (chosen[-1] > 0)
            able = fits & (candidates.cost <= left)
        row = away_px.masked_fill(~able, torch.inf).argmin(dim=-1, keepdim=True)
        chosen.append((row + 1) * able.any(dim=-1, keepdim=True))
    return torch.cat(chosen, dim=-1)


def _shares(slots: Tensor, row: Tensor) -> Tensor:
    """Which rows `[L, C]` take a slot of the row numbered `row` `[L, 1]`."""
    taken = slots.gather(1, row.unsqueeze(-1).expand(-1, -1, slots.shape[-1]))  # [L, 1, R]
    same = slots.unsqueeze(-1) == taken.unsqueeze(-2)  # [L, C, R, R]
    return (same & (slots >= 0).unsqueeze(-1)).flatten(2).any(dim=-1)


def build(
    state: State,
    agent: int,
    picks: Tensor,
    candidates: CandidateSet,
    ground: Ground,
    config: CityConfig,
) -> Built:
    """Puts up what `picks` `[L, k]` name (0 stops), in order, and takes the money at once."""
    row = (picks - 1).clamp(min=0)
    key = candidates.key  # [L, C, R + 2]
    picked = key.gather(1, row.unsqueeze(-1).expand(-1, -1, key.shape[-1]))  # [L, k, R + 2]
    slots, kind = picked[..., :-2], picked[..., -2]
    wanted = picks.cummin(dim=-1).values > 0  # nothing counts after a stop
    offered = wanted & (picked[..., -1] >= 0)
    at = slots.clamp(min=0).flatten(1)  # [L, k * R]
    free = (state.owner.gather(1, at) < 0).view_as(slots)
    several = slots.shape[-1] > 1
    free = (free | (slots < 0)).all(dim=-1) if several else free.squeeze(-1)  # [L, k]
    money = candidates.money.gather(2, row.unsqueeze(1).expand(-1, 3, -1))  # [L, 3, k]
    # Of a shared ledger, others may have spent since the candidates were listed.
    budget = budget_of(state, agent, config)
    stands = _first_come(offered & free, slots, money[:, 2], budget)
    money *= stands.unsqueeze(1)

    up = stands.unsqueeze(-1) & (slots >= 0) if several else stands.unsqueeze(-1)  # [L, k, R]
    _mark(state, agent, up, at, kind, money[:, 2])
    if config.reward.diversity:
        when = state.month.unsqueeze(-1).where(stands, NEVER)
        state.last_built.select(1, agent).scatter_reduce_(1, kind, when, reduce="amax")
    gap_px = ground.gap_px[state.map.unsqueeze(-1), at]  # [L, k * R, N]
    up = up.flatten(1).unsqueeze(-1) if several else up  # [L, k * R, 1]
    neighbours = None
    if config.reward.cooperation:
        others = (state.owner >= 0) & (state.owner != agent)
        close = (gap_px >= _NEIGHBOUR_PX[0]) & (gap_px <= _NEIGHBOUR_PX[1])
        neighbours = (close & others.unsqueeze(1) & up).sum(dim=(1, 2))
    _bring_near(state, agent, gap_px, up, at, ground, config)

    total = money.sum(dim=-1, dtype=torch.float64)  # [L, 3]
    earned, prestige, paid = total.unbind(dim=-1)
    state.balance.select(1, config.ledgers[agent]).sub_(paid)
    state.income.select(1, agent).add_(earned)
    state.prestige.select(1, agent).add_(prestige)
    return Built(
        spent=paid,
        earned=earned,
        credited=earned * candidates.months_left - paid,
        prestige=prestige,
        neighbours=neighbours,
        picks=torch.stack((stands, offered, wanted), dim=1).sum(dim=-1),
    )


def _first_come(able: Tensor, slots: Tensor, cost: Tensor, budget: Tensor | None) -> Tensor:
    """Of the picks `able` `[L, k]`, those that no earlier one of the same turn rules out."""
    k = able.shape[-1]
    if k == 1 and budget is None:
        return able
    if slots.shape[-1] == 1 and budget is None:
        # Of the picks of one slot the first able one stands, so no order need be gone through.
        same = (slots == slots.transpose(1, 2)) & able.unsqueeze(1)  # [L, later, earlier]
        return able & ~same.tril(diagonal=-1).any(dim=-1)
    left, stands = budget, list[Tensor]()
    for j in range(k):
        good = able[:, j]
        if left is not None:
            good = good & (cost[:, j] <= left)
        for i in range(j):
            same = slots[:, i].unsqueeze(-1) == slots[:, j].unsqueeze(-2)  # [L, R, R]
            shared = (same & (slots[:, j] >= 0).unsqueeze(-2)).flatten(1).any(dim=-1)
            good = good & ~(stands[i] & shared)
        if left is not None:
            left = left - cost[:, j] * good
        stands.append(good)
    return torch.stack(stands, dim=-1)


def _mark(state: State, agent: int, up: Tensor, at: Tensor, kind: Tensor, paid: Tensor) -> None:
    """Writes owner, type, price paid and counts of the slots `at` `[L, k * R]` where `up`.

    `up` is `[L, k, R]`, and `paid` `[L, k]` is 0 for what does not stand. What is built stands on
    free ground, whose numbers are the least there are: so the larger one stays, and a slot named
    twice, or not built on, is written to without harm.
    """
    R = up.shape[-1]
    for there, new in ((state.kind, kind.unsqueeze(-1)), (state.owner, agent)):
        there.scatter_reduce_(1, at, torch.where(up, new, FREE).flatten(1), reduce="amax")
    state.paid.scatter_add_(1, at[:, ::R], paid)
    state.count.select(1, agent).scatter_add_(1, kind, up[..., 0].long())


def _bring_near(
    state: State,
    agent: int,
    gap_px: Tensor,
    up: Tensor,
    at: Tensor,
    ground: Ground,
    config: CityConfig,
) -> None:
    """Updates what depends on distances: `gap_px` `[L, k * R, N]`, where `up` `[L, k * R, 1]`.

    `at` `[L, k * R]` are the slots.
    """
    down = ~up
    nearest_px = gap_px.masked_fill(down, torch.inf).amin(dim=1)  # [L, N]
    mine = state.near_px.select(1, agent)
    torch.minimum(mine, nearest_px, out=mine)
    beside = ground.adjacent[state.map.unsqueeze(-1), at]  # [L, k * R, N]
    state.free_neighbours.sub_(beside.masked_fill_(down, 0.0).sum(dim=1))
    if config.land.evaluate == "slots":
        square = nearest_px.square()
    else:
        here = ground.xy[state.map.unsqueeze(-1), at]  # [L, k * R, 2]
        off = ground.point_xy[state.map].unsqueeze(1) - here.unsqueeze(2)  # [L, k * R, E, 2]
        square = off.square().sum(dim=-1).masked_fill(down, torch.inf).amin(dim=1)
    torch.minimum(state.near_px2, square, out=state.near_px2)
