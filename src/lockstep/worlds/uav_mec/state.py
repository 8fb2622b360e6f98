"""The tensors of the world: what changes from slot to slot, and the numbers of each lane."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lockstep.core.streams import Draw, Streams
from lockstep.worlds.uav_mec.config import UavMecConfig


@dataclass(frozen=True, kw_only=True)
class _Tensors:
    """A carrier whose fields are all tensors."""

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by field name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def copy_(self, source: "_Tensors") -> None:
        """Takes over the values of `source` in place."""
        for field in fields(self):
            getattr(self, field.name).copy_(getattr(source, field.name))


@dataclass(frozen=True, kw_only=True)
class State(_Tensors):
    """Where everything is and what was asked for last; persistent, written in place."""

    slot: Tensor  # [L] int64, 0 at the start of a period
    mu_xy_m: Tensor  # [L, K, 2]
    mu_speed_mps: Tensor  # [L, K]
    mu_heading_rad: Tensor  # [L, K]
    mu_mean_heading_rad: Tensor  # [L, K]
    uav_xy_m: Tensor  # [L, M, 2]
    uav_velocity_mps: Tensor  # [L, M, 2]
    task_bits: Tensor  # [L, K]
    task_cycles_per_bit: Tensor  # [L, K]
    mu_twin_draw: Tensor  # [L, K, 2] in (-1, 1): the twin's error, before the deviation rate
    uav_twin_draw: Tensor  # [L, M, 2]
    last_choice: Tensor  # [L, K] int64: 0 local, m for UAV m
    last_rho: Tensor  # [L, K]
    last_load_cycles: Tensor  # [L, K] put on the UAV of last_choice

    def replaced_where(self, ended: Tensor, fresh: "State") -> "State":
        """`fresh` in the lanes `ended` `[L]`, this state in the others."""
        return State(
            **{
                name: torch.where(ended.view(-1, *(1,) * (old.ndim - 1)), getattr(fresh, name), old)
                for name, old in self.tensors().items()
            }
        )


@dataclass(frozen=True, kw_only=True)
class Twin(_Tensors):
    """The digital twin's picture of the area, the same for all observers.

    It follows from state and numbers, and is kept beside them since everybody looks at it.
    """

    mu_xy: Tensor  # [L, K, 2] of the area
    uav_xy: Tensor  # [L, M, 2] of the area
    task_size: Tensor  # [L, K] of the largest
    task_cycles: Tensor  # [L, K] of the largest, per bit
    last_load: Tensor  # [L, K, M] of the largest task


@dataclass(frozen=True, kw_only=True)
class Numbers(_Tensors):
    """Scenario numbers `[L]` in the units of the config; properties give SI units as `[L, 1]`."""

    bandwidth_mhz: Tensor
    relay_bandwidth_mhz: Tensor
    mu_power_w: Tensor
    uav_power_w: Tensor
    f_max_loc_ghz: Tensor
    f_max_edge_ghz: Tensor
    task_min_mbit: Tensor
    task_max_mbit: Tensor
    cycles_min: Tensor
    cycles_max: Tensor
    deviation: Tensor
    energy_weight: Tensor
    latency_factor: Tensor
    boundary_factor: Tensor
    collision_factor: Tensor
    v_max_mps: Tensor
    a_max_mps2: Tensor
    drag_ratio: Tensor
    mu_speed_mps: Tensor

    @classmethod
    def of(cls, config: UavMecConfig, *, lanes: int, device: torch.device) -> "Numbers":
        """The config's numbers, the same in every lane."""
        return cls(
            **{
                field.name: torch.full((lanes,), float(getattr(config, field.name)), device=device)
                for field in fields(cls)
            }
        )

    @property
    def bandwidth_hz(self) -> Tensor:
        """Uplink bandwidth `[L, 1]`."""
        return self.bandwidth_mhz.unsqueeze(-1) * 1e6

    @property
    def relay_bandwidth_hz(self) -> Tensor:
        """Relay bandwidth of a UAV `[L, 1]`."""
        return self.relay_bandwidth_mhz.unsqueeze(-1) * 1e6

    @property
    def f_max_loc_hz(self) -> Tensor:
        """Fastest clock of a user `[L, 1]`."""
        return self.f_max_loc_ghz.unsqueeze(-1) * 1e9

    @property
    def f_max_edge_hz(self) -> Tensor:
        """Clock of a UAV's server `[L, 1]`."""
        return self.f_max_edge_ghz.unsqueeze(-1) * 1e9

    @property
    def task_min_bits(self) -> Tensor:
        """Smallest task `[L, 1]`."""
        return self.task_min_mbit.unsqueeze(-1) * 1e6

    @property
    def task_max_bits(self) -> Tensor:
        """Largest task `[L, 1]`."""
        return self.task_max_mbit.unsqueeze(-1) * 1e6

    @property
    def task_max_cycles(self) -> Tensor:
        """Work of the largest task `[L, 1]`."""
        return self.task_max_bits * self.cycles_max.unsqueeze(-1)


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one slot, by purpose."""

    frequency: Draw
    mobility: Draw
    tasks: Draw
    twin: Draw
    start: Draw

    @classmethod
    def at(cls, streams: Streams) -> "Draws":
        """The draws of the step at which `streams` stand."""
        return cls(
            frequency=streams.draw("frequency"),
            mobility=streams.draw("mobility"),
            tasks=streams.draw("tasks"),
            twin=streams.draw("twin"),
            start=streams.draw("reset/start"),
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """What users ask for in a slot."""

    choice: Tensor  # [L, K] int64: 0 local, m for UAV m (1..M)
    relayed: Tensor  # [L, K] bool: the UAV forwards to the base station; never with choice 0
    rho: Tensor  # [L, K] offloaded share of the task; 0 when local

    @property
    def offloads(self) -> Tensor:
        """Users with a UAV `[L, K]`."""
        return self.choice > 0


@dataclass(frozen=True, kw_only=True)
class Command:
    """What UAVs decide in a slot, as numbers in [0, 1]."""

    motion: Tensor  # [L, M, 2]
    bandwidth: Tensor  # [L, M, K] scores
    cpu: Tensor  # [L, M, K] scores


@dataclass(frozen=True, kw_only=True)
class SlotRecord:
    """What happened to every agent in the last slot, for pictures and tests."""

    association: Tensor  # [L, K] int64: 0 local, m for UAV m
    relay: Tensor  # [L, K] bool
    rho: Tensor  # [L, K]
    bandwidth_share: Tensor  # [L, K] of the pool (or of the UAV's band)
    cpu_share: Tensor  # [L, K] of the UAV's server
    local_delay_s: Tensor  # [L, K]
    edge_delay_s: Tensor  # [L, K]
    mu_energy_j: Tensor  # [L, K]
    uav_energy_j: Tensor  # [L, M]
    uav_fly_energy_j: Tensor  # [L, M]
    uav_comp_energy_j: Tensor  # [L, M]
