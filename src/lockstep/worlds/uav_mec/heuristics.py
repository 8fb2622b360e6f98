"""Policies without learning: how bad is chance, how good is common sense."""

from collections.abc import Callable

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.worlds.uav_mec import channel, computing, energy, reward
from lockstep.worlds.uav_mec.allocation import of_own_uav, per_uav, served_by, squared_distances
from lockstep.worlds.uav_mec.world import UavMec

Heuristic = Callable[[UavMec, str], Action]
"""The action of one role, asked when its phase comes."""

_LLOYD_ROUNDS = 20
_RHO_STEPS = 21
_RESPONSE_ROUNDS = 4
_APPROACH_S = 4.0  # time constant of flying to a point: no overshoot at 5 m/s^2


def random_action(world: UavMec, role: str) -> Action:
    """Every number uniform in (0, 1), every label equally likely ("Randomized")."""
    K, M = world.config.n_users, world.config.n_uavs
    draw = world.draw(f"heuristic/{role}")
    if role == "uav":
        return {
            "motion": draw.uniform(M, 2),
            "bandwidth": draw.uniform(M, K),
            "cpu": draw.uniform(M, K),
        }
    users: Action = {}
    for name, part in world.spec.role("mu").action.items():
        discrete = world.config.assoc_head != "beta_argmax" and name == "assoc"
        users[name] = draw.integers(part.n, K) if discrete else draw.uniform(K, part.n)
    return users


def random_actions(world: UavMec) -> dict[str, Action]:
    """`random_action` of both roles."""
    return {role.name: random_action(world, role.name) for role in world.spec.roles}


def all_local(world: UavMec, role: str) -> Action:
    """Nobody offloads; the UAVs hover."""
    if role == "uav":
        return _uav_action(world, world.world_state.uav_xy_m)
    L, K = world.lanes, world.config.n_users
    nobody = torch.zeros(L, K, dtype=torch.int64, device=world.device)
    return _user_action(world, nobody, nobody > 0, torch.zeros(L, K, device=world.device))


def nearest_equal(world: UavMec, role: str) -> Action:
    """Everyone sends half to the nearest UAV, shares are equal, UAVs fly to their users' centre."""
    state, choice = world.world_state, _nearest(world)
    if role == "uav":
        served = served_by(choice, world.config.n_uavs)
        return _uav_action(world, _centre_m(state.mu_xy_m, served, otherwise=state.uav_xy_m))
    return _user_action(world, choice, choice < 0, torch.full_like(state.last_rho, 0.5))


def greedy(world: UavMec, role: str) -> Action:
    """Nearest UAV, equal split, each user's best rho and route; UAVs fly to k-means centres."""
    if role == "uav":
        return _uav_action(world, kmeans_m(world))
    choice = _nearest(world)
    return _user_action(world, choice, *_best_split(world, choice))


def oracle(world: UavMec, role: str) -> Action:
    """`greedy` with the UAVs put on the centres by hand and hovering: a limit, not a policy.

    Users are asked first, so the UAVs are moved then.
    """
    if role == "uav":
        return _uav_action(world, world.world_state.uav_xy_m)
    world.place_uavs(kmeans_m(world))
    return greedy(world, "mu")


HEURISTICS: dict[str, Heuristic] = {
    "random": random_action,
    "all_local": all_local,
    "nearest_equal": nearest_equal,
    "greedy": greedy,
    "oracle": oracle,
}


def kmeans_m(world: UavMec) -> Tensor:
    """Centres `[L, M, 2]` of the users' true positions, by Lloyd's rounds from where UAVs are.

    Starting there keeps the centres steady from slot to slot, so that UAVs can follow them.
    """
    state, M = world.world_state, world.config.n_uavs
    centre_m = state.uav_xy_m
    for _ in range(_LLOYD_ROUNDS):
        nearest = squared_distances(state.mu_xy_m, centre_m).argmin(dim=-1) + 1
        centre_m = _centre_m(state.mu_xy_m, served_by(nearest, M), otherwise=centre_m)
    return centre_m


def _best_split(world: UavMec, choice: Tensor) -> tuple[Tensor, Tensor]:
    """Route (relayed?) and rho `[L, K]` that minimise a user's energy plus lateness on a grid.

    Bandwidth is an equal part of the pool. How crowded a server and a relay link will be depends
    on what the others choose: a few rounds of damped best responses settle it.
    """
    served = served_by(choice, world.config.n_uavs)
    n_served = served.sum(dim=-1)  # [L, M]
    n_relayed = n_served / 3.0
    for _ in range(_RESPONSE_ROUNDS):
        relayed, rho = _response(world, choice, n_served, n_relayed)
        n_relayed = 0.5 * (n_relayed + per_uav(relayed.to(torch.float32), served))
    return relayed, rho


