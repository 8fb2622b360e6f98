"""Random legal decisions, recorded once so that a world can be made to play them again."""

import torch
from torch import Tensor

from lockstep.core.actions import Action
from lockstep.core.streams import Streams
from lockstep.core.world import World
from lockstep.learners.config import RandomizedConfig
from lockstep.learners.randomized import Randomized


class Tape:
    """Uniformly random decisions of some steps of `world`, which starts afresh from `keys`.

    What is legal now may not be legal later, so they are played only from where they were drawn:
    a world that is rewound has the same history, and finds every decision legal again.
    """

    def __init__(self, world: World, keys: Tensor) -> None:
        self.world = world
        world.reset(keys)
        self._start = world.state_dict()
        self._streams = Streams(keys)
        config = RandomizedConfig(lanes=world.lanes)
        self._chance = Randomized(config, world.spec, seeds=[0], device=world.device)
        self._never = torch.zeros(world.lanes, dtype=torch.bool, device=world.device)
        self._steps: list[dict[str, Action]] = []
        self._decided = torch.zeros((), dtype=torch.int64, device=world.device)

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self._steps)

    @property
    def bytes(self) -> int:
        """Memory that the decisions take."""
        parts = [x for step in self._steps for action in step.values() for x in action.values()]
        return sum(x.numel() * x.element_size() for x in parts)

    @property
    def agents(self) -> float:
        """Agents that decide in a lane's step, on average."""
        return float(self._decided) / (self.steps * self.world.lanes)

    @torch.no_grad()
    def record(self) -> None:
        """Plays one more step, with new decisions."""
        step: dict[str, Action] = {}
        self._steps.append(step)
        for phase in self.world.spec.phases:
            _look(self.world, phase)
            for role in phase:
                seen = self.world.observe(role)
                memory = self._chance.memory(role)
                decision = self._chance.act(role, seen, memory, self._never, self._streams)
                step[role] = decision.action
                self._decided += seen.acts.sum()
                self.world.act(role, decision.action)
        self.world.advance()
        self._streams.tick()

    def rewind(self, world: World | None = None) -> None:
        """Brings the world, or another one of its kind, to where the tape begins."""
        (world or self.world).load_state_dict(self._start)

    @torch.no_grad()
    def play(self, world: World | None = None) -> None:
        """Every step again, with all that a collector asks of a world; call `rewind` before."""
        world = world or self.world
        for step in self._steps:
            for phase in world.spec.phases:
                _look(world, phase)
                for role in phase:
                    world.observe(role)
                    world.act(role, step[role])
            world.advance()


def _look(world: World, phase: tuple[str, ...]) -> None:
    """What a critic would be shown as the phase begins."""
    if world.spec.critic_at == "phase":
        for role in phase:
            world.state(role)
    elif phase == world.spec.phases[0]:
        world.state(phase[0])
