"""One agent of one lane as a Gymnasium environment; a heuristic plays everybody else."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from lockstep.bridges.lane import AnyWorld, Lane, single_world
from lockstep.bridges.spaces import action_space, observation_space
from lockstep.bridges.view import Seen
from lockstep.core.actions import Action
from lockstep.core.world import World
from lockstep.errors import BadInput, known
from lockstep.worlds import registry

Heuristic = Callable[[Any, str], Action]
"""From the world as it stands and a role that is about to act, to that role's action."""


def single_agent_env(
    world: AnyWorld,
    *,
    role: str,
    others: str | Heuristic,
    agent: int = 0,
    scenario: str | None = None,
    seed: int = 0,
    skip_illegal: bool = False,
    device: str = "cpu",
) -> "SingleAgent":
    """Agent number `agent` of `role` learns; `others` names the heuristic of all the rest.

    `skip_illegal` is for learners without masks: a forbidden choice does nothing and is counted.
    """
    made = single_world(world, scenario, device)
    spec = made.spec
    known(f"role of {spec.name}", role, [one.name for one in spec.roles])
    if not 0 <= agent < spec.role(role).agents:
        raise BadInput(
            f"agent must be in 0..{spec.role(role).agents - 1}, the agents of {role}, got {agent}"
        )
    if isinstance(others, str):
        rules = registry.heuristics(spec.name)
        others = rules[known(f"heuristic of {spec.name}", others, rules)]
    lane = Lane(made, seed=seed, skip_illegal=skip_illegal)
    return SingleAgent(lane, name=f"{role}_{agent}", others=others)


class SingleAgent(gymnasium.Env[Seen, Any]):
    """An environment step lasts from one decision of the agent to the next.

    Its reward is the plain sum of the agent's rewards in between, and `info["elapsed"]` the world
    time they took. The mask is no part of the observation: `info["action_mask"]` has it in the form
    that `action_space.sample` takes, `action_masks()` as one flat vector. At the end the
    observation is the last one shown: the world has restarted by then.
    """

    def __init__(self, lane: Lane, *, name: str, others: Heuristic) -> None:
        self._lane, self._agent, self._rule = lane, lane.agents[name], others
        self._role = self._agent.role.name
        phases = lane.spec.phases
        self._own = next(n for n, phase in enumerate(phases) if self._role in phase)
        self.metadata = {"render_modes": []}
        self.observation_space = observation_space(self._agent.role, masks=False)
        self.action_space = action_space(self._agent.role)

    @property
    def world(self) -> World:
        """The world underneath, for pictures and scenario numbers."""
        return self._lane.world

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """The episode of `seed`, or the next one, at the agent's first decision.

        What it was given before that belongs to no decision: `info["reward_before"]`.
        """
        super().reset(seed=seed, options=options)
        self._lane.begin(seed)
        self._play_until_own_phase()
        reward, elapsed, _, _ = self._to_next_decision()
        if self._lane.ended:
            raise ValueError(f"{self._agent.name} never acts in this episode; choose another role")
        return self._seen(), self._info(elapsed) | {"reward_before": reward}

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Carries out a decision and plays on until the next one or the end."""
        self._lane.decide(self._agent.name, action)
        reward, elapsed, terminated, truncated = self._finish_step()
        if not self._lane.ended:
            more = self._to_next_decision()
            reward, elapsed = reward + more[0], elapsed + more[1]
            terminated, truncated = more[2:]
        return self._seen(), reward, terminated, truncated, self._info(elapsed)

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The masks of all choices one after another, True where allowed."""
        return self._lane.views[self._agent.name].flat_mask()

    def _to_next_decision(self) -> tuple[float, float, bool, bool]:
        """Passes the steps in which the agent does not act."""
        total = (0.0, 0.0, False, False)
        while not self._lane.ended and not self._lane.views[self._agent.name].acts:
            reward, elapsed, terminated, truncated = self._finish_step()
            total = (total[0] + reward, total[1] + elapsed, terminated, truncated)
        return total

    def _play_until_own_phase(self) -> None:
        """Others act before the agent looks."""
        phases = self._lane.spec.phases
        for phase in phases[: self._own]:
            self._play_others(phase)
        self._lane.look([self._role])

    def _finish_step(self) -> tuple[float, float, bool, bool]:
        """Plays the agent's phase and what follows, up to its phase in the next step."""
        lane = self._lane
        for phase in lane.spec.phases[self._own :]:
            self._play_others(phase)
        step = lane.advance()
        if not lane.ended:
            self._play_until_own_phase()
        return (
            lane.reward(step, self._agent),
            float(step.elapsed[0]),
            bool(step.terminated[0]),
            bool(step.truncated[0]),
        )

    def _play_others(self, phase: tuple[str, ...]) -> None:
        """Asks the heuristic for each role; among the rows of its own role the agent's counts."""
        for role in phase:
            if role != self._role:
                action = self._rule(self.world, role)
            elif self._agent.role.agents == 1:
                action = self._lane.action(role)
            else:
                mine, row = self._lane.action(role), self._agent.index
                action = {name: x.clone() for name, x in self._rule(self.world, role).items()}
                for name, x in action.items():
                    x[:, row] = mine[name][:, row]
            self.world.act(role, action)

    def _seen(self) -> Seen:
        return self._lane.views[self._agent.name].observation(masks=False)

    def _info(self, elapsed: float) -> dict[str, Any]:
        view = self._lane.views[self._agent.name]
        return {
            "action_mask": view.mask(),
            "elapsed": elapsed,
            "ignored": self._lane.ignored(self._agent.name),
        }
