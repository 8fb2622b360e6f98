"""Preallocated storage of T steps x L lanes: everything needed to rebuild each decision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.actions import Action, Field, Observation
from lockstep.core.world import RoleSpec, Views, WorldSpec


@dataclass(frozen=True, kw_only=True)
class RoleRows:
    """The rows of one role. Row t is one transition: a decision and what it caused."""

    obs: Observation  # [T, L, A, ...]
    action: Action  # part -> [T, L, A, ...]
    log_prob: Tensor  # [T, L, A]
    entropy: Tensor  # [T, L, A]
    value: Tensor  # [T, L, A]
    fingerprint: Tensor  # [T, L, A] int64, of the observation when it was acted on
    reward: Tensor  # [T, L, A]
    next_value: Tensor  # [T, L, A] of the state before any reset


@dataclass(kw_only=True)
class Rollout:
    """T steps x L lanes, written in place and read as views. There is no `done`."""

    steps: int
    lanes: int
    roles: dict[str, RoleRows]
    critic: Views  # view -> name -> [T, L, ...]
    final: Views  # the same before resets; empty unless the world truncates
    terminated: Tensor  # [T, L] bool
    truncated: Tensor  # [T, L] bool
    elapsed: Tensor  # [T, L]
    clock: Tensor  # [T, L] int64: the lane's step counter, which never restarts
    version: Tensor  # [T] int64: how many updates the acting weights had seen
    starts: Tensor  # [T, L] bool: whether this row is the first of an episode
    memory: dict[str, Tensor]  # role -> [L, A, Z] before row 0; empty for feed-forward nets
    metrics: dict[str, Tensor]  # name -> [T, L]
    scripted: bool = False
    """Whether somebody else made these decisions, and the learner was only asked what it thinks of
    them."""
    written: int = 0

    def next_row(self) -> int:
        """The row to write now; a full rollout refuses."""
        if self.written >= self.steps:
            raise IndexError(
                f"rollout overflow: all {self.steps} rows are written; "
                "call reset() after the update, before collecting again"
            )
        self.written += 1
        return self.written - 1

    def reset(self) -> None:
        """Makes every row writable again; nothing is cleared."""
        self.written = 0

    @property
    def full(self) -> bool:
        """Whether every row has been written since the last reset."""
        return self.written == self.steps


def allocate(
    spec: WorldSpec,
    *,
    steps: int,
    lanes: int,
    device: torch.device | str = "cpu",
    critic: tuple[str, ...] | None = None,
    memory: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Rollout:
    """Storage for `steps` of `lanes` lanes; `critic` names the critic inputs worth keeping."""

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(steps, lanes, *shape, dtype=dtype, device=device)

    def stored(fields: dict[str, Field]) -> dict[str, Tensor]:
        return {name: zeros(*f.shape, dtype=f.dtype) for name, f in fields.items()}

    kept = {name: spec.critic[name] for name in (spec.critic if critic is None else critic)}
    return Rollout(
        steps=steps,
        lanes=lanes,
        roles={role.name: _role_rows(role, zeros) for role in spec.roles},
        critic={view: stored(kept) for view in spec.views},
        final={view: stored(kept) for view in spec.views} if spec.truncates else {},
        terminated=zeros(dtype=torch.bool),
        truncated=zeros(dtype=torch.bool),
        elapsed=zeros(),
        clock=zeros(dtype=torch.int64),
        version=torch.zeros(steps, dtype=torch.int64, device=device),
        starts=zeros(dtype=torch.bool),
        memory={
            name: torch.zeros(lanes, spec.role(name).agents, size, dtype=dtype, device=device)
            for name, size in (memory or {}).items()
        },
        metrics={metric.name: zeros() for metric in spec.metrics},
    )


def _role_rows(role: RoleSpec, zeros: Callable[..., Tensor]) -> RoleRows:
    A = role.agents

    def stored(fields: Mapping[str, Field]) -> dict[str, Tensor]:
        return {name: zeros(A, *f.shape, dtype=f.dtype) for name, f in fields.items()}

    return RoleRows(
        obs=Observation(
            features=stored(role.features),
            acts=zeros(A, dtype=torch.bool),
            entities=stored(role.entities),
            legal={
                name: zeros(A, part.n, dtype=torch.bool)
                for name, part in role.action.items()
                if part.masked
            },
        ),
        action={
            name: zeros(A, *part.field.shape, dtype=part.field.dtype)
            if part.field.dtype == torch.int64
            else zeros(A, *part.field.shape)
            for name, part in role.action.items()
        },
        log_prob=zeros(A),
        entropy=zeros(A),
        value=zeros(A),
        fingerprint=zeros(A, dtype=torch.int64),
        reward=zeros(A),
        next_value=zeros(A),
    )
