"""Uniformly random decisions among the legal ones: the floor every learner must beat."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Observation, Part, Unit
from lockstep.core.distributions import Beta, Distribution, Joint
from lockstep.core.learner import Decision, UpdateStats
from lockstep.core.picks import choice
from lockstep.core.rollout import Rollout, allocate
from lockstep.core.streams import Streams
from lockstep.core.world import Views, WorldSpec
from lockstep.learners.config import RandomizedConfig


class Randomized:
    """A learner in form only: it acts at random and learns nothing."""

    def __init__(
        self,
        config: RandomizedConfig,
        spec: WorldSpec,
        *,
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.config, self.spec = config, spec
        self.seeds, self.members = tuple(seeds), len(seeds)
        self.device = torch.device(device)
        self.version = torch.zeros((), dtype=torch.int64, device=device)

    def rollout(self) -> Rollout:
        """Storage for `steps` of every member's `lanes`; no critic looks at anything."""
        return allocate(
            self.spec,
            steps=self.config.steps,
            lanes=self.members * self.config.lanes,
            device=self.device,
            critic=(),
        )

    def memory(self, role: str) -> Tensor:
        """Nothing: `[L, A, 0]`."""
        lanes = self.members * self.config.lanes
        return torch.zeros(lanes, self.spec.role(role).agents, 0, device=self.device)

    def act(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,  # noqa: ARG002 - the Learner contract
        streams: Streams,
        *,
        deterministic: bool = False,  # noqa: ARG002 - uniform has no mode worth the name
    ) -> Decision:
        """Draws every number from [0, 1] and every choice from the legal ones."""
        spec = self.spec.role(role)
        uniform = Joint(
            {
                name: _uniform(part, observation, observation.legal.get(name))
                for name, part in spec.action.items()
            }
        )
        action = uniform.sample(streams.draw(f"act/{role}"))
        log_prob, entropy = uniform.log_prob_and_entropy(action)
        return Decision(action=action, log_prob=log_prob, entropy=entropy, memory=memory)

    def value(self, state: Views) -> dict[str, Tensor]:  # noqa: ARG002
        """No opinion: zeros `[L, A]`."""
        lanes = self.members * self.config.lanes
        return {
            role.name: torch.zeros(lanes, role.agents, device=self.device)
            for role in self.spec.roles
        }

    def member(self, index: int) -> "Randomized":
        """Another one: they are all alike."""
        one = Randomized(self.config, self.spec, seeds=[self.seeds[index]], device=self.device)
        one.load_state_dict(self.state_dict())
        return one

    def update(self, rollout: Rollout) -> UpdateStats:  # noqa: ARG002
        """Learns nothing."""
        self.version += 1
        return UpdateStats(scalars={})

    def state_dict(self) -> dict[str, Any]:
        """The number of updates."""
        return {"version": self.version.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it up again."""
        self.version.copy_(state["version"])


def _uniform(part: Part, seen: Observation, legal: Tensor | None) -> Distribution:
    lead, device = seen.acts.shape, seen.acts.device
    if isinstance(part, Unit):
        one = torch.ones(*lead, part.n, device=device)
        return Beta(one, one)
    logits = torch.full((*lead, part.n), -math.log(part.n), device=device)
    return choice(part, logits, legal, seen.features)
