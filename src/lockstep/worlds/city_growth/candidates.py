"""The candidate set of an agent: enumerated in a fixed order, filtered, capped and made dense."""

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from lockstep.worlds.city_growth import economy
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.parties import AgentConfig
from lockstep.worlds.city_growth.state import State
from lockstep.worlds.city_growth.tables import (
    DYNAMIC,
    NPV_SCALE,
    Ground,
    Tables,
    Tensors,
    Universe,
    unrecorded,
)


@dataclass(frozen=True, kw_only=True)
class CandidateSet(Tensors):
    """What one agent may build now: up to C rows in the order (type, slots)."""

    legal: Tensor  # [L, C] bool
    key: Tensor  # [L, C, R + 2] int64: slots (-1 for none), type, id (-1 where not legal)
    money: Tensor  # [L, 3, C] float32: income, prestige, cost; meaningless where not legal
    features: Tensor  # [L, C, F], 0 where not legal
    changing: Tensor  # [L, len(DYNAMIC), C]: those of them that months change, feature by feature
    budget: Tensor | None  # [L] float32: what may be spent; None under soft debt
    count: Tensor  # [L] int64, K: legal rows, and the choice to stop
    dropped: Tensor  # [L] int64: rows that the cap left out
    months_left: Tensor  # [L] months in which a building of this month earns

    @property
    def slots(self) -> Tensor:
        """`[L, C, R]` int64, -1 where the row (or its footprint) has none."""
        return self.key[..., :-2]

    @property
    def type(self) -> Tensor:
        """`[L, C]` int64."""
        return self.key[..., -2]

    @property
    def id(self) -> Tensor:
        """`[L, C]` int64, -1 where not legal."""
        return self.key[..., -1]

    def pooled(self) -> Tensor:
        """The set in `len(POOLED)` numbers `[L, P]`: how full it is, mean and largest of features.

        Rows that are not legal count as 0 in the largest; all is 0 for the empty set.
        """
        rows = (self.count - 1).unsqueeze(-1)
        total = self.changing.sum(dim=-1) / rows.clamp(min=1)
        return torch.cat((rows / self.legal.shape[-1], total, self.changing.amax(dim=-1)), dim=-1)

    @property
    def income(self) -> Tensor:
        """Thousand GBP a month `[L, C]`."""
        return self.money[:, 0]

    @property
    def prestige(self) -> Tensor:
        """`[L, C]`."""
        return self.money[:, 1]

    @property
    def cost(self) -> Tensor:
        """Thousand GBP `[L, C]`."""
        return self.money[:, 2]


def slot_price(state: State, ground: Ground, config: CityConfig) -> Tensor:
    """Land price at the slots `[L, N]`, in 0..1."""
    if config.land.evaluate == "slots":
        return state.field
    read, weight = ground.read[state.map], ground.read_weight[state.map]  # [L, N, 4]
    around = state.field.gather(1, read.flatten(1)).view_as(weight)
    return (around * weight).sum(dim=-1).clamp(0.0, 1.0)


def usable(state: State, agent: int, acts: Tensor, ground: Ground, config: CityConfig) -> Tensor:
    """Slots `[L, N]` the agent may use now: active, free, reached, on its bank, near its own."""
    own = config.agents[agent]
    free = (state.owner < 0) & acts.unsqueeze(-1)
    reached = ground.open[state.map, agent, state.month] & free
    if config.reach == "ring":
        ring = ground.fresh[state.map, agent, state.month] & free
        reached = torch.where(ring.any(dim=-1, keepdim=True), ring, reached)
    near = reached & (state.near_px[:, agent] <= own.near_px)
    enough = near.sum(dim=-1, keepdim=True) >= own.near_least
    return torch.where(enough, near, reached)


def budget_of(state: State, agent: int, config: CityConfig) -> Tensor | None:
    """What the agent may spend now `[L]`; None under soft debt."""
    if config.debt == "soft":
        return None
    return (state.balance[:, config.ledgers[agent]] + config.credit).float()


def enumerate_set(
    state: State, agent: int, acts: Tensor, tables: Tables, config: CityConfig
) -> CandidateSet:
    """The candidates of agent number `agent`, in the lanes where it `acts` `[L]`."""
    universe, device = tables.universes[agent], state.month.device
    budget = budget_of(state, agent, config)
    with unrecorded(device):
        price = slot_price(state, tables.ground, config)
        row, count, dropped = _listed(state, agent, acts, (price, budget), tables, config)
        flat = row.flatten()  # [L * C]
    key = universe.key.index_select(0, flat).unflatten(0, row.shape)  # [L, C, R + 2]
    features = universe.features.index_select(0, flat).unflatten(0, row.shape)  # [L, C, F]
    with unrecorded(device):
        legal = key[..., -1] >= 0
        fixed = universe.money.index_select(0, flat).unflatten(0, row.shape)
        months_left, money, changing = _valued(
            state, agent, (legal, key, fixed), price, tables, config
        )
    features[..., -len(DYNAMIC) :] = changing.transpose(1, 2)
    return CandidateSet(
        legal=legal,
        key=key,
        money=money,
        features=features,
        changing=changing,
        budget=budget,
        count=count,
        dropped=dropped,
        months_left=months_left,
    )


