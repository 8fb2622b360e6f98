"""The numbers reported for each lane and slot."""

import torch
from torch import Tensor

from lockstep.core.world import Metric
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.state import Numbers, SlotRecord

METRICS = (
    Metric(
        name="weighted_energy_mu_avg",
        unit="J",
        meaning="mu_energy_avg + varpi uav_energy_avg",
        better="lower",
    ),
    Metric(
        name="weighted_energy", unit="J", meaning="the same, under its older name", better="lower"
    ),
    Metric(
        name="weighted_energy_mu_total",
        unit="J",
        meaning="energy of all users plus varpi times that of all UAVs: what P1 minimises",
        better="lower",
    ),
    Metric(name="mu_energy_avg", unit="J", meaning="mean energy of a user", better="lower"),
    Metric(name="uav_energy_avg", unit="J", meaning="mean energy of a UAV", better="lower"),
    Metric(
        name="uav_comp_energy_avg",
        unit="J",
        meaning="mean computing energy of a UAV",
        better="lower",
    ),
    Metric(
        name="jain_fairness", unit="1", meaning="Jain index of the users' energies", better="higher"
    ),
    Metric(
        name="jain_fairness_utility",
        unit="1",
        meaning="Jain index of 1 / energy (legacy)",
        better="higher",
    ),
    Metric(
        name="avg_delay",
        unit="s",
        meaning="mean of the later of both parts of a task",
        better="lower",
    ),
    Metric(
        name="delay_violation_rate",
        unit="1",
        meaning="share of users late by violation_rule",
        better="lower",
    ),
    Metric(
        name="late_share",
        unit="1",
        meaning="share of users late beyond what x explains",
        better="lower",
    ),
    Metric(name="mu_reward", unit="1", meaning="mean reward of a user, unscaled", better="higher"),
    Metric(name="uav_reward", unit="1", meaning="mean reward of a UAV, unscaled", better="higher"),
    Metric(name="local_share", unit="1", meaning="share of users that compute all locally"),
    Metric(name="relay_share", unit="1", meaning="share of offloading users that are relayed"),
    Metric(name="nearest_share", unit="1", meaning="share of offloading users at the nearest UAV"),
)


def jain(value: Tensor) -> Tensor:
    """Jain's fairness index of `[L, K]`: 1 when all are equal, 1/K when one has all."""
    total = value.sum(dim=-1)
    return total.square() / (value.shape[-1] * value.square().sum(dim=-1) + 1e-8)


def slot_metrics(
    record: SlotRecord,
    reward: tuple[Tensor, Tensor],
    nearest: Tensor,
    *,
    numbers: Numbers,
    config: UavMecConfig,
) -> dict[str, Tensor]:
    """Metric name to `[L]`; `reward` is (users, UAVs) unscaled, `nearest` is `[L, K]` bool."""
    weight = numbers.energy_weight
    delay_s = torch.maximum(record.local_delay_s, record.edge_delay_s)
    slack_s = config.slot_s * numbers.deviation.unsqueeze(-1) + config.violation_tolerance_s
    late = _mean(delay_s > config.slot_s + slack_s)
    strict = config.violation_rule == "strict"
    mu_avg_j, uav_avg_j = record.mu_energy_j.mean(dim=-1), record.uav_energy_j.mean(dim=-1)
    weighted_j = mu_avg_j + weight * uav_avg_j
    offloads = record.association > 0
    n_offloading = offloads.sum(dim=-1).clamp(min=1)
    return {
        "weighted_energy_mu_avg": weighted_j,
        "weighted_energy": weighted_j,
        "weighted_energy_mu_total": config.n_users * mu_avg_j + weight * config.n_uavs * uav_avg_j,
        "mu_energy_avg": mu_avg_j,
        "uav_energy_avg": uav_avg_j,
        "uav_comp_energy_avg": record.uav_comp_energy_j.mean(dim=-1),
        "jain_fairness": jain(record.mu_energy_j),
        "jain_fairness_utility": jain(1.0 / (record.mu_energy_j + 1e-8)),
        "avg_delay": delay_s.mean(dim=-1),
        "delay_violation_rate": _mean(delay_s > config.slot_s) if strict else late,
        "late_share": late,
        "mu_reward": reward[0].mean(dim=-1),
        "uav_reward": reward[1].mean(dim=-1),
        "local_share": 1.0 - _mean(offloads),
        "relay_share": record.relay.sum(dim=-1) / n_offloading,
        "nearest_share": (offloads & nearest).sum(dim=-1) / n_offloading,
    }


def _mean(flag: Tensor) -> Tensor:
    """Share of True `[L]`."""
    return flag.to(torch.float32).mean(dim=-1)
