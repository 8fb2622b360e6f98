"""What users, UAVs and the critic see: pure functions of the state, scaled to about [0, 1]."""

import torch
from torch import Tensor

from lockstep.core.streams import Draw, Streams
from lockstep.worlds.uav_mec.allocation import served_by
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.state import Numbers, State, Twin

WO_DT_HALF_WIDTH = 0.5


def of_area(xy_m: Tensor, *, config: UavMecConfig) -> Tensor:
    """Positions `[..., 2]` as shares of the area's width and height."""
    x_m, y_m = xy_m.unbind(dim=-1)
    return torch.stack((x_m / config.width_m, y_m / config.height_m), dim=-1)


def twin_of(state: State, *, numbers: Numbers, config: UavMecConfig) -> Twin:
    """One estimate of each entity: its place is off by U(-x, x) of the area, kept inside it."""
    mu_xy = of_area(state.mu_xy_m, config=config)
    uav_xy = of_area(state.uav_xy_m, config=config)
    if config.deviation_on_positions:
        deviation = numbers.deviation[:, None, None]
        mu_xy = (mu_xy + deviation * state.mu_twin_draw).clamp(0.0, 1.0)
        uav_xy = (uav_xy + deviation * state.uav_twin_draw).clamp(0.0, 1.0)
    load = state.last_load_cycles / numbers.task_max_cycles
    on = served_by(state.last_choice, config.n_uavs).transpose(1, 2)  # [L, K, M]
    return Twin(
        mu_xy=mu_xy,
        uav_xy=uav_xy,
        task_size=state.task_bits / numbers.task_max_bits,
        task_cycles=state.task_cycles_per_bit / numbers.cycles_max.unsqueeze(-1),
        last_load=torch.where(on, load.unsqueeze(-1), 0.0),
    )


def _noise(role: str, streams: Streams, *, config: UavMecConfig) -> Draw | None:
    """Draws for `wo_dt_noise`: one error for every entry of every observer."""
    return streams.draw(f"blur/{role}") if config.wo_dt_noise else None


def _blurred(seen: Tensor, draw: Draw) -> Tensor:
    """`seen` with the repository's error on each entry, clipped to [0, 1]."""
    error = WO_DT_HALF_WIDTH * (2.0 * draw.uniform(*seen.shape[1:]) - 1.0)
    return (seen + error).clamp(0.0, 1.0)


def mu_rows(twin: Twin, noise: Draw | None, *, config: UavMecConfig) -> tuple[Tensor, Tensor]:
    """The users' vectors `[L, K, 2 + 2M + 2 + M]` and UAV rows `[L, K, M, 7]`.

    Vector: own x, y | x, y of each UAV | task size | cycles per bit | last load on each UAV.
    Row: UAV relative to the user (2) | its squared length | UAV x, y | task size | last load.
    """
    L, K, M = twin.last_load.shape
    own = twin.mu_xy  # [L, K, 2]
    uavs = twin.uav_xy.unsqueeze(1).expand(L, K, M, 2)
    task = torch.stack((twin.task_size, twin.task_cycles), dim=-1)  # [L, K, 2]
    if noise is not None:
        own, uavs, task = _blurred(own, noise), _blurred(uavs, noise), _blurred(task, noise)
    relative = uavs - own.unsqueeze(2)  # [L, K, M, 2]
    dx, dy = relative[..., 0], relative[..., 1]
    shown = relative if config.relative_coordinates else uavs
    vector = torch.cat((own, shown.flatten(2), task, twin.last_load), dim=-1)
    rows = torch.cat(
        (
            relative,
            (dx * dx + dy * dy).unsqueeze(-1),  # a sum over a dim would not fuse
            uavs,
            task[..., :1].unsqueeze(2).expand(L, K, M, 1),
            twin.last_load.unsqueeze(-1),
        ),
        dim=-1,
    )  # [L, K, M, 7]
    return vector, rows