def _listed(
    state: State,
    agent: int,
    acts: Tensor,
    money: tuple[Tensor, Tensor | None],
    tables: Tables,
    config: CityConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers `[L, C]` of the rows that may be built, how many `[L]` with the stop, and cut `[L]`.

    `money` is the land price and the budget.
    """
    own, universe, ground = config.agents[agent], tables.universes[agent], tables.ground
    price, budget = money
    if config.bankruptcy == "skip_turn":
        acts = acts & (state.balance[:, config.ledgers[agent]] >= -config.bankrupt_at)
    use = usable(state, agent, acts, ground, config)
    legal = _fits(use, universe.place.index_select(0, state.map))
    if any(kind.hub >= 0 for kind in own.types):
        legal &= universe.from_month[state.map] <= state.month.unsqueeze(-1)
    if budget is not None:
        legal &= _cost_everywhere(price, state.map, universe, config) <= budget.unsqueeze(-1)
    C = config.width(own)
    legal, dropped = cap(legal, price, state.map, universe, own, width=C)
    row, count = dense(legal, ground.rank[:C], city=state.map)
    return row, count + 1, dropped


def _fits(use: Tensor, place: Tensor) -> Tensor:
    """Footprints `[L, U]` whose slots may all be used; `place` `[L, U, R]` may point beyond N."""
    padded = torch.nn.functional.pad(use, (0, 2))
    if place.shape[-1] == 1:
        return padded.gather(1, place.squeeze(-1))
    padded[:, -2] = True  # a slot that a short footprint does not have
    return padded.gather(1, place.flatten(1)).view_as(place).all(dim=-1)


def _price_everywhere(price: Tensor, city: Tensor, universe: Universe) -> Tensor:
    """Mean land price `[L, U]` of every footprint there could be."""
    place = universe.place[city]
    beyond = price.new_zeros(len(price), 2)
    at = torch.cat((price, beyond), dim=-1).gather(1, place.flatten(1)).view_as(place)
    return at.sum(dim=-1) / universe.size[city].clamp(min=1.0)


def _cost_everywhere(price: Tensor, city: Tensor, universe: Universe, config: CityConfig) -> Tensor:
    """Cost `[L, U]` of every row there could be."""
    at = economy.clamped_price(_price_everywhere(price, city, universe))
    M, U = universe.type.shape
    fixed = universe.money[:, 0].view(M, U + 1)[:, :U][city]
    return economy.cost(fixed, at, config)


def cap(
    legal: Tensor, price: Tensor, city: Tensor, universe: Universe, own: AgentConfig, *, width: int
) -> tuple[Tensor, Tensor]:
    """Cuts each type to its cap, and to an equal part of `width` where all would not fit.

    Those of highest land price stay; among equals the first in order. Also the number cut `[L]`.
    """
    if not own.cap_per_type and legal.shape[-1] <= width:
        return legal, torch.zeros_like(city)
    total = legal.sum(dim=-1)
    if legal.device.type != "cpu" or own.cap_per_type:
        kept = _dearest(legal, price, city, universe, own, width=width)
        return kept, total - kept.sum(dim=-1)
    # To ask which lanes have too many is cheaper here than to rank the candidates of all.
    crowded = (total > width).nonzero().squeeze(-1)
    if not len(crowded):
        return legal, torch.zeros_like(city)
    few = (legal[crowded], price[crowded], city[crowded])
    kept = legal.index_copy(0, crowded, _dearest(*few, universe, own, width=width))
    return kept, total - kept.sum(dim=-1)


def _dearest(
    legal: Tensor, price: Tensor, city: Tensor, universe: Universe, own: AgentConfig, *, width: int
) -> Tensor:
    """Which of the `legal` ones the cap leaves, by a ranking of each type."""
    part = width // len(own.types)
    most = torch.where(legal.sum(dim=-1) > width, part, legal.shape[-1])
    if own.cap_per_type:
        most = most.clamp(max=own.cap_per_type)
    worth = _price_everywhere(price, city, universe)
    kept = torch.zeros_like(legal)
    for t in range(len(own.types)):
        mine = legal & (universe.type[city] == t)
        order = worth.masked_fill(~mine, -1.0).argsort(dim=-1, descending=True, stable=True)
        number = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, order, number)
        kept |= mine & (rank < most.unsqueeze(-1))
    return kept


def dense(legal: Tensor, rank: Tensor, *, city: Tensor) -> tuple[Tensor, Tensor]:
    """Where the legal rows of `[L, U]` stand in the flat tables, in order: `[L, C]`.

    `rank` `[C]` is 1, 2, ... in int32; places left over point to the city's row of nothing. Also
    how many there are `[L]`.
    """
    L, U = legal.shape
    place = legal.cumsum(dim=-1, dtype=torch.int32)  # 1 from the first on
    row = torch.searchsorted(
        place, rank.expand(L, -1).contiguous()
    )  # U where there are not as many
    return row + (city * (U + 1)).unsqueeze(-1), place[:, -1]


def _valued(
    state: State,
    agent: int,
    rows: tuple[Tensor, Tensor, Tensor],
    price: Tensor,
    tables: Tables,
    config: CityConfig,
) -> tuple[Tensor, Tensor, Tensor]:
    """Months left `[L]`, money `[L, 3, C]` and the features that months change, for `rows`.

    They are given by whether they are legal, by their keys and by what their money starts from.
    """
    legal, key, money = rows
    own, universe = config.agents[agent], tables.universes[agent]
    fixed, gross, prestige = money.unbind(dim=-1)
    at, near_px, free = _around(state, agent, key[..., :-2], price)

    cost = economy.cost(fixed, at, config)
    if config.adjacency_bonus or config.prestige_rule == "draft":
        touching = _touches_own(state, agent, key[..., :-2], tables.ground)  # [L, C]
        gross = gross + config.adjacency_bonus * touching
        prestige = prestige + (touching if config.prestige_rule == "draft" else 0.0)
    income = economy.income(gross, at, own.price_gain)
    balance = state.balance[:, config.ledgers[agent], None].float().clamp(min=1.0)
    earning = tables.ground.earning.index_select(0, state.month)
    left, half = earning.split(1, dim=1)  # [L, 1]
    npv = torch.addcmul(-cost, income, left)
    money = torch.stack((income, prestige, cost), dim=1)  # [L, 3, C]
    first = npv[:, :1]  # legal rows come first
    lag = (npv.where(legal, first).amax(dim=-1, keepdim=True) - npv).clamp(min=0.0)
    sharp = half.square()
    changing = torch.stack(
        (
            cost,
            cost / balance,
            income,
            cost / income.clamp(min=1.0),
            npv / (npv.abs() + NPV_SCALE),
            lag,
            sharp / (lag.square() + sharp),
            economy.score(money, legal, universe.weight),
            at,
            near_px[:, 0],
            near_px[:, 1],
            free,
        ),
        dim=1,
    )  # [L, 12, C]
    changing = torch.minimum(changing, tables.ground.feature_cap)
    changing *= tables.ground.feature_scale * legal.unsqueeze(1)
    return left.squeeze(-1), money, changing


def _around(
    state: State, agent: int, slots: Tensor, price: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Land price `[L, C]`, distances to own and others' buildings `[L, 2, C]`, free neighbours.

    Over the slots of a footprint: the mean, the least, and the sum.
    """
    own_px = state.near_px[:, agent]
    others = [state.near_px[:, i] for i in range(state.near_px.shape[1]) if i != agent]
    other_px = reduce(torch.minimum, others) if others else torch.full_like(own_px, torch.inf)
    of_slot = torch.stack((price, own_px, other_px, state.free_neighbours), dim=1)  # [L, 4, N]
    index = slots.clamp(min=0).flatten(1).unsqueeze(1).expand(-1, 4, -1)
    at = of_slot.gather(2, index)  # [L, 4, C * R]
    if slots.shape[-1] > 1:
        at = at.unflatten(-1, slots.shape[1:])  # [L, 4, C, R]
        none = slots < 0
        size = (~none).sum(dim=-1).clamp(min=1)
        mean = at[:, 0].masked_fill(none, 0.0).sum(dim=-1) / size
        least = at[:, 1:3].masked_fill(none.unsqueeze(1), torch.inf).amin(dim=-1)
        free = at[:, 3].masked_fill(none, 0.0).sum(dim=-1)
        at = torch.cat((mean.unsqueeze(1), least, free.unsqueeze(1)), dim=1)
    return economy.clamped_price(at[:, 0]), at[:, 1:3], at[:, 3]


def _touches_own(state: State, agent: int, slots: Tensor, ground: Ground) -> Tensor:
    """1.0 for each row `[L, C]` that is a neighbour of the agent's own buildings."""
    own = (state.owner == agent).float().unsqueeze(-1)  # [L, N, 1]
    beside = torch.bmm(ground.adjacent[state.map], own).squeeze(-1) > 0  # [L, N]
    at = beside.gather(1, slots.clamp(min=0).flatten(1)).view_as(slots) & (slots >= 0)
    return at.any(dim=-1).float()