def _response(
    world: UavMec, choice: Tensor, n_served: Tensor, n_relayed: Tensor
) -> tuple[Tensor, Tensor]:
    """Each user's best (relayed?, rho) `[L, K]` when UAVs have these many users `[L, M]`."""
    config, numbers, state = world.config, world.numbers, world.world_state
    rho = torch.linspace(0.0, 1.0, _RHO_STEPS, device=world.device)  # [G]
    own_xy_m = state.uav_xy_m.gather(1, (choice - 1).unsqueeze(-1).expand(-1, -1, 2))
    rivals = of_own_uav(n_served, choice)
    crowd_cpu = of_own_uav(n_served - n_relayed, choice).clamp(min=1.0)  # [L, K]
    crowd_relay = of_own_uav(n_relayed, choice).clamp(min=1.0)
    uplink_bps = channel.uplink_bps(
        state.mu_xy_m,
        own_xy_m,
        numbers.bandwidth_hz / (config.n_users if config.bandwidth_pool == "network" else rivals),
        power_w=numbers.mu_power_w.unsqueeze(-1),
        config=config,
    )
    relay_bps = channel.relay_bps(
        own_xy_m,
        numbers.relay_bandwidth_hz / (crowd_relay if config.share_relay_bandwidth else 1.0),
        power_w=numbers.uav_power_w.unsqueeze(-1),
        config=config,
    )

    sent_bits = rho * state.task_bits.unsqueeze(-1)  # [L, K, G]
    work_cycles = (state.task_bits * state.task_cycles_per_bit).unsqueeze(-1)  # [L, K, 1]
    local_cycles = (1.0 - rho) * work_cycles
    local_hz = computing.dvfs_hz(
        local_cycles, slot_s=config.slot_s, f_max_hz=numbers.f_max_loc_hz.unsqueeze(-1)
    )
    uplink_s = sent_bits / uplink_bps.unsqueeze(-1)
    spent_j = energy.chip_j(local_cycles, local_hz, kappa=config.kappa)
    spent_j = spent_j + numbers.mu_power_w[:, None, None] * uplink_s
    edge_s = rho * work_cycles * (crowd_cpu / numbers.f_max_edge_hz).unsqueeze(-1)
    relay_s = sent_bits / relay_bps.unsqueeze(-1)
    late = reward.latency_penalty(
        computing.compute_s(local_cycles, local_hz).unsqueeze(2),
        torch.stack((uplink_s + edge_s, uplink_s + relay_s), dim=2),  # [L, K, 2, G]
        factor=numbers.latency_factor[:, None, None, None],
        slot_s=config.slot_s,
    )
    best = (spent_j.unsqueeze(2) + late).flatten(2).argmin(dim=-1)  # [L, K]; direct wins a tie
    return best >= _RHO_STEPS, rho[best % _RHO_STEPS]


def _nearest(world: UavMec) -> Tensor:
    """The nearest UAV 1..M of each user `[L, K]`, by true positions."""
    state = world.world_state
    return squared_distances(state.mu_xy_m, state.uav_xy_m).argmin(dim=-1) + 1


def _centre_m(mu_xy_m: Tensor, served: Tensor, *, otherwise: Tensor) -> Tensor:
    """Centroid of each UAV's users `[L, M, 2]`, or `otherwise` where it has none."""
    users = served.sum(dim=-1)
    centre_m = torch.stack(
        [per_uav(mu_xy_m[..., axis], served) / users.clamp(min=1) for axis in (0, 1)], dim=-1
    )
    return torch.where((users > 0).unsqueeze(-1), centre_m, otherwise)


def _user_action(world: UavMec, choice: Tensor, relayed: Tensor, rho: Tensor) -> Action:
    """The action that asks for exactly this, whatever the association head."""
    M = world.config.n_uavs
    head = world.config.assoc_head
    if head == "beta_argmax":
        return {
            "assoc": torch.nn.functional.one_hot(choice, M + 1).to(torch.float32),
            "relay": relayed.to(torch.float32).unsqueeze(-1),
            "rho": rho.unsqueeze(-1),
        }
    label = torch.where(relayed, choice + M if head == "categorical" else M + 1, choice)
    return {"assoc": label, "rho": rho.unsqueeze(-1)}


def _uav_action(world: UavMec, goal_m: Tensor) -> Action:
    """Equal shares for all, and the motion that flies towards `goal_m` `[L, M, 2]`."""
    config, numbers, state = world.config, world.numbers, world.world_state
    v_max_mps = numbers.v_max_mps[:, None, None]
    wish_mps = (goal_m - state.uav_xy_m) / _APPROACH_S
    wish_mps = torch.maximum(torch.minimum(wish_mps, v_max_mps), -v_max_mps)
    if config.uav_control == "accel":
        stick = (wish_mps - state.uav_velocity_mps) / (
            config.slot_s * numbers.a_max_mps2[:, None, None]
        )
    else:
        stick = wish_mps / v_max_mps
    equal = torch.full((world.lanes, config.n_uavs, config.n_users), 0.5, device=world.device)
    return {"motion": (0.5 + 0.5 * stick).clamp(0.0, 1.0), "bandwidth": equal, "cpu": equal}
