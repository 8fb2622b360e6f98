"""Layers with orthogonal initial weights, and the stacks built from them."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN_GAIN = math.sqrt(2.0)


class Dense(nn.Linear):
    """A linear layer that knows its initial gain and bias."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        gain: float = HIDDEN_GAIN,
        bias: bool = True,
        bias_value: float = 0.0,
    ) -> None:
        super().__init__(n_in, n_out, bias=bias)
        self.gain = gain
        self.bias_value = bias_value

    def initialise(self, generator: torch.Generator) -> None:
        """Orthogonal weights, constant bias."""
        nn.init.orthogonal_(self.weight, gain=self.gain, generator=generator)
        if self.bias is not None:
            nn.init.constant_(self.bias, self.bias_value)


def initialise(module: nn.Module, seed: int) -> None:
    """Gives every layer of `module` its initial weights, a function of `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    for layer in module.modules():
        if isinstance(layer, Dense):
            layer.initialise(generator)


def mlp(*widths: int) -> nn.Sequential:
    """Dense layers of the given widths with a ReLU after each."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [Dense(n_in, n_out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class GatedMemory(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) that forgets at the start of an episode."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.from_input = Dense(width, 3 * width, gain=1.0)
        self.from_memory = Dense(width, 3 * width, gain=1.0)

    def forward(self, x: Tensor, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Unrolls x `[T, N, A, Z]` from memory `[N, A, Z]`; starts `[T, N]` clears it first."""
        inputs = self.from_input(x)  # [T, N, A, 3Z]
        out = []
        for t in range(x.shape[0]):
            memory = torch.where(starts[t, :, None, None], 0.0, memory)
            update, reset, new = inputs[t].chunk(3, dim=-1)
            update_m, reset_m, new_m = self.from_memory(memory).chunk(3, dim=-1)
            update = torch.sigmoid(update + update_m)
            candidate = torch.tanh(new + torch.sigmoid(reset + reset_m) * new_m)
            memory = update * memory + (1 - update) * candidate
            out.append(memory)
        return torch.stack(out), memory
