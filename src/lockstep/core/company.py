"""The processes that train one run together. One process alone is the rule, and costs nothing.

Each process holds an equal share of every member's lanes, the lanes of process 0 before those of
process 1, and the same weights. What is decided by numbers of all lanes goes through here, so every
process must ask the same questions in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Company:
    """One process by itself: its lanes are all lanes, its sums are the sums.

    The methods say what they give where there are several; here that is what was asked about.
    """

    size: int = 1
    """How many processes there are."""
    index: int = 0
    """Which one this is; the first one, 0, has the run folder and speaks."""

    def device(self, kind: str) -> torch.device:
        """Where this process computes, if all do so on `kind` of device."""
        return torch.device(kind)

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes."""
        return list(tensors)

    def sum(self, x: Tensor) -> Tensor:
        """A tensor summed over the processes."""
        return self.sums([x])[0]

    def max(self, x: Tensor) -> Tensor:
        """The largest of the processes' numbers, element by element."""
        return x

    def pooled(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of all rows, from those of equally many rows in each process."""
        return mean, deviation

    def share(self, x: Tensor, *, dim: int) -> Tensor:
        """This process's lanes of `x`, which has all of a member's lanes at `dim`."""
        lanes = x.shape[dim] // self.size
        return x.narrow(dim, self.index * lanes, lanes)

    def joined(self, x: Tensor, *, dim: int) -> Tensor:  # noqa: ARG002 - there is nothing to join
        """All lanes at `dim`, of which each process has its own in `x`."""
        return x

    def told(self, word: Any) -> Any:
        """The `word` of the first process; what the others give does not matter."""
        return word

    def agreed(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """A question that is answered with yes by all as soon as one process would."""
        return asked

    def gathered(self, thing: Any) -> list[Any]:
        """Every process's `thing`, tensors on the CPU; the first gets them, the others nothing."""
        return [thing]


ALONE = Company()
