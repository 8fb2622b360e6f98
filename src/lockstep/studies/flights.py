"""Flights of trained policies, and of a script: the scenes behind figure 13 of the UAV paper.

Each point of such a figure is an area that its trials were trained in. It is flown twice: with UAVs
that start at random places, and with all of them in the corner (0, 0). In a small area the users of
the first flight stand in three crowds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput
from lockstep.run.api import load
from lockstep.run.policy import HeuristicPolicy, Policy
from lockstep.run.record import Run
from lockstep.run.trainer import threads
from lockstep.studies.leavings import policy_run
from lockstep.studies.store import Summary
from lockstep.studies.study import Trial
from lockstep.studies.trials import trial_id
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.heuristics import nearest_equal
from lockstep.worlds.uav_mec.world import UavMec

SMALL_M = 750.0
"""An area narrower than this is small."""

_CROWDS = ((0.25, 0.25), (0.75, 0.70), (0.55, 0.20))
"""Centres of the crowds, as shares of the area."""
_CROWD_STD = 0.04
_APPROACH_S = 4.0  # as the heuristics of the world fly: without overshoot at 5 m/s²

Numbers = NDArray[np.float32]
Place = Callable[[UavMec], None]
"""Puts users and UAVs where a flight begins."""


@dataclass(frozen=True, kw_only=True)
class Flight:
    """One period of one lane."""

    title: str
    config: UavMecConfig
    mu_xy_m: Numbers  # [T, K, 2]
    uav_xy_m: Numbers  # [T, M, 2]


def trained_policy(trial: Trial, summary: Summary, root: Path) -> Policy:
    """What a trial has learned, from the run that holds its policy (see `leavings`).

    BadInput if there is none, or if it is not the one that the result was filed from.
    """
    folder, member = policy_run(root, summary)
    run = Run.open(folder)
    own = trial_id(run.config.member(member), summary.code_version)
    if own != trial.hash:
        raise BadInput(
            f"{run.folder} member {member} is trial {own[:12]}, and {trial.hash[:12]} was "
            "filed from it; remove the trial's folder and train it again"
        )
    return load(run, member=member)


def flights(trial: Trial, policy: Policy | None, *, seed: int, first: int = 0) -> list[Flight]:
    """Two flights in the area of `trial`: from random places, and from the corner.

    Without a policy the script flies. Each flight has a stream of its own, the `first`-th of `seed`
    and the next.
    """
    config = trial.config.world
    if not isinstance(config, UavMecConfig):
        raise BadInput(f"flights are drawn of the world uav-mec, got a trial of {config.name}")
    small = config.width_m < SMALL_M
    keys = lane_keys([seed], lanes=first + 2)[first:]
    size = f"W = {config.width_m:g} m, K = {config.n_users}, M = {config.n_uavs}"
    starts: list[tuple[str, Place]] = [
        (f"{size}, users in crowds", _crowd) if small else (f"{size}, from random places", _leave),
        (f"{size}, from the corner", _to_corner),
    ]
    with threads(1):  # one order of float sums on every machine
        return [
            _fly(policy, config, keys[i : i + 1], place, title)
            for i, (title, place) in enumerate(starts)
        ]


@torch.no_grad()
def _fly(
    policy: Policy | None, config: UavMecConfig, key: Tensor, place: Place, title: str
) -> Flight:
    """One period from the start that `place` prepares; the last slot's outcome is not shown."""
    world = registry.build(config, lanes=1, device=torch.device("cpu"), compile=False)
    assert isinstance(world, UavMec)
    world.reset(key)
    place(world)
    pilot = policy or HeuristicPolicy(_script(world), label="script")
    pilot.begin(key)
    frames = [world.frame(0)]
    for _ in range(config.n_slots - 1):
        pilot.step(world)
        frames.append(world.frame(0))
    return Flight(
        title=title,
        config=config,
        mu_xy_m=np.stack([frame.mu_xy_m for frame in frames]),
        uav_xy_m=np.stack([frame.uav_xy_m for frame in frames]),
    )


def _leave(world: UavMec) -> None:
    """Everything stands where the world put it."""


def _to_corner(world: UavMec) -> None:
    world.place_uavs(torch.zeros_like(world.world_state.uav_xy_m))


def _crowd(world: UavMec) -> None:
    """Users around three centres, normally spread."""
    config, draw = world.config, world.draw("flight/crowd")
    size = torch.tensor([config.width_m, config.height_m])
    centre = torch.tensor(_CROWDS)[draw.integers(len(_CROWDS), config.n_users)]  # [L, K, 2]
    share = centre + _CROWD_STD * draw.normal(config.n_users, 2)
    world.world_state.mu_xy_m.copy_(share.clamp(0.0, 1.0) * size)


def _script(world: UavMec) -> Callable[[World, str], Action]:
    """Everyone sends half to the nearest UAV; UAVs fly to the middle of their users.

    One without users flies to a user drawn for it once.
    """
    config = world.config
    target = world.draw("flight/target").integers(config.n_users, config.n_uavs)  # [L, M]

    def rule(world: World, role: str) -> Action:
        assert isinstance(world, UavMec)
        action = nearest_equal(world, role)
        if role == "mu":
            return action
        state = world.world_state
        nearest = torch.cdist(state.mu_xy_m, state.uav_xy_m).argmin(dim=-1)  # [L, K]
        idle = ~torch.nn.functional.one_hot(nearest, config.n_uavs).bool().any(dim=1)  # [L, M]
        goal_m = state.mu_xy_m.gather(1, target.unsqueeze(-1).expand(-1, -1, 2))
        motion = torch.where(idle.unsqueeze(-1), _towards(world, goal_m), action["motion"])
        return action | {"motion": motion}

    return rule


def _towards(world: UavMec, goal_m: Tensor) -> Tensor:
    """The motion `[L, M, 2]` that flies to `goal_m`."""
    config, state = world.config, world.world_state
    wish_mps = (goal_m - state.uav_xy_m) / _APPROACH_S
    wish_mps = wish_mps.clamp(-config.v_max_mps, config.v_max_mps)
    if config.uav_control == "accel":
        stick = (wish_mps - state.uav_velocity_mps) / (config.slot_s * config.a_max_mps2)
    else:
        stick = wish_mps / config.v_max_mps
    return (0.5 + 0.5 * stick).clamp(0.0, 1.0)
