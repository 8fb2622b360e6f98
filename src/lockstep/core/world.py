"""The World contract: what a simulation states about itself and how it is stepped."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from lockstep.core.actions import Action, ActionSpec, Candidates, Field, Observation, Picks

CriticInput: TypeAlias = dict[str, Tensor]
"""Name to `[L, ...]`: what the critic may look at."""
Views: TypeAlias = dict[str, CriticInput]
"""View (see WorldSpec.views) to what the critic may look at there."""
Over: TypeAlias = Literal["mean", "last", "max", "min", "sum"]
"""How the steps of an episode become one number."""


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """A kind of agent: `agents` of them share shapes and one policy."""

    name: str
    agents: int
    features: Mapping[str, Field]
    action: ActionSpec
    discount: float
    entities: Mapping[str, Field] = field(default_factory=dict)  # set -> (E, F)

    def __post_init__(self) -> None:
        for name, part in self.action.items():
            if part.rows is None:
                continue
            if part.rows.over not in self.entities:
                raise ValueError(
                    f"action part {name} of role {self.name} is tied to the entity set "
                    f"{part.rows.over}, which must be one of {sorted(self.entities)}"
                )
            size = part.rows.size(self.entities[part.rows.over].shape[0])
            if size != part.n:
                raise ValueError(f"action part {name} must have {size} entries, got {part.n}")
            if isinstance(part, Candidates | Picks):
                self._check_rows(part)

    def _check_rows(self, part: Candidates | Picks) -> None:
        """Features that describe candidate rows have the shapes and types their readers expect."""
        over, C = part.over, self.entities[part.over].shape[0]
        resource = self.features.get(f"{over}/resource", Field(shape=()))
        fields = {
            f"{over}/id": Field(shape=(C,), dtype=torch.int64),
            f"{over}/resource": Field(shape=(C, *(resource.shape[1:2] or (1,))), dtype=torch.int64),
            f"{over}/cost": Field(shape=(C,)),
            f"{over}/budget": Field(shape=()),
        }
        for name, wanted in fields.items():
            given = self.features.get(name, wanted)
            if given != wanted:
                raise ValueError(
                    f"feature {name} of role {self.name} must be {wanted.dtype} of shape "
                    f"{wanted.shape}, got {given.dtype} of shape {given.shape}"
                )
        if (f"{over}/cost" in self.features) != (f"{over}/budget" in self.features):
            raise ValueError(
                f"features {over}/cost and {over}/budget of role {self.name} must come together"
            )

    @property
    def encoded(self) -> tuple[str, ...]:
        """The features a policy encodes: all but those named `<entity set>/...`.

        Those describe rows of the set (resources, costs, ids): data of the choice, not of the
        agent.
        """
        return tuple(name for name in self.features if name.split("/")[0] not in self.entities)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number the world reports for each lane and step."""

    name: str
    unit: str
    meaning: str
    better: Literal["lower", "higher", "none"] = "none"
    """Which way is better; the objective must say."""
    over: Over = "mean"
    """What the metric is of a lane's whole episode, given its numbers at each step."""


@dataclass(frozen=True, kw_only=True)
class WorldSpec:
    """Everything a learner may know of a world."""

    name: str
    roles: tuple[RoleSpec, ...]
    phases: tuple[tuple[str, ...], ...]
    critic: Mapping[str, Field]
    horizon: int
    metrics: tuple[Metric, ...]
    objective: str
    """The metric by which members are compared; its `better` says which way."""
    critic_at: Literal["step", "phase"] = "step"
    every_step: bool = True
    """Whether each agent decides at each step and a step lasts one unit of world time."""
    truncates: bool = False
    capturable: bool = False
    settable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [role.name for role in self.roles]
        acting = [name for phase in self.phases for name in phase]
        if sorted(names) != sorted(acting):
            raise ValueError(f"phases must name each of {names} once, got {acting}")
        if self.objective not in {metric.name for metric in self.metrics}:
            raise ValueError(f"objective must be one of the metrics, got {self.objective!r}")
        if self.metric(self.objective).better == "none":
            raise ValueError(
                f"the objective {self.objective} must say which way is better: set "
                "better='lower' or better='higher' in its Metric"
            )

    @property
    def views(self) -> tuple[str, ...]:
        """Who the critic looks for: everybody at once (`all`), or each role at its own phase."""
        if self.critic_at == "step":
            return ("all",)
        return tuple(role.name for role in self.roles)

    def role(self, name: str) -> RoleSpec:
        """The role called `name`."""
        return next(role for role in self.roles if role.name == name)

    def metric(self, name: str) -> Metric:
        """The metric called `name`."""
        return next(metric for metric in self.metrics if metric.name == name)

    @property
    def objective_sign(self) -> int:
        """1 where a smaller objective is better, -1 where a larger is.

        Times the objective it gives a number whose least is best.
        """
        return -1 if self.metric(self.objective).better == "higher" else 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one advance caused, before and after any reset."""

    reward: Mapping[str, Tensor]  # role -> [L, A]
    terminated: Tensor  # [L] bool
    truncated: Tensor  # [L] bool
    elapsed: Tensor  # [L] world time
    metrics: Mapping[str, Tensor]  # name -> [L]
    final: CriticInput  # critic input before the reset; read where truncated


@runtime_checkable
class World(Protocol):
    """L independent copies of one simulation that step together on one device.

    One step: for each phase, `observe` and `act` for each of its roles; then `advance`. `act` only
    records; effects apply when the phase's last role has acted. Ended lanes are reset inside
    `advance`, so the next `observe` is of a running episode.
    """

    spec: WorldSpec
    lanes: int
    device: torch.device

    def reset(self, keys: Tensor) -> None:
        """Starts every lane afresh from its stream key `[L]` (int64, see core.streams)."""

    def observe(self, role: str) -> Observation:
        """What the agents of `role` see now."""

    def act(self, role: str, action: Action) -> None:
        """Records the decisions of `role`."""

    def advance(self) -> Step:
        """Moves every lane by one step and resets those that ended."""

    def state(self, role: str) -> CriticInput:
        """The critic's input for `role`, as its decisions of this step begin.

        With `critic_at="step"` it is the same for every role.
        """

    def set(self, name: str, value: Tensor) -> None:
        """Changes the scenario number `name` (one of `spec.settable`) to `value` `[L]`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the world's future."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up a saved future."""

    def frame(self, lane: int) -> Any:
        """What a picture of one lane needs; the world's `render` module draws it."""
