"""Nested tuples and dicts of tensors, changed leaf by leaf."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def mapped(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with `change` applied to every tensor."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: mapped(value, change) for name, value in tree.items()}
    return tuple(mapped(value, change) for value in tree)
