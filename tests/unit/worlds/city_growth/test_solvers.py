"""Solvers without learning: what they propose is legal, and as good as they claim."""

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lockstep.core.picks import PickSet
from lockstep.core.streams import lane_keys
from lockstep.errors import BadInput
from lockstep.worlds.city_growth.catalogue import DEFAULT, SCENARIOS
from lockstep.worlds.city_growth.config import CityConfig, RewardConfig
from lockstep.worlds.city_growth.heuristics import HEURISTICS, Heuristic
from lockstep.worlds.city_growth.solvers.look_ahead import LookAhead, turns_to_try
from lockstep.worlds.city_growth.solvers.ranked import Greedy, net_value, pool_score
from lockstep.worlds.city_growth.solvers.search import Beam, Exhaustive, n_sets, stratified
from lockstep.worlds.city_growth.solvers.sequences import Pool, best, grown, nothing, trimmed
from lockstep.worlds.city_growth.world import CityGrowth
from tests.unit.worlds.city_growth.helpers import PLAIN, SMALL, builder, grid, made

POOR = replace(SMALL, horizon=18, start_share=0.1, debt_penalty=0.3)
"""Long enough for buildings to pay, and with so little money that it matters when."""
PAIR = replace(PLAIN, name="D", cost=150, revenue=120, footprint="pair")
CITIES: dict[str, CityConfig] = {
    "small": SMALL,
    "hard budget": replace(SMALL, debt="hard", credit=500, start_share=0.4),
    "pairs and a budget": grid(
        builder(types=(PLAIN, PAIR), start_money=400), debt="hard", builds=3, horizon=3
    ),
    "anchor": replace(SMALL, expansion="nearest"),
    "cash": replace(SMALL, reward=RewardConfig(kind="cash")),
}


@cache
def city(name: str) -> CityGrowth:
    return CityGrowth(CITIES[name], lanes=2)


def month(world: CityGrowth, rule: Heuristic) -> Any:
    for phase in world.spec.phases:
        for role in phase:
            world.act(role, rule(world, role))
    return world.advance()


def episode(config: CityConfig, rule: Heuristic, *, lanes: int = 4, seed: int = 0) -> Tensor:
    """The return of each lane, in thousand GBP."""
    world = made(config, lanes=lanes, seed=seed)
    for _ in range(config.horizon):
        step = month(world, rule)
    total: Tensor = step.metrics["return"] / config.horizon
    return total


@pytest.mark.parametrize("name", CITIES)
@pytest.mark.parametrize("solver", HEURISTICS)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_every_proposed_sequence_is_legal_step_by_step(name: str, solver: str, seed: int):
    world = city(name)
    world.reset(lane_keys([seed], lanes=2))
    for _ in range(world.config.horizon):
        for phase in world.spec.phases:
            for role in phase:
                seen = world.observe(role)
                action = HEURISTICS[solver](world, role)
                part = world.spec.role(role).action["build"]
                options = PickSet.of(part, seen.legal["build"], seen.features)  # type: ignore[arg-type]
                assert bool(options.supports(action["build"]).all())
                world.act(role, action)
        step = world.advance()
    assert float(step.metrics["refused"].sum() + step.metrics["conflicts"].sum()) == 0


@pytest.mark.parametrize("solver", HEURISTICS)
def test_a_lane_is_played_alike_alone_and_among_others(solver: str):
    among = made(SMALL, lanes=3)
    alone = CityGrowth(SMALL, lanes=1)
    alone.reset(lane_keys([0], lanes=3)[1:2])
    for _ in range(4):
        month(among, HEURISTICS[solver])
        month(alone, HEURISTICS[solver])
    assert torch.equal(among.world_state.owner[1], alone.world_state.owner[0])
    assert torch.equal(among.world_state.kind[1], alone.world_state.kind[0])


def test_greedy_takes_the_best_scores_that_do_not_clash():
    world = made(SMALL, lanes=1)
    candidates = world.candidates("ind")
    score = pool_score(world, "ind", candidates)[0]
    picks = [pick for pick in Greedy()(world, "ind")["build"][0, 0].tolist() if pick]
    taken: set[int] = set()
    for row in (
        score.masked_fill(~candidates.legal[0], -torch.inf).argsort(descending=True).tolist()
    ):
        slot = int(candidates.slots[0, row, 0])
        if score[row] <= 0 or not candidates.legal[0, row] or len(taken) == SMALL.builds:
            break
        if slot not in taken:
            assert picks[len(taken)] == row + 1
            taken.add(slot)
    assert len(picks) == len(taken) > 0


