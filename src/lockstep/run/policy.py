"""Whoever decides in a world step by step: a learner, one member of it, or a heuristic."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.learner import Learner
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import Step, World
from lockstep.errors import BadInput

_MEMBER = 0x632BE59BD9B4E019  # odd, so that no two members meet

Heuristic = Callable[[World, str], Action]
"""The action of one role, for every lane, from the world as it stands when its phase comes."""


@runtime_checkable
class Policy(Protocol):
    """Decides for all roles of a world and advances it."""

    label: str
    groups: int
    """Members that decide side by side; lanes are group-major."""

    def begin(self, keys: Tensor) -> None:
        """Forgets everything; `keys` `[L]` are the lanes' streams for random decisions."""

    def step(self, world: World, *, deterministic: bool = True) -> Step:
        """Decides once for every role, phase by phase, and advances the world."""


class LearnedPolicy:
    """The policy of a learner: of all its members side by side, or of one alone."""

    def __init__(self, learner: Learner, *, member: int | None = None, label: str = "") -> None:
        if member is not None and not 0 <= member < learner.members:
            raise BadInput(f"member must be between 0 and {learner.members - 1}, got {member}")
        self.learner = learner if member is None else learner.member(member)
        self.member, self.label = member, label
        self.groups = self.learner.members
        self._streams: Streams | None = None

    def begin(self, keys: Tensor) -> None:
        """Starts every lane's episode and stream afresh."""
        self._streams = Streams(self._decision_keys(keys))
        self._memory = {
            role.name: _resized(self.learner.memory(role.name), len(keys))
            for role in self.learner.spec.roles
        }
        self._starts = torch.ones(len(keys), dtype=torch.bool, device=keys.device)

    def _decision_keys(self, keys: Tensor) -> Tensor:
        """Keys `[L]` that differ by member: members share episodes, and must not share dice."""
        first = self.member or 0
        member = torch.arange(first, first + self.groups, device=keys.device)
        return keys + member.repeat_interleave(len(keys) // self.groups) * _MEMBER

    @torch.no_grad()
    def step(self, world: World, *, deterministic: bool = True) -> Step:
        """Decides once for every role, phase by phase, and advances the world.

        In a world of a new size it begins by itself, with the streams of seed 0.
        """
        if self._streams is None or len(self._starts) != world.lanes:
            self.begin(lane_keys([0], lanes=world.lanes, device=world.device))
        assert self._streams is not None
        strangers = [role.name for role in world.spec.roles if role.name not in self._memory]
        if strangers:
            raise BadInput(
                f"a policy of {', '.join(self._memory)} cannot play in a world of "
                f"{', '.join(role.name for role in world.spec.roles)}: nobody would decide for "
                f"{', '.join(strangers)}"
            )
        for phase in world.spec.phases:
            for role in phase:
                decision = self.learner.act(
                    role,
                    world.observe(role),
                    self._memory[role],
                    self._starts,
                    self._streams,
                    deterministic=deterministic,
                )
                self._memory[role].copy_(decision.memory)
                world.act(role, decision.action)
        step = world.advance()
        self._streams.tick()
        self._starts.copy_(step.terminated | step.truncated)
        return step

    def __repr__(self) -> str:
        return f"Policy({self.label})"


class HeuristicPolicy:
    """A rule without weights."""

    groups = 1

    def __init__(self, rule: Heuristic, *, label: str) -> None:
        self.rule, self.label = rule, label

    def begin(self, keys: Tensor) -> None:
        """A heuristic remembers nothing."""

    def step(self, world: World, *, deterministic: bool = True) -> Step:  # noqa: ARG002
        """Asks the rule for each role in its phase and advances the world."""
        for phase in world.spec.phases:
            for role in phase:
                world.act(role, self.rule(world, role))
        return world.advance()

    def __repr__(self) -> str:
        return f"Policy({self.label})"


def _resized(memory: Tensor, lanes: int) -> Tensor:
    """A blank memory for another number of lanes."""
    return torch.zeros(lanes, *memory.shape[1:], dtype=memory.dtype, device=memory.device)
