"""Collection in step: the world waits for the learner's decisions and the learner for the world."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation, write, write_all
from lockstep.core.learner import Decision, Learner, Pupil
from lockstep.core.programs import Captured, compiled
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams
from lockstep.core.world import CriticInput, Step, Views, World

Tell = Callable[[str], None]
"""Told what begins: "env" (the world), "act" or "value" (the learner); and "step" at a step's end.
"""
Script = Callable[[World, str], Action]
"""What the agents of a role do, in every lane, decided by no learner."""


def _untold(what: str) -> None:
    """Nobody listens."""


class Collector:
    """Steps a world with a learner and writes each row as it happens.

    `streams` are the lanes' random streams for decisions; the world keeps its own.
    """

    def __init__(
        self,
        world: World,
        learner: Learner,
        streams: Streams,
        *,
        compile: bool = False,
        graphs: bool = False,
    ) -> None:
        self.world, self.learner, self.streams = world, learner, streams
        self.memory = {role.name: learner.memory(role.name) for role in world.spec.roles}
        self.starts = torch.ones(world.lanes, dtype=torch.bool, device=world.device)
        plain = Observation.fingerprint
        # Where every operation is a launch, a program of its own pays; elsewhere it does not.
        launches = compile and world.device.type == "cuda"
        self._fingerprint = compiled(plain) if launches else plain
        self._captured = Captured(self._write) if graphs else None

    def collect(
        self, rollout: Rollout, tell: Tell | None = None, *, script: Script | None = None
    ) -> None:
        """Fills every row of `rollout`, values included.

        `tell` hears of every change between world and learner, except where the whole rollout is
        one CUDA graph, inside of which nobody can be told anything. A `script` decides in the place
        of the learner, which must be a `Pupil` and says how likely it finds each decision.
        """
        rollout.scripted = script is not None
        if self._captured is not None and script is None:
            self._captured(rollout)
        else:
            self._write(rollout, tell or _untold, script)

    @torch.no_grad()
    def _write(self, rollout: Rollout, tell: Tell = _untold, script: Script | None = None) -> None:
        tell("env")
        rollout.reset()
        for name, stored in rollout.memory.items():
            stored.copy_(self.memory[name])
        for _ in range(rollout.steps):
            self._step(rollout, tell, script)
        tell("value")
        self._value(rollout)

    def _step(self, rollout: Rollout, tell: Tell, script: Script | None) -> None:
        t = rollout.next_row()
        rollout.clock[t].copy_(self.streams.step)
        rollout.version[t].copy_(self.learner.version)
        rollout.starts[t].copy_(self.starts)
        for phase in self.world.spec.phases:
            # A baseline may not depend on the action it judges, so the critic looks first.
            self._look(rollout.critic, t, before=phase)
            for role in phase:
                self._decide(rollout, t, role, tell, script)

        step = self.world.advance()
        self.streams.tick()
        write_all(_caused(rollout, t, step))
        self.starts.copy_(step.terminated | step.truncated)
        tell("step")

    def _look(self, critic: Views, t: int, before: tuple[str, ...]) -> None:
        """Stores what the critic may see as the phase of the roles in `before` begins."""
        phases = self.world.spec.phases
        for view, kept in critic.items():
            if not kept or not (view in before or (view == "all" and before == phases[0])):
                continue
            state = self._state(view)
            write_all((x[t], state[name], f"critic input {name}") for name, x in kept.items())

    def _state(self, view: str) -> CriticInput:
        return self.world.state(self.world.spec.roles[0].name if view == "all" else view)

    def _decide(
        self, rollout: Rollout, t: int, role: str, tell: Tell, script: Script | None
    ) -> None:
        rows = rollout.roles[role]
        rows.obs.write(self.world.observe(role), t)
        # Policy and world read the stored row: what is acted on is what will be trained on.
        obs = rows.obs.map(lambda x: x[t])
        rows.fingerprint[t].copy_(self._fingerprint(obs))
        tell("act")
        decision = self._decision(role, obs, script)
        action = decision.action
        write_all(
            [
                *((x[t], action[name], f"action {name}") for name, x in rows.action.items()),
                (rows.log_prob[t], decision.log_prob, "log_prob"),
                (rows.entropy[t], decision.entropy, "entropy"),
                (self.memory[role], decision.memory, "memory"),
            ]
        )
        tell("env")
        self.world.act(role, {name: stored[t] for name, stored in rows.action.items()})

    def _decision(self, role: str, obs: Observation, script: Script | None) -> Decision:
        memory, starts = self.memory[role], self.starts
        if script is None:
            return self.learner.act(role, obs, memory, starts, self.streams)
        assert isinstance(self.learner, Pupil)
        return self.learner.judge(role, obs, memory, starts, script(self.world, role))

    def _value(self, rollout: Rollout) -> None:
        """Values of each row, and of what it led to: the next row, or the final state if cut off.

        No decision depends on a value, so all rows are valued in one call.
        """
        if not any(rollout.critic.values()):
            return  # a learner without a critic
        value = self.learner.value(rollout.critic)
        now: Views = {}
        for view, kept in rollout.critic.items():
            state = self._state(view)
            now[view] = {name: state[name] for name in kept}
        last = self.learner.value(now)
        for name, rows in rollout.roles.items():
            write(rows.value, value[name], f"the value of {name}")
            rows.next_value[:-1].copy_(rows.value[1:])
            write(rows.next_value[-1], last[name], f"the value of {name}")
        if rollout.final:
            final = self.learner.value(rollout.final)
            cut = rollout.truncated.unsqueeze(-1)  # [T, L, 1]
            for name, rows in rollout.roles.items():
                rows.next_value.copy_(torch.where(cut, final[name], rows.next_value))

    def state_dict(self) -> dict[str, Any]:
        """The world, the decision streams and what the policies remember."""
        return {
            "world": self.world.state_dict(),
            "streams": self.streams.state_dict(),
            "memory": {name: memory.clone() for name, memory in self.memory.items()},
            "starts": self.starts.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them up again in place."""
        self.world.load_state_dict(state["world"])
        self.streams.load_state_dict(state["streams"])
        for name, memory in self.memory.items():
            write(memory, state["memory"][name], f"memory of {name}")
        write(self.starts, state["starts"], "starts")


def _caused(rollout: Rollout, t: int, step: Step) -> Iterator[tuple[Tensor, Tensor, str]]:
    """What a step brought about, each beside its place in row `t`."""
    for name, rows in rollout.roles.items():
        yield rows.reward[t], step.reward[name], f"the reward of {name}"
    yield rollout.terminated[t], step.terminated, "terminated"
    yield rollout.truncated[t], step.truncated, "truncated"
    yield rollout.elapsed[t], step.elapsed, "elapsed"
    for name, kept in rollout.metrics.items():
        yield kept[t], step.metrics[name], f"metric {name}"
    for view in rollout.final.values():
        for name, kept in view.items():
            yield kept[t], step.final[name], f"final {name}"
