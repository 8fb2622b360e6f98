"""One lane of a world as a PettingZoo environment: agents in turn (AEC) or all at once (parallel).

In both, the observation of an agent whose episode ended is the last one it was shown: a world
restarts inside its last step, and nothing of the next episode is shown before `reset`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Space

from lockstep.bridges.lane import Agent, AnyWorld, Lane, single_world
from lockstep.bridges.spaces import action_space, observation_space, state_space
from lockstep.bridges.view import Seen
from lockstep.core.actions import Picks
from lockstep.core.world import Step, World, WorldSpec
from lockstep.errors import BadInput, needs_extra

with needs_extra("pettingzoo"):
    from pettingzoo import AECEnv, ParallelEnv

Infos = dict[str, dict[str, Any]]


def parallel_env(
    world: AnyWorld,
    *,
    scenario: str | None = None,
    seed: int = 0,
    simultaneous: bool = False,
    skip_illegal: bool = False,
    device: str = "cpu",
) -> "Parallel":
    """All agents of one lane decide at once.

    A world with several phases is refused, since later roles could not see what earlier ones chose
    in the same step; `simultaneous` accepts that. `skip_illegal` is for learners without masks.
    """
    made = single_world(world, scenario, device)
    if len(made.spec.phases) > 1:
        _check_simultaneous(made.spec, simultaneous)
    return Parallel(made, seed=seed, skip_illegal=skip_illegal)


def aec_env(
    world: AnyWorld,
    *,
    scenario: str | None = None,
    seed: int = 0,
    skip_illegal: bool = False,
    device: str = "cpu",
) -> "InTurn":
    """The agents of one lane decide one after another, phase by phase.

    Agents of one phase see the same moment. Who does not act in a step has no turn in it.
    """
    return InTurn(single_world(world, scenario, device), seed=seed, skip_illegal=skip_illegal)


def _check_simultaneous(spec: WorldSpec, simultaneous: bool) -> None:
    if not simultaneous:
        raise BadInput(
            f"{spec.name} has {len(spec.phases)} phases, and a parallel environment would hide "
            "what earlier roles chose from later ones; use aec_env, or pass simultaneous=True to "
            "let everybody choose before anybody acts"
        )
    for name in [name for phase in spec.phases[1:] for name in phase]:
        role = spec.role(name)
        for label, part in role.action.items():
            if part.masked and not (isinstance(part, Picks) and f"{part.over}/id" in role.features):
                raise BadInput(
                    f"simultaneous must be False for {spec.name}: what {name} may choose for "
                    f"{label} can change before its phase, and its rows have no ids to find them "
                    "again; use aec_env"
                )


class _Bridge:
    """What both kinds have in common: names, spaces and the lane."""

    def __init__(self, world: World, *, seed: int, skip_illegal: bool) -> None:
        self.lane = Lane(world, seed=seed, skip_illegal=skip_illegal)
        self.possible_agents = list(self.lane.agents)
        self.agents: list[str] = []
        self.state_space: Box = state_space(world.spec)
        roles = {name: agent.role for name, agent in self.lane.agents.items()}
        self.observation_spaces = {name: observation_space(role) for name, role in roles.items()}
        self.action_spaces = {name: action_space(role) for name, role in roles.items()}
        self.metadata = {
            "name": f"{world.spec.name.replace('-', '_')}_v0",
            "render_modes": [],
            "is_parallelizable": len(world.spec.phases) == 1,
        }
        self.render_mode = None

    @property
    def world(self) -> World:
        """The world underneath, for pictures and scenario numbers."""
        return self.lane.world

    def observation_space(self, agent: str) -> Space[Any]:
        """The same object for the same agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """The same object for the same agent."""
        return self.action_spaces[agent]

    def state(self) -> npt.NDArray[np.float32]:
        """The critic's input as decisions begin; after a truncation, that of the last moment."""
        if self.lane.state is None:
            raise ValueError("state() must follow reset(), got no episode yet")
        return self.lane.state.copy()

    def _info(self, agent: str, elapsed: float) -> dict[str, Any]:
        view = self.lane.views.get(agent)
        return {
            "acts": view is not None and view.acts,
            "action_mask": None if view is None else view.mask(),
            "elapsed": elapsed,
            "ignored": self.lane.ignored(agent),
        }


