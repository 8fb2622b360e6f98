"""Critics of decisions: what they are worth, given what everybody sees and does together."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.nets.layers import Dense, mlp


class TeamCritic(nn.Module):
    """One Q: of the global state vector and the decisions of all agents of all roles."""

    def __init__(self, spec: WorldSpec, *, hidden: int) -> None:
        super().__init__()
        self.names = tuple(role.name for role in spec.roles)
        self.body = mlp(_together(spec), hidden, hidden)
        self.head = Dense(hidden, 1, gain=1.0)

    def forward(
        self,
        state: Tensor,
        action: Mapping[str, Tensor],
        own: Mapping[str, Tensor],  # noqa: ARG002 (no agent is judged by itself)
    ) -> Tensor:
        """State `[B, S]` and each role's decisions `[B, A, U]`, to `[B, 1]`."""
        everything = _everything(state, action, self.names, self.head.weight.dtype)
        value: Tensor = self.head(self.body(everything))
        return value


class OwnCritic(nn.Module):
    """A Q for every agent: of all that, and of what it sees and decides itself.

    Agents of a role share its weights. The first layer reads what is common to all agents once.
    """

    def __init__(self, spec: WorldSpec, *, hidden: int) -> None:
        super().__init__()
        self.names = tuple(role.name for role in spec.roles)
        self.common = Dense(_together(spec), hidden)
        self.own = nn.ModuleList(Dense(_own(role), hidden) for role in spec.roles)
        self.body = nn.ModuleList(mlp(hidden, hidden) for _ in spec.roles)
        self.head = nn.ModuleList(Dense(hidden, 1, gain=1.0) for _ in spec.roles)

    def forward(
        self, state: Tensor, action: Mapping[str, Tensor], own: Mapping[str, Tensor]
    ) -> Tensor:
        """State `[B, S]`, decisions by role `[B, A, U]`, own view and decision `[B, A, O + U]`.

        Returns `[B, Q]`: the agents of the roles in `own`, role by role in the world's order.
        """
        dtype = self.common.weight.dtype
        common = self.common(_everything(state, action, self.names, dtype)).unsqueeze(-2)
        values = []
        for i, name in enumerate(self.names):
            if name in own:
                hidden = torch.relu(common + self.own[i](own[name].to(dtype)))  # [B, A, Z]
                values.append(self.head[i](self.body[i](hidden)).squeeze(-1))
        return torch.cat(values, dim=-1)


def _everything(
    state: Tensor, action: Mapping[str, Tensor], names: tuple[str, ...], dtype: torch.dtype
) -> Tensor:
    parts = (state, *(action[name] for name in names))
    return torch.cat([x.flatten(1).to(dtype) for x in parts], dim=-1)


def _together(spec: WorldSpec) -> int:
    """Numbers in the state and in everybody's decisions."""
    return math.prod(spec.critic["state"].shape) + sum(r.agents * _decided(r) for r in spec.roles)


def _own(role: RoleSpec) -> int:
    """Numbers in what one agent sees and decides."""
    fields = (*role.features.values(), *role.entities.values())
    return sum(math.prod(field.shape) for field in fields) + _decided(role)


def _decided(role: RoleSpec) -> int:
    return sum(part.n for part in role.action.values())
