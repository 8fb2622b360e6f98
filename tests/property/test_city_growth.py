"""Laws of the city that hold for any settings, any seed and any picks, legal or not."""

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from lockstep.core.picks import PickSet
from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth.candidates import cap, dense
from lockstep.worlds.city_growth.catalogue import COUNCIL, EDU, IND
from lockstep.worlds.city_growth.config import (
    CityConfig,
    Hub,
    LandConfig,
    MapConfig,
    PhaseConfig,
    RewardConfig,
)
from lockstep.worlds.city_growth.month import active_terms
from lockstep.worlds.city_growth.world import CityGrowth

LANES = 3
HUBS = (Hub(r0=8.0, dr=3.0), Hub(r0=6.0, dr=2.0), Hub(r0=3.0, active_from=3))

Choices = dict[str, Any]

# Plain values: a config checks its types with a random sample, which a strategy may not draw.
CHOICES = st.fixed_dictionaries(
    {
        "n_slots": st.integers(1, 14),
        "n_maps": st.integers(1, 2),
        "map_seed": st.integers(0, 20),
        "river": st.sampled_from(["bend", "straight", "none"]),
        "adjacency": st.sampled_from(["grid4", "radius", "knn", "delaunay"]),
        "mirrored": st.booleans(),
        "kind": st.sampled_from(["npv", "cash"]),
        "extra_terms": st.booleans(),
        "lifetime": st.sampled_from([1, 1000]),
        "tail": st.sampled_from([0.0, 6.0]),
        "shared": st.sampled_from([0.0, 0.25]),
        "evaluate": st.sampled_from(["slots", "slots", "slots", "grid"]),
        "shape": st.sampled_from(["single", "single", "pair", "block", "cluster"]),
        "pool": st.sampled_from(["", "two", "all"]),
        "cap": st.sampled_from([0, 2]),
        "schedule": st.sampled_from(["turns", "month", "phases"]),
        "concurrent": st.booleans(),
        "horizon": st.integers(1, 6),
        "builds": st.integers(1, 4),
        "expansion": st.sampled_from(["none", "none", "nearest", "cluster"]),
        "max_candidates": st.sampled_from([6, 256]),
        "reach": st.sampled_from(["cumulative", "ring"]),
        "start_share": st.sampled_from([0.1, 1.0]),
        "debt": st.sampled_from(["soft", "hard"]),
        "credit": st.sampled_from([0, 700]),
        "adjacency_bonus": st.sampled_from([0, 30]),
        "prestige_rule": st.sampled_from(["base", "draft"]),
        "interest": st.sampled_from([0.0, 0.6]),
        "grant": st.sampled_from([0.0, 5.0]),
        "bankruptcy": st.sampled_from(["none", "skip_turn", "terminate"]),
        "rent_share": st.sampled_from([0.0, 0.05]),
    }
)
_OF_MAP = ("n_slots", "n_maps", "map_seed", "river", "adjacency", "mirrored")
_OF_CITY = ("horizon", "builds", "expansion", "max_candidates", "reach", "start_share", "debt",
            "credit", "adjacency_bonus", "prestige_rule", "interest", "grant", "bankruptcy",
            "rent_share", "schedule")  # fmt: skip


def _config(choices: Choices) -> CityConfig:
    kinds = tuple(
        replace(kind, footprint=choices["shape"] if i == 1 else "single")
        for i, kind in enumerate(IND.types)
    )
    extra = 10.0 if choices["extra_terms"] else 0.0
    cycle = (
        PhaseConfig(agents=("council", "ind"), concurrent=choices["concurrent"]),
        PhaseConfig(agents=("edu",)),
    )
    return CityConfig(
        agents=(
            replace(IND, types=kinds, pool="all" if choices["pool"] == "all" else ""),
            replace(EDU, pool=choices["pool"], cap_per_type=choices["cap"]),
            replace(COUNCIL, active_from=2, pool=choices["pool"]),
        ),
        map=MapConfig(width=60, height=50, hubs=HUBS, **{n: choices[n] for n in _OF_MAP}),
        land=LandConfig(coarse_px=10, evaluate=choices["evaluate"]),
        reward=RewardConfig(
            kind=choices["kind"],
            lifetime=choices["lifetime"],
            prestige=extra,
            diversity=extra,
            cooperation=extra,
            shaping=extra / 20.0,
            tail_months=choices["tail"] if choices["kind"] == "cash" else 0.0,
            shared=choices["shared"],
        ),
        phases=cycle if choices["schedule"] == "phases" else (),
        bankrupt_at=1_500,
        **{n: choices[n] for n in _OF_CITY},
    )


