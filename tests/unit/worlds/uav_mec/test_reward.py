"""Penalties and rewards against plain loops."""

import math

import pytest
import torch

from lockstep.worlds.uav_mec import reward
from lockstep.worlds.uav_mec.allocation import served_by
from lockstep.worlds.uav_mec.heuristics import random_actions
from tests.unit.worlds.uav_mec.helpers import SMALL, made, slot, small


def test_lateness_counts_both_parts_in_slots() -> None:
    penalty = reward.latency_penalty(
        torch.tensor([0.5, 1.5, 3.0]),
        torch.tensor([1.0, 2.0, 0.0]),
        factor=torch.tensor(0.1),
        slot_s=1.0,
    )
    assert penalty.tolist() == pytest.approx([0.0, 0.15, 0.2])


def test_collision_penalties_equal_a_loop_and_are_positive_when_too_close() -> None:
    uav = 120 * torch.rand(5, 6, 2, generator=torch.Generator().manual_seed(3))
    factor = torch.tensor(0.1)
    penalty = reward.collision_penalty(uav, factor=factor, min_separation_m=50.0)
    for i in range(5):
        for m in range(6):
            expected = sum(
                max(50.0 - math.dist(uav[i, m].tolist(), uav[i, j].tolist()), 0.0) / 50.0
                for j in range(6)
                if j != m
            )
            assert penalty[i, m].item() == pytest.approx(0.1 * expected, abs=1e-6)
    assert penalty.max().item() > 0
    apart = reward.collision_penalty(100 * uav, factor=factor, min_separation_m=50.0)
    assert apart.min().item() >= 0


def test_the_distance_term_is_floored_or_a_bonus_and_zero_without_users() -> None:
    uav = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    mu = torch.tensor([[[500.0, 0.0], [700.0, 0.0], [100.0, 0.0]]])
    served = served_by(torch.tensor([[1, 1, 2]]), 3)
    floored = reward.distance_penalty(uav, mu, served, config=SMALL)
    assert floored.flatten().tolist() == pytest.approx([0.3, 0.0, 0.0])
    bonus = reward.distance_penalty(uav, mu, served, config=small(distance_bonus=True).config)
    assert bonus.flatten().tolist() == pytest.approx([0.3, -0.2, 0.0])


def test_overshoot_counts_in_metres_or_in_area_widths() -> None:
    overshoot, factor = torch.tensor([3.0]), torch.tensor(0.1)
    metres = reward.boundary_penalty(overshoot, factor=factor, config=SMALL)
    widths = reward.boundary_penalty(
        overshoot, factor=factor, config=small(boundary_unit="W").config
    )
    assert metres.item() == pytest.approx(0.3)
    assert widths.item() == pytest.approx(0.0003)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"divide_uav_energy": True, "uav_pays_own_energy": False, "reward_scale": 10.0},
        {"uav_aggregation": "sum", "latency_penalty_for": "offloaders", "distance_bonus": True},
    ],
)
def test_rewards_of_a_slot_equal_a_loop_over_agents(changes: dict[str, object]) -> None:
    world = small(lanes=3, **changes)
    for _ in range(3):
        slot(world)
    users_m = world.world_state.mu_xy_m.clone()
    actions = random_actions(world)
    actions["uav"]["motion"][:, 0] = 1.0  # drive one UAV out of the area sooner or later
    step = slot(world, actions)
    last, state, c = world.last, world.world_state, world.config
    assert last is not None
    for i in range(3):
        late = [
            0.1 * (max(a - 1, 0) + max(b - 1, 0)) * (c.latency_penalty_for == "all" or on > 0)
            for a, b, on in zip(
                last.local_delay_s[i].tolist(),
                last.edge_delay_s[i].tolist(),
                last.association[i].tolist(),
                strict=True,
            )
        ]
        on_uav = [[k for k in range(8) if last.association[i, k] == m + 1] for m in range(3)]
        for k in range(8):
            expected = last.mu_energy_j[i, k].item() + late[k]
            m = int(last.association[i, k]) - 1
            if m >= 0:
                parts = len(on_uav[m]) if c.divide_uav_energy else 1
                expected += 0.001 * last.uav_energy_j[i, m].item() / parts
            assert step.reward["mu"][i, k].item() == pytest.approx(
                -c.reward_scale * expected, rel=1e-4
            )
        for m in range(3):
            costs = [last.mu_energy_j[i, k].item() + late[k] for k in on_uav[m]]
            cost = sum(costs) / (max(len(costs), 1) if c.uav_aggregation == "mean" else 1)
            cost += 0.001 * last.uav_energy_j[i, m].item() * c.uav_pays_own_energy
            place = state.uav_xy_m[i, m].tolist()
            for j in range(3):
                gap = math.dist(place, state.uav_xy_m[i, j].tolist())
                cost += 0.1 * max(50 - gap, 0) / 50 if j != m else 0.0
            if on_uav[m]:
                centre = users_m[i, on_uav[m]].mean(dim=0).tolist()
                excess = (math.dist(place, centre) - 300) / 1000
                cost += excess if c.distance_bonus else max(excess, 0.0)
            inside = all(0 < x < 1000 for x in place)
            if inside:  # the overshoot itself is gone; other tests cover it
                assert step.reward["uav"][i, m].item() == pytest.approx(
                    -c.reward_scale * cost, rel=1e-4, abs=1e-5
                )


