"""Whether a fast path computes what the plain one computes, asked before anything is timed."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import LockstepError
from lockstep.run.ledger import Equality
from lockstep.run.trainer import Trainer

TOLERANCE = 1e-5
"""Largest gap that is still rounding, in fp32 and relative to 1 + the norm of a tensor."""
TRIES = 3
"""A draw on the edge between two choices may fall either way by rounding alone, and then two
histories part for good. That is rare; a wrong path is apart every time."""


def compare(chosen: Trainer) -> Equality:
    """Updates `chosen` and a plain copy of it from equal state, and measures how far they part.

    Up to three times, until they agree. Where they never do, LockstepError says by how much.
    """
    plain = Trainer(replace(chosen.config, compile="off", graphs=False, kernels=False))
    gaps: list[float] = []
    while len(gaps) < TRIES:
        plain.load_state_dict(chosen.state_dict(), updates=chosen.updates)
        for trainer in (plain, chosen):
            trainer.update()
        gap, where = widest(plain.state_dict(), chosen.state_dict())
        gaps.append(gap)
        if gap <= TOLERANCE:
            return Equality(tolerance=TOLERANCE, gaps=tuple(gaps), where=where)
    raise LockstepError(
        f"this path and the plain one must agree to {TOLERANCE:g} after one update from equal "
        f"state, but in {TRIES} tries of {TRIES} they do not (last gap {gap:.1e}, in {where}), so "
        "nothing was timed; use --compile off, and on a GPU --no-graphs --no-kernels"
    )


def widest(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[float, str]:
    """The largest gap between tensors of two nested states, and its place.

    A gap is the norm of the difference over 1 + the norm of the first: single weights whose
    gradient is all rounding move by whole steps of Adam, either way, and mean nothing.
    """
    others = dict(_leaves(other, ""))
    gaps = {place: _gap(x, others[place]) for place, x in _leaves(one, "")}
    where = max(gaps, key=lambda place: gaps[place])
    return gaps[where], where


def _gap(one: Tensor, other: Tensor) -> float:
    a, b = one.double(), other.double()
    same = (a == b) | (a.isnan() & b.isnan())  # infinities and what is not a number yet
    difference = torch.where(same, 0.0, a - b)
    size = torch.where(a.isfinite(), a, 0.0)
    gap = float(difference.norm() / (1.0 + size.norm()))
    return gap if gap == gap else float("inf")


def _leaves(state: Any, place: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor and number of a nested state, by its place."""
    if isinstance(state, Tensor):
        yield place, state
    elif isinstance(state, Mapping):
        for name, inner in state.items():
            yield from _leaves(inner, f"{place}/{name}" if place else str(name))
    elif isinstance(state, list | tuple):
        for i, inner in enumerate(state):
            yield from _leaves(inner, f"{place}/{i}")
    elif isinstance(state, bool | int | float):
        yield place, torch.tensor(state)
