"""Large products of layers on a CPU, by the faster of the two libraries that PyTorch brings.

PyTorch leaves float32 products to MKL, which uses half the width of AVX-512 registers on
processors of AMD: oneDNN makes 1.3 to 1.9 times its rate on one core of an EPYC
(docs/benchmarks.md). Both are IEEE float32; they differ in the order in which they add up.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op
from torch.nn import functional

from lockstep.core import fused

_LEAST = 2**22  # multiplications of a product that are worth 10 microseconds more of calling


def _faster() -> bool:
    """Whether this is a processor on which oneDNN was measured to be faster."""
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    amd = str(known.get("cpu_name", "")).startswith("AMD")
    return amd and bool(known.get("avx512_f")) and torch.backends.mkldnn.is_available()


_FASTER = _faster()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: x `[..., k]` by weight `[n, k]` to `[..., n]`."""
    if not _fits(x, weight):
        return functional.linear(x, weight, bias)
    product: Tensor = _linear(x.flatten(0, -2), weight, bias)
    return product.view(*x.shape[:-1], -1)


def _fits(x: Tensor, weight: Tensor) -> bool:
    plain = x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    large = x.ndim > 1 and x.numel() * weight.shape[0] >= _LEAST
    return _FASTER and large and plain and not x.is_cuda and fused.allowed()


@custom_op("lockstep::linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Takes x `[B, k]` by weight `[n, k]`, laid out in any way, to `[B, n]`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, _dense(weight), bias, "none", [], "")
    return product


def _dense(weight: Tensor) -> Tensor:
    """The weight without gaps: oneDNN takes others to a reference that is 1,000 times slower."""
    dense = weight.is_contiguous() or weight.mT.is_contiguous()
    return weight if dense else weight.contiguous()


@_linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ARG001 (its form)
    return x.new_empty(x.shape[0], weight.shape[0])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Any) -> None:  # noqa: ARG001
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    to_x, to_weight, to_bias = ctx.needs_input_grad
    return (
        _linear(grad, weight.mT, None) if to_x else None,
        _outer(grad, x) if to_weight else None,
        grad.sum(dim=0) if to_bias and ctx.biased else None,
    )


def _outer(grad: Tensor, x: Tensor) -> Tensor:
    """`grad.mT @ x`; the operator writes its first operand out anew, so that is the smaller one."""
    narrow = grad.shape[1] <= x.shape[1]
    product: Tensor = _linear(grad.mT, x.mT, None) if narrow else _linear(x.mT, grad.mT, None).mT
    return product


_linear.register_autograd(_back, setup_context=_keep)


@_linear.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor | None) -> tuple[Tensor, int]:
    """One product for each member."""

    def members(x: Tensor | None, dim: int | None) -> Sequence[Tensor | None]:
        return [x] * info.batch_size if x is None or dim is None else x.unbind(dim)

    columns = [members(x, dim) for x, dim in zip(inputs, in_dims, strict=True)]
    return torch.stack([_linear(*of_member) for of_member in zip(*columns, strict=True)]), 0