def test_nobody_greedy_builds_what_never_pays():
    world = made(replace(SMALL, horizon=1), lanes=3)
    candidates = world.candidates("ind")
    assert bool((net_value(candidates)[candidates.legal] < 0).all())
    assert int(Greedy(worth="npv")(world, "ind")["build"].sum()) == 0


def test_a_random_pick_is_uniform_over_the_candidates_and_the_stop():
    world = made(grid(builds=1), lanes=4000)
    picks = HEURISTICS["random"](world, "one")["build"].flatten()
    share = torch.bincount(picks, minlength=17) / 4000  # sixteen slots, or stop
    assert len(share) == 17
    assert (share - 1 / 17).abs().max() < 4 * (1 / 17 / 4000) ** 0.5


def pool(worth: list[float], clash: list[tuple[int, int]] = [], **money: Any) -> Pool:  # noqa: B006
    """A pool whose most worthy candidates come first."""
    assert worth == sorted(worth, reverse=True)
    shares = np.eye(len(worth), dtype=bool)
    for a, b in clash:
        shares[a, b] = shares[b, a] = True
    cost = np.array(money.get("cost", [0.0] * len(worth)), dtype=np.float64)
    return Pool(
        row=np.arange(len(worth)) + 10,
        worth=np.array(worth),
        cost=cost,
        budget=float(money.get("budget", np.inf)),
        clash=shares,
    )


@pytest.mark.parametrize("solver", [Beam(), Exhaustive()])
def test_two_that_fit_together_beat_the_best_that_blocks_them(solver: Beam | Exhaustive):
    blocked = pool([10.0, 9.0, 8.0], [(0, 1), (0, 2)])
    plan = best(blocked, solver.levels(blocked, 2))
    assert (plan.rows, plan.total) == ((11, 12), 17.0)


@pytest.mark.parametrize("solver", [Beam(), Exhaustive()])
def test_every_length_and_the_empty_sequence_compete(solver: Beam | Exhaustive):
    losing, mixed = pool([-1.0, -2.0]), pool([3.0, -1.0, -2.0])
    assert best(losing, solver.levels(losing, 2)).rows == ()
    assert best(mixed, solver.levels(mixed, 3)).rows == (10,)


@pytest.mark.parametrize("solver", [Beam(), Exhaustive()])
def test_a_budget_ends_a_sequence(solver: Beam | Exhaustive):
    dear = pool([5.0, 4.0, 3.0], cost=[10.0, 6.0, 4.0], budget=10.0)
    assert best(dear, solver.levels(dear, 3)).rows == (11, 12)


def test_the_beam_keeps_sets_not_orders():
    level = nothing(pool([3.0, 2.0, 1.0]))
    four = pool([3.0, 2.0, 1.0])
    for _ in range(2):
        level = grown(four, level)
    assert len(level) == 6
    kept = trimmed(level, 3)
    assert {frozenset(row) for row in kept.member.tolist()} == {
        frozenset(pair) for pair in combinations(range(3), 2)
    }


def test_a_beam_of_few_expansions_still_reaches_every_length():
    many = pool([float(x) for x in range(100, 0, -1)])
    levels = Beam(width=16, expansions=60).levels(many, 3)
    assert best(many, levels).rows == (10, 11, 12)
    assert [level.member.shape[1] for level in levels] == [0, 1, 2, 3]
    assert best(many, Beam(expansions=1).levels(many, 3)).rows == (10,)


def tried(pool: Pool, picks: int) -> dict[tuple[int, ...], float]:
    """Every set without conflict and within the budget, and its worth."""
    found = {}
    for length in range(picks + 1):
        for some in combinations(range(len(pool)), length):
            fits = not any(pool.clash[a, b] for a, b in combinations(some, 2))
            if fits and pool.cost[list(some)].sum() <= pool.budget:
                found[some] = float(pool.worth[list(some)].sum())
    return found


@st.composite
def small_pools(draw: st.DrawFn) -> Pool:
    size = draw(st.integers(0, 7))
    worth = sorted(draw(st.lists(st.integers(-5, 9), min_size=size, max_size=size)), reverse=True)
    pairs = list(combinations(range(size), 2))
    clash = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    cost = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    return pool([float(x) for x in worth], clash, cost=cost, budget=draw(st.integers(0, 20)))


