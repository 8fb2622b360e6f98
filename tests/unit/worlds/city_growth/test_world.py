"""Observations, replay, pictures, and the plans of tiny maps whose best is known."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth import render
from lockstep.worlds.city_growth.catalogue import TINY_4, TINY_9
from lockstep.worlds.city_growth.config import CityConfig
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.observe import own_names, shared_names
from lockstep.worlds.city_growth.tables import DYNAMIC, POOLED
from lockstep.worlds.city_growth.world import CityGrowth, with_maps
from tests.unit.worlds.city_growth.helpers import (
    GRID,
    SMALL,
    builder,
    grid,
    made,
    picks,
    play,
    random_month,
    random_picks,
)

RULES = {name: HEURISTICS[name] for name in ("random", "skip", "greedy", "npv")}
BEST_TINY_4, BEST_TINY_9 = 14_034.0, 5_698.0  # thousand GBP; docs/worlds/city_growth.md


def _named(world: CityGrowth, role: str) -> dict[str, float]:
    names = (*shared_names(world.config), *own_names(world.config))
    values = world.observe(role).features["obs"][0, 0]
    return dict(zip(names, values.tolist(), strict=True))


def test_the_vector_says_what_its_names_say() -> None:
    world = made(grid(builder("one"), builder("two", start_money=20_000)))
    play(world, one=[0, 1], two=[15])
    seen = _named(world, "one")
    state = world.world_state
    assert seen["month"] == pytest.approx(1 / 6)
    assert seen["months_left"] == pytest.approx(5 / 6)
    assert seen["next_hub"] == 1.0
    assert seen["free"] == pytest.approx(13 / 16)
    scaled = torch.asinh(state.balance[0] / 10_000)
    assert seen["balance_one"] == seen["own_balance"] == pytest.approx(float(scaled[0]))
    assert seen["balance_two"] == pytest.approx(float(scaled[1]))
    income = torch.asinh(state.income[0] / 2_000)
    assert seen["income_one"] == seen["own_income"] == pytest.approx(float(income[0]))
    assert seen["count_one_0"] == pytest.approx(2 / 16)
    assert seen["count_two_0"] == pytest.approx(1 / 16)
    assert seen["reachable"] == pytest.approx(13 / 16)
    price = state.field[0, state.owner[0] < 0]
    assert seen["price_mean"] == pytest.approx(float(price.mean()), rel=1e-5)
    for mark in (0.25, 0.5, 0.75):
        above = float((price > mark).float().mean())
        assert seen[f"price_above_{mark}"] == pytest.approx(above)
    assert (seen["acts"], seen["is_one"], seen["is_two"]) == (1.0, 1.0, 0.0)
    other = _named(world, "two")
    assert (other["is_one"], other["is_two"]) == (0.0, 1.0)


def test_the_months_until_the_next_hub_are_seen() -> None:
    world = made(SMALL)  # the third hub opens in month 4 of 8
    assert _named(world, "ind")["next_hub"] == pytest.approx(0.5)
    for _ in range(4):
        play(world)
    assert _named(world, "ind")["next_hub"] == 1.0


def test_the_critic_sees_every_agent_and_the_role_as_it_sees_itself() -> None:
    world = made(SMALL)
    critic = world.state("edu")
    for role in world.config.agent_names:
        assert torch.equal(critic[role][..., : -len(POOLED)], world.observe(role).features["obs"])
    assert critic["state"].shape[1] == world.spec.critic["state"].shape[0]


def test_the_critic_sees_the_candidates_of_the_role_as_count_mean_and_largest() -> None:
    world = made(grid(builder("one"), builder("two")))
    play(world, one=[0], two=[15])
    critic, found = world.state("one"), world.candidates("one")
    features = found.features[0, found.legal[0], -len(DYNAMIC) :]  # [K - 1, 12]
    share, mean, most = critic["state"][0, -len(POOLED) :].split([1, len(DYNAMIC), len(DYNAMIC)])
    assert share.item() == len(features) / 16 == 14 / 16
    assert torch.allclose(mean, features.mean(dim=0))
    assert torch.equal(most, features.amax(dim=0).clamp(min=0.0))
    assert torch.equal(critic["one"][0, 0, -len(POOLED) :], critic["state"][0, -len(POOLED) :])
    assert not critic["two"][0, 0, -len(POOLED) :].any()


def test_the_critic_sees_no_candidates_of_a_role_whose_month_it_is_not() -> None:
    critic = made(SMALL).state("edu")  # industry begins
    assert not critic["edu"][..., -len(POOLED) :].any()
    assert not critic["state"][..., -len(POOLED) :].any()


def test_what_the_critic_sees_of_the_candidates_does_not_depend_on_the_lanes_beside() -> None:
    crowd, alone = made(SMALL, lanes=8), CityGrowth(SMALL, lanes=1)
    alone.reset(lane_keys([0], lanes=8)[5:6])
    generator = torch.Generator().manual_seed(3)
    for _ in range(SMALL.horizon):
        for phase in crowd.spec.phases:
            for role in phase:
                one = alone.state(role)
                for name, x in crowd.state(role).items():
                    assert torch.equal(x[5:6], one[name]), name
                action = random_picks(crowd, role, generator)
                crowd.act(role, action)
                alone.act(role, {"build": action["build"][5:6]})
        crowd.advance()
        alone.advance()


def test_the_raster_shows_owners_price_river_and_reach() -> None:
    ground = replace(GRID, river_line=((0.0, 2.0), (39.0, 2.0)))
    world = made(grid(builder("one"), builder("two"), map=ground, raster=True))
    play(world, one=[0], two=[15])
    picture = world.observe("one").features["raster"][0, 0]
    assert picture.shape == (5, 50, 50)
    own, others, price, river, reach = picture
    assert own.sum().item() == others.sum().item() == 1.0
    row, column = own.nonzero()[0].tolist()
    assert (row, column) == (12 * 50 // 40, 12 * 50 // 40)
    assert reach.sum().item() == 16.0
    assert price[row, column].item() == pytest.approx(float(world.world_state.field[0, 0]))
    assert river[row, column].item() == pytest.approx(2 ** (-20 / 120), rel=1e-4)
    assert picture.min() >= 0.0
    assert picture.max() <= 1.0


def test_equal_seeds_and_choices_replay_byte_for_byte() -> None:
    records = []
    for _ in range(2):
        world, generator = made(SMALL, lanes=3, seed=5), torch.Generator().manual_seed(9)
        parts: list[bytes] = []
        for _ in range(2 * SMALL.horizon):
            step = random_month(world, generator)
            tensors = [*step.reward.values(), *step.metrics.values()]
            tensors += list(world.world_state.tensors().values())
            parts += [x.numpy().tobytes() for x in tensors]
        records.append(b"".join(parts))
    assert records[0] == records[1]


def test_replay_does_not_depend_on_the_order_in_which_a_process_hashes() -> None:
    code = """
