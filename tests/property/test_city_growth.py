"""Laws of the city that hold for any settings, any seed and any picks, legal or not."""

import math
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from lockstep.core.picks import PickSet
from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth.candidates import CandidateSet, cap, dense, enumerate_set
from lockstep.worlds.city_growth.catalogue import COUNCIL, EDU, IND, THIRD_HUB_TYPES
from lockstep.worlds.city_growth.config import (
    BuildingType,
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
SLOW_HUBS = (Hub(r0=4.0), Hub(r0=4.0), Hub(r0=3.0, active_from=3))
"""With a radius that long leaves slots for the months to come."""

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
        _check_kept(world)
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


def _check_kept(world: CityGrowth) -> None:
    """What is brought up to date building by building is what the ground says."""
    state, ground = world.world_state, world.tables.ground
    taken = state.owner >= 0
    gap_px = ground.gap_px[state.map]  # [L, N, N]
    for a in range(len(world.config.agents)):
        mine = (state.owner == a).unsqueeze(1)
        nearest = gap_px.masked_fill(~mine, torch.inf).amin(dim=-1)
        assert torch.equal(state.near_px[:, a], nearest)
    free = ground.adjacent[state.map] * ~taken.unsqueeze(1)
    assert torch.equal(state.free_neighbours, free.sum(dim=-1))
    off = ground.point_xy[state.map].unsqueeze(2) - ground.xy[state.map].unsqueeze(1)
    square = off.square().sum(dim=-1).masked_fill(~taken.unsqueeze(1), torch.inf)  # [L, E, N]
    torch.testing.assert_close(state.near_px2, square.amin(dim=-1), atol=1e-3, rtol=1e-5)


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

    def booked(term: str) -> torch.Tensor:
        parts = [step.metrics[f"reward_{term}_{name}"] for name in config.agent_names]
        return torch.stack(parts, dim=-1).double() * config.reward.scale  # [L, A]

    came = after["income"] + config.grant + booked("interest")
    if config.rent_share:
        came = came + booked("rent")
        assert (booked("rent").sum(dim=-1).abs() < 1e-2).all()  # one pays what another gets
    ledger = torch.zeros_like(spent).index_add_(1, torch.tensor(config.ledgers), came)
    expected, left = before["balance"] - spent + ledger, world.world_state.balance
    if config.reward.shared:  # terms were dealt out, so that only their sum is that of the books
        expected, left = expected.sum(dim=-1), left.sum(dim=-1)
    going = ~step.terminated
    torch.testing.assert_close(left[going], expected[going], atol=1e-2, rtol=0.0)
    for name in config.agent_names:
        parts = [step.metrics[f"reward_{term}_{name}"] for term in active_terms(config)]
        total = torch.stack(parts).double().sum(dim=0)
        reward = step.reward[name][:, 0].double()
        torch.testing.assert_close(total, reward, atol=1e-6, rtol=0.0)


def _fits_shape(kind: BuildingType, slots: tuple[int, ...], beside: list[list[bool]]) -> bool:
    """Whether slots form a footprint, by its definition."""
    if kind.footprint == "pair":
        return beside[slots[0]][slots[1]]
    if kind.footprint == "block":
        rings = permutations(slots)
        return any(all(beside[r[i - 1]][r[i]] for i in range(4)) for r in rings)
    reached = {slots[0]}
    for _ in slots:
        reached |= {s for s in slots for r in reached if beside[r][s]}
    return len(reached) == len(slots)


def _usable_slowly(world: CityGrowth, a: int, lane: int) -> list[int]:
    """The slots that steps 1 to 5 of the page leave to an agent, one by one."""
    config, state, agent = world.config, world.world_state, world.config.agents[a]
    month, city = int(state.month[lane]), world.tables.cities[int(state.map[lane])]
    owner, xy = state.owner[lane].tolist(), city.slot_xy.tolist()
    hubs = list(zip(config.map.hubs, city.hub_xy.tolist(), strict=True))
    bankrupt = state.balance[lane, config.ledgers[a]] < -config.bankrupt_at
    if not world.acts()[lane, a] or (config.bankruptcy == "skip_turn" and bankrupt):
        return []

    def reached(slot: int, m: int) -> bool:
        return any(
            m >= hub.active_from
            and math.dist(xy[slot], place) <= hub.r0 + hub.dr * m + config.reach_tolerance_px
            for hub, place in hubs
        )

    slots = [s for s in range(len(xy)) if owner[s] < 0 and city.level[s] <= agent.max_level]
    if agent.bank_of_hub >= 0:
        home = city.hub_bank[agent.bank_of_hub]
        slots = [s for s in slots if city.slot_bank[s] == home >= 0]
    slots = [s for s in slots if reached(s, month)]
    ring = [s for s in slots if month == 0 or not reached(s, month - 1)]
    if config.reach == "ring" and ring:
        slots = ring
    own = [xy[s] for s in range(len(xy)) if owner[s] == a]
    near = [s for s in slots if any(math.dist(xy[s], place) <= agent.near_px for place in own)]
    return near if len(near) >= agent.near_least else slots


def _rows_slowly(world: CityGrowth, a: int, lane: int) -> list[tuple[int, tuple[int, ...]]]:
    """Type and slots of every candidate before money is asked for, in canonical order."""
    config, state = world.config, world.world_state
    city, month = world.tables.cities[int(state.map[lane])], int(state.month[lane])
    usable, beside = _usable_slowly(world, a, lane), city.adjacent.tolist()
    rows = []
    for t, kind in enumerate(config.agents[a].types):
        able = [s for s in usable if city.level[s] >= kind.min_level]
        if kind.hub >= 0:
            hub, place = config.map.hubs[kind.hub], city.hub_xy[kind.hub]
            radius = hub.r0 + hub.dr * month + config.reach_tolerance_px
            here = month >= hub.active_from
            able = [s for s in able if here and math.dist(city.slot_xy[s], place) <= radius]
        size = {"single": 1, "pair": 2, "block": 4, "cluster": kind.cluster}[kind.footprint]
        rows += [(t, fp) for fp in combinations(able, size) if _fits_shape(kind, fp, beside)]
    return rows


def _listed(
    found: CandidateSet, rows: torch.Tensor, lane: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Type and slots of some rows of one lane, in order."""
    kinds, places = found.type[lane][rows[lane]], found.slots[lane][rows[lane]]
    return [
        (kind, tuple(slot for slot in place if slot >= 0))
        for kind, place in zip(kinds.tolist(), places.tolist(), strict=True)
    ]


@settings(max_examples=20, deadline=None)
@given(choices=CHOICES, seed=st.integers(0, 2**31))
def test_candidates_are_those_that_going_through_the_rules_one_by_one_finds(
    choices: Choices, seed: int
) -> None:
    config = _config(choices | {"cap": 0, "max_candidates": 2_000})
    industry = replace(config.agents[0], types=(*config.agents[0].types, THIRD_HUB_TYPES[0]))
    config = replace(
        config,
        agents=(industry, *config.agents[1:]),
        horizon=choices["horizon"] + 2,
        map=replace(config.map, hubs=SLOW_HUBS),
    )
    world = CityGrowth(config, lanes=LANES)
    world.reset(lane_keys([seed], lanes=LANES))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(config.horizon):
        for phase in world.spec.phases:
            for role in phase:
                found, a = world.candidates(role), config.agent_names.index(role)
                acts = world.acts()[:, a]
                at_any_cost = enumerate_set(
                    world.world_state, a, acts, world.tables, replace(config, debt="soft")
                )
                able = at_any_cost.legal
                if found.budget is not None:
                    able = able & (at_any_cost.cost <= found.budget.unsqueeze(-1))
                for lane in range(LANES):
                    slow = _rows_slowly(world, a, lane)
                    assert _listed(at_any_cost, at_any_cost.legal, lane) == slow
                    assert _listed(found, found.legal, lane) == _listed(at_any_cost, able, lane)
                world.act(role, {"build": _wild(world, role, generator)})
        world.advance()


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
