"""A solver that tries several turns in copies of the city and takes the one that ends best."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.world import Step
from lockstep.worlds.city_growth.parties import require
from lockstep.worlds.city_growth.solvers.ranked import (
    Greedy,
    Skip,
    as_action,
    best_first,
    net_value,
    options_of,
    pool_score,
)
from lockstep.worlds.city_growth.world import CityGrowth

_FOLLOW = Greedy(worth="npv")


@dataclass(frozen=True, kw_only=True)
class LookAhead:
    """Greedy by net value, corrected by what becomes of it in the real world.

    Turns to try: the most worthy candidates by net value, by net value per cost and by score, each
    cut to every length, and none. Every one is played in a copy of the city in which everybody goes
    on greedily by net value; the rewards of those months decide.
    """

    months: int = 12
    """Months that each copy is played, this one included."""
    whose: Literal["all", "own"] = "all"
    """Whose rewards count: those of all agents, or the agent's own."""

    def __post_init__(self) -> None:
        require(self.months >= 1, "months", "must be at least 1", self.months)

    def __call__(self, world: CityGrowth, role: str) -> Action:
        """The turn that its copy of the city ends best with."""
        agent = world.config.agent_names.index(role)
        if not bool(world.acts()[:, agent].any()):
            return Skip()(world, role)
        turns = turns_to_try(world, role)  # [L, B, k]
        value = self._worth(world, role, turns)  # [L, B]
        best = value.argmax(dim=1).view(-1, 1, 1).expand(-1, 1, turns.shape[-1])
        return {"build": turns.gather(1, best)}

    def _worth(self, world: CityGrowth, role: str, turns: Tensor) -> Tensor:
        """Sum of rewards `[L, B]` after each of the turns `[L, B, k]`."""
        L, B, _ = turns.shape
        copies = CityGrowth(world.config, lanes=L * B, device=world.device, tables=world.tables)
        copies.load_state_dict(_repeated(world.state_dict(), B))
        total = torch.zeros(L * B, dtype=torch.float64, device=world.device)
        running = torch.ones_like(total, dtype=torch.bool)
        for month in range(self.months):
            if month == 0:
                step = _this_month(copies, role, turns.flatten(0, 1))
            else:
                step = _next_month(copies)
            total += running * self._reward(step, role)
            running &= ~(step.terminated | step.truncated)
            if not bool(running.any()):
                break
        total += running * self._still_to_come(copies, role)
        return total.view(L, B)

    def _reward(self, step: Step, role: str) -> Tensor:
        names = [role] if self.whose == "own" else list(step.reward)
        return torch.cat([step.reward[name] for name in names], dim=1).double().sum(dim=1)

    def _still_to_come(self, copies: CityGrowth, role: str) -> Tensor:
        """Income to the horizon of what stands, where rewards do not hold it already `[L]`."""
        config, state = copies.config, copies.world_state
        if config.reward.kind == "npv":
            return torch.zeros_like(state.income[:, 0])
        agent = config.agent_names.index(role)
        income = state.income[:, agent] if self.whose == "own" else state.income.sum(dim=1)
        return income * (config.horizon - state.month) / config.reward.scale


def turns_to_try(world: CityGrowth, role: str) -> Tensor:
    """Turns `[L, B, k]` worth comparing; the first, greedy by net value, wins ties."""
    candidates = world.candidates(role)
    options, value = options_of(candidates, world.config.picks), net_value(candidates)
    orders = (value, value / candidates.cost.clamp(min=1.0), pool_score(world, role, candidates))
    turns = []
    for order in orders:
        picks = best_first(options, order)  # [L, k]
        for length in range(picks.shape[1], 0, -1):
            kept = torch.arange(picks.shape[1], device=picks.device) < length
            turns.append(picks * kept)
    return torch.stack([*turns, torch.zeros_like(turns[0])], dim=1)


def _this_month(copies: CityGrowth, role: str, picks: Tensor) -> Step:
    """The rest of the month in which `role` makes `picks` `[L, k]`.

    Phases before its own are over: what they built stands in the copy, and their rewards, the same
    in all copies, are left out.
    """
    mine = next(i for i, phase in enumerate(copies.spec.phases) if role in phase)
    for i, phase in enumerate(copies.spec.phases):
        for name in phase:
            if name == role:
                action = as_action(picks)
            else:
                action = (Skip() if i < mine else _FOLLOW)(copies, name)
            copies.act(name, action)
    return copies.advance()


def _next_month(copies: CityGrowth) -> Step:
    for phase in copies.spec.phases:
        for name in phase:
            copies.act(name, _FOLLOW(copies, name))
    return copies.advance()


def _repeated(state: dict[str, Any], times: int) -> dict[str, Any]:
    """A saved state with every lane `times` over."""
    return {
        name: _repeated(x, times) if isinstance(x, dict) else x.repeat_interleave(times, dim=0)
        for name, x in state.items()
    }
