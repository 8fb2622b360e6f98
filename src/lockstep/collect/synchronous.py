"""Collection in step: the world waits for the learner's decisions and the learner for the world."""

from typing import Any

import torch
from torch import Tensor

from lockstep.core.learner import Learner
from lockstep.core.programs import Captured
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams
from lockstep.core.world import CriticInput, World


class Collector:
    """Steps a world with a learner and writes each row as it happens.

    `streams` are the lanes' random streams for decisions; the world keeps its own.
    """

    def __init__(
        self, world: World, learner: Learner, streams: Streams, *, graphs: bool = False
    ) -> None:
        self.world, self.learner, self.streams = world, learner, streams
        self.memory = {role.name: learner.memory(role.name) for role in world.spec.roles}
        self.starts = torch.ones(world.lanes, dtype=torch.bool, device=world.device)
        self._fill = Captured(self._write) if graphs else self._write

    def collect(self, rollout: Rollout) -> None:
        """Fills every row of `rollout`, values included."""
        self._fill(rollout)

    @torch.no_grad()
    def _write(self, rollout: Rollout) -> None:
        rollout.reset()
        for name, stored in rollout.memory.items():
            stored.copy_(self.memory[name])
        for _ in range(rollout.steps):
            self._step(rollout)
        self._value(rollout)

    def _step(self, rollout: Rollout) -> None:
        t = rollout.next_row()
        rollout.clock[t].copy_(self.streams.step)
        rollout.version[t].copy_(self.learner.version)
        rollout.starts[t].copy_(self.starts)
        state: CriticInput = {}
        spec = self.world.spec
        for phase in spec.phases:
            # A baseline may not depend on the action it judges, so the critic looks first.
            if not state or spec.critic_at == "phase":
                for role in phase:
                    state |= self.world.state(role)
            for role in phase:
                self._decide(rollout, t, role)
        for name, stored in rollout.critic.items():
            stored[t].copy_(state[name])

        step = self.world.advance()
        self.streams.tick()
        for name, rows in rollout.roles.items():
            rows.reward[t].copy_(step.reward[name])
        rollout.terminated[t].copy_(step.terminated)
        rollout.truncated[t].copy_(step.truncated)
        rollout.elapsed[t].copy_(step.elapsed)
        for name, kept in rollout.metrics.items():
            kept[t].copy_(step.metrics[name])
        for name, kept in rollout.final.items():
            kept[t].copy_(step.final[name])
        self.starts.copy_(step.terminated | step.truncated)

    def _decide(self, rollout: Rollout, t: int, role: str) -> None:
        rows = rollout.roles[role]
        rows.obs.copy_(self.world.observe(role), t)
        # The policy reads the stored row, so that what is acted on is what will be trained on.
        obs = rows.obs.map(lambda x: x[t])
        rows.fingerprint[t].copy_(obs.fingerprint())
        decision = self.learner.act(role, obs, self.memory[role], self.starts, self.streams)
        for name, stored in rows.action.items():
            stored[t].copy_(decision.action[name])
        rows.log_prob[t].copy_(decision.log_prob)
        rows.entropy[t].copy_(decision.entropy)
        self.memory[role].copy_(decision.memory)
        self.world.act(role, decision.action)

    def _value(self, rollout: Rollout) -> None:
        """Values of each row, and of what it led to: the next row, or the final state if cut off.

        No decision depends on a value, so all rows are valued in one call.
        """
        value = self.learner.value(rollout.critic)
        state: CriticInput = {}
        for role in rollout.roles:
            state |= self.world.state(role)
        last = self.learner.value({name: state[name] for name in rollout.critic})
        for name, rows in rollout.roles.items():
            rows.value.copy_(value[name])
            rows.next_value[:-1].copy_(rows.value[1:])
            rows.next_value[-1].copy_(last[name])
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
        memory: dict[str, Tensor] = state["memory"]
        for name, saved in memory.items():
            self.memory[name].copy_(saved)
        self.starts.copy_(state["starts"])
