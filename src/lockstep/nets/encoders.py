"""From an agent's named features to one vector: numbers side by side, pictures by convolutions."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lockstep.core.actions import Field
from lockstep.nets.layers import HIDDEN_GAIN, mlp

_CHANNELS = (16, 32, 64)  # of successive convolutions; the last goes on
_SMALLEST = 6  # a picture is halved until no side is longer


class Conv(nn.Conv2d):
    """A convolution of 3 x 3 that halves both sides, with orthogonal first weights."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, kernel_size=3, stride=2, padding=1)

    def reset_parameters(self) -> None:
        """Draws first weights from torch's global generator, as every module does."""
        nn.init.orthogonal_(self.weight, gain=HIDDEN_GAIN)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class ImageEncoder(nn.Module):
    """A picture `[..., channels, H, W]` as a vector `[..., hidden]`; bytes count as 0 to 1."""

    def __init__(self, shape: tuple[int, int, int], hidden: int) -> None:
        super().__init__()
        channels, *sides = shape
        layers: list[nn.Module] = []
        while max(sides) > _SMALLEST or not layers:
            n_out = _CHANNELS[min(len(layers) // 2, len(_CHANNELS) - 1)]
            layers += [Conv(channels, n_out), nn.ReLU(inplace=True)]
            channels, sides = n_out, [(side + 1) // 2 for side in sides]
        self.body = nn.Sequential(*layers)
        self.head = mlp(channels * math.prod(sides), hidden)

    def forward(self, image: Tensor, dtype: torch.dtype) -> Tensor:
        """Pictures with any leading dims, each by itself."""
        lead = image.shape[:-3]
        flat = image.flatten(0, -4).to(dtype)  # [B, channels, H, W]
        if image.dtype == torch.uint8:
            flat = flat / 255.0
        vector: Tensor = self.head(self.body(flat).flatten(1))  # [B, hidden]
        return vector.view(*lead, -1)


class FeatureEncoder(nn.Module):
    """One vector from several features.

    A feature of three dims (channels, height, width) is a picture; every other is flattened. A
    module with convolutions is not `batchable`: a pack loops over its members.
    """

    def __init__(self, fields: Mapping[str, Field], hidden: int) -> None:
        super().__init__()
        self.names = tuple(fields)
        self.images = nn.ModuleDict()
        width = 0
        for name, field in fields.items():
            if len(field.shape) == 3:
                channels, height, side = field.shape
                self.images[_key(name)] = ImageEncoder((channels, height, side), hidden)
                width += hidden
            else:
                width += math.prod(field.shape)
        self.body = mlp(width, hidden, hidden)

    @property
    def batchable(self) -> bool:
        """Whether members can be mapped over."""
        return len(self.images) == 0

    def forward(self, features: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """Features `[T, N, A, ...]` to `[T, N, A, hidden]`."""
        rows = [
            self.images[_key(name)](features[name], dtype)
            if _key(name) in self.images
            else features[name].to(dtype).unsqueeze(-1).flatten(3)
            for name in self.names
        ]
        encoded: Tensor = self.body(rows[0] if len(rows) == 1 else torch.cat(rows, dim=-1))
        return encoded


def _key(feature: str) -> str:
    """A feature's name as a module's, which may hold no dot and collide with no attribute."""
    return f"feature_{feature.replace('.', '_')}"