def test_flying_into_the_wall_costs_the_uav_and_nobody_else() -> None:
    rewards = []
    for x_m in (500.0, 999.0):
        world = small(lanes=1, boundary_factor=0.1)
        world.place_uavs(torch.tensor([[[x_m, 200.0], [500.0, 500.0], [500.0, 800.0]]]))
        world.world_state.uav_velocity_mps[0, 0, 0] = 11.0
        actions = random_actions(world)
        actions["mu"]["assoc"] = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 8, 4)
        actions["uav"]["motion"] = torch.full((1, 3, 2), 0.5)
        rewards.append(slot(world, actions).reward)
    assert torch.equal(rewards[0]["mu"], rewards[1]["mu"])
    assert torch.equal(rewards[0]["uav"][:, 1:], rewards[1]["uav"][:, 1:])
    # 10 m of overshoot cost 1.0, and stopping at the wall changes the power by a few watt
    fall = (rewards[0]["uav"] - rewards[1]["uav"])[0, 0].item()
    assert fall == pytest.approx(1.0, abs=0.06)


def test_relaying_costs_the_uav_only_when_forwarding_energy_is_on() -> None:
    for on in (False, True):
        world = small(lanes=1, forwarding_energy=on, deviation=0.0)
        actions = random_actions(world)
        actions["mu"]["assoc"] = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(1, 8, 4)
        actions["mu"]["relay"] = torch.ones(1, 8, 1)
        slot(world, actions)
        assert world.last is not None
        extra_j = world.last.uav_energy_j - world.last.uav_fly_energy_j
        assert bool(extra_j[0, 0] > 0.01) == on
        assert (world.last.uav_comp_energy_j == 0).all()


def test_transmit_energy_can_be_capped_at_one_slot() -> None:
    def largest(**changes: object) -> float:
        world = small(lanes=8, cycles_min=1.0, cycles_max=1.0, **changes)  # no work at home
        actions = random_actions(world)
        actions["mu"]["rho"] = torch.ones(8, 8, 1)
        slot(world, actions)
        assert world.last is not None
        return float(world.last.mu_energy_j.max())

    assert largest() > 0.2
    assert largest(cap_transmit_energy=True) == pytest.approx(0.2, rel=1e-5)


def test_sharing_the_relay_band_makes_relayed_users_later() -> None:
    delays = []
    for share in (False, True):
        world = made(small(share_relay_bandwidth=share).config, lanes=4)
        actions = random_actions(world)
        actions["mu"]["assoc"] = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(4, 8, 4)
        actions["mu"]["relay"] = torch.ones(4, 8, 1)
        slot(world, actions)
        assert world.last is not None
        delays.append(world.last.edge_delay_s)
    assert (delays[1] > delays[0]).all()
