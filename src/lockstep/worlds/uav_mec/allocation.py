"""From raw decisions to requests, and from scores to shares of bandwidth and CPU."""

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.state import Command, Request, State


def decode_request(action: Action, state: State, *, config: UavMecConfig) -> Request:
    """The users' requests; positions (before the slot's flight) matter to a relay rule only."""
    n_uavs = config.n_uavs
    if config.assoc_head == "beta_argmax":
        choice = action["assoc"].clamp(0.0, 1.0).argmax(dim=-1)  # [L, K]; a tie goes to the first
        relayed = (action["relay"].squeeze(-1) > 0.5) & (choice > 0)
    elif config.assoc_head == "categorical":
        label = action["assoc"].clamp(0, 2 * n_uavs)
        relayed = label > n_uavs
        choice = torch.where(relayed, label - n_uavs, label)
    else:
        label = action["assoc"].clamp(0, n_uavs + 1)
        relayed = label > n_uavs
        choice = torch.where(relayed, relay_uav(label, state, config=config), label)
    rho = action["rho"].squeeze(-1).clamp(0.0, 1.0)
    return Request(choice=choice, relayed=relayed, rho=torch.where(choice > 0, rho, 0.0))


def relay_uav(label: Tensor, state: State, *, config: UavMecConfig) -> Tensor:
    """The UAV 1..M `[L, K]` that would relay for each user under `relay_rule`.

    `best_snr` is `nearest`: in this channel the gain falls strictly with distance.
    """
    distance_sq = squared_distances(state.mu_xy_m, state.uav_xy_m)  # [L, K, M]
    if config.relay_rule != "min_load":
        return distance_sq.argmin(dim=-1) + 1
    return _least_loaded(label, distance_sq)


def _least_loaded(label: Tensor, distance_sq: Tensor) -> Tensor:
    """Users in order take the UAV with the fewest users so far, the nearest of those.

    Each pick depends on the picks before it, so this is the one loop over users in the world.
    """
    n_users, n_uavs = distance_sq.shape[1:]
    uav = torch.arange(1, n_uavs + 1, device=label.device)  # [M]
    count = (label.unsqueeze(-1) == uav).sum(dim=1)  # [L, M] direct users come first
    picks = []
    for k in range(n_users):
        fewest = count == count.amin(dim=-1, keepdim=True)
        pick = torch.where(fewest, distance_sq[:, k], torch.inf).argmin(dim=-1) + 1  # [L]
        relayed = (label[:, k] > n_uavs).unsqueeze(-1)
        count = count + ((uav == pick.unsqueeze(-1)) & relayed)
        picks.append(pick)
    return torch.stack(picks, dim=1)  # [L, K]


def decode_command(action: Action) -> Command:
    """The UAVs' numbers, clamped to [0, 1]."""
    return Command(
        motion=action["motion"].clamp(0.0, 1.0),
        bandwidth=action["bandwidth"].clamp(0.0, 1.0),
        cpu=action["cpu"].clamp(0.0, 1.0),
    )


def squared_distances(mu_xy_m: Tensor, uav_xy_m: Tensor) -> Tensor:
    """Squared horizontal distances between users and UAVs `[L, K, M]`, in square metres."""
    mu_x, mu_y = mu_xy_m.unbind(dim=-1)
    uav_x, uav_y = uav_xy_m.unbind(dim=-1)
    dx = mu_x.unsqueeze(2) - uav_x.unsqueeze(1)
    dy = mu_y.unsqueeze(2) - uav_y.unsqueeze(1)
    return dx * dx + dy * dy


def served_by(choice: Tensor, n_uavs: int) -> Tensor:
    """Whether UAV m serves user k, directly or as relay: `[L, M, K]` bool."""
    uav = torch.arange(1, n_uavs + 1, device=choice.device).unsqueeze(-1)  # [M, 1]
    return choice.unsqueeze(1) == uav


def of_own_uav(table: Tensor, choice: Tensor) -> Tensor:
    """The entry `[L, K]` of each user's UAV in a table `[L, M]`; a local user reads UAV 1."""
    return table.gather(1, (choice - 1).clamp(min=0))


def score_of_own_uav(score: Tensor, choice: Tensor) -> Tensor:
    """What each user's UAV scored it `[L, K]`, from scores `[L, M, K]`."""
    return score.gather(1, (choice - 1).clamp(min=0).unsqueeze(1)).squeeze(1)


def share_weight(score: Tensor, *, config: UavMecConfig) -> Tensor:
    """The number that is divided by its sum to give a share."""
    if config.share_rule == "plain":
        return score.clamp(min=config.share_floor)
    if config.share_temperature <= 0:
        return torch.ones_like(score)
    return torch.exp(config.share_temperature * score)


def per_uav(value: Tensor, member: Tensor) -> Tensor:
    """Sums `[L, M]` of a user quantity `[L, K]` over the users `member` `[L, M, K]` of each UAV."""
    return torch.where(member, value.unsqueeze(1), 0.0).sum(dim=-1)


def shares(
    score: Tensor,
    request: Request,
    served: Tensor,
    among: Tensor,
    *,
    pooled: bool,
    config: UavMecConfig,
) -> Tensor:
    """Shares `[L, K]` of the users `among` `[L, K]`; they sum to 1 per UAV, or per lane."""
    weight = share_weight(score_of_own_uav(score, request.choice), config=config)
    weight = torch.where(among, weight, 0.0)
    if pooled:
        total = weight.sum(dim=-1, keepdim=True)  # [L, 1]
    else:
        total = of_own_uav(per_uav(weight, served), request.choice)  # [L, K]
    return weight / torch.where(total > 0, total, 1.0)
