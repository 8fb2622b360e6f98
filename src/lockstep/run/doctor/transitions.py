"""Decisions that somebody stored, and their choice sets, in one form."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lockstep.run.doctor.log import Array, Flags

Ints: TypeAlias = NDArray[np.int64]
Tensors: TypeAlias = Any
"""NumPy arrays or torch tensors whose first dimension is the row; or a dict of them by name."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a policy is asked about: B decisions, their choice sets padded to C."""

    obs: Tensors  # [B, ...]
    mask: Tensors  # [B, C] bool: which choices exist, as a tensor if obs holds tensors
    candidates: Tensors | None  # [B, C, F]
    agent: Ints | None  # [B]


Policy: TypeAlias = Callable[[Batch], Tensors]
"""Log-probs `[B, C]` over the choice set; what stands at choices that do not exist must be -inf or
as good as that."""


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """N stored decisions; the choice set is a mask, or a count of candidates that come first."""

    obs: Tensors  # [N, ...]
    index: ArrayLike  # [N]
    log_prob: ArrayLike  # [N]
    mask: Tensors | None = None  # [N, C]
    candidates: Tensors | None = None  # [N, C, F]
    count: ArrayLike | None = None  # [N]
    agent: ArrayLike | None = None  # [N]
    time: ArrayLike | None = None  # [N]
    episode: ArrayLike | None = None  # [N]
    key: Sequence[str] | None = None
    """Name of the chosen candidate, as it was when it was chosen."""
    keys: Sequence[Sequence[str]] | None = None
    """Names of all candidates, as they are stored."""
    policy_version: ArrayLike | None = None  # [N]
    fingerprint: ArrayLike | None = None  # [N]
    """What `fingerprints` gave when the decisions were made."""

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "Transitions":
        """Transitions from rows such as lines of JSON, with candidate lists of any length."""
        table = list(rows)
        if not table:
            raise ValueError("rows must hold at least one transition, got none")
        given = {name for row in table for name in row}
        short = [name for name in given if any(name not in row for row in table)]
        if short:
            raise ValueError(f"every row must have '{short[0]}', since one of them has")
        columns: dict[str, Any] = {name: [row[name] for row in table] for name in given}
        if "candidates" in columns:
            columns["count"] = [len(c) for c in columns["candidates"]]
            columns["candidates"] = _padded(columns["candidates"])
        if "mask" in columns:
            columns["mask"] = _padded(columns["mask"]) > 0
        columns["obs"] = np.asarray(columns["obs"], dtype=np.float32)
        return cls(**columns)


def fingerprints(
    obs: Tensors,
    *,
    mask: Tensors | None = None,
    candidates: Tensors | None = None,
    count: ArrayLike | None = None,
) -> Ints:
    """A digest of each row `[N]`, to be stored when decisions are made and compared later.

    It is of the observation and of the choices there were, in float32, so that neither another
    width of numbers nor padding behind the last choice passes for a change.
    """
    legal = _choice_sets(mask, candidates, count)
    parts = [_single(x) for x in (obs.values() if isinstance(obs, Mapping) else [obs])]
    rows = None if candidates is None else _single(candidates)
    digests = []
    for row, choices in enumerate(legal):
        content = [x[row].tobytes() for x in parts] + [np.flatnonzero(choices).tobytes()]
        if rows is not None:
            content.append(rows[row][choices].tobytes())
        digests.append(zlib.crc32(b"".join(content)))
    return np.array(digests, dtype=np.int64)


def _single(x: Tensors) -> NDArray[Any]:
    array = to_numpy(x)
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array


def _choice_sets(mask: Tensors | None, candidates: Tensors | None, count: Tensors | None) -> Flags:
    """What could be chosen, `[N, C]`: the mask, or the first `count` candidates of each row."""
    if mask is not None:
        return to_numpy(mask).astype(np.bool_)
    if count is None or candidates is None:
        raise ValueError(
            "transitions must say what could be chosen: a mask, or candidates with count"
        )
    first: Flags = np.arange(candidates.shape[1])[None] < to_numpy(count).astype(np.int64)[:, None]
    return first


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Stored decisions as arrays on the host."""

    index: Ints  # [N]
    log_prob: Array  # [N]
    mask: Flags  # [N, C]
    changed: Flags | None  # [N]

    @property
    def choices(self) -> Ints:
        """K: how many choices each row had."""
        count: Ints = self.mask.sum(axis=1, dtype=np.int64)
        return count

    @property
    def chosen_exists(self) -> Flags:
        """Whether each row's index is among its choices."""
        inside = (self.index >= 0) & (self.index < self.mask.shape[1])
        safe = np.clip(self.index, 0, self.mask.shape[1] - 1)
        legal: Flags = inside & self.mask[np.arange(len(self.index)), safe]
        return legal


def columns_of(stored: Transitions) -> Columns:
    """Checks shapes, and makes a mask of whatever says what could be chosen."""
    index = to_numpy(stored.index).astype(np.int64)
    log_prob = to_numpy(stored.log_prob).astype(np.float64)
    for name, column in (("index", index), ("log_prob", log_prob)):
        # [N, 1] against [N] would compare every row with every other.
        if column.ndim != 1:
            raise ValueError(f"{name} must have one entry for each row, got shape {column.shape}")
    mask = _choice_sets(stored.mask, stored.candidates, stored.count)
    if not len(index) == len(log_prob) == len(mask):
        raise ValueError(
            f"index, log_prob and choice sets must have one row for each transition, got "
            f"{len(index)}, {len(log_prob)} and {len(mask)}"
        )
    changed: Flags | None = None
    if stored.fingerprint is not None:
        now = fingerprints(stored.obs, mask=mask, candidates=stored.candidates)
        changed = np.asarray(now != to_numpy(stored.fingerprint).astype(np.int64))
    return Columns(index=index, log_prob=log_prob, mask=mask, changed=changed)


def batch_of(stored: Transitions, columns: Columns, rows: slice) -> Batch:
    """Some rows as the policy is asked about them, in the kind of array they were given in."""
    mask: Tensors = columns.mask[rows]
    sample = next(iter(stored.obs.values())) if isinstance(stored.obs, Mapping) else stored.obs
    if hasattr(sample, "detach"):
        import torch

        mask = torch.as_tensor(mask, device=sample.device)
    return Batch(
        obs={name: x[rows] for name, x in stored.obs.items()}
        if isinstance(stored.obs, Mapping)
        else stored.obs[rows],
        mask=mask,
        candidates=None if stored.candidates is None else stored.candidates[rows],
        agent=None if stored.agent is None else to_numpy(stored.agent).astype(np.int64)[rows],
    )


def to_numpy(x: Any) -> NDArray[Any]:
    """An array on the host; bfloat16, which NumPy lacks, becomes float32."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if x.is_floating_point() else x
        return np.asarray(x.numpy())
    return np.asarray(x)


def _padded(lists: Sequence[Sequence[Any]]) -> Array:
    """Lists of different lengths as one array `[N, C, ...]`, zeros behind their ends."""
    arrays = [np.asarray(entry, dtype=np.float64) for entry in lists]
    width = max(len(array) for array in arrays)
    shape = next((array.shape[1:] for array in arrays if len(array)), ())
    out = np.zeros((len(arrays), width, *shape))
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