def uav_rows(
    twin: Twin, choice: Tensor, rho: Tensor, noise: Draw | None, *, config: UavMecConfig
) -> Tensor:
    """The UAVs' vectors `[L, M, 2 + 5K + 2(M - 1)]` for the requests (choice, rho) they may see.

    own x, y | x, y, rho, task size, cycles per bit of each user | x, y of the other UAVs.
    """
    L, K = choice.shape
    M = config.n_uavs
    own = twin.uav_xy  # [L, M, 2]
    users = twin.mu_xy.unsqueeze(1).expand(L, M, K, 2)
    others = twin.uav_xy[:, _others(M, choice.device)]  # [L, M, M - 1, 2]
    cycles = twin.task_cycles.unsqueeze(1).expand(L, M, K)
    if noise is not None:
        own, users = _blurred(own, noise), _blurred(users, noise)
        others, cycles = _blurred(others, noise), _blurred(cycles, noise)
    if config.relative_coordinates:
        users, others = users - own.unsqueeze(2), others - own.unsqueeze(2)
    asked = torch.stack(
        (
            rho.unsqueeze(1).expand(L, M, K),
            twin.task_size.unsqueeze(1).expand(L, M, K),
            cycles,
        ),
        dim=-1,
    )  # [L, M, K, 3]
    if config.uav_obs_mask_mode != "none":
        served = served_by(choice, M).unsqueeze(-1)  # [L, M, K, 1]
        asked = torch.where(served, asked, 0.0)
        if config.uav_obs_mask_mode == "prev_assoc":
            users = torch.where(served, users, 0.0)
    return torch.cat((own, torch.cat((users, asked), dim=-1).flatten(2), others.flatten(2)), dim=-1)


def _others(n_uavs: int, device: torch.device) -> Tensor:
    """For each UAV the indices of the others, ascending `[M, M - 1]`."""
    index = torch.arange(n_uavs - 1, device=device).expand(n_uavs, n_uavs - 1)
    self_index = torch.arange(n_uavs, device=device).unsqueeze(-1)
    return index + (index >= self_index)


def state_vector(state: State, *, numbers: Numbers, config: UavMecConfig) -> Tensor:
    """The true state `[L, 4K + 4M]` in the order of spec 2.5; no twin error.

    MU x | MU y | UAV x | UAV y | UAV velocities (interleaved) / v_max | task size | cycles per bit.
    """
    mu_xy = of_area(state.mu_xy_m, config=config)
    uav_xy = of_area(state.uav_xy_m, config=config)
    return torch.cat(
        (
            mu_xy[..., 0],
            mu_xy[..., 1],
            uav_xy[..., 0],
            uav_xy[..., 1],
            state.uav_velocity_mps.flatten(1) / numbers.v_max_mps.unsqueeze(-1),
            state.task_bits / numbers.task_max_bits,
            state.task_cycles_per_bit / numbers.cycles_max.unsqueeze(-1),
        ),
        dim=-1,
    )


def see_as_users(twin: Twin, streams: Streams, *, config: UavMecConfig) -> tuple[Tensor, Tensor]:
    """The users' vectors and UAV rows now."""
    return mu_rows(twin, _noise("mu", streams, config=config), config=config)


def see_as_uavs(
    twin: Twin, choice: Tensor, rho: Tensor, streams: Streams, *, config: UavMecConfig
) -> Tensor:
    """The UAVs' vectors now; (choice, rho) are this slot's requests, or the last one's."""
    return uav_rows(twin, choice, rho, _noise("uav", streams, config=config), config=config)


def see_as_critic(
    twin: Twin, state: State, streams: Streams, *, numbers: Numbers, config: UavMecConfig
) -> dict[str, Tensor]:
    """All rows as seen before any decision of this slot, and the state vector.

    A UAV row with this slot's requests would make a user's baseline depend on its own action.
    """
    return {
        "mu": see_as_users(twin, streams, config=config)[0],
        "uav": see_as_uavs(twin, state.last_choice, state.last_rho, streams, config=config),
        "state": state_vector(state, numbers=numbers, config=config),
    }
