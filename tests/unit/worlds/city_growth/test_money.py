"""Ledgers, incomes, debt, interest, bankruptcy and rent."""

from dataclasses import replace

import pytest
import torch

from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.world import CityGrowth
from tests.unit.worlds.city_growth.helpers import builder, grid, made, picks, play


def _balance(world: CityGrowth) -> list[float]:
    return world.world_state.balance[0].tolist()


def test_a_building_is_paid_once_and_earns_from_its_own_month_on() -> None:
    world = made(grid())
    found = world.candidates("one")
    cost, income = float(found.cost[0, 2]), float(found.income[0, 2])
    play(world, one=[2])
    assert _balance(world) == [1000 - cost + income]
    play(world)
    assert _balance(world) == [1000 - cost + 2 * income]


def test_an_episode_starts_with_nothing_of_the_last_one() -> None:
    world = made(grid(horizon=3))
    fresh = {name: x.clone() for name, x in world.world_state.tensors().items()}
    for _ in range(3):
        step = play(world, one=[int(world.candidates("one").slots[0, 0, 0])])
    assert step.terminated.all()
    for name, x in world.world_state.tensors().items():
        assert torch.equal(x, fresh[name]), name


def test_a_grant_comes_every_month_to_every_agent() -> None:
    world = made(grid(builder("one"), builder("two"), grant=25.0))
    play(world)
    assert _balance(world) == [1025.0, 1025.0]


def test_agents_of_a_pool_spend_and_earn_together() -> None:
    agents = (builder("one", pool="p"), builder("two", pool="p"), builder("three"))
    world = made(grid(*agents))
    assert _balance(world) == [2000.0, 1000.0]
    found = world.candidates("one")
    gained = float((found.income - found.cost)[0, :2].sum())  # slots 0 and 1
    play(world, one=[0], two=[1])
    assert _balance(world) == [2000.0 + gained, 1000.0]


def test_the_start_balance_follows_its_share_from_the_next_start_on() -> None:
    world = made(grid(horizon=1))
    world.set("start_share", torch.tensor([0.5, 0.25]))
    assert _balance(world) == [1000.0]
    play(world)
    assert world.world_state.balance.flatten().tolist() == [500.0, 250.0]


def _in_debt(**changes: object) -> CityConfig:
    poor = builder(start_money=0)
    return grid(poor, deep_debt=10_000, **changes)


def test_soft_debt_costs_reward_in_proportion_and_more_when_deep() -> None:
    deep = replace(_in_debt(debt_penalty=0.1), deep_debt=200, deep_penalty=7.0)
    world = made(deep)
    step = play(world, one=[0, 1])
    debt = -_balance(world)[0]
    assert debt > 200
    term = step.metrics["reward_debt_one"][0].item() * deep.reward.scale
    assert term == pytest.approx(-(0.1 * debt + 7.0), rel=1e-5)
    shallow = made(deep)
    step = play(shallow, one=[0])
    debt = -_balance(shallow)[0]
    assert 0 < debt < 200
    term = step.metrics["reward_debt_one"][0].item() * deep.reward.scale
    assert term == pytest.approx(-0.1 * debt, rel=1e-5)


def test_debt_is_counted_once_a_month_and_by_its_state_at_the_end() -> None:
    world = made(_in_debt(horizon=2))
    play(world, one=[0])
    step = play(world)
    assert step.metrics["debt_months_one"][0].item() == 2 * 2  # times the months
    idle = made(_in_debt(horizon=2))
    play(idle)
    assert play(idle).metrics["debt_months_one"][0].item() == 0  # its balance is 0
    assert step.metrics["lowest_balance_one"][0].item() < 0


def test_interest_is_charged_on_debt_alone_in_whole_thousands() -> None:
    world, free = made(_in_debt(interest=2.4)), made(_in_debt())
    play(world, one=[0])
    play(free, one=[0])
    debt = -_balance(free)[0]
    assert _balance(world)[0] == _balance(free)[0] - round(debt * 0.2)
    term = play(world).metrics["reward_debt_one"][0].item() * world.config.reward.scale
    penalty = world.config.debt_penalty * _balance(world)[0]  # the debt with its interest
    assert term == pytest.approx(penalty, rel=1e-4)
    rich = made(grid(interest=1.2))
    play(rich)
    assert _balance(rich) == [1000.0]


