"""A critic of decisions: one number for what everybody sees and does together."""

import math

import torch
from torch import Tensor, nn

from lockstep.core.world import WorldSpec
from lockstep.nets.layers import Dense, mlp


class JointCritic(nn.Module):
    """Q of the global state vector and the actions of all agents of all roles."""

    inputs = ("state",)

    def __init__(self, spec: WorldSpec, *, hidden: int) -> None:
        super().__init__()
        state = math.prod(spec.critic["state"].shape)
        acts = sum(role.agents * part.n for role in spec.roles for part in role.action.values())
        self.body = mlp(state + acts, hidden, hidden)
        self.head = Dense(hidden, 1, gain=1.0)

    def forward(self, state: Tensor, action: tuple[Tensor, ...]) -> Tensor:
        """State `[B, S]` and each role's actions `[B, A, U]`, in the roles' order, to `[B]`."""
        seen = state.flatten(1).to(self.head.weight.dtype)
        everything = torch.cat((seen, *(x.flatten(1) for x in action)), dim=-1)
        value: Tensor = self.head(self.body(everything)).squeeze(-1)
        return value
