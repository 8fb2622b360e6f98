"""One slot as a pure function: flight, links, delays, energies, rewards; then time moves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lockstep.core.streams import Draw
from lockstep.worlds.uav_mec import channel, computing, energy, kinematics, mobility, reward
from lockstep.worlds.uav_mec.allocation import (
    of_own_uav,
    per_uav,
    served_by,
    shares,
    squared_distances,
)
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.metrics import slot_metrics
from lockstep.worlds.uav_mec.state import Command, Draws, Numbers, Request, SlotRecord, State


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a slot caused."""

    mu_reward: Tensor  # [L, K], scaled
    uav_reward: Tensor  # [L, M], scaled
    metrics: dict[str, Tensor]  # name -> [L]
    record: SlotRecord
    ended: Tensor  # [L] bool


@dataclass(frozen=True, kw_only=True)
class Link:
    """The chosen link of each user, and what it and the server at its end give."""

    bandwidth_share: Tensor  # [L, K]
    cpu_share: Tensor  # [L, K]
    uplink_bps: Tensor  # [L, K]
    relay_bps: Tensor  # [L, K]
    edge_hz: Tensor  # [L, K] the twin's estimate
    nearest: Tensor  # [L, K] bool: no UAV is nearer


def play(
    state: State,
    request: Request,
    command: Command,
    draws: Draws,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> tuple[Outcome, State, State]:
    """The slot from `state` on, and the states that follow, before and after any reset.

    The order of events is the paper's: act, fly, link, share, judge; then users walk and get tasks.
    """
    flight = kinematics.fly(
        state.uav_xy_m,
        state.uav_velocity_mps,
        command.motion,
        v_max_mps=numbers.v_max_mps[:, None, None],
        a_max_mps2=numbers.a_max_mps2[:, None, None],
        config=config,
    )
    served = served_by(request.choice, config.n_uavs)  # [L, M, K]
    link = connect(state, flight, request, command, served, numbers=numbers, config=config)
    record = work(
        state, flight, request, link, served, draws.frequency, numbers=numbers, config=config
    )
    raw = judge(state, flight, request, record, served, numbers=numbers, config=config)
    arrival = arrivals(draws, numbers=numbers, config=config)
    later = pass_time(
        state, flight, request, draws.mobility, arrival, numbers=numbers, config=config
    )
    ended = later.slot == config.n_slots  # [L]
    if config.at_horizon == "continue":
        after = replace(later, slot=torch.where(ended, 0, later.slot))
        ended = torch.zeros_like(ended)
    else:
        fresh = begin(draws.start, arrival, numbers=numbers, config=config)
        after = later.replaced_where(ended, fresh)
    outcome = Outcome(
        mu_reward=config.reward_scale * raw[0],
        uav_reward=config.reward_scale * raw[1],
        metrics=slot_metrics(record, raw, link.nearest, numbers=numbers, config=config),
        record=record,
        ended=ended,
    )
    return outcome, later, after


def connect(
    state: State,
    flight: kinematics.Flight,
    request: Request,
    command: Command,
    served: Tensor,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> Link:
    """Links at the UAVs' new and the users' current positions; only chosen ones are computed."""
    choice, direct = request.choice, request.offloads & ~request.relayed
    pooled = config.bandwidth_pool == "network"
    bandwidth = shares(
        command.bandwidth, request, served, request.offloads, pooled=pooled, config=config
    )
    cpu = shares(command.cpu, request, served, direct, pooled=False, config=config)
    own = (choice - 1).clamp(min=0).unsqueeze(-1)  # [L, K, 1]
    own_xy_m = flight.xy_m.gather(1, own.expand(-1, -1, 2))  # [L, K, 2]
    relay_hz = numbers.relay_bandwidth_hz
    if config.share_relay_bandwidth:
        # Every stream keeps the full p_m: the profile was measured so (docs, departures).
        n_relayed = (served & request.relayed.unsqueeze(1)).sum(dim=-1)  # [L, M]
        relay_hz = relay_hz / n_relayed.clamp(min=1)
    relay_bps = channel.relay_bps(
        flight.xy_m, relay_hz, power_w=numbers.uav_power_w.unsqueeze(-1), config=config
    )  # [L, M]
    distance_sq = squared_distances(state.mu_xy_m, flight.xy_m)  # [L, K, M]
    return Link(
        bandwidth_share=bandwidth,
        cpu_share=cpu,
        uplink_bps=channel.uplink_bps(
            state.mu_xy_m,
            own_xy_m,
            bandwidth * numbers.bandwidth_hz,
            power_w=numbers.mu_power_w.unsqueeze(-1),
            config=config,
        ),
        relay_bps=of_own_uav(relay_bps, choice),
        edge_hz=cpu * numbers.f_max_edge_hz,
        nearest=distance_sq.gather(2, own).squeeze(-1) <= distance_sq.amin(dim=-1),
    )


def work(
    state: State,
    flight: kinematics.Flight,
    request: Request,
    link: Link,
    served: Tensor,
    draw: Draw,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> SlotRecord:
    """Delays and energies of the slot; both parts of a task run in parallel."""
    error = 2.0 * draw.uniform(2, config.n_users) - 1.0  # [L, 2, K]
    deviation = numbers.deviation.unsqueeze(-1)
    local_cycles = (1.0 - request.rho) * state.task_bits * state.task_cycles_per_bit
    estimate_hz = computing.dvfs_hz(
        local_cycles, slot_s=config.slot_s, f_max_hz=numbers.f_max_loc_hz
    )
    local_hz = computing.real_hz(estimate_hz, deviation, error[:, 0])
    edge_hz = computing.real_hz(link.edge_hz, deviation, error[:, 1])

    sent_bits = request.rho * state.task_bits
    edge_cycles = torch.where(request.relayed, 0.0, sent_bits * state.task_cycles_per_bit)
    uplink_s = sent_bits / link.uplink_bps
    relay_s = torch.where(request.relayed, sent_bits / link.relay_bps, 0.0)
    uplink_j = numbers.mu_power_w.unsqueeze(-1) * (
        uplink_s.clamp(max=config.slot_s) if config.cap_transmit_energy else uplink_s
    )
    comp_j = per_uav(energy.chip_j(edge_cycles, edge_hz, kappa=config.kappa), served)  # [L, M]
    speed_mps = flight.velocity_mps.square().sum(dim=-1).sqrt()
    fly_j = config.slot_s * energy.propulsion_w(
        speed_mps, drag_ratio=numbers.drag_ratio.unsqueeze(-1), config=config
    )
    uav_j = fly_j + comp_j
    if config.forwarding_energy:
        uav_j = uav_j + per_uav(numbers.uav_power_w.unsqueeze(-1) * relay_s, served)
    return SlotRecord(
        association=request.choice,
        relay=request.relayed,
        rho=request.rho,
        bandwidth_share=link.bandwidth_share,
        cpu_share=link.cpu_share,
        local_delay_s=computing.compute_s(local_cycles, local_hz),
        edge_delay_s=uplink_s + computing.compute_s(edge_cycles, edge_hz) + relay_s,
        mu_energy_j=energy.chip_j(local_cycles, local_hz, kappa=config.kappa) + uplink_j,
        uav_energy_j=uav_j,
        uav_fly_energy_j=fly_j,
        uav_comp_energy_j=comp_j,
    )


def judge(
    state: State,
    flight: kinematics.Flight,
    request: Request,
    record: SlotRecord,
    served: Tensor,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> tuple[Tensor, Tensor]:
    """Unscaled rewards of users `[L, K]` and UAVs `[L, M]`."""
    late = reward.latency_penalty(
        record.local_delay_s,
        record.edge_delay_s,
        factor=numbers.latency_factor.unsqueeze(-1),
        slot_s=config.slot_s,
    )
    if config.latency_penalty_for == "offloaders":
        late = torch.where(request.offloads, late, 0.0)
    safety = (
        reward.boundary_penalty(
            flight.overshoot_m, factor=numbers.boundary_factor.unsqueeze(-1), config=config
        )
        + reward.collision_penalty(
            flight.xy_m,
            factor=numbers.collision_factor.unsqueeze(-1),
            min_separation_m=config.min_separation_m,
        )
        + reward.distance_penalty(flight.xy_m, state.mu_xy_m, served, config=config)
    )
    users = reward.user_reward(
        record.mu_energy_j,
        late,
        record.uav_energy_j,
        request,
        served,
        numbers=numbers,
        config=config,
    )
    uavs = reward.uav_reward(
        record.mu_energy_j + late,
        record.uav_energy_j,
        safety,
        served,
        numbers=numbers,
        config=config,
    )
    return users, uavs


def pass_time(
    state: State,
    flight: kinematics.Flight,
    request: Request,
    draw: Draw,
    arrival: Mapping[str, Tensor],
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> State:
    """The next slot of the same period: what is remembered, where users went, new tasks."""
    xy_m, speed_mps, heading_rad = mobility.walk(
        state.mu_xy_m,
        state.mu_speed_mps,
        state.mu_heading_rad,
        state.mu_mean_heading_rad,
        draw,
        mean_speed_mps=numbers.mu_speed_mps.unsqueeze(-1),
        config=config,
    )
    load_cycles = request.rho * state.task_bits * state.task_cycles_per_bit
    if not config.load_counts_relayed:
        load_cycles = torch.where(request.relayed, 0.0, load_cycles)
    return State(
        slot=state.slot + 1,
        mu_xy_m=xy_m,
        mu_speed_mps=speed_mps,
        mu_heading_rad=heading_rad,
        mu_mean_heading_rad=state.mu_mean_heading_rad,
        uav_xy_m=flight.xy_m,
        uav_velocity_mps=flight.velocity_mps,
        **arrival,
        last_choice=request.choice,
        last_rho=request.rho,
        last_load_cycles=load_cycles,
    )


def arrivals(draws: Draws, *, numbers: Numbers, config: UavMecConfig) -> dict[str, Tensor]:
    """What every slot brings anew, at a period's start too: tasks and the twin's errors."""
    bits, cycles_per_bit = mobility.new_tasks(
        draws.tasks,
        config.n_users,
        bits=(numbers.task_min_bits, numbers.task_max_bits),
        cycles=(numbers.cycles_min.unsqueeze(-1), numbers.cycles_max.unsqueeze(-1)),
    )
    error = 2.0 * draws.twin.uniform(config.n_users + config.n_uavs, 2) - 1.0
    return {
        "task_bits": bits,
        "task_cycles_per_bit": cycles_per_bit,
        "mu_twin_draw": error[:, : config.n_users],
        "uav_twin_draw": error[:, config.n_users :],
    }


def begin(
    draw: Draw, arrival: Mapping[str, Tensor], *, numbers: Numbers, config: UavMecConfig
) -> State:
    """The first slot of a period: users anywhere, UAVs in the middle of the area, no history."""
    n_users, n_uavs = config.n_users, config.n_uavs
    place = draw.uniform(n_users + n_uavs, 2)  # [L, K + M, 2]
    heading = math.pi * (2.0 * draw.uniform(2, n_users) - 1.0)  # [L, 2, K]
    margin = config.start_margin
    middle = margin + (1.0 - 2.0 * margin) * place[:, n_users:]
    still = torch.zeros_like(heading[:, 0])  # [L, K]
    return State(
        slot=torch.zeros_like(place[:, 0, 0], dtype=torch.int64),
        mu_xy_m=mobility.in_area_m(place[:, :n_users], config=config),
        mu_speed_mps=still + numbers.mu_speed_mps.unsqueeze(-1),
        mu_heading_rad=heading[:, 0],
        mu_mean_heading_rad=heading[:, 1] if config.mean_heading == "own" else still,
        uav_xy_m=mobility.in_area_m(middle, config=config),
        uav_velocity_mps=torch.zeros_like(place[:, n_users:]),
        **arrival,
        last_choice=torch.zeros_like(still, dtype=torch.int64),
        last_rho=still,
        last_load_cycles=still,
    )
