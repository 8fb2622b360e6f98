"""Critics: values of all agents from what the critic may see."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lockstep.core import fused
from lockstep.core.world import WorldSpec
from lockstep.nets.layers import Dense, mlp
from lockstep.nets.products import linear


class AttentionCritic(nn.Module):
    """Every agent's value from its own encoding and what it attends to in the others'.

    One encoder for each role; queries, keys and values of all agents together; an agent does not
    attend to itself. Rows of a role come from the critic input of the role's name.
    """

    def __init__(self, spec: WorldSpec, *, hidden: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.agents = {role.name: role.agents for role in spec.roles}
        self.inputs = tuple(self.agents)
        self.encoders = nn.ModuleDict(
            {
                name: mlp(math.prod(spec.critic[name].shape[1:]), hidden, hidden)
                for name in self.agents
            }
        )
        self.query_key_value = Dense(hidden, 3 * hidden, gain=1.0, bias=False)
        self.from_both = Dense(2 * hidden, hidden)  # what was gathered, then the own encoding
        self.head = Dense(hidden, 1, gain=1.0)
        n_agents = sum(self.agents.values())
        not_self = torch.zeros(n_agents, n_agents).fill_diagonal_(-math.inf)
        self.register_buffer("not_self", not_self, persistent=False)

    def forward(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows `[..., A, D]` of each role to its values `[..., A]`."""
        dtype = self.head.weight.dtype
        encoded = torch.cat(
            [encoder(state[name].to(dtype)) for name, encoder in self.encoders.items()], dim=-2
        )  # [..., agents, hidden]
        lead = encoded.shape[:-2]
        encoded = encoded.flatten(0, -3)  # [B, agents, hidden]
        # The layer on both at once, without writing them side by side first.
        of_others, of_self = self.from_both.weight.chunk(2, dim=-1)
        both = linear(self.attend(encoded), of_others) + linear(
            encoded, of_self, self.from_both.bias
        )
        value = self.head(both.relu_()).squeeze(-1)
        parts = value.unflatten(0, lead).split(list(self.agents.values()), dim=-1)
        return dict(zip(self.agents, parts, strict=True))

    def attend(self, encoded: Tensor) -> Tensor:
        """What each agent gathers from the others: `[B, agents, hidden]`."""
        if encoded.shape[-2] == 1:
            return torch.zeros_like(encoded)  # nobody else is there
        qkv = self.query_key_value(encoded)
        if fused.attends(qkv, self.heads):
            gathered: Tensor = fused.attend(qkv, self.heads)
            return gathered
        qkv = qkv.unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.movedim(-3, 0).transpose(-3, -2).unbind(dim=0)  # [B, heads, agents, d]
        bias = self.get_buffer("not_self").to(q.dtype)
        if self.fused:
            out = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            weight = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias, dim=-1)
            out = weight.to(v.dtype) @ v
        return out.transpose(-3, -2).flatten(-2)  # [B, agents, hidden]


class StateCritic(nn.Module):
    """An MLP on the global state vector with one value for each agent."""

    inputs = ("state",)

    def __init__(self, spec: WorldSpec, *, hidden: int) -> None:
        super().__init__()
        self.agents = {role.name: role.agents for role in spec.roles}
        self.body = mlp(math.prod(spec.critic["state"].shape), hidden, hidden)
        self.head = Dense(hidden, sum(self.agents.values()), gain=1.0)

    def forward(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """State `[..., S]` to the values `[..., A]` of each role."""
        x = state["state"].to(self.head.weight.dtype)
        parts = self.head(self.body(x)).split(list(self.agents.values()), dim=-1)
        return dict(zip(self.agents, parts, strict=True))