from hashlib import sha256
import torch
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from tests.unit.worlds.city_growth.helpers import SMALL, made

world, seen = made(SMALL), sha256()
for _ in range(4):
    for role in world.config.agent_names:
        for x in (*world.state(role).values(), *world.observe(role).features.values()):
            seen.update(x.numpy().tobytes())
        world.act(role, HEURISTICS["random"](world, role))
    world.advance()
for x in world.world_state.tensors().values():
    seen.update(x.numpy().tobytes())
print(seen.hexdigest())
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""


@pytest.mark.parametrize("debt", ["soft", "hard"])
def test_the_way_of_an_accelerator_gives_the_same_numbers(debt: Any) -> None:
    """It asks the host nothing and computes everything each time."""
    config = replace(SMALL, debt=debt, bankruptcy="terminate", bankrupt_at=4_000, raster=True)
    quick, plain = made(config, lanes=4), made(config, lanes=4)
    plain._asks = False
    generator = torch.Generator().manual_seed(3)
    for _ in range(2 * config.horizon):
        for phase in quick.spec.phases:
            for role in phase:
                ours, theirs = quick.observe(role).tensors(), plain.observe(role).tensors()
                ours |= quick.state(role)
                theirs |= plain.state(role)
                for name, x in ours.items():
                    assert torch.equal(x, theirs[name]), name
                action = random_picks(quick, role, generator)
                quick.act(role, action)
                plain.act(role, action)
        one, two = quick.advance(), plain.advance()
        for name, x in one.metrics.items():
            assert torch.equal(x, two.metrics[name]), name
        for name, x in quick.world_state.tensors().items():
            assert torch.equal(x, plain.world_state.tensors()[name]), name


def test_lanes_draw_their_cities_and_draw_again_at_each_start() -> None:
    world = made(SMALL, lanes=16)
    first = world.world_state.map.clone()
    assert set(first.tolist()) == {0, 1, 2}
    for _ in range(SMALL.horizon):
        play(world)
    assert not torch.equal(world.world_state.map, first)


def test_other_map_seeds_give_other_cities() -> None:
    other = with_maps(SMALL, map_seed=1_000, n_maps=2)
    assert other.map.map_seed == 1_000
    assert other.map.n_maps == 2
    assert not torch.equal(made(other).tables.ground.xy[0], made(SMALL).tables.ground.xy[0])


def test_a_heuristic_needs_no_look_before_it_acts() -> None:
    for rule in RULES.values():
        world = made(SMALL)
        for _ in range(SMALL.horizon):
            for phase in world.spec.phases:
                for role in phase:
                    world.act(role, rule(world, role))
            step = world.advance()
        assert step.metrics["refused"].sum() == step.metrics["conflicts"].sum() == 0


def test_sizes_of_sets_are_told_over_all_turns_of_all_agents() -> None:
    world = made(replace(SMALL, horizon=4), lanes=3)
    sizes: list[Tensor] = []
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        for role in (role for phase in world.spec.phases for role in phase):
            seen = world.observe(role)
            if seen.acts.all():
                sizes.append(seen.legal["build"].sum(dim=-1).flatten())
            world.act(role, random_picks(world, role, generator))
        step = world.advance()
    size = torch.stack(sizes).float()  # [turns, L]
    assert len(size) == 5  # industry twice, education twice, the council once
    told = {name: x / 4 for name, x in step.metrics.items()}
    assert told["decisions"].tolist() == [5.0] * 3
    torch.testing.assert_close(told["candidates_mean"], size.mean(dim=0))
    torch.testing.assert_close(told["candidates_max"], size.amax(dim=0))


