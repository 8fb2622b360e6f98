"""What an agent may decide (ActionSpec and its parts) and what it sees (Observation)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from lockstep.core.streams import scrambled

Action: TypeAlias = dict[str, Tensor]
"""One decision per agent: part name to `[L, A, n]` numbers (Unit), `[L, A]` integers (a choice) or
`[L, A, k]` integers (Picks)."""


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
    ids: int = 0
    """How many global ids the world's `<over>/id` counts from 0, for heads by identity; 0: none."""
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


@dataclass(frozen=True, kw_only=True)
class Picks:
    """Up to `max` picks in one turn, in order, among the rows of entity set `over`, or stop.

    The choice set has `len(extra) + width` entries: the named `extra` first, of which entry 0 is
    always the stop and always legal, then the padded rows. A decision is stored as int64
    `[..., max]`: entries in the order picked; after a stop all are 0. No entry is picked twice.

    What a pick rules out comes from features of the observation that describe the rows of `over`:

    - `<over>/resource`, int64 `[L, A, width, R]`: ids of what a row occupies, -1 for none. Rows
      that share an id cannot both be picked.
    - `<over>/cost`, float32 `[L, A, width]`, together with `<over>/budget`, float32 `[L, A]`: a row
      can be picked while its cost is no more than what earlier picks left of the budget, which is
      reduced in float32 and in the order of the picks.
    - `<over>/id`, int64 `[L, A, width]`, -1 in padded rows: read by heads over global ids alone.

    Each is optional (cost and budget only together). They are stored and fingerprinted like every
    feature, and are no input of the policy's encoder (`RoleSpec.encoded`).
    """

    max: int
    over: str
    width: int
    extra: tuple[str, ...] = ("stop",)
    ids: int = 0
    """How many global ids the world's `<over>/id` counts from 0, for heads by identity; 0: none."""
    masked: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("max", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} of Picks must be at least 1, got {getattr(self, name)}")
        if self.extra[:1] != ("stop",):
            raise ValueError(f"extra of Picks must begin with 'stop', got {self.extra}")

    @property
    def n(self) -> int:
        """Width of the padded choice set."""
        return self.rows.size(self.width)

    @property
    def rows(self) -> Rows:
        """Candidates are scored row by row, whatever their order and number."""
        return Rows(over=self.over, extra=self.extra, context=True)

    @property
    def dims(self) -> int:
        """Picks of one turn, for tolerances and per-dimension entropy."""
        return self.max

    @property
    def field(self) -> Field:
        """How one decision is stored."""
        return Field(shape=(self.max,), dtype=torch.int64)


Part: TypeAlias = Unit | Categorical | Candidates | Picks
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
        """Writes `source` into row `index` of this stored observation; names must agree."""
        stored, fresh = self.tensors(), source.tensors()
        if stored.keys() != fresh.keys():
            raise ValueError(_difference(stored, fresh))
        write_all((x[index], fresh[name], name) for name, x in stored.items())

    def fingerprint(self) -> Tensor:
        """A checksum of each agent's row, `[L, A]`: equal rows give equal sums anywhere.

        The sum of products of two words, each moved by a random word of its place (NH of Black,
        Halevi, Krawczyk, Krovetz and Rogaway 1999): whatever bits two rows differ in, one choice of
        random words in 2^32 gives them the same sum.
        """
        lead = self.acts.ndim
        word = torch.cat([_words(x, lead) for x in self.tensors().values()], dim=-1)  # [L, A, n]
        if word.shape[-1] % 2:
            word = torch.nn.functional.pad(word, (0, 1))
        word = word + _places(word.shape[-1], word.device)
        one, other = word.to(torch.int64).chunk(2, dim=-1)
        checksum: Tensor = (one * other).sum(dim=-1)
        return checksum


def _difference(declared: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """What an observation has too much or too little of, and what to do about it."""
    surplus = [name for name in given if name not in declared]
    if surplus:
        # A mask that is dropped would be missed by nobody: sampling and learning agree without it.
        return (
            f"the observation has {', '.join(surplus)}, which the role's spec does not declare; "
            "name features and entities there, and set masked=True on a part with a choice set"
        )
    lacking = [name for name in declared if name not in given]
    return f"the observation lacks {', '.join(lacking)}, which the spec declares for the role"


def write(stored: Tensor, fresh: Tensor, name: str) -> None:
    """Copies `fresh` over `stored`; nothing is broadcast and no kind of number changed."""
    _check(stored, fresh, name)
    stored.copy_(fresh)


def write_all(pairs: Iterable[tuple[Tensor, Tensor, str]]) -> None:
    """The same for many at once: on an accelerator in one launch for each kind of number."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for stored, fresh, name in pairs:
        _check(stored, fresh, name)
        to, of = kinds.setdefault(stored.dtype, ([], []))
        to.append(stored)
        of.append(fresh)
    for to, of in kinds.values():
        torch._foreach_copy_(to, of)


def _check(stored: Tensor, fresh: Tensor, name: str) -> None:
    same_kind = stored.dtype == fresh.dtype or (
        stored.is_floating_point() and fresh.is_floating_point()
    )
    if stored.shape != fresh.shape or not same_kind:
        raise ValueError(
            f"{name} must be {stored.dtype} of shape {tuple(stored.shape)}, "
            f"got {fresh.dtype} of shape {tuple(fresh.shape)}"
        )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def _places(count: int, device: torch.device) -> Tensor:
    """A random word for each place in a row; a compiler would work them out as indices."""
    return _drawn_places(count, device)


@cache
def _drawn_places(count: int, device: torch.device) -> Tensor:
    return scrambled(torch.arange(1, count + 1, device=device)).to(torch.int32)


_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _words(x: Tensor, lead: int) -> Tensor:
    """The bits of x over all but its first `lead` dims as words of 32, `[..., n]`."""
    row = x.unsqueeze(-1).flatten(lead)
    bits = row if row.dtype == torch.bool else row.view(_SAME_SIZE[row.element_size()])
    if bits.dtype == torch.int64:
        bits = torch.cat((bits, bits >> 32), dim=-1)
    return bits.to(torch.int32)  # of a longer number the last 32 bits