@settings(max_examples=150, deadline=None)
@given(some=small_pools(), picks=st.integers(1, 4))
def test_exhaustive_is_what_trying_every_set_gives_and_a_wide_beam_agrees(some: Pool, picks: int):
    every = tried(some, picks)
    exact = best(some, Exhaustive().levels(some, picks))
    assert exact.total == max(every.values())
    assert every[tuple(row - 10 for row in exact.rows)] == exact.total
    wide = Beam(width=10_000, expansions=1_000_000)
    assert best(some, wide.levels(some, picks)).total == exact.total
    narrow = best(some, Beam(width=2, expansions=8).levels(some, picks))
    assert every[tuple(row - 10 for row in narrow.rows)] == narrow.total <= exact.total


@settings(max_examples=50, deadline=None)
@given(some=small_pools())
def test_the_stratified_pool_holds_the_best_of_each_length(some: Pool):
    every = tried(some, 3)
    for length, plans in enumerate(stratified(some, 3, each=4), start=1):
        wanted = sorted((x for rows, x in every.items() if len(rows) == length), reverse=True)
        assert [plan.total for plan in plans] == wanted[:4]
        assert len({plan.rows for plan in plans}) == len(plans)


def test_exhaustive_refuses_a_pool_with_too_many_sequences():
    world = made(replace(DEFAULT, map=replace(DEFAULT.map, n_maps=1)), lanes=1)
    for _ in range(6):
        month(world, HEURISTICS["skip"])
    with pytest.raises(BadInput, match=r"at most 100 sets of candidates, got \d+ \(up to 3 of"):
        Exhaustive(most=100)(world, "ind")
    assert n_sets(250, 3) == 1 + 250 + 250 * 249 // 2 + 250 * 249 * 248 // 6


def test_where_footprints_are_single_slots_beam_and_exhaustive_play_as_greedy():
    expected = episode(SMALL, HEURISTICS["greedy"])
    assert torch.equal(episode(SMALL, HEURISTICS["beam"]), expected)
    assert torch.equal(episode(SMALL, HEURISTICS["exhaustive"]), expected)


def test_looking_ahead_leaves_the_world_as_it_was():
    world = made(SMALL)
    month(world, HEURISTICS["npv"])
    month(world, HEURISTICS["npv"])
    before = world.state_dict()
    LookAhead(months=3)(world, "ind")
    after = world.state_dict()
    for group, saved in before.items():
        for name, x in saved.items():
            assert torch.equal(after[group][name], x), (group, name)


def test_looking_to_the_horizon_is_never_worse_than_the_policy_it_looks_with():
    npv = episode(POOR, HEURISTICS["npv"])
    ahead = episode(POOR, LookAhead(months=POOR.horizon))
    assert bool((ahead >= npv - 0.5).all())
    assert bool((ahead > npv + 1).any())


def test_looking_ahead_on_a_tiny_map_is_at_least_as_good_as_net_value():
    config = SCENARIOS["tiny-4"]
    ahead = episode(config, LookAhead(months=config.horizon))
    assert bool((ahead >= episode(config, HEURISTICS["npv"])).all())


def test_looking_ahead_counts_income_that_a_cash_reward_pays_later():
    world = made(replace(POOR, reward=RewardConfig(kind="cash")))
    assert int(LookAhead(months=1)(world, "ind")["build"].count_nonzero()) > 0


def test_looking_ahead_counts_nothing_of_the_episode_after_a_bankruptcy():
    """One copy ends in its first month and starts afresh; the other goes on without building."""
    config = grid(builder(start_money=0), bankruptcy="terminate", bankrupt_at=100, horizon=12)
    world, turns = made(config, lanes=1), torch.tensor([[[1, 0, 0], [0, 0, 0]]])
    worth = LookAhead(months=6)._worth(world, "one", turns)[0]
    world.act("one", {"build": turns[:, :1]})
    step = world.advance()
    assert step.terminated.all()
    assert worth[0].item() == pytest.approx(step.reward["one"].item())
    assert worth[1].item() != pytest.approx(worth[0].item())


def test_own_reward_is_what_a_selfish_agent_looks_at():
    own = episode(POOR, LookAhead(whose="own"), lanes=2)
    assert not torch.equal(own, episode(POOR, LookAhead(whose="all"), lanes=2))


def test_the_turns_to_try_begin_with_greedy_and_end_with_nothing():
    world = made(SMALL)
    turns = turns_to_try(world, "ind")
    assert turns.shape == (2, 3 * SMALL.builds + 1, SMALL.builds)
    assert torch.equal(turns[:, 0], Greedy(worth="npv")(world, "ind")["build"][:, 0])
    assert int(turns[:, -1].sum()) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beam(width=0), "width must be at least 1, got 0"),
        (lambda: Beam(expansions=0), "expansions must be at least 1, got 0"),
        (lambda: LookAhead(months=0), "months must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(make: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make()
