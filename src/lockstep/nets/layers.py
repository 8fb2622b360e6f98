"""Layers with orthogonal initial weights, and the stacks built from them."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from lockstep.nets.products import linear

HIDDEN_GAIN = math.sqrt(2.0)


class Dense(nn.Linear):
    """A linear layer with orthogonal first weights of the given gain and a constant bias."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        gain: float = HIDDEN_GAIN,
        bias: bool = True,
        bias_value: float = 0.0,
    ) -> None:
        self.gain, self.bias_value = gain, bias_value  # read by the constructor's reset
        super().__init__(n_in, n_out, bias=bias)

    def reset_parameters(self) -> None:
        """Draws first weights from torch's global generator, as every module does."""
        nn.init.orthogonal_(self.weight, gain=self.gain)
        if self.bias is not None:
            nn.init.constant_(self.bias, self.bias_value)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers `[..., n_in]` to `[..., n_out]`."""
        return linear(x, self.weight, self.bias)


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A new module, its first weights a function of `seed`; the global generator is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


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
