"""The end of a month: incomes, rent, interest, debt, and what each agent is rewarded for."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.state import LEDGER, Numbers, State
from lockstep.worlds.city_growth.tables import Ground
from lockstep.worlds.city_growth.turn import Built


@dataclass(frozen=True, kw_only=True)
class Close:
    """What closing a month gave."""

    terms: dict[str, Tensor]  # name -> [L, A] float64, in thousand GBP; they add up to the reward
    ended: Tensor  # [L] bool


def active_terms(config: CityConfig) -> tuple[str, ...]:
    """Names of the reward's terms under these settings, in order."""
    reward = config.reward
    switched = {
        "rent": config.rent_share > 0,
        "interest": True,  # it may be set in a lane
        "debt": True,
        "tail": reward.tail_months > 0,
        "prestige": reward.prestige != 0,
        "diversity": reward.diversity != 0,
        "cooperation": reward.cooperation != 0,
        "shaping": reward.shaping != 0,
    }
    return ("money", *(name for name, on in switched.items() if on))


def close(
    state: State, built: dict[int, Built], numbers: Numbers, ground: Ground, config: CityConfig
) -> Close:
    """Books the month in `state` (whose month is still the old one) and says what it was worth."""
    grant = numbers.grant.double().unsqueeze(-1).expand_as(state.income)  # [L, A]
    rent = _rent(state, config)
    flow = state.income + grant if rent is None else state.income + grant + rent
    _book(state.balance, flow, ground, config)
    debt = (-state.balance).clamp(min=0.0)  # [L, B]
    interest = torch.round(debt * (numbers.interest.double() / 12.0).unsqueeze(-1))
    state.balance.sub_(interest)
    debt = debt + interest
    penalty = debt * numbers.debt_penalty.double().unsqueeze(-1)
    penalty = penalty + config.deep_penalty * (debt > config.deep_debt)
    lowest = state.ledger.select(-1, LEDGER.index("lowest"))
    torch.minimum(lowest, state.balance, out=lowest)
    state.ledger.select(-1, LEDGER.index("debt_months")).add_(debt > 0)

    ended = state.month + 1 >= config.horizon
    if config.bankruptcy == "terminate":
        ended = ended | (state.balance < -config.bankrupt_at).any(dim=-1)
    terms = _terms(state, built, grant, ended, ground, config)
    terms |= {
        "interest": -_of_member(interest, ground, config),
        "debt": -_of_member(penalty, ground, config),
    }
    if rent is not None:
        terms["rent"] = rent
    if config.reward.shared:
        terms = {name: _shared(term, config.reward.shared) for name, term in terms.items()}
    return Close(terms={name: terms[name] for name in active_terms(config)}, ended=ended)


def _terms(
    state: State,
    built: dict[int, Built],
    grant: Tensor,
    ended: Tensor,
    ground: Ground,
    config: CityConfig,
) -> dict[str, Tensor]:
    """The terms that are not about debt or rent, each `[L, A]`."""
    reward = config.reward
    if reward.kind == "npv":
        terms = {"money": _all(built, "credited", state) + grant}
    else:
        terms = {"money": state.income + grant - _all(built, "spent", state)}
    if reward.prestige:
        terms["prestige"] = reward.prestige * _all(built, "prestige", state)
    if reward.cooperation:
        terms["cooperation"] = reward.cooperation * _all(built, "neighbours", state)
    if reward.tail_months:
        terms["tail"] = state.income * (reward.tail_months * ended.unsqueeze(-1))
    if reward.diversity:
        terms["diversity"] = reward.diversity * _diversity(state, built, ground, config)
    if reward.shaping:
        terms["shaping"] = _shaping(state, _all(built, "earned", state), ended, ground, config)
    return terms


def _all(built: dict[int, Built], name: str, state: State) -> Tensor:
    """One number of `built` for all agents `[L, A]` float64; 0 for those that had no turn."""
    out = torch.zeros_like(state.income)
    for agent, done in built.items():
        out[:, agent] = getattr(done, name)
    return out


def _shared(term: Tensor, part: float) -> Tensor:
    """A term `[L, A]` of which `part` is dealt out in equal shares."""
    return term + part * (term.mean(dim=-1, keepdim=True) - term)


def _book(balance: Tensor, flow: Tensor, ground: Ground, config: CityConfig) -> None:
    """Adds each agent's `flow` `[L, A]` to its ledger."""
    if config.shares_money:
        balance.index_add_(1, ground.ledger, flow)
    else:
        balance.add_(flow)


def _of_member(of_ledger: Tensor, ground: Ground, config: CityConfig) -> Tensor:
    """Numbers of ledgers `[L, B]` as each agent's equal part `[L, A]`."""
    if not config.shares_money:
        return of_ledger
    return of_ledger.index_select(1, ground.ledger) / ground.sharers


def _rent(state: State, config: CityConfig) -> Tensor | None:
    """What each agent receives of the rent `[L, A]`: one pays what another gets."""
    if not config.rent_share:
        return None
    payer = config.agent_names.index(config.rent_from)
    receiver = config.agent_names.index(config.rent_to)
    near = torch.exp(state.near_px[:, receiver] * (-1.0 / config.rent_px))  # [L, N]
    due = (state.paid * (state.owner == payer) * near).sum(dim=-1).double()
    due = torch.round(config.rent_share * due)  # whole thousands, so that books stay exact
    rent = torch.zeros_like(state.income)
    rent[:, payer] -= due
    rent[:, receiver] += due
    return rent


def _diversity(state: State, built: dict[int, Built], ground: Ground, config: CityConfig) -> Tensor:
    """Share of an agent's types built in the last months, in a month in which it built."""
    buildings = torch.zeros_like(state.income)
    for agent, done in built.items():
        buildings[:, agent] = done.picks[:, 0]
    recent = state.month[:, None, None] - state.last_built < config.reward.diversity_months
    return recent.sum(dim=-1) / ground.type_count * (buildings > 0)


def _shaping(
    state: State, earned: Tensor, ended: Tensor, ground: Ground, config: CityConfig
) -> Tensor:
    """Difference of the potential over the month, discounted; it is 0 at start and end."""
    left = (config.horizon - state.month).unsqueeze(-1)
    before = (state.income - earned) * left
    after = state.income * (left - 1) * ~ended.unsqueeze(-1)
    return config.reward.shaping * (ground.discount * after - before)
