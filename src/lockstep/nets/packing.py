"""The pack axis: P copies of one network as one flat tensor, and Adam on it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lockstep.core.actions import write
from lockstep.core.trees import mapped
from lockstep.nets.layers import seeded

_ALIGN = 16  # parameters start on 64-byte boundaries, as matrix kernels like it


class Pack:
    """P members of one network; `weights [P, n]` holds all their parameters.

    The module is written for one member and never sees the member axis. A pack of one calls it
    directly; a larger pack maps it over members, or loops where the module says it is not
    `batchable`.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        seeds: Sequence[int],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        # A decision must be the same when it is rebuilt, so nothing may behave as if in training.
        modules = [seeded(build, seed).to(dtype).eval() for seed in seeds]
        self.module = modules[0]
        _refuse_running_numbers(self.module)
        self._layout: list[tuple[str, torch.Size, int, int]] = []
        for name, parameter in self.module.named_parameters():
            padding = -parameter.numel() % _ALIGN
            self._layout.append((name, parameter.shape, parameter.numel(), padding))
        size = sum(count + padding for _, _, count, padding in self._layout)
        self.weights = torch.zeros(len(seeds), size, dtype=dtype)
        with torch.no_grad():
            for flat, module in zip(self.weights, modules, strict=True):
                for view, parameter in zip(self._split(flat), module.parameters(), strict=True):
                    view.copy_(parameter)
        self.weights = self.weights.to(device).requires_grad_()
        self.module.to(device)  # buffers

    @property
    def members(self) -> int:
        """How many members the pack holds (P)."""
        return self.weights.shape[0]

    def _split(self, flat: Tensor) -> list[Tensor]:
        """One member's parameters as views into its flat weights `[n]`."""
        sizes = [size for _, _, count, padding in self._layout for size in (count, padding)]
        views = flat.split(sizes)[::2]
        return [view.view(layout[1]) for view, layout in zip(views, self._layout, strict=True)]

    def _call(self, flat: Tensor, args: tuple[Any, ...]) -> Any:
        named = {
            layout[0]: view for layout, view in zip(self._layout, self._split(flat), strict=True)
        }
        return functional_call(self.module, named, args)

    def __call__(self, *args: Any) -> Any:
        """Applies every member to its slice of the arguments; tensors lead with P on both sides."""
        if self.members == 1:
            one = self._call(self.weights[0], mapped(args, lambda x: x[0]))
            return mapped(one, lambda x: x.unsqueeze(0))
        if not getattr(self.module, "batchable", True):
            members = [
                self._call(self.weights[p], mapped(args, lambda x, p=p: x[p]))  # type: ignore[misc]
                for p in range(self.members)
            ]
            return _stack(members)
        return vmap(self._call, in_dims=(0, 0))(self.weights, args)


def _refuse_running_numbers(module: nn.Module) -> None:
    """Only parameters are kept by member; what a forward pass would change has no place."""
    parameters = dict(module.named_parameters())
    running = [name for name in module.state_dict() if name not in parameters]
    if running:
        raise ValueError(
            f"a network of a pack must hold no numbers beside its parameters, got {running[0]} "
            f"({len(running)} in all), which every forward pass would change and no member would "
            "own; use GroupNorm or LayerNorm instead of BatchNorm, and constants with "
            "persistent=False"
        )


def _stack(trees: Sequence[Any]) -> Any:
    """Equal nested tuples and dicts of tensors as one, stacked along a new first axis."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.stack(list(trees))
    if isinstance(first, dict):
        return {name: _stack([tree[name] for tree in trees]) for name in first}
    return tuple(_stack(column) for column in zip(*trees, strict=True))


class Adam:
    """Adam (Kingma and Ba 2015) on stacked weights, each member with its own rate and step count.

    Members outside `active` keep weights, moments and step count untouched. Nothing here waits for
    the device, so a step can be captured in a graph.
    """

    def __init__(
        self,
        weights: Tensor,
        *,
        lr: Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.weights, self.lr, self.betas, self.eps = weights, lr, betas, eps
        self.mean = torch.zeros_like(weights, requires_grad=False)
        self.square = torch.zeros_like(weights, requires_grad=False)
        self.steps = torch.zeros_like(lr)  # [P]

    @torch.no_grad()
    def step(self, gradient: Tensor, active: Tensor) -> None:
        """One step along `gradient [P, n]` for the members in `active [P]`."""
        beta_1, beta_2 = self.betas
        take = active.to(gradient.dtype).unsqueeze(-1)  # [P, 1], 0 leaves everything as it is
        gradient = torch.where(active.unsqueeze(-1), gradient, 0.0)
        self.steps += active.to(self.steps.dtype)
        self.mean.addcmul_(gradient - self.mean, take * (1 - beta_1))
        self.square.addcmul_(gradient * gradient - self.square, take * (1 - beta_2))
        steps = self.steps.clamp(min=1)
        rate = (self.lr / (1 - beta_1**steps)).unsqueeze(-1)  # [P, 1]
        scale = torch.rsqrt(1 - beta_2**steps).unsqueeze(-1)  # [P, 1]
        change = self.mean / (self.square.sqrt() * scale + self.eps)
        self.weights.addcmul_(change, -rate * take)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and step counts."""
        return {name: getattr(self, name).clone() for name in ("mean", "square", "steps", "lr")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes them up again in place."""
        for name in ("mean", "square", "steps", "lr"):
            write(getattr(self, name), state[name], f"Adam's {name}")


def clipped_step(optimizer: Adam, gradient: Tensor, limit: Tensor, active: Tensor) -> Tensor:
    """One step along the gradient `[P, n]`, clipped by norm; the gradient's length `[P]` before."""
    clipped, norm = clip_by_norm(gradient, limit)
    optimizer.step(clipped, active)
    return norm


def clip_by_norm(gradient: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient `[P, n]` no longer than `limit [P]` for each member, and its length before."""
    norm = torch.linalg.vector_norm(gradient, dim=-1)  # [P]
    return gradient * (limit / (norm + 1e-6)).clamp(max=1.0).unsqueeze(-1), norm
