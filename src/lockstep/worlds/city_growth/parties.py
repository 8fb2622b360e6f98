"""Who builds, and what: agents, building types and the checks that all settings share."""

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Literal

_LARGEST = 2**53


def require(holds: bool, name: str, rule: str, got: object) -> None:
    """Refuses a setting in one sentence."""
    if not holds:
        raise ValueError(f"{name} {rule}, got {got}")


def require_finite(settings: Any, where: str = "") -> None:
    """Refuses a dataclass with a number that is none, or infinite, or too large to be kept exactly.

    `where` says of what it is.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        name = f"{field.name} {where}".rstrip()
        for number in _numbers(value):
            whole = isinstance(number, int)
            require(whole or math.isfinite(number), name, "must be finite", number)
            require(abs(number) <= _LARGEST, name, "must lie within 2^53 of 0", number)


def _numbers(value: Any) -> list[int | float]:
    """The numbers in a setting, those in its lists as well."""
    if isinstance(value, tuple):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []


def require_name(name: str, where: str) -> None:
    """Refuses a name that could not be part of the name of a metric, a file or a column."""
    plain = re.fullmatch(r"[\w-]+", name) is not None
    require(plain, f"name {where}", "must be of letters, digits, - and _", repr(name))


@dataclass(frozen=True, kw_only=True)
class BuildingType:
    """What one kind of building costs, earns and needs; money in thousand GBP."""

    name: str
    """Its letter, unique within the agent."""
    cost: int
    """Paid once, before zone and land."""
    revenue: int
    """Earned every month, before zone and river premium."""
    opex: int
    """Spent every month."""
    rent: int = 0
    """Added to the monthly income: positive when received, negative when paid."""
    prestige: float = 0.0
    """Prestige of one such building."""
    pollution: float = 0.0
    """Pollution of one such building; costs prestige only under `prestige_rule` "draft"."""
    min_level: int = 3
    """Lowest slot level it may stand on."""
    footprint: Literal["single", "pair", "block", "cluster"] = "single"
    """The slots it takes: one, two adjacent, four in a ring of neighbours, `cluster` connected."""
    cluster: int = 3
    """Slots of a "cluster" footprint."""
    hub: int = -1
    """The only hub it may be built around, counted from 0; -1 means any."""

    def __post_init__(self) -> None:
        where = f"of building type {self.name!r}"
        require_finite(self, where)
        require_name(self.name, where)
        for field in ("cost", "revenue", "opex"):
            value = getattr(self, field)
            require(value >= 0, f"{field} {where}", "must not be negative", value)
        require(3 <= self.min_level <= 5, f"min_level {where}", "must be 3, 4 or 5", self.min_level)
        require(2 <= self.cluster <= 4, f"cluster {where}", "must be 2 to 4 slots", self.cluster)


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One agent: what it may build, where, with which money, and what it wants."""

    name: str
    """Its role."""
    types: tuple[BuildingType, ...]
    """What it may build, in canonical order."""
    start_money: int
    """Balance at the start, in thousand GBP; of a shared ledger, its part of it."""
    pool: str = ""
    """Agents that name the same pool share one ledger; empty means a ledger of its own."""
    active_from: int = 0
    """First month in which it acts."""
    bank_of_hub: int = -1
    """Hub (from 0) on whose bank of the river it must stay; -1 means that it may cross."""
    max_level: int = 5
    """Highest slot level it may use."""
    near_px: float = 15.0
    """Slots farther than this from its own buildings are left out, if enough others remain."""
    near_least: int = 5
    """How many slots must remain for `near_px` to apply."""
    price_gain: float = 0.25
    """Factor k of the land price in the monthly income."""
    river_premium: float = 0.2
    """Largest river premium, as a share of revenue."""
    weights: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Weights of income, prestige and cost in the score of a candidate."""
    cap_per_type: int = 0
    """Candidates of a type are cut to this many, those of highest land price; 0 keeps all."""
    discount: float = 0.99
    """Discount of its rewards per month."""

    def __post_init__(self) -> None:
        where = f"of agent {self.name!r}"
        require_finite(self, where)
        require_name(self.name, where)
        taken = "must differ from what the critic calls its view of all agents"
        require(self.name != "state", f"name {where}", taken, repr(self.name))
        names = [kind.name for kind in self.types]
        require(bool(names), f"types {where}", "must name at least one", "none")
        require(len(set(names)) == len(names), f"types {where}", "must differ by name", names)
        for kind in self.types:
            name = f"min_level of building type {kind.name!r}"
            rule = f"must not exceed max_level {where} ({self.max_level})"
            require(kind.min_level <= self.max_level, name, rule, kind.min_level)
        for field in ("active_from", "near_px", "cap_per_type", "river_premium", "price_gain"):
            value = getattr(self, field)
            require(value >= 0, f"{field} {where}", "must not be negative", value)
        require(self.near_least >= 1, f"near_least {where}", "must be at least 1", self.near_least)
        require(0 <= self.discount <= 1, f"discount {where}", "must lie in 0..1", self.discount)
