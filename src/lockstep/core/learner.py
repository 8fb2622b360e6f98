"""The Learner contract: act, value, update, and what an update reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lockstep.core.actions import Action, Observation
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams
from lockstep.core.world import Views, WorldSpec


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the agents of one role chose, and how likely it was."""

    action: Action  # part -> [L, A, ...]
    log_prob: Tensor  # [L, A]
    entropy: Tensor  # [L, A]
    memory: Tensor  # [L, A, Z] after this step; Z = 0 for policies that remember nothing


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """What one update did, by member: metric key (`train/mu/approx_kl`) to `[P]`.

    Losses, KL, clip fraction and gradient norms are means over the minibatches a member took part
    in; `train/<role>/explained_variance` is of the values the rollout was collected with.
    """

    scalars: Mapping[str, Tensor]


@runtime_checkable
class Learner(Protocol):
    """P members that learn side by side; lanes are member-major, `L = P * N`."""

    spec: WorldSpec
    members: int
    device: torch.device
    version: Tensor  # [] int64: updates done, as the audit expects to find it in the rows

    def rollout(self) -> Rollout:
        """Storage of the shape this learner trains on."""

    def memory(self, role: str) -> Tensor:
        """What the agents of `role` remember before their first step: zeros `[L, A, Z]`."""

    def act(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        streams: Streams,
        *,
        deterministic: bool = False,
    ) -> Decision:
        """Decides for every agent of `role`; `starts [L]` marks lanes whose episode is new."""

    def value(self, state: Views) -> dict[str, Tensor]:
        """Role to values `[L, A]` for inputs `[L, ...]`, or `[T, L, A]` for a rollout's."""

    def member(self, index: int) -> "Learner":
        """One member as a learner of its own, with copies of its weights."""

    def update(self, rollout: Rollout) -> UpdateStats:
        """Learns from a full rollout."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normalisers and counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes them up again."""


@runtime_checkable
class Pupil(Learner, Protocol):
    """A learner that can be shown decisions of somebody else and learn to make the same ones."""

    def judge(
        self,
        role: str,
        observation: Observation,
        memory: Tensor,
        starts: Tensor,
        action: Action,
    ) -> Decision:
        """`action` as if the agents of `role` had chosen it, with its log-prob under the policy."""
