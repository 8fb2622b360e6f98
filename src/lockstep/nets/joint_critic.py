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
        self.body = mlp(_n_together(spec), hidden, hidden)
        self.head = Dense(hidden, 1, gain=1.0)

    def forward(self, state: Tensor, action: Mapping[str, Tensor]) -> Tensor:
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
        self.common = Dense(_n_together(spec), hidden)
        self.own = nn.ModuleList(Dense(_n_own(role), hidden) for role in spec.roles)
        self.body = nn.ModuleList(mlp(hidden, hidden) for _ in spec.roles)
        self.head = nn.ModuleList(Dense(hidden, 1, gain=1.0) for _ in spec.roles)

    def forward(
        self,
        state: Tensor,
        action: Mapping[str, Tensor],
        seen: Mapping[str, Tensor],
        instead: Mapping[str, Tensor],
    ) -> Tensor:
        """State `[B, S]`, each role's decisions `[B, A, U]`, what agents of some roles see.

        Returns `[B, Q]`: those agents, role by role in the world's order. Of roles with decisions
        `instead` each agent is judged as if it alone had decided so.
        """
        dtype = self.common.weight.dtype
        common = self.common(_everything(state, action, self.names, dtype)).unsqueeze(-2)
        place, values = state.flatten(1).shape[-1], []
        for i, name in enumerate(self.names):
            did = action[name].to(dtype)
            A, U = did.shape[-2:]
            if name in seen:
                does = instead.get(name, did)
                hidden = common + self.own[i](torch.cat((seen[name].to(dtype), does), dim=-1))
                if name in instead:  # what the common part makes of an agent's own decision
                    weight = self.common.weight[:, place : place + A * U].unflatten(1, (A, U))
                    hidden = hidden + torch.einsum("bau,zau->baz", does - did, weight)
                values.append(self.head[i](self.body[i](torch.relu(hidden))).squeeze(-1))
            place += A * U
        return torch.cat(values, dim=-1)


def _everything(
    state: Tensor, action: Mapping[str, Tensor], names: tuple[str, ...], dtype: torch.dtype
) -> Tensor:
    parts = (state, *(action[name] for name in names))
    return torch.cat([x.flatten(1).to(dtype) for x in parts], dim=-1)


def _n_together(spec: WorldSpec) -> int:
    """Numbers in the state and in everybody's decisions."""
    return math.prod(spec.critic["state"].shape) + sum(r.agents * _n_decided(r) for r in spec.roles)


def _n_own(role: RoleSpec) -> int:
    """Numbers in what one agent sees and decides."""
    fields = (*role.features.values(), *role.entities.values())
    return sum(math.prod(field.shape) for field in fields) + _n_decided(role)


def _n_decided(role: RoleSpec) -> int:
    return sum(part.n for part in role.action.values())
