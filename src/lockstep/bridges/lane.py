"""One lane of a world, driven by the decisions of single agents."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.bridges.spaces import flat_state
from lockstep.bridges.view import Decision, View
from lockstep.core.actions import Action, Picks
from lockstep.core.streams import lane_keys, mix
from lockstep.core.world import RoleSpec, Step, World
from lockstep.errors import BadInput, known
from lockstep.worlds import registry
from lockstep.worlds.registry import WorldConfig

AnyWorld = str | WorldConfig | World
"""A world's name, its settings, or a world of one lane that was made already."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One of the agents of a role."""

    name: str
    role: RoleSpec
    index: int


def agents_of(roles: Iterable[RoleSpec]) -> dict[str, Agent]:
    """Every agent by name: the role and its number, `mu_17`."""
    return {
        f"{role.name}_{index}": Agent(name=f"{role.name}_{index}", role=role, index=index)
        for role in roles
        for index in range(role.agents)
    }


def single_world(world: AnyWorld, scenario: str | None, device: str) -> World:
    """One lane of the world that is meant."""
    if isinstance(world, str):
        scenarios = registry.scenarios(known("world", world, registry.names()))
        chosen = next(iter(scenarios)) if scenario is None else scenario
        config = scenarios[known(f"scenario of {world}", chosen, scenarios)]
        return registry.build(config, lanes=1, device=torch.device(device))
    if scenario is not None:
        raise BadInput("scenario names a preset of a world; give either it or a world's config")
    if not isinstance(world, World):
        return registry.build(world, lanes=1, device=torch.device(device))
    if world.lanes != 1:
        raise BadInput(f"an environment is a world of one lane, got one of {world.lanes}")
    return world


class Lane:
    """Keeps what everybody saw last and what they decided, and hands whole roles to the world.

    The world restarts an ended lane by itself; here nothing of the next episode is looked at
    before `begin`, so whatever is shown after the end belongs to the episode that ended.
    """

    def __init__(self, world: World, *, seed: int, skip_illegal: bool) -> None:
        self.world, self.spec, self.skip_illegal = world, world.spec, skip_illegal
        self.agents = agents_of(world.spec.roles)
        self.views: dict[str, View] = {}
        self.state: npt.NDArray[np.float32] | None = None
        self.ended = True
        self._decisions: dict[str, Decision] = {}
        self._ignored: dict[str, int] = {}
        self._first: int | None = seed
        self._key = self._key_of(seed)
        world.reset(self._key)

    def _key_of(self, seed: int) -> torch.Tensor:
        return lane_keys([seed], lanes=1, device=self.world.device)

    def begin(self, seed: int | None) -> None:
        """Starts an episode: that of `seed`, or the next one after the last.

        Which episode comes next depends on the seed and on how often this was called alone, not
        on what happened in the episodes before.
        """
        seed, self._first = self._first if seed is None else seed, None
        self._key = mix(self._key) if seed is None else self._key_of(seed)
        self.world.reset(self._key)
        self.views.clear()
        self._decisions.clear()
        self._ignored.clear()
        self.ended = False

    def members(self, phase: Iterable[str]) -> list[Agent]:
        """The agents of some roles, in order."""
        return [agent for role in phase for agent in agents_of([self.spec.role(role)]).values()]

    def look(self, roles: Iterable[str]) -> None:
        """Shows their present to all agents of `roles`, and the critic's input of the first."""
        roles = list(roles)
        for name in roles:
            # A world may write its next observation over this one.
            observation = self.world.observe(name).map(torch.clone)
            for agent in self.members([name]):
                self.views[agent.name] = View(agent.role, observation, agent.index)
        self.state = flat_state(self.spec, self.world.state(roles[0]))

    def decide(self, agent: str, action: Any) -> None:
        """Checks an agent's action against what it saw and keeps it until its phase is played."""
        if self.ended:
            raise ValueError("the episode is over or has not begun; call reset()")
        view = self.views[agent]
        self._decisions[agent], self._ignored[agent] = view.decision(
            agent, action, skip_illegal=self.skip_illegal
        )

    def ignored(self, agent: str) -> int:
        """How many choices of the agent's last action were not followed."""
        return self._ignored.get(agent, 0)

    def action(self, role: str) -> Action:
        """The decisions of a whole role; who was not asked does nothing."""
        rows = [
            self._decisions.get(agent.name) or self.views[agent.name].nothing()
            for agent in self.members([role])
        ]
        return {
            name: torch.stack([row[name] for row in rows]).unsqueeze(0).to(self.world.device)
            for name in rows[0]
        }

    def play(self, phase: Iterable[str]) -> None:
        """Hands the decisions of a phase to the world."""
        for role in phase:
            self.world.act(role, self.action(role))

    def recall(self, role: str) -> None:
        """Finds what `role` picked among the rows there are now; what is gone is not picked."""
        observation = self.world.observe(role)
        for agent in self.members([role]):
            before, now = self.views[agent.name], View(agent.role, observation, agent.index)
            taken = self._decisions[agent.name]
            for name, part in agent.role.action.items():
                if isinstance(part, Picks):
                    picks = [entry for entry in taken[name].tolist() if entry]
                    taken[name], lost = now.picked(name, _same_rows(part, picks, before, now))
                    self._ignored[agent.name] += lost

    def advance(self) -> Step:
        """Ends the step; at the end of an episode what was seen last stays."""
        step = self.world.advance()
        self._decisions.clear()
        self.ended = bool(step.terminated[0] | step.truncated[0])
        if self.ended and step.final:
            self.state = flat_state(self.spec, step.final)
        return step

    def reward(self, step: Step, agent: Agent) -> float:
        """What the step gave to one agent."""
        return float(step.reward[agent.role.name][0, agent.index])


def _same_rows(part: Picks, picks: list[int], before: View, now: View) -> list[int | None]:
    """The entries that mean the same rows now; None for those that are gone."""
    old, new = before.row_ids(part.over), now.row_ids(part.over).tolist()
    extras = len(part.extra)
    entries: list[int | None] = []
    for entry in picks:
        if entry < extras:
            entries.append(entry)
            continue
        row = int(old[entry - extras])
        entries.append(new.index(row) + extras if row in new else None)
    return entries
