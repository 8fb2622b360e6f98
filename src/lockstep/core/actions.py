"""What an agent may decide (ActionSpec and its parts) and what it sees (Observation)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

Action: TypeAlias = dict[str, Tensor]
"""One decision per agent: part name to `[L, A, n]` (Unit) or `[L, A]` integers (discrete)."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Ties an action part to an entity set: a scorer shared over its rows gives the numbers.

    The part's entries are ordered: the named `extra` ones first, then `per_row` blocks of one
    entry for each entity.
    """

    over: str
    per_row: int = 1
    extra: tuple[str, ...] = ()

    def size(self, n_entities: int) -> int:
        """Entries of a part tied to a set of `n_entities`."""
        return len(self.extra) + self.per_row * n_entities


@dataclass(frozen=True, kw_only=True)
class Unit:
    """`n` numbers in [0, 1]; a Beta or a Gaussian head; the world clamps what it is given."""

    n: int
    rows: Rows | None = None

    @property
    def dims(self) -> int:
        """Action dimensions, for tolerances and per-dimension entropy."""
        return self.n


@dataclass(frozen=True, kw_only=True)
class Categorical:
    """One of `n` choices; `masked` parts find which are legal in the observation."""

    n: int
    rows: Rows | None = None
    masked: bool = False

    @property
    def dims(self) -> int:
        """Action dimensions, for tolerances and per-dimension entropy."""
        return 1


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """One of up to `max` candidates: rows of the set `over`; which of them exist is observed."""

    max: int
    over: str

    @property
    def n(self) -> int:
        """Width of the padded choice set."""
        return self.max

    @property
    def rows(self) -> Rows:
        """A candidate part is always scored row by row."""
        return Rows(over=self.over)

    @property
    def masked(self) -> bool:
        """The number of candidates varies, so the set is always part of the observation."""
        return True

    @property
    def dims(self) -> int:
        """Action dimensions, for tolerances and per-dimension entropy."""
        return 1


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

    def tensors(self) -> list[Tensor]:
        """Its tensors in a fixed order."""
        return [*self.features.values(), *self.entities.values(), *self.legal.values(), self.acts]

    def copy_(self, source: "Observation", index: int) -> None:
        """Writes `source` into row `index` of this stored observation."""
        for stored, fresh in zip(self.tensors(), source.tensors(), strict=True):
            stored[index].copy_(fresh)

    def fingerprint(self) -> Tensor:
        """A 64-bit checksum of each agent's row, `[L, A]`: equal rows give equal sums anywhere."""
        lead = self.acts.ndim
        return torch.stack([_checksum(x, lead) for x in self.tensors()]).sum(dim=0)


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16}


def _checksum(x: Tensor, lead: int) -> Tensor:
    """Position-weighted sum of the bits of x over all but its first `lead` dims."""
    bits = x.view(_BITS[x.dtype]) if x.dtype in _BITS else x
    bits = bits.unsqueeze(-1).flatten(lead).long()  # [..., n]
    weight = torch.arange(bits.shape[-1], device=x.device) * 0x9E3779B2 + 1  # odd, [n]
    return (bits * weight).sum(dim=-1)
