"""Small worlds whose best policy is known, for tests of contracts and of learning."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.actions import (
    Action,
    ActionSpec,
    Candidates,
    Categorical,
    Field,
    Observation,
    Picks,
    Unit,
)
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import CriticInput, Metric, RoleSpec, Step, WorldSpec


class Toy:
    """One role, episodes of `horizon` steps that end by death or by a cut from outside."""

    action: ActionSpec
    n_features: int
    entities: dict[str, Field] = {}
    of_rows: dict[str, Field] = {}
    """Features that describe the rows of an entity set."""

    def __init__(
        self,
        *,
        lanes: int = 4,
        agents: int = 1,
        horizon: int = 5,
        truncates: bool = False,
        device: str = "cpu",
    ) -> None:
        self.lanes, self.agents, self.horizon = lanes, agents, horizon
        self.device = torch.device(device)
        self.spec = WorldSpec(
            name=type(self).__name__,
            roles=(
                RoleSpec(
                    name="player",
                    agents=agents,
                    features={"obs": Field(shape=(self.n_features,)), **self.of_rows},
                    entities=self.entities,
                    action=self.action,
                    discount=0.9,
                ),
            ),
            phases=(("player",),),
            critic={
                "player": Field(shape=(agents, self.n_features)),
                "state": Field(shape=(agents * self.n_features,)),
            },
            horizon=horizon,
            metrics=(
                Metric(
                    name="regret",
                    unit="1",
                    meaning="distance from the best reward",
                    better="lower",
                ),
            ),
            objective="regret",
            truncates=truncates,
            capturable=True,
        )
        self.reset(lane_keys([0], lanes=lanes))

    def reset(self, keys: Tensor) -> None:
        self.streams = Streams(keys.to(self.device))
        self.slot = torch.zeros(self.lanes, dtype=torch.int64, device=self.device)
        self.seen = self.draw_features()

    def draw_features(self) -> Tensor:
        return self.streams.draw("features").uniform(self.agents, self.n_features)

    def observe(self, role: str) -> Observation:
        acts = torch.ones(self.lanes, self.agents, dtype=torch.bool, device=self.device)
        return Observation(features={"obs": self.seen.clone()}, acts=acts)

    def act(self, role: str, action: Action) -> None:
        self.chosen = action

    def reward(self) -> Tensor:
        raise NotImplementedError

    def state(self, role: str) -> CriticInput:
        return {"player": self.seen.clone(), "state": self.seen.flatten(1)}

    def advance(self) -> Step:
        reward = self.reward()
        self.slot += 1
        self.streams.tick()
        self.seen = self.draw_features()
        final = self.state("player")
        ends = self.slot >= self.horizon
        self.slot = torch.where(ends, 0, self.slot)
        self.begin(ends)
        never = torch.zeros_like(ends)
        return Step(
            reward={"player": reward},
            terminated=never if self.spec.truncates else ends,
            truncated=ends if self.spec.truncates else never,
            elapsed=torch.ones(self.lanes, device=self.device),
            metrics={"regret": -reward.mean(dim=-1)},
            final=final if self.spec.truncates else {},
        )

    def begin(self, ends: Tensor) -> None:
        """A new episode in the lanes that ended; most toys carry nothing over."""

    def set(self, name: str, value: Tensor) -> None:
        raise ValueError(f"{name} is not a scenario number of this world")

    def state_dict(self) -> dict[str, Any]:
        return {
            "streams": self.streams.state_dict(),
            "slot": self.slot.clone(),
            "seen": self.seen.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.streams.load_state_dict(state["streams"])
        self.slot, self.seen = state["slot"].clone(), state["seen"].clone()

    def frame(self, lane: int) -> Any:
        return self.seen[lane]


class Match(Toy):
    """Say the number you see; the best reward is 0."""

    action = {"number": Unit(n=1)}
    n_features = 2

    def reward(self) -> Tensor:
        said = self.chosen["number"].clamp(0, 1).squeeze(-1)
        return -((said - self.seen[..., 0]) ** 2)


class Masked(Toy):
    """Pick the legal choice with the largest feature; which are legal varies."""

    action = {"pick": Categorical(n=4, masked=True)}
    n_features = 8

    def legal(self) -> Tensor:
        mask = self.seen[..., 4:] > 0.5
        return mask | (~mask.any(dim=-1, keepdim=True))

    def observe(self, role: str) -> Observation:
        plain = super().observe(role)
        return Observation(features=plain.features, acts=plain.acts, legal={"pick": self.legal()})

    def reward(self) -> Tensor:
        worth = self.seen[..., :4]
        best = torch.where(self.legal(), worth, -1.0).amax(dim=-1)
        return worth.gather(-1, self.chosen["pick"].unsqueeze(-1)).squeeze(-1) - best


class Waiting(Masked):
    """Agents decide now and then, so that lanes differ in how many decisions they hold."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.spec = replace(self.spec, every_step=False)

    def observe(self, role: str) -> Observation:
        return replace(super().observe(role), acts=self.seen[..., 0] > 0.6)