def _wild(world: CityGrowth, role: str, generator: torch.Generator) -> torch.Tensor:
    """Any row numbers: legal, padded, taken, repeated, and stops in between."""
    n = world.spec.role(role).action["build"].n
    shape = (world.lanes, 1, world.config.picks)
    few = int(world.candidates(role).legal.sum(dim=-1).max()) + 2
    return torch.randint(0, min(few, n), shape, generator=generator)


@settings(max_examples=40, deadline=None)
@given(choices=CHOICES, seed=st.integers(0, 2**31))
def test_any_picks_leave_a_lawful_city(choices: Choices, seed: int) -> None:
    config = _config(choices)
    world = CityGrowth(config, lanes=LANES)
    world.reset(lane_keys([seed], lanes=LANES))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.horizon + 2):
        before = {name: x.clone() for name, x in world.world_state.tensors().items()}
        spent = torch.zeros_like(world.world_state.balance)
        for phase in world.spec.phases:
            start = world.world_state.balance.clone()
            for role in phase:
                seen = world.observe(role)
                assert seen.legal["build"][..., 0].all()  # K >= 1
                assert all(torch.isfinite(x.float()).all() for x in seen.tensors().values())
                world.act(role, {"build": _wild(world, role, generator)})
            spent += start - world.world_state.balance
            if config.debt == "hard":  # nobody builds on credit that there is not
                floor = start.clamp(max=-config.credit)
                assert (world.world_state.balance >= floor).all()
        state = world.world_state
        after = {name: x.clone() for name, x in state.tensors().items()}
        _check_ground(before, after, config)
        step = world.advance()
        _check_books(before, after, spent, step, world)
        assert all(torch.isfinite(x).all() for x in step.metrics.values())
        field = world.world_state.field
        assert ((field >= 0) & (field <= 1)).all()


def _check_ground(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], config: CityConfig
) -> None:
    """Nothing built ever changes hands, and what is counted stands on the ground."""
    held = before["owner"] >= 0
    assert torch.equal(after["owner"][held], before["owner"][held])
    assert torch.equal(after["kind"][held], before["kind"][held])
    assert torch.equal(after["owner"] >= 0, after["kind"] >= 0)
    for a, agent in enumerate(config.agents):
        for t, kind in enumerate(agent.types):
            slots = ((after["owner"] == a) & (after["kind"] == t)).sum(dim=-1)
            size = {"single": 1, "pair": 2, "block": 4, "cluster": kind.cluster}[kind.footprint]
            assert torch.equal(after["count"][:, a, t] * size, slots)


def _check_books(
    before: dict[str, torch.Tensor],
    after: dict[str, torch.Tensor],
    spent: torch.Tensor,
    step: Any,
    world: CityGrowth,
) -> None:
    """The balance at the month's end is what was there, less costs, plus what came in."""
    config = world.config
    paid = (after["paid"] - before["paid"]).double().sum(dim=-1)
    assert torch.equal(paid, spent.sum(dim=-1))
    going = ~step.terminated
    left = world.world_state.balance[going].sum(dim=-1)
    came = after["income"].sum(dim=-1) + config.grant * len(config.agents)
    interest = (
        sum(step.metrics[f"reward_interest_{name}"].double() for name in config.agent_names)
        * config.reward.scale
    )
    expected = (before["balance"].sum(dim=-1) - paid + came + interest)[going]
    torch.testing.assert_close(left, expected, atol=1e-2, rtol=0.0)
    for name in config.agent_names:
        parts = [step.metrics[f"reward_{term}_{name}"] for term in active_terms(config)]
        total = torch.stack(parts).double().sum(dim=0)
        reward = step.reward[name][:, 0].double()
        torch.testing.assert_close(total, reward, atol=1e-6, rtol=0.0)


