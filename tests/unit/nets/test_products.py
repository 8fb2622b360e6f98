"""Products by oneDNN are those of torch, with their gradients, alone, mapped and compiled."""

import time

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from lockstep.core import fused
from lockstep.nets import products

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)


@pytest.fixture(autouse=True)
def taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor and for small products too."""
    monkeypatch.setattr(products, "_FASTER", True)
    monkeypatch.setattr(products, "_LEAST", 1)


def layer(n_in: int, n_out: int, *lead: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n_in + n_out)
    shapes = ((*lead, n_in), (*lead[:-1], n_out, n_in), (*lead[:-1], n_out))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def with_gradients(function, *inputs: Tensor) -> list[Tensor]:
    out = function(*inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


@pytest.mark.parametrize(("n_in", "n_out"), [(5, 33), (33, 5), (1, 1), (8, 8)])
def test_a_product_and_its_gradients_are_those_of_torch(n_in: int, n_out: int) -> None:
    inputs = layer(n_in, n_out, 7)
    ours = with_gradients(products.linear, *inputs)
    torch.testing.assert_close(ours, with_gradients(functional.linear, *inputs))


def test_leading_dims_stay_and_a_bias_may_be_absent() -> None:
    x, weight, _ = layer(5, 6, 4)
    x = x.expand(2, 3, 4, 5)
    torch.testing.assert_close(products.linear(x, weight), functional.linear(x, weight))


def test_a_part_of_a_weight_will_do() -> None:
    x, weight, _ = layer(8, 6, 4)
    left, right = x.chunk(2, dim=-1), weight.chunk(2, dim=-1)
    both = products.linear(left[0], right[0]) + products.linear(left[1], right[1])
    torch.testing.assert_close(both, functional.linear(x, weight))


LAYOUTS = {
    "rows apart": lambda x: functional.pad(x, (0, 3))[:, :-3],
    "columns apart": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "turned, columns apart": lambda x: functional.pad(x.mT, (0, 3))[:, :-3].mT,
    "turned": lambda x: x.mT.contiguous().mT,
    "one row for all": lambda x: x[:1].expand_as(x),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_falls_to_a_slow_reference(name: str) -> None:
    x, weight, bias = (leaf.detach() for leaf in layer(128, 128, 500))

    def seconds(*inputs: Tensor) -> float:
        products._linear(*inputs)  # what is prepared once a shape
        start = time.process_time()
        for _ in range(3):
            products._outer(products._linear(*inputs), inputs[0])
        return time.process_time() - start

    other = LAYOUTS[name]
    for inputs in (
        (other(x), weight, bias),
        (x, other(weight), bias),
        (other(x), other(weight), bias),
    ):
        torch.testing.assert_close(products.linear(*inputs), functional.linear(*inputs))
        assert seconds(*inputs) < 20 * seconds(x, weight, bias)


@pytest.mark.parametrize("shared", [False, True])
def test_members_are_mapped_over_with_their_gradients(shared: bool) -> None:
    x, weight, bias = layer(5, 9, 3, 7)
    inputs = (x[0].detach().requires_grad_() if shared else x, weight, bias)

    def mapped(function):
        return vmap(function, in_dims=(None if shared else 0, 0, 0))

    ours = with_gradients(mapped(products.linear), *inputs)
    torch.testing.assert_close(ours, with_gradients(mapped(functional.linear), *inputs))


def test_a_compiled_product_is_the_plain_one() -> None:
    inputs = layer(5, 9, 7)

    def program(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return products.linear(x, weight, bias).relu()

    traced = torch.compile(program, backend="aot_eager", fullgraph=True)
    ours = with_gradients(traced, *inputs)
    torch.testing.assert_close(ours, with_gradients(program, *inputs))


def test_gradients_have_gradients() -> None:
    x, weight, bias = layer(3, 4, 2)

    def slope(function) -> Tensor:
        (to_x,) = torch.autograd.grad(
            function(x, weight, bias).square().sum(), x, create_graph=True
        )
        (found,) = torch.autograd.grad(to_x.square().sum(), weight)
        return found

    torch.testing.assert_close(slope(products.linear), slope(functional.linear))


def test_what_it_is_not_made_for_goes_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*inputs: Tensor) -> Tensor:
        raise AssertionError(inputs)

    monkeypatch.setattr(products, "_linear", refuse)
    x, weight, bias = layer(5, 6, 4)
    products.linear(x[0], weight, bias)  # a vector
    products.linear(x.double(), weight.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        products.linear(x, weight, bias)
    with fused.switched(on=False):
        products.linear(x, weight, bias)
    monkeypatch.setattr(products, "_LEAST", 4 * 5 * 6 + 1)
    products.linear(x, weight, bias)
