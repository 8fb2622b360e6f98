"""What an agent may decide (ActionSpec and its parts) and what it sees (Observation)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias
from zlib import crc32

import torch
from torch import Tensor

Action: TypeAlias = dict[str, Tensor]
"""One decision per agent: part name to `[L, A, n]` (Unit) or `[L, A]` integers (discrete)."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Shape and type of one tensor, without the leading lane (and agent) dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Ties an action part to an entity set: a scorer shared over its rows gives the numbers.

    The part's entries are ordered: the named `extra` ones first, then `per_row` blocks of one
    entry for each entity.
    """

    over: str
    per_row: int = 1
    extra: tuple[str, ...] = ()
    base: Literal["positional", "none"] = "none"
    """What a row's score is added to: a number for its position, or nothing (any order, any E)."""
    context: bool = False
    """Whether the score sees the agent's own features too, or the row alone."""

    def size(self, n_entities: int) -> int:
        """Entries of a part tied to a set of `n_entities`."""
        return len(self.extra) + self.per_row * n_entities


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`n` numbers in [0, 1]; a Beta or a Gaussian head; the world clamps what it is given."""

    n: int
    rows: Rows | None = None
    masked: ClassVar[bool] = False

    @property
    def dims(self) -> int:
        """Action dimensions, for tolerances and per-dimension entropy."""
        return self.n

    @property
    def field(self) -> Field:
        """How one decision is stored."""
        return Field(shape=(self.n,))


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """One of `n` choices; `masked` parts find which are legal in the observation."""

    n: int
    rows: Rows | None = None
    masked: bool = False
    dims: ClassVar[int] = 1
    field: ClassVar[Field] = Field(shape=(), dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """One of up to `max` rows of entity set `over`, or of the named `extra` choices (SKIP, STOP).

    Their number varies, so which of them exist is always part of the observation.
    """

    max: int
    over: str
    extra: tuple[str, ...] = ()
    masked: ClassVar[bool] = True
    dims: ClassVar[int] = 1
    field: ClassVar[Field] = Field(shape=(), dtype=torch.int64)

    @property
    def n(self) -> int:
        """Width of the padded choice set."""
        return self.rows.size(self.max)

    @property
    def rows(self) -> Rows:
        """Candidates are scored row by row, whatever their order and number."""
        return Rows(over=self.over, extra=self.extra, context=True)


Part: TypeAlias = Unit | Categorical | Candidates
ActionSpec: TypeAlias = Mapping[str, Part]


def action_dims(spec: ActionSpec) -> int:
    """How many numbers or choices one decision holds."""
    return sum(part.dims for part in spec.values())


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything a decision depends on; the rollout stores it whole.

    There is no separate mask argument anywhere: `legal` holds the choice set of each masked part.
    """

    features: Mapping[str, Tensor]  # name -> [L, A, ...]
    acts: Tensor  # [L, A] bool: whether the agent decides now
    entities: Mapping[str, Tensor] = field(default_factory=dict)  # set -> [L, A, E, F]
    legal: Mapping[str, Tensor] = field(default_factory=dict)  # part -> [L, A, C] bool

    def map(self, change: Callable[[Tensor], Tensor]) -> "Observation":
        """The observation with `change` applied to each of its tensors."""
        return Observation(
            features={name: change(x) for name, x in self.features.items()},
            acts=change(self.acts),
            entities={name: change(x) for name, x in self.entities.items()},
            legal={name: change(x) for name, x in self.legal.items()},
        )

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        groups = {"features": self.features, "entities": self.entities, "legal": self.legal}
        named = {f"{g}/{name}": x for g, group in groups.items() for name, x in group.items()}
        return named | {"acts": self.acts}

    def write(self, source: "Observation", index: int) -> None:
        """Writes `source` into row `index` of this stored observation."""
        fresh = source.tensors()
        for name, stored in self.tensors().items():
            if name not in fresh:
                raise ValueError(f"the observation must have {name}, got {', '.join(fresh)}")
            write(stored[index], fresh[name], name)

    def fingerprint(self) -> Tensor:
        """A 64-bit checksum of each agent's row, `[L, A]`: equal rows give equal sums anywhere."""
        lead = self.acts.ndim
        sums = [_checksum(x, lead, name) for name, x in self.tensors().items()]
        return torch.stack(sums).sum(dim=0)


def write(stored: Tensor, fresh: Tensor, name: str) -> None:
    """Copies `fresh` over `stored`; nothing is broadcast and no kind of number changed."""
    same_kind = stored.dtype == fresh.dtype or (
        stored.is_floating_point() and fresh.is_floating_point()
    )
    if stored.shape != fresh.shape or not same_kind:
        raise ValueError(
            f"{name} must be {stored.dtype} of shape {tuple(stored.shape)}, "
            f"got {fresh.dtype} of shape {tuple(fresh.shape)}"
        )
    stored.copy_(fresh)


_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _checksum(x: Tensor, lead: int, name: str) -> Tensor:
    """Sum of the bits of x over all but its first `lead` dims, weighted by position and name."""
    bits = x.view(_BITS[x.element_size()]) if x.is_floating_point() else x
    bits = bits.unsqueeze(-1).flatten(lead).long()  # [..., n]
    start = crc32(name.encode())
    weight = torch.arange(start, start + bits.shape[-1], device=x.device) * 0x9E3779B2 + 1  # odd
    return (bits * weight).sum(dim=-1)