class Parallel(_Bridge, ParallelEnv):  # type: ignore[misc]  # pettingzoo has no types
    """Everybody observes, then everybody acts; phases are played in the world's order."""

    def __init__(self, world: World, *, seed: int, skip_illegal: bool) -> None:
        super().__init__(world, seed=seed, skip_illegal=skip_illegal)
        self._roles = [role for phase in world.spec.phases for role in phase]
        for role in self._roles:
            world.observe(role)  # a world whose later roles cannot look yet says so now

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - there are none
    ) -> tuple[dict[str, Seen], Infos]:
        """The episode of `seed`, or the next one."""
        self.lane.begin(seed)
        self.agents = list(self.possible_agents)
        self.lane.look(self._roles)
        return self._observations(), {name: self._info(name, 0.0) for name in self.agents}

    def _observations(self) -> dict[str, Seen]:
        return {name: self.lane.views[name].observation() for name in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Plays one step of the world with an action of every agent."""
        if not self.lane.ended and set(actions) != set(self.agents):
            odd = min(set(actions) ^ set(self.agents))
            raise ValueError(
                f"actions must hold one action for each of the {len(self.agents)} agents, got "
                f"{'none of' if odd in self.agents else 'also one of'} {odd}"
            )
        for name in self.possible_agents:
            self.lane.decide(name, actions.get(name))
        for number, phase in enumerate(self.lane.spec.phases):
            if number:
                for role in phase:
                    self.lane.recall(role)
            self.lane.play(phase)
        step = self.lane.advance()
        if not self.lane.ended:
            self.lane.look(self._roles)
        return self._told(step)

    def _told(
        self, step: Step
    ) -> tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        everybody, elapsed = self.agents, float(step.elapsed[0])
        observations = self._observations()
        infos = {name: self._info(name, elapsed) for name in everybody}
        rewards = {name: self.lane.reward(step, self.lane.agents[name]) for name in everybody}
        terminated = dict.fromkeys(everybody, bool(step.terminated[0]))
        truncated = dict.fromkeys(everybody, bool(step.truncated[0]))
        if self.lane.ended:
            self.agents = []
        return observations, rewards, terminated, truncated, infos


class InTurn(_Bridge, AECEnv):  # type: ignore[misc]  # pettingzoo has no types
    """Agents act in the order of the phases; each sees the world when its phase begins.

    `info["elapsed"]` is the world time since the agent's last decision, as the rewards of `last()`
    are those since then.
    """

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,  # noqa: ARG002 - there are none
    ) -> None:
        """The episode of `seed`, or the next one; steps before the first turn of anybody pass."""
        self.lane.begin(seed)
        self.agents = list(self.possible_agents)
        self._phase, self._waiting = -1, list[Agent]()
        self._elapsed = dict.fromkeys(self.agents, 0.0)
        self._give(0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._until_a_turn()
        if self.lane.ended:
            raise ValueError(f"nobody acts in this episode of {self.lane.spec.name}")
        self._give(0.0)  # nobody has decided anything yet
        self._tell()

    def _give(self, reward: float) -> None:
        self.rewards = dict.fromkeys(self.agents, reward)
        self._cumulative_rewards = dict.fromkeys(self.agents, reward)

    def observe(self, agent: str) -> Seen | None:
        """What the agent saw when its phase last began; None before the first time."""
        view = self.lane.views.get(agent)
        return None if view is None else view.observation()

    def step(self, action: Any) -> None:
        """Takes the action of the agent whose turn it is; None from one whose episode ended."""
        if not self.agents:
            raise ValueError("the episode is over or has not begun; call reset()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.lane.decide(agent, action)
        self._cumulative_rewards[agent] = 0.0
        self._elapsed[agent] = 0.0
        self._clear_rewards()
        self._waiting.pop(0)
        self._until_a_turn()
        self._accumulate_rewards()
        self._tell()

    def _until_a_turn(self) -> None:
        """Plays phases and steps until somebody is asked or the episode ends."""
        phases = self.lane.spec.phases
        while not self._waiting and not self.lane.ended:
            if self._phase >= 0:
                self.lane.play(phases[self._phase])
            self._phase += 1
            if self._phase == len(phases):
                self._close()
            if not self.lane.ended:
                phase = phases[self._phase]
                self.lane.look(phase)
                views = self.lane.views
                self._waiting = [a for a in self.lane.members(phase) if views[a.name].acts]

    def _close(self) -> None:
        """Ends the step and hands out what it gave."""
        step, self._phase = self.lane.advance(), 0
        for name in self.agents:
            self.rewards[name] += self.lane.reward(step, self.lane.agents[name])
            self._elapsed[name] += float(step.elapsed[0])
            self.terminations[name] = bool(step.terminated[0])
            self.truncations[name] = bool(step.truncated[0])

    def _tell(self) -> None:
        """Says whose turn it is, and what is known to everybody now."""
        self.agent_selection = self.agents[0] if self.lane.ended else self._waiting[0].name
        self.infos = {name: self._info(name, self._elapsed[name]) for name in self.agents}