@settings(max_examples=20, deadline=None)
@given(choices=CHOICES, seed=st.integers(0, 2**31))
def test_what_a_policy_may_pick_is_what_the_world_builds(choices: Choices, seed: int) -> None:
    """Picks that keep to resources and budget are never dropped in a phase of one agent."""
    config = replace(_config(choices), schedule="month", phases=(), expansion="none")
    world = CityGrowth(config, lanes=LANES)
    world.reset(lane_keys([seed], lanes=LANES))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.horizon):
        built = world.world_state.count.sum().item()
        wanted = 0
        for role in config.agent_names:
            seen, part = world.observe(role), world.spec.role(role).action["build"]
            offer = PickSet.of(part, seen.legal["build"], seen.features)  # type: ignore[arg-type]
            now, chosen = offer.first(), []
            for _ in range(config.picks):
                weight = now.entries[:, 0].float()
                index = torch.multinomial(weight, 1, generator=generator)
                chosen.append(index)
                now = offer.after(now, index)
            action = torch.stack(chosen, dim=-1)  # [L, 1, k]
            wanted += int((action > 0).sum())
            world.act(role, {"build": action})
        assert world.world_state.count.sum().item() == built + wanted
        world.advance()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), lane=st.integers(0, 4), choices=CHOICES)
def test_a_lane_plays_the_same_alone(seed: int, lane: int, choices: Choices) -> None:
    config = _config(choices)
    keys = lane_keys([seed], lanes=5)
    crowd, alone = CityGrowth(config, lanes=5), CityGrowth(config, lanes=1)
    crowd.reset(keys)
    alone.reset(keys[lane : lane + 1])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.horizon + 1):
        for phase in crowd.spec.phases:
            for role in phase:
                picks = _wild(crowd, role, generator)
                crowd.act(role, {"build": picks})
                alone.act(role, {"build": picks[lane : lane + 1]})
        together, by_itself = crowd.advance(), alone.advance()
        for name, reward in together.reward.items():
            assert torch.equal(reward[lane], by_itself.reward[name][0])
        for name, x in crowd.world_state.tensors().items():
            assert torch.equal(x[lane], alone.world_state.tensors()[name][0]), name


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.booleans(), min_size=1, max_size=30),
    width=st.integers(30, 40),
    city=st.integers(0, 10),
)
def test_dense_rows_are_the_legal_ones_in_order(rows: list[bool], width: int, city: int) -> None:
    legal, rank = torch.tensor([rows]), torch.arange(1, width + 1, dtype=torch.int32)
    row, count = dense(legal, rank, city=torch.tensor([city]))
    start = city * (len(rows) + 1)  # each city's rows end with the one for nothing
    expected = [start + i for i, here in enumerate(rows) if here]
    assert count.item() == len(expected)
    assert row[0].tolist() == expected + [start + len(rows)] * (width - len(expected))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), width=st.integers(3, 30))
def test_a_cap_never_leaves_more_than_fits_and_keeps_the_dearest(seed: int, width: int) -> None:
    ground = MapConfig(n_slots=10, n_maps=1, hubs=HUBS, width=60, height=50)
    config = CityConfig(agents=(replace(EDU, bank_of_hub=-1),), schedule="month", map=ground)
    world = CityGrowth(config, lanes=1)
    universe = world.tables.universes[0]
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(1, 30, generator=generator) > 0.3
    price = torch.rand(1, 10, generator=generator).mul(4).round().div(4)  # with ties
    kept, dropped = cap(
        legal, price, world.world_state.map, universe, config.agents[0], width=width
    )
    assert kept.sum().item() <= width
    assert dropped.item() == legal.sum().item() - kept.sum().item()
    assert not (kept & ~legal).any()
    if legal.sum() <= width:
        assert torch.equal(kept, legal)
        return
    for t in range(3):
        rows = [i for i in range(30) if legal[0, i] and i // 10 == t]
        order = sorted(rows, key=lambda i: (-float(price[0, i % 10]), i))[: width // 3]
        assert [i for i in rows if kept[0, i]] == sorted(order)
