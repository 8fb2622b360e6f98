"""A decision of one step among 8 to 50 candidates in random order, whose best choice is known."""

from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import Action, Candidates, Field, Observation
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import CriticInput, Metric, RoleSpec, Step, WorldSpec

FEWEST, MOST = 8, 50
N_FEATURES, N_CONTEXT = 6, 2
ROLE = "player"

_SPEC = WorldSpec(
    name="candidate-task",
    roles=(
        RoleSpec(
            name=ROLE,
            agents=1,
            features={"obs": Field(shape=(N_CONTEXT,))},
            entities={"candidate": Field(shape=(MOST, N_FEATURES))},
            action={"pick": Candidates(max=MOST, over="candidate")},
            discount=1.0,
        ),
    ),
    phases=((ROLE,),),
    critic={ROLE: Field(shape=(1, N_CONTEXT)), "state": Field(shape=(N_CONTEXT,))},
    horizon=1,
    metrics=(
        Metric(
            name="score",
            unit="1",
            meaning="0 for a uniform choice, 1 for the best candidate",
            better="higher",
        ),
    ),
    objective="score",
)


class CandidateTask:
    """Implements `core.world.World`: what a candidate is worth depends on the context."""

    def __init__(self, *, lanes: int) -> None:
        self.spec, self.lanes, self.device = _SPEC, lanes, torch.device("cpu")
        self.reset(lane_keys([0], lanes=lanes))

    def reset(self, keys: Tensor) -> None:
        """Starts every lane afresh from its stream key `[L]`."""
        self._streams = Streams(keys)
        self._draw()

    def _draw(self) -> None:
        """The decisions of this step: contexts, candidates and which of them exist."""
        draw = self._streams.draw("task")
        self._context = draw.uniform(1, N_CONTEXT)  # [L, 1, 2]
        rows = draw.uniform(1, MOST, N_FEATURES)
        count = FEWEST + draw.integers(MOST - FEWEST + 1, 1)  # [L, 1]
        self._legal = torch.arange(MOST) < count.unsqueeze(-1)  # [L, 1, 50]
        self._rows = rows * self._legal.unsqueeze(-1)
        self._chosen = torch.zeros(self.lanes, 1, dtype=torch.int64)

    def observe(self, role: str) -> Observation:  # noqa: ARG002 - there is one role
        """The context, the candidates, and which exist."""
        return Observation(
            features={"obs": self._context.clone()},
            acts=torch.ones(self.lanes, 1, dtype=torch.bool),
            entities={"candidate": self._rows.clone()},
            legal={"pick": self._legal.clone()},
        )

    def act(self, role: str, action: Action) -> None:  # noqa: ARG002 - there is one role
        """Records the choice."""
        self._chosen = action["pick"]

    def advance(self) -> Step:
        """Rewards the choice by its place between mean and best, and draws new decisions."""
        taste = self._context.unsqueeze(-2)  # [L, 1, 1, 2]
        rows = self._rows
        worth = rows[..., 0] * taste[..., 0] - rows[..., 1] * taste[..., 1] + rows[..., 2]
        mean = (worth * self._legal).sum(dim=-1) / self._legal.sum(dim=-1)
        best = worth.masked_fill(~self._legal, -torch.inf).amax(dim=-1)
        got = worth.gather(-1, self._chosen.unsqueeze(-1)).squeeze(-1)
        reward = (got - mean) / (best - mean)  # [L, 1]
        self._streams.tick()
        self._draw()
        return Step(
            reward={ROLE: reward},
            terminated=torch.ones(self.lanes, dtype=torch.bool),
            truncated=torch.zeros(self.lanes, dtype=torch.bool),
            elapsed=torch.ones(self.lanes),
            metrics={"score": reward.squeeze(-1)},
            final={},
        )

    def state(self, role: str) -> CriticInput:  # noqa: ARG002 - there is one role
        """The context."""
        return {ROLE: self._context.clone(), "state": self._context.flatten(1)}

    def set(self, name: str, value: Tensor) -> None:  # noqa: ARG002
        """Nothing can be set."""
        raise ValueError(f"the candidate task has no scenario number called {name!r}")

    def state_dict(self) -> dict[str, Any]:
        """Keys and counters: everything else follows from them."""
        return {"streams": self._streams.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a saved future."""
        self._streams.load_state_dict(state["streams"])
        self._draw()

    def frame(self, lane: int) -> Any:
        """The candidates of one lane."""
        return self._rows[lane]