def test_heuristics_are_ordered_as_common_sense_says() -> None:
    totals: dict[str, float] = {}
    for name, rule in RULES.items():
        world = made(SMALL, lanes=8)
        for _ in range(SMALL.horizon):
            for phase in world.spec.phases:
                for role in phase:
                    world.act(role, rule(world, role))
            step = world.advance()
        totals[name] = float(step.metrics["return"].mean())
    assert totals["npv"] > totals["random"]
    assert totals["npv"] > totals["skip"] == 0.0


def test_a_city_can_be_drawn_and_animated(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    world, frames = made(SMALL, lanes=1), []
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        frames.append(world.frame(0))
        random_month(world, generator)
    figure = render.draw(frames, SMALL, title="a city")
    assert len(figure.axes) == 2
    moving, animation = render.animate(frames, SMALL)
    animation.save(tmp_path / "city.gif", writer="pillow", dpi=40)
    assert "month 2" in moving.axes[0].get_title()
    assert (tmp_path / "city.gif").stat().st_size > 1_000
    plt.close("all")


def _every_plan(config: CityConfig) -> float:
    """The best return of all plans, found by playing each of them in a lane of its own.

    Each month every plan so far branches into all picks it is offered.
    """
    plans = torch.zeros(1, 0, dtype=torch.int64)
    for _ in range(config.horizon):
        legal = _replayed(config, plans).observe("council").legal["build"][:, 0]
        lane, row = legal.nonzero(as_tuple=True)
        plans = torch.cat((plans[lane], row.unsqueeze(-1)), dim=1)
    total = torch.zeros(len(plans), dtype=torch.float64)
    _replayed(config, plans, total)
    return float(total.max()) * config.reward.scale


def _replayed(config: CityConfig, plans: Tensor, total: Tensor | None = None) -> CityGrowth:
    world = CityGrowth(config, lanes=len(plans))
    world.reset(lane_keys([0], lanes=1).expand(len(plans)))
    for month in range(plans.shape[1]):
        world.act("council", {"build": plans[:, month].view(-1, 1, 1)})
        step = world.advance()
        if total is not None:
            total += step.reward["council"][:, 0].double()
    return world


@pytest.mark.parametrize(
    ("config", "best"), [(TINY_4, BEST_TINY_4), (TINY_9, BEST_TINY_9)], ids=["tiny-4", "tiny-9"]
)
def test_the_best_plan_of_a_tiny_map_is_known(config: CityConfig, best: float) -> None:
    assert _every_plan(config) == pytest.approx(best, abs=1.0)


def test_mirrors_of_a_tiny_map_have_the_same_best_plan() -> None:
    worlds: list[Any] = [made(TINY_4, lanes=1, seed=seed) for seed in range(12)]
    seen = {int(world.world_state.map): world.candidates("council") for world in worlds}
    assert set(seen) == {0, 1, 2, 3}
    for found in seen.values():
        assert torch.equal(found.money, seen[0].money)
        assert torch.equal(found.key, seen[0].key)


def test_greedy_play_misses_the_best_plan_of_the_tiny_maps() -> None:
    for config, best in ((TINY_4, BEST_TINY_4), (TINY_9, BEST_TINY_9)):
        world = made(config, lanes=1)
        for _ in range(config.horizon):
            world.act("council", HEURISTICS["npv"](world, "council"))
            step = world.advance()
        assert step.metrics["return"].item() / config.horizon < best


def test_stopping_at_once_is_always_possible() -> None:
    for month, config in product(range(2), (SMALL, TINY_4)):
        world = made(config)
        for _ in range(month):
            play(world)
        for role in world.config.agent_names:
            assert world.observe(role).legal["build"][..., 0].all()
            world.act(role, picks(world))


@pytest.mark.parametrize(
    "changes", [{}, {"debt": "hard", "raster": True}, {"expansion": "nearest"}]
)
def test_whatever_the_world_hands_out_may_be_trained_on(changes: dict[str, Any]) -> None:
    """Torch refuses gradients through tensors that were made while it kept no record of them."""
    world = made(replace(SMALL, **changes), lanes=1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(world.config.horizon + 1):  # the last month of an episode too, and a first
        for phase in world.spec.phases:
            for role in phase:
                given: list[Tensor] = [*world.state(role).values()]
                seen = world.observe(role)
                given += [*seen.features.values(), *seen.entities.values(), *seen.legal.values()]
                assert not any(x.is_inference() for x in (*given, seen.acts))
                world.act(role, random_picks(world, role, generator))
        step = world.advance()
        given = [*step.reward.values(), *step.metrics.values()]
        given += [step.terminated, step.truncated, step.elapsed]
        given += [*world.world_state.tensors().values()]
        assert not any(x.is_inference() for x in given)
