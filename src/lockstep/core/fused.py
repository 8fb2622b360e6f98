"""Whether and how a GPU's own kernels take over from formulas of tensor operations.

Each function here is an operator of torch, so that compilers, graphs, gradients and the member axis
know what to do with it. Callers ask `fits` and fall back on their plain form.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

_MOST_AGENTS = 128  # their products must fit into one program
_LEAST_WIDTH = 16  # of a head: the narrowest product of matrices
_MOST_FEATURES = 64  # of an entity row, which one program keeps whole

_TRITON = importlib.util.find_spec("triton") is not None
_on = True


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Lets the kernels take over, or not, where they could."""
    global _on  # noqa: PLW0603 - a switch like those of torch.backends
    before, _on = _on, on
    try:
        yield
    finally:
        _on = before


def allowed() -> bool:
    """Whether other kernels than those that torch takes by itself may take over."""
    return _on


def fits(x: Tensor) -> bool:
    """Whether the kernels take over for `x`."""
    return _on and _TRITON and x.is_cuda and x.dtype != torch.float64


def attends(qkv: Tensor, heads: int) -> bool:
    """Whether the kernel for self-attention takes over for `qkv [B, A, 3 * Z]`."""
    width = qkv.shape[-1] // (3 * heads)
    fine = width >= _LEAST_WIDTH and width & (width - 1) == 0  # a power of two
    return fits(qkv) and qkv.dtype == torch.bfloat16 and fine and qkv.shape[-2] <= _MOST_AGENTS


def scores(rows: Tensor) -> bool:
    """Whether the kernel for scores of entity rows takes over for `rows [..., F]`."""
    fine = rows.dtype == torch.float32 and rows.shape[-1] <= _MOST_FEATURES
    return fits(rows) and fine and not rows.requires_grad and torch.is_autocast_enabled("cuda")


@custom_op("lockstep::lane_bases", mutates_args=())
def lane_bases(key: Tensor, step: Tensor, offset: int) -> Tensor:
    """Where the draws of one purpose begin in each lane `[L]`; see `streams.Streams`."""
    from lockstep.core import kernels

    return kernels.lane_bases(key, step, offset)


@lane_bases.register_fake
def _(key: Tensor, step: Tensor, offset: int) -> Tensor:  # noqa: ARG001 (its form)
    return torch.empty_like(key)


@custom_op("lockstep::draw", mutates_args=())
def draw(base: Tensor, n: int, first: int, normal: bool) -> Tensor:
    """Uniform or normal numbers `[L, n]` of lanes with bases `[L]`; see `streams.Draw`."""
    from lockstep.core import kernels

    return kernels.draw(base, n, first, normal)


@draw.register_fake
def _(base: Tensor, n: int, first: int, normal: bool) -> Tensor:  # noqa: ARG001 (its form)
    return base.new_empty(base.shape[0], n, dtype=torch.float32)


@custom_op("lockstep::draw_beta", mutates_args=())
def draw_beta(base: Tensor, alpha: Tensor, beta: Tensor, first: int) -> Tensor:
    """Beta numbers `[L, n]` for parameters `[L, n]`; see `streams.Draw`."""
    from lockstep.core import kernels

    return kernels.draw_beta(base, alpha.contiguous(), beta.contiguous(), first)


