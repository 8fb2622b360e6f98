"""The uav-mec world as one controller sees it, for Lockstep and, in tensors, for every peer."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks.peers.task import Task
from lockstep.core.actions import Action, Field, Observation, Unit
from lockstep.core.programs import compiled
from lockstep.core.streams import lane_keys
from lockstep.core.world import CriticInput, RoleSpec, Step, WorldSpec
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.metrics import METRICS
from lockstep.worlds.uav_mec.observe import state_vector
from lockstep.worlds.uav_mec.world import UavMec

ROLE = "joint"
_USERS = ("assoc", "relay", "rho")
_UAVS = ("motion", "bandwidth", "cpu")


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """Settings of the joint world."""

    name: ClassVar[str] = "joint-uav-mec"
    task: Task = field(default_factory=Task)
    """The common task."""

    @property
    def scene(self) -> UavMecConfig:
        """The scene itself; one controller decides once per slot, so there is one phase."""
        return UavMecConfig(
            n_users=self.task.n_users,
            n_uavs=self.task.n_uavs,
            n_slots=self.task.n_slots,
            uav_obs_mask_mode="none",
            entity_rows=False,
            reward_scale=0.05,  # keeps gradients below the norm limit, see Task
        )


def _spec(task: Task) -> WorldSpec:
    size = Field(shape=(task.observation_size,))
    role = RoleSpec(
        name=ROLE,
        agents=1,
        features={"obs": size},
        action={"all": Unit(n=task.action_size)},
        discount=task.discount,
    )
    return WorldSpec(
        name=JointConfig.name,
        roles=(role,),
        phases=((ROLE,),),
        critic={"state": size},
        horizon=task.n_slots,
        metrics=METRICS[:1],
        objective=METRICS[0].name,
        capturable=True,
    )


class JointUavMec:
    """Implements `core.world.World`; the controller sees the true state vector.

    Its reward is the mean reward of the users plus that of the UAVs.
    """

    def __init__(
        self,
        config: JointConfig,
        *,
        lanes: int,
        device: torch.device | str = "cpu",
        compile: bool = False,
    ) -> None:
        self.task, self.lanes, self.device = config.task, lanes, torch.device(device)
        self.spec = _spec(config.task)
        self.inner = UavMec(config.scene, lanes=lanes, device=device, compile=compile)
        see = compiled(state_vector) if compile else state_vector
        self._see = partial(see, config=config.scene)
        self._acts = torch.ones(lanes, 1, dtype=torch.bool, device=device)
        # Written in place, so that a recorded graph finds it where it was.
        self._seen = torch.zeros(lanes, config.task.observation_size, device=device)
        self._look()

    def _look(self) -> None:
        self._seen.copy_(self._see(self.inner.world_state, numbers=self.inner.numbers))

    def reset(self, keys: Tensor) -> None:
        self.inner.reset(keys)
        self._look()

    def observe(self, role: str) -> Observation:  # noqa: ARG002 (there is one)
        return Observation(features={"obs": self._seen.unsqueeze(1).clone()}, acts=self._acts)

    def state(self, role: str) -> CriticInput:  # noqa: ARG002
        return {"state": self._seen.clone()}

    def act(self, role: str, action: Action) -> None:  # noqa: ARG002
        self._decide(action["all"].squeeze(1))

    def _decide(self, numbers: Tensor) -> None:
        """Hands `[L, U]` numbers to users and UAVs."""
        sizes = self.task.action_sizes
        pieces = numbers.split([agents * n for agents, n in sizes.values()], dim=-1)
        parts = {
            name: piece.unflatten(-1, size)
            for (name, size), piece in zip(sizes.items(), pieces, strict=True)
        }
        self.inner.act("mu", {name: parts[name] for name in _USERS})
        self.inner.act("uav", {name: parts[name] for name in _UAVS})

    def advance(self) -> Step:
        step = self.inner.advance()
        self._look()
        reward = step.reward["mu"].mean(dim=-1) + step.reward["uav"].mean(dim=-1)  # [L]
        return Step(
            reward={ROLE: reward.unsqueeze(-1)},
            terminated=step.terminated,
            truncated=step.truncated,
            elapsed=step.elapsed,
            metrics={self.spec.objective: step.metrics[self.spec.objective]},
            final={},
        )

    def set(self, name: str, value: Tensor) -> None:
        self.inner.set(name, value)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
        self._look()

    def frame(self, lane: int) -> Any:
        return self.inner.frame(lane)

    def seen(self) -> Tensor:
        """What the controller sees now, `[L, D]`, as a tensor of its own."""
        return self._seen.clone()

    def play(self, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step for libraries that hold no World: the next observation, reward, terminated.

        Lanes that ended are shown at the first slot of their next episode.
        """
        self._decide(numbers)
        step = self.advance()
        return self.seen(), step.reward[ROLE].squeeze(-1), step.terminated


def make_world(
    task: Task, *, device: torch.device | str, compile: bool, seed: int = 0
) -> JointUavMec:
    """The world of one side, at the start of the histories that `seed` has in every side."""
    config = JointConfig(task=task)
    world = JointUavMec(config, lanes=task.lanes, device=device, compile=compile)
    world.reset(lane_keys([seed], lanes=task.lanes, device=device))
    return world


registry.WORLDS[JointConfig.name] = registry.Entry(
    config="benchmarks.peers.world:JointConfig",
    world="benchmarks.peers.world:JointUavMec",
    scenarios="benchmarks.peers.world:SCENARIOS",
    heuristics="benchmarks.peers.world:HEURISTICS",
    summary="One controller decides for all users and UAVs; made to be measured beside peers.",
)
SCENARIOS = {"reference": JointConfig()}
HEURISTICS: dict[str, Any] = {}
