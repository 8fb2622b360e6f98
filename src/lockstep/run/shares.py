"""Lanes that several processes share: their states and reports as those of one process.

Tensors by lane lead with `L = P * N`, member-major; each process holds the same lanes of every
member.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.core.company import Company
from lockstep.core.rollout import Rollout
from lockstep.errors import BadInput, LockstepError
from lockstep.run.checkpoint import state_digest
from lockstep.run.config import TrainConfig


def check(config: TrainConfig, company: Company) -> None:
    """BadInput if the run cannot be shared among so many processes."""
    lanes, size = config.learner.lanes, company.size
    if lanes % size:
        raise BadInput(
            f"learner.lanes ({lanes}) must be divisible by the number of processes ({size}), since "
            f"each holds an equal share of every member's lanes; try {-(-lanes // size) * size} "
            "lanes"
        )
    if config.auto_memory and size > 1:
        raise BadInput(
            f"auto_memory works in one process, got {size}; leave it out and use --accumulate or "
            "more processes"
        )


def reported(rollout: Rollout, company: Company, *, members: int) -> Rollout:
    """The rollout with what metrics and episodes are made of taken from all processes.

    That is ends, world metrics and rewards, the latter as means over a role's agents; every other
    field stays this process's own. All of it travels in one exchange.
    """
    if company.size == 1:
        return rollout
    by_lane = {f"metric/{name}": x for name, x in rollout.metrics.items()}
    by_lane |= {"terminated": rollout.terminated, "truncated": rollout.truncated}
    rewards = {name: rows.reward.double().mean(dim=-1) for name, rows in rollout.roles.items()}
    own = torch.stack([x.double() for x in (*by_lane.values(), *rewards.values())])  # [K, T, L]
    split = own.unflatten(2, (members, -1))  # [K, T, P, N]
    every = company.joined(split, dim=3).flatten(2)
    found = dict(zip((*by_lane, *rewards), every, strict=True))
    return replace(
        rollout,
        lanes=every.shape[2],
        terminated=found["terminated"].bool(),
        truncated=found["truncated"].bool(),
        metrics={name: found[f"metric/{name}"] for name in rollout.metrics},
        roles={
            name: replace(rows, reward=found[name].unsqueeze(-1))
            for name, rows in rollout.roles.items()
        },
    )


def whole_state(
    learner: Mapping[str, Any], lanes: Mapping[str, Any], company: Company, *, members: int
) -> dict[str, Any]:
    """The state `lanes` of all lanes; in processes after the first, of their own.

    All must have the same learner: weights that differ would train on what others sampled.
    """
    if company.size == 1:
        return dict(lanes)
    states = company.gathered((state_digest(learner), lanes))
    if not states:
        return dict(lanes)
    apart = [i for i, (digest, _) in enumerate(states) if digest != states[0][0]]
    if apart:
        raise LockstepError(
            f"process {apart[0]} of {company.size} has other weights or optimizer state than the "
            "first, so what they learn is not one policy; continue from the last checkpoint with "
            "`lockstep resume`"
        )
    joined: dict[str, Any] = _join([state for _, state in states], "collector", members)
    return joined


def own_state(lanes: Mapping[str, Any], company: Company, *, members: int) -> dict[str, Any]:
    """This process's lanes of a state of all lanes."""
    if company.size == 1:
        return dict(lanes)
    own: dict[str, Any] = _cut(lanes, company, members)
    return own


def own_lanes(x: Tensor, company: Company, *, members: int) -> Tensor:
    """This process's rows of `[P * N, ...]`."""
    return company.share(x.unflatten(0, (members, -1)), dim=1).flatten(0, 1)


def _join(parts: Sequence[Any], name: str, members: int) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {
            key: _join([part[key] for part in parts], f"{name}/{key}", members) for key in first
        }
    if isinstance(first, Tensor) and first.ndim:
        if len(first) % members:
            raise ValueError(
                f"{name} must lead with the lanes of {members} members, got shape "
                f"{tuple(first.shape)}"
            )
        return torch.cat([x.unflatten(0, (members, -1)) for x in parts], dim=1).flatten(0, 1)
    return first


def _cut(tree: Any, company: Company, members: int) -> Any:
    if isinstance(tree, Mapping):
        return {key: _cut(value, company, members) for key, value in tree.items()}
    if isinstance(tree, Tensor) and tree.ndim:
        return own_lanes(tree, company, members=members)
    return tree
