"""Rewards: npv and cash, terms that add up, shaping that changes nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.config import CityConfig, RewardConfig
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.month import active_terms
from tests.unit.worlds.city_growth.helpers import (
    GRID,
    PLAIN,
    SMALL,
    builder,
    grid,
    made,
    play,
    random_month,
)


def _episode(config: CityConfig, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Undiscounted return [L, A] and the metrics of the last month of a random episode."""
    world = made(config, lanes=3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    total: Any = 0.0
    for _ in range(config.horizon):
        step = random_month(world, generator)
        total = total + torch.cat([step.reward[name].double() for name in config.agent_names], 1)
    assert step.terminated.all()
    return total, dict(step.metrics)


def test_npv_credits_a_building_when_it_is_built_and_nothing_later() -> None:
    world = made(grid())
    play(world)
    found = world.candidates("one")
    expected = float(found.income[0, 1] * 5 - found.cost[0, 1])
    step = play(world, one=[1])
    assert step.reward["one"][0, 0].item() * 1e5 == pytest.approx(expected, rel=1e-5)
    assert play(world).reward["one"].abs().max().item() == 0.0


def test_cash_is_the_change_of_the_balance() -> None:
    world = made(grid(reward=RewardConfig(kind="cash")))
    for slots in ([0, 1], [], [5]):
        before = world.world_state.balance[0, 0].item()
        step = play(world, one=slots)
        change = world.world_state.balance[0, 0].item() - before
        assert step.reward["one"][0, 0].item() * 1e5 == pytest.approx(change, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_npv_and_cash_pay_the_same_in_total(seed: int) -> None:
    config = replace(SMALL, grant=10.0, interest=0.3)
    npv, _ = _episode(config, seed)
    cash, metrics = _episode(replace(config, reward=replace(config.reward, kind="cash")), seed)
    torch.testing.assert_close(npv, cash, atol=1e-6, rtol=1e-6)
    for a, agent in enumerate(config.agents):
        gained = metrics[f"final_balance_{agent.name}"].double() / 8 - agent.start_money * 0.5
        debt = metrics[f"return_{agent.name}"].double() / 8 - gained  # penalties are no money
        assert (debt <= 0.5).all()
        assert torch.allclose(
            metrics[f"return_{agent.name}"].double() / 8, cash[:, a] * 1e5, rtol=1e-4
        )


def test_a_short_lifetime_credits_fewer_months() -> None:
    world = made(grid(reward=RewardConfig(lifetime=2)))
    found = world.candidates("one")
    expected = float(found.income[0, 0] * 2 - found.cost[0, 0])
    assert play(world, one=[0]).reward["one"][0, 0].item() * 1e5 == pytest.approx(
        expected, rel=1e-4
    )


EVERY_TERM: Any = {
    "prestige": 50.0,
    "diversity": 30.0,
    "cooperation": 20.0,
    "shaping": 0.5,
    "shared": 0.25,
}


def test_a_shared_reward_is_the_same_for_all_and_keeps_its_sum() -> None:
    apart, _ = _episode(SMALL)
    half, _ = _episode(replace(SMALL, reward=replace(SMALL.reward, shared=0.5)))
    team, metrics = _episode(replace(SMALL, reward=replace(SMALL.reward, shared=1.0)))
    mean = apart.mean(dim=1, keepdim=True).expand_as(apart)
    assert (apart - mean).abs().max() > 0.01
    torch.testing.assert_close(team, mean, atol=1e-6, rtol=0.0)
    torch.testing.assert_close(half, (apart + mean) / 2, atol=1e-6, rtol=0.0)
    total = apart.sum(dim=1) * SMALL.reward.scale * SMALL.horizon  # told in the last month
    torch.testing.assert_close(metrics["return"].double(), total, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("kind", ["npv", "cash"])
def test_the_logged_parts_add_up_to_the_reward(kind: Any) -> None:
    tail = {"tail_months": 3.0} if kind == "cash" else {}
    reward = replace(SMALL.reward, kind=kind, **EVERY_TERM, **tail)
    config = replace(SMALL, reward=reward, interest=0.5, grant=3.0, rent_share=0.03)
    assert len(active_terms(config)) == 8 + len(tail)
    world, generator = made(config, lanes=4), torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(config.horizon):
        step = random_month(world, generator)
        for name in config.agent_names:
            parts = {t: step.metrics[f"reward_{t}_{name}"] for t in active_terms(config)}
            seen |= {t for t, x in parts.items() if x.any()}
            total = torch.stack(list(parts.values())).double().sum(dim=0)
            torch.testing.assert_close(total, step.reward[name][:, 0].double(), atol=1e-6, rtol=0.0)
    assert seen == set(active_terms(config))


def test_only_terms_that_are_switched_on_are_reported() -> None:
    names = {metric.name for metric in made(SMALL).spec.metrics}
    assert active_terms(SMALL) == ("money", "interest", "debt")
    assert not any("prestige_ind" in n and n.startswith("reward") for n in names)


def test_prestige_diversity_and_cooperation_are_worth_their_weight() -> None:
    kinds = (replace(PLAIN, prestige=0.5), replace(PLAIN, name="Q", prestige=2.0))
    reward = RewardConfig(prestige=100.0, diversity=40.0, cooperation=10.0, diversity_months=2)
    agents = (builder("one", types=kinds), builder("two", types=kinds))
    world = made(grid(*agents, reward=reward))
    step = play(world, one=[0, 1], two=[3])
    scaled = {n: x[0].item() * 1e5 for n, x in step.metrics.items() if n.startswith("reward")}
    assert scaled["reward_prestige_one"] == pytest.approx(100.0)
    assert scaled["reward_diversity_one"] == pytest.approx(20.0)  # one type of two
    assert scaled["reward_cooperation_one"] == 0.0
    # Slot 3 is 12 px from slot 0 and 8 px from slot 1.
    assert scaled["reward_cooperation_two"] == pytest.approx(20.0)
    found = world.candidates("one")
    row = int(((found.type[0] == 1) & (found.slots[0, :, 0] == 9)).nonzero()) + 1
    world.act("one", {"build": torch.tensor([[[row, 0, 0]]]).expand(2, -1, -1)})
    world.act("two", {"build": torch.zeros(2, 1, 3, dtype=torch.int64)})
    step = world.advance()
    assert step.metrics["reward_diversity_one"][0].item() * 1e5 == pytest.approx(40.0)
    assert step.metrics["reward_diversity_two"][0].item() == 0.0
    play(world)
    step = play(world, one=[12])  # the other type was built two months ago
    assert step.metrics["reward_diversity_one"][0].item() * 1e5 == pytest.approx(20.0)


def test_cooperation_counts_others_buildings_5_to_20_pixels_away() -> None:
    away_px = (0.0, 4.9, 5.0, 20.0, 20.1)  # the first is built on by `two`, the others by `one`
    slots = tuple((10.0 + x, 20.0, 0.0, 3) for x in away_px)
    config = grid(builder("one"), builder("two"), map=replace(GRID, slots=slots), builds=4,
                  reward=RewardConfig(cooperation=10.0))  # fmt: skip
    step = play(made(config), one=[1, 2, 3, 4], two=[0])
    assert step.metrics["reward_cooperation_two"][0].item() * 1e5 == pytest.approx(20.0)


def test_the_tail_credits_what_stands_at_the_horizon() -> None:
    world = made(grid(horizon=2, reward=RewardConfig(kind="cash", tail_months=4.0)))
    income = float(world.candidates("one").income[0, 0])
    assert play(world, one=[0]).metrics["reward_tail_one"][0].item() == 0.0
    tail = play(world).metrics["reward_tail_one"][0].item() * 1e5
    assert tail == pytest.approx(4 * income, rel=1e-5)


def test_shaping_adds_nothing_to_a_discounted_return() -> None:
    """A potential's differences telescope: from an empty city to the end they sum to 0."""
    config = replace(SMALL, reward=replace(SMALL.reward, shaping=0.7))
    world, generator = made(config, lanes=3), torch.Generator().manual_seed(2)
    total = {agent.name: torch.zeros(3, dtype=torch.float64) for agent in config.agents}
    moved = False
    for month in range(config.horizon):
        step = random_month(world, generator)
        for agent in config.agents:
            term = step.metrics[f"reward_shaping_{agent.name}"].double()
            moved = moved or bool(term.any())
            total[agent.name] += agent.discount**month * term
    assert moved
    for value in total.values():
        assert value.abs().max().item() < 1e-6


def test_shaping_ends_at_zero_when_bankruptcy_ends_the_episode() -> None:
    poor = builder(start_money=0)
    config = grid(poor, bankruptcy="terminate", bankrupt_at=300, reward=RewardConfig(shaping=1.0))
    world, total = made(config, lanes=1), 0.0
    for month, slots in enumerate(([0], [1, 2, 3])):
        step = play(world, one=slots)
        total += 0.99**month * step.metrics["reward_shaping_one"][0].item()
    assert step.terminated.all()
    assert total == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("rule", ["npv", "random"])
def test_rewards_of_every_scenario_stay_below_one(name: str, rule: str) -> None:
    config = SCENARIOS[name]
    world = made(replace(config, map=replace(config.map, n_maps=2)), lanes=4)
    for _ in range(config.horizon):
        for phase in world.spec.phases:
            for role in phase:
                world.act(role, HEURISTICS[rule](world, role))
        step = world.advance()
        assert all(reward.abs().max() < 1 for reward in step.reward.values())