class Pool(Toy):
    """Pick the best of 8..50 candidates in random order by their features."""

    CANDIDATES, FEATURES = 50, 6
    action = {"pick": Candidates(max=50, over="candidate")}
    n_features = 2
    entities = {"candidate": Field(shape=(50, 6))}

    def candidates(self) -> tuple[Tensor, Tensor]:
        draw = self.streams.draw("candidates")
        rows = draw.uniform(self.agents, self.CANDIDATES, self.FEATURES)
        count = 8 + draw.integers(self.CANDIDATES - 7, self.agents)
        legal = torch.arange(self.CANDIDATES, device=self.device) < count.unsqueeze(-1)
        return rows * legal.unsqueeze(-1), legal

    def worth(self) -> tuple[Tensor, Tensor]:
        rows, legal = self.candidates()
        return rows[..., 0] - rows[..., 1] * rows[..., 2] + 0.5 * rows[..., 3], legal

    def observe(self, role: str) -> Observation:
        plain = super().observe(role)
        rows, legal = self.candidates()
        return Observation(
            features=plain.features,
            acts=plain.acts,
            entities={"candidate": rows},
            legal={"pick": legal},
        )

    def reward(self) -> Tensor:
        """0 for a uniform choice, 1 for the best candidate."""
        worth, legal = self.worth()
        mean = (worth * legal).sum(dim=-1) / legal.sum(dim=-1)
        best = torch.where(legal, worth, -torch.inf).amax(dim=-1)
        got = worth.gather(-1, self.chosen["pick"].unsqueeze(-1)).squeeze(-1)
        return (got - mean) / (best - mean)


class OneStep(Pool):
    """The same in episodes of one step, where what a candidate is worth depends on the context."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"horizon": 1} | settings))

    def worth(self) -> tuple[Tensor, Tensor]:
        rows, legal = self.candidates()
        taste = self.seen.unsqueeze(-2)  # [L, A, 1, 2]
        return rows[..., 0] * taste[..., 0] - rows[..., 1] * taste[..., 1] + rows[..., 2], legal


class Turn(Toy):
    """Pick up to three rows of twelve that share no resource; each costs 1 of a budget of 1 to 3.

    The best turn takes the best row of each resource, in falling order, while rows are worth
    something and the budget lasts.
    """

    ROWS, RESOURCES = 12, 5
    action = {"pick": Picks(max=3, over="row", width=ROWS)}
    n_features = 1
    entities = {"row": Field(shape=(ROWS, 3))}
    of_rows = {
        "row/resource": Field(shape=(ROWS, 1), dtype=torch.int64),
        "row/cost": Field(shape=(ROWS,)),
        "row/budget": Field(shape=()),
    }

    def rows(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, legal entries, resources and budget."""
        draw = self.streams.draw("rows")
        rows = draw.uniform(self.agents, self.ROWS, 3)
        exists = draw.uniform(self.agents, self.ROWS) < 0.8
        resource = draw.integers(self.RESOURCES, self.agents, self.ROWS, 1)
        budget = 1.0 + draw.integers(3, self.agents)
        rows = rows * exists.unsqueeze(-1)
        return rows, torch.nn.functional.pad(exists, (1, 0), value=True), resource, budget

    def observe(self, role: str) -> Observation:
        plain = super().observe(role)
        rows, legal, resource, budget = self.rows()
        of_rows = {
            "row/resource": resource,
            "row/cost": torch.ones_like(rows[..., 0]),
            "row/budget": budget,
        }
        return Observation(
            features={**plain.features, **of_rows},
            acts=plain.acts,
            entities={"row": rows},
            legal={"pick": legal},
        )

    def reward(self) -> Tensor:
        """What the picks are worth beside the best turn; 0 is best."""
        rows, legal, resource, budget = self.rows()
        worth = (rows[..., 0] - rows[..., 1]) * legal[..., 1:]
        per_resource = torch.zeros(self.lanes, self.agents, self.RESOURCES, device=self.device)
        per_resource = per_resource.scatter_reduce(-1, resource.squeeze(-1), worth, "amax")
        best = per_resource.sort(dim=-1, descending=True).values[..., :3]
        affordable = torch.arange(3, device=self.device) < budget.unsqueeze(-1)
        got = torch.nn.functional.pad(worth, (1, 0)).gather(-1, self.chosen["pick"]).sum(dim=-1)
        return got - (best * affordable).sum(dim=-1)


class Recall(Toy):
    """The number is shown at the first step only and must be said at the last."""

    action = {"number": Unit(n=1)}
    n_features = 2

    def reset(self, keys: Tensor) -> None:
        self.cue = Streams(keys.to(self.device)).draw("cue").uniform(self.agents).round()
        super().reset(keys)

    def draw_features(self) -> Tensor:
        return self.show()

    def show(self) -> Tensor:
        first = (self.slot == 0).unsqueeze(-1).to(self.cue.dtype)
        last = (self.slot == self.horizon - 1).unsqueeze(-1).to(self.cue.dtype)
        return torch.stack((first * (2 * self.cue - 1), last.expand_as(self.cue)), dim=-1)

    def begin(self, ends: Tensor) -> None:
        fresh = self.streams.draw("cue").uniform(self.agents).round()
        self.cue = torch.where(ends.unsqueeze(-1), fresh, self.cue)
        self.seen = self.show()

    def reward(self) -> Tensor:
        asked = (self.slot == self.horizon - 1).unsqueeze(-1)
        miss = (self.chosen["number"].clamp(0, 1).squeeze(-1) - self.cue) ** 2
        return torch.where(asked, -miss, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"cue": self.cue.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.cue = state["cue"].clone()