@draw_beta.register_fake
def _(base: Tensor, alpha: Tensor, beta: Tensor, first: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(alpha, memory_format=torch.contiguous_format)


@custom_op("lockstep::beta_density", mutates_args=())
def beta_density(alpha: Tensor, beta: Tensor, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density and entropy `[rows]` of Beta numbers `[rows, n]`, summed over them."""
    from lockstep.core import kernels

    return kernels.density(alpha.contiguous(), beta.contiguous(), x.contiguous(), table)


@beta_density.register_fake
def _(alpha: Tensor, beta: Tensor, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return alpha.new_empty(alpha.shape[0]), alpha.new_empty(alpha.shape[0])


@custom_op("lockstep::beta_score", mutates_args=())
def _beta_score(
    alpha: Tensor, beta: Tensor, x: Tensor, to_log_prob: Tensor, to_entropy: Tensor, table: Tensor
) -> tuple[Tensor, Tensor]:
    from lockstep.core import kernels

    alpha, beta, x = alpha.contiguous(), beta.contiguous(), x.contiguous()
    return kernels.score(alpha, beta, x, to_log_prob.contiguous(), to_entropy.contiguous(), table)


@_beta_score.register_fake
def _(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    x = inputs[2]
    return torch.empty_like(x), torch.empty_like(x)


def _keep_density(ctx: Any, inputs: Sequence[Tensor], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _back_density(ctx: Any, to_log_prob: Tensor, to_entropy: Tensor) -> tuple[Any, ...]:
    alpha, beta, x, table = ctx.saved_tensors
    return (*_beta_score(alpha, beta, x, to_log_prob, to_entropy, table), None, None)


beta_density.register_autograd(_back_density, setup_context=_keep_density)


@custom_op("lockstep::attend", mutates_args=())
def attend(qkv: Tensor, heads: int) -> Tensor:
    """`[B, A, Z]` that each agent gathers from the others, of their `qkv [B, A, 3 * Z]`."""
    from lockstep.core import kernels

    return kernels.attend(qkv.contiguous(), heads)


@attend.register_fake
def _(qkv: Tensor, heads: int) -> Tensor:  # noqa: ARG001
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@custom_op("lockstep::attend_back", mutates_args=())
def _attend_back(qkv: Tensor, grad: Tensor, heads: int) -> Tensor:
    from lockstep.core import kernels

    return kernels.attend_back(qkv.contiguous(), grad.contiguous(), heads)


@_attend_back.register_fake
def _(qkv: Tensor, grad: Tensor, heads: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep_attend(ctx: Any, inputs: tuple[Tensor, int], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0])
    ctx.heads = inputs[1]


def _back_attend(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _attend_back(ctx.saved_tensors[0], grad, ctx.heads), None


attend.register_autograd(_back_attend, setup_context=_keep_attend)


@attend.register_vmap
def _(info: Any, in_dims: tuple[int | None, None], qkv: Tensor, heads: int) -> tuple[Tensor, int]:
    members = qkv.movedim(in_dims[0] or 0, 0)  # [P, B, A, 3 * Z]
    out = attend(members.flatten(0, 1), heads)
    return out.unflatten(0, (info.batch_size, -1)), 0


@custom_op("lockstep::score_rows", mutates_args=())
def score_rows(rows: Tensor, weights: Tensor, width: int, numbers: int) -> Tensor:
    """What three layers make of rows `[P, M, F]`, in bf16: `[P, M, numbers]`.

    Two layers of `width` with a ReLU after each, then `numbers`. `weights [P, n]` are each member's
    layers one after the other: the weights, row by row, then the biases. What is between the
    layers is never written down, and worked out anew for the gradient.
    """
    from lockstep.core import kernels

    return kernels.score_rows(rows.contiguous(), weights.contiguous(), width, numbers)


@score_rows.register_fake
def _(rows: Tensor, weights: Tensor, width: int, numbers: int) -> Tensor:  # noqa: ARG001
    return rows.new_empty(rows.shape[0], rows.shape[1], numbers, dtype=torch.bfloat16)


@custom_op("lockstep::score_rows_back", mutates_args=())
def _score_rows_back(rows: Tensor, weights: Tensor, grad: Tensor, width: int) -> Tensor:
    from lockstep.core import kernels

    given = rows.contiguous(), weights.contiguous(), grad.contiguous()
    return kernels.score_rows_back(*given, width)


@_score_rows_back.register_fake
def _(rows: Tensor, weights: Tensor, grad: Tensor, width: int) -> Tensor:  # noqa: ARG001
    return torch.empty_like(weights, memory_format=torch.contiguous_format)


def _keep_rows(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Any) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:2])
    ctx.width = inputs[2]


def _back_rows(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
    return None, _score_rows_back(*ctx.saved_tensors, grad, ctx.width), None, None


score_rows.register_autograd(_back_rows, setup_context=_keep_rows)


@score_rows.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], rows: Tensor, weights: Tensor, *sizes: int
) -> tuple[Tensor, int]:
    def members(x: Tensor, dim: int | None) -> Tensor:
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        return x.expand(info.batch_size, *x.shape[1:]).flatten(0, 1)

    out = score_rows(members(rows, in_dims[0]), members(weights, in_dims[1]), *sizes)
    return out.unflatten(0, (info.batch_size, -1)), 0
