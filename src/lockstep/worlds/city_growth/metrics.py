"""The numbers reported for each lane and month."""

import torch
from torch import Tensor

from lockstep.core.world import Metric
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.month import active_terms
from lockstep.worlds.city_growth.state import LEDGER, TALLY, State
from lockstep.worlds.city_growth.tables import Ground

_MONEY = "thousand GBP"


def world_metrics(config: CityConfig) -> tuple[Metric, ...]:
    """What is reported under these settings, in order."""
    monthly = [
        Metric(name=f"reward_{term}_{agent}", unit="1", meaning=f"its reward's term {term}")
        for agent in config.agent_names
        for term in active_terms(config)
    ]
    episode = [
        Metric(name="return", unit=_MONEY, meaning="all agents' returns", better="higher"),
        Metric(name="decisions", unit="1", meaning="turns taken by all agents"),
        Metric(name="candidates_mean", unit="1", meaning="mean size K of a decision's set"),
        Metric(name="candidates_max", unit="1", meaning="largest K"),
        Metric(name="dropped", unit="1", meaning="candidates left out by caps"),
        Metric(name="conflicts", unit="1", meaning="picks dropped: slot taken or money gone"),
        Metric(name="refused", unit="1", meaning="picks that were not in the set"),
    ]
    for agent in config.agents:
        name = agent.name
        episode += [
            Metric(name=f"return_{name}", unit=_MONEY, meaning="its undiscounted return"),
            Metric(name=f"final_balance_{name}", unit=_MONEY, meaning="balance at the end"),
            Metric(name=f"lowest_balance_{name}", unit=_MONEY, meaning="lowest balance"),
            Metric(name=f"debt_months_{name}", unit="month", meaning="months in debt"),
            Metric(name=f"prestige_{name}", unit="1", meaning="prestige at the end"),
            Metric(name=f"skipped_{name}", unit="1", meaning="turns without a building"),
        ]
        episode += [
            Metric(name=f"buildings_{name}_{kind.name}", unit="1", meaning="buildings at the end")
            for kind in agent.types
        ]
    return (*episode, *monthly)


def month_metrics(
    state: State,
    terms: Tensor,
    ended: Tensor,
    names: list[str],
    ground: Ground,
    config: CityConfig,
    *,
    over: bool,
) -> dict[str, Tensor]:
    """Metric name to `[L]`; `terms` `[L, A, n]` are in units of reward.

    Numbers of an episode are reported in its last month, times its months, and 0 before: so their
    mean over the steps of an episode is the number itself. `over` is False where no lane ends.
    """
    monthly = terms.flatten(1).float()  # [L, n]
    if over:
        numbers = torch.cat((_episode(state, ended, ground, config), monthly), dim=-1)
        return dict(zip(names, numbers.t().contiguous().unbind(dim=0), strict=True))
    later = len(names) - monthly.shape[1]
    found = dict.fromkeys(names[:later], torch.zeros_like(monthly[:, 0]))
    columns = monthly.t().contiguous().unbind(dim=0)
    return found | dict(zip(names[later:], columns, strict=True))


def _episode(state: State, ended: Tensor, ground: Ground, config: CityConfig) -> Tensor:
    """The numbers of the episodes that end `[L, n]`, times their months; 0 for the others."""
    tally = {name: state.tally[..., i] for i, name in enumerate(TALLY)}  # [L, A]
    total = state.tally.sum(dim=1)  # [L, n]
    decisions = total[:, TALLY.index("decisions")]
    balance = state.balance.index_select(1, ground.ledger)  # [L, A]
    ledger = state.ledger.index_select(1, ground.ledger)  # [L, A, n]
    columns = [
        torch.stack(
            (
                total[:, TALLY.index("return")],
                decisions,
                total[:, TALLY.index("candidates")] / decisions.clamp(min=1.0),
                tally["most"].amax(dim=1),
                total[:, TALLY.index("dropped")],
                total[:, TALLY.index("conflicts")],
                total[:, TALLY.index("refused")],
            ),
            dim=-1,
        )
    ]
    each = torch.stack(
        (
            tally["return"],
            balance,
            ledger[..., LEDGER.index("lowest")],
            ledger[..., LEDGER.index("debt_months")],
            state.prestige,
            tally["skipped"],
        ),
        dim=-1,
    )  # [L, A, 6]
    for a, agent in enumerate(config.agents):
        columns += [each[:, a], state.count[:, a, : len(agent.types)].double()]
    length = torch.where(ended, state.month + 1, 0).unsqueeze(-1)
    return (torch.cat(columns, dim=-1) * length).float()