def test_the_debts_of_a_pool_are_borne_in_equal_parts() -> None:
    agents = tuple(builder(name, pool="p", start_money=0) for name in ("one", "two"))
    world = made(grid(*agents, interest=1.2))
    step = play(world, one=[0])
    debt = -_balance(world)[0]
    interest = debt - debt / 1.1
    for term, whole in (("debt", 0.1 * debt), ("interest", interest)):
        one, two = (step.metrics[f"reward_{term}_{name}"][0].item() for name in ("one", "two"))
        assert one == two < 0
        assert (one + two) * world.config.reward.scale == pytest.approx(-whole, abs=0.5)


def test_bankruptcy_may_cost_the_turn() -> None:
    world = made(_in_debt(bankruptcy="skip_turn", bankrupt_at=100))
    assert world.candidates("one").count[0].item() > 1
    play(world, one=[0])
    assert _balance(world)[0] < -100
    seen = world.observe("one")
    assert seen.acts.all()
    assert seen.legal["build"].sum(dim=-1).flatten().tolist() == [1, 1]


def test_bankruptcy_may_end_the_episode() -> None:
    config = _in_debt(bankruptcy="terminate", bankrupt_at=100)
    world = made(config)
    world.act("one", {"build": torch.tensor([[[1, 0, 0]], [[0, 0, 0]]])})
    step = world.advance()
    assert step.terminated.tolist() == [True, False]
    assert world.world_state.month.tolist() == [0, 1]
    assert step.metrics["buildings_one_P"].tolist() == [1.0, 0.0]  # times one month


def test_bankruptcy_means_nothing_unless_it_is_set() -> None:
    world = made(_in_debt(bankrupt_at=1))
    step = play(world, one=[0])
    assert not step.terminated.any()
    assert world.candidates("one").count[0].item() > 1


def test_rent_goes_from_one_to_the_other_and_falls_with_distance() -> None:
    agents = (builder("ind"), builder("edu"))
    with_rent = grid(*agents, rent_share=0.5, rent_px=10.0)
    near, far, alone = (made(with_rent) for _ in range(3))
    free = made(grid(*agents))
    steps = [
        play(near, ind=[0], edu=[1]),
        play(far, ind=[0], edu=[15]),
        play(alone, ind=[0]),
    ]
    play(free, ind=[0], edu=[1])
    cost = 100 + 200
    paid = [step.metrics["reward_rent_ind"][0].item() * 1e5 for step in steps]
    for step in steps:
        total = step.metrics["reward_rent_ind"] + step.metrics["reward_rent_edu"]
        assert total.abs().max().item() == 0.0
    assert paid[0] == pytest.approx(-round(0.5 * cost * 2.718281828 ** (-0.4)), abs=1)
    assert paid[0] < paid[1] < 0
    assert paid[2] == 0
    difference = near.world_state.balance - free.world_state.balance
    assert difference.sum(dim=-1).abs().max().item() == 0.0
    assert difference[0, 0].item() == pytest.approx(paid[0], abs=1e-2)


def test_a_skipped_turn_is_counted() -> None:
    world = made(grid(horizon=2))
    play(world, one=[0])
    step = play(world)
    assert step.metrics["skipped_one"].tolist() == [2.0, 2.0]  # one, times two months


def test_a_number_that_cannot_be_set_is_refused_with_the_nearest() -> None:
    world = made(grid())
    with pytest.raises(ValueError, match=r"got 'intrest'; did you mean 'interest'\?"):
        world.set("intrest", torch.zeros(2))
    with pytest.raises(ValueError, match="value of grant must have one number per lane"):
        world.set("grant", torch.zeros(3))


def test_money_is_whole_and_kept_in_double_precision() -> None:
    world = made(grid(interest=0.7))
    for _ in range(4):
        world.act("one", picks(world, 1, 2))
        world.advance()
        assert world.world_state.balance.dtype == torch.float64
        assert torch.equal(world.world_state.balance, world.world_state.balance.round())
