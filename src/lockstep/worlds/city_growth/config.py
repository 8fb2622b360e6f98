"""Every number and switch of the city-growth world; tables of them are in `catalogue`."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

from lockstep.worlds.city_growth.ground import Hub, LandConfig, MapConfig
from lockstep.worlds.city_growth.parties import (
    AgentConfig,
    BuildingType,
    require,
    require_finite,
)

__all__ = [
    "AgentConfig",
    "BuildingType",
    "CityConfig",
    "Hub",
    "LandConfig",
    "MapConfig",
    "PhaseConfig",
    "RewardConfig",
]

SETTABLE = ("start_share", "debt_penalty", "interest", "grant")
"""Fields that may differ from lane to lane and change between rollouts (`world.set`)."""

N_HUB_FEATURES = 3
"""Hubs a candidate's features tell of; more are allowed and only the first three are described."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """What agents are paid for; weights in thousand GBP, the sum is divided by `scale`."""

    kind: Literal["npv", "cash"] = "npv"
    """Income to the horizon credited when building, or the balance's change month by month."""
    scale: float = 100_000.0
    """Thousand GBP of one unit of reward; so large that no reward reaches 1."""
    lifetime: int = 10_000
    """Months of income that "npv" credits at most."""
    tail_months: float = 0.0
    """Months of income that "cash" credits at the horizon for what still stands."""
    prestige: float = 0.0
    """Worth of a point of prestige."""
    diversity: float = 0.0
    """Worth of having built every type in the last `diversity_months`, in a month of building."""
    diversity_months: int = 12
    """How long a type counts as recently built."""
    cooperation: float = 0.0
    """Worth of each building of another agent 5 to 20 pixels from a new one."""
    shaping: float = 0.0
    """Factor on the potential (monthly income times months left), whose difference is added."""
    shared: float = 0.0
    """Part of every reward that all agents receive in equal shares; their sum stays the same."""

    def __post_init__(self) -> None:
        require_finite(self)
        # a reward divided by next to nothing is infinite
        require(self.scale >= 0.001, "scale", "must be at least 0.001", self.scale)
        require(0 <= self.shared <= 1, "shared", "must lie in 0..1", self.shared)
        require(self.lifetime >= 1, "lifetime", "must be at least 1 month", self.lifetime)
        if self.tail_months and self.kind == "npv":
            raise ValueError(
                f"tail_months must be 0 under kind='npv', got {self.tail_months}: its builds are "
                "credited already; set kind='cash'"
            )


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """Agents that act in the same months."""

    agents: tuple[str, ...]
    """Their names, in the order in which they act (and win conflicts)."""
    concurrent: bool = False
    """Whether they all see the same state, instead of each what earlier ones built."""


@dataclass(frozen=True, kw_only=True)
class CityConfig:
    """One scenario; `catalogue.SCENARIOS` has the ones that come with Lockstep."""

    name: ClassVar[str] = "city-growth"
    settable: ClassVar[tuple[str, ...]] = SETTABLE

    agents: tuple[AgentConfig, ...]
    """Who builds, in the order in which they act."""
    map: MapConfig = field(default_factory=MapConfig)
    """The ground."""
    land: LandConfig = field(default_factory=LandConfig)
    """The land-price field."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """What agents are paid for."""

    horizon: int = 30
    """Months of an episode."""
    schedule: Literal["turns", "month", "phases"] = "phases"
    """One agent a month by turns, every agent every month, or the cycle `phases`."""
    phases: tuple[PhaseConfig, ...] = ()
    """The cycle of "phases"."""
    period: int = 1
    """Months that each phase of the cycle lasts."""
    builds: int = 3
    """Most buildings of one agent in one turn."""
    expansion: Literal["none", "nearest", "cluster"] = "none"
    """Whether the agent picks each building, or one and the world adds the nearest of its type."""
    cluster_px: float = 10.0
    """How far from the anchor "cluster" goes."""
    max_candidates: int = 256
    """Width of the candidate set; beyond it, each type keeps its share by land price."""

    reach: Literal["cumulative", "ring"] = "cumulative"
    """All slots within a hub's radius, or those the radius gained this month (if any is free)."""
    reach_tolerance_px: float = 0.5
    """Slack of the radius."""
    near_zone_px: float = 20.0
    """Mean distance to the nearest hub up to which a footprint lies in the near zone."""
    mid_zone_px: float = 50.0
    """The same for the middle zone."""
    zone_cost: tuple[int, int, int] = (200, 100, 0)
    """Extra building cost in the near, middle and far zone."""
    zone_revenue: tuple[int, int, int] = (80, 40, 0)
    """Extra monthly revenue in the near, middle and far zone."""
    adjacency_bonus: int = 0
    """Extra monthly income of a building next to one of the same agent."""
    land_unit: int = 11
    """Land cost of each of the 10..100 points of the land index."""
    river_half_m: float = 120.0
    """Distance at which the river premium halves."""
    river_premium_cap: int = 10_000
    """Largest river premium."""
    prestige_rule: Literal["base", "draft"] = "base"
    """A type's own prestige, or also near +1, adjacent +1 and a share of pollution off."""

    start_share: float = 1.0
    """Factor on everybody's start balance."""
    debt: Literal["soft", "hard"] = "soft"
    """Whether debt is allowed and costs reward, or what costs too much is no candidate."""
    credit: int = 0
    """How far below zero "hard" lets a balance go."""
    debt_penalty: float = 0.1
    """Reward lost each month per thousand GBP of debt, in thousand GBP."""
    deep_debt: int = 5_000
    """Debt beyond which `deep_penalty` is lost as well."""
    deep_penalty: float = 100.0
    """Reward lost each month in deep debt, in thousand GBP."""
    interest: float = 0.0
    """Interest on debt, a year; a twelfth is charged each month, in whole thousands."""
    grant: float = 0.0
    """Money each agent receives each month, in thousand GBP."""
    bankruptcy: Literal["none", "skip_turn", "terminate"] = "none"
    """What happens below -`bankrupt_at`: nothing, no building, or the end of the episode."""
    bankrupt_at: int = 20_000
    """Debt that counts as bankruptcy."""
    rent_share: float = 0.0
    """Share of a building's cost that its owner pays each month to a near agent of `rent_to`."""
    rent_from: str = "ind"
    """Who pays that rent."""
    rent_to: str = "edu"
    """Who receives it."""
    rent_px: float = 10.0
    """Distance to the nearest building of `rent_to` at which the rent has fallen to 1/e."""

    raster: bool = False
    """Whether agents also see a picture of 5 x 50 x 50 (feature `raster`)."""

    def __post_init__(self) -> None:
        require_finite(self)
        for name in ("horizon", "period", "builds", "max_candidates"):
            require(getattr(self, name) >= 1, name, "must be at least 1", getattr(self, name))
        for name in ("start_share", "debt_penalty", "interest", "grant", "credit", "deep_debt",
                      "bankrupt_at", "rent_share", "cluster_px"):  # fmt: skip
            value = getattr(self, name)
            require(value >= 0, name, "must not be negative", value)
        for name in ("river_half_m", "rent_px"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        require(self.near_zone_px <= self.mid_zone_px, "near_zone_px",
                 "must not exceed mid_zone_px", self.near_zone_px)  # fmt: skip
        names = self.agent_names
        require(bool(names), "agents", "must name at least one", "none")
        require(len(set(names)) == len(names), "agents", "must differ by name", names)
        for agent in self.agents:
            self._check_agent(agent)
        if self.rent_share:
            for name in ("rent_from", "rent_to"):
                value = getattr(self, name)
                require(value in names, name, f"must be one of {', '.join(names)}", value)
            differ = self.rent_to != self.rent_from
            require(differ, "rent_to", "must differ from rent_from", self.rent_to)
        if self.schedule == "phases":
            self._check_phases()
        elif self.phases:
            raise ValueError(
                f"phases must be empty unless schedule is 'phases', got {len(self.phases)} with "
                f"schedule='{self.schedule}'"
            )

    def _check_agent(self, agent: AgentConfig) -> None:
        n_hubs = len(self.map.hubs)
        hubs = {"bank_of_hub": agent.bank_of_hub}
        hubs |= {f"hub of type {kind.name!r}": kind.hub for kind in agent.types}
        for setting, hub in hubs.items():
            require(-1 <= hub < n_hubs, f"{setting} of agent {agent.name!r}",
                     f"must be -1 or below {n_hubs}, the number of hubs", hub)  # fmt: skip
        least = len(agent.types)
        require(self.max_candidates >= least, "max_candidates",
                 f"must hold one of each of the {least} types of {agent.name}",
                 self.max_candidates)  # fmt: skip

    def _check_phases(self) -> None:
        require(bool(self.phases), "phases", "must name at least one", "none")
        listed = [agent for phase in self.phases for agent in phase.agents]
        names = self.agent_names
        for agent in listed:
            require(agent in names, "phases", f"must name agents among {', '.join(names)}", agent)
        if sorted(listed) != sorted(names):
            raise ValueError(
                f"phases must name each of {', '.join(names)} once, got {', '.join(listed)}"
            )

    @cached_property
    def agent_names(self) -> tuple[str, ...]:
        """The agents' names, in order."""
        return tuple(agent.name for agent in self.agents)

    @cached_property
    def n_types(self) -> int:
        """Types of the agent that has most."""
        return max(len(agent.types) for agent in self.agents)

    @property
    def picks(self) -> int:
        """Choices an agent makes in one turn; with an expansion, only the anchor."""
        return self.builds if self.expansion == "none" else 1

    @cached_property
    def ledgers(self) -> tuple[int, ...]:
        """The ledger of each agent, counted from 0 in the order in which they first appear."""
        keys = [agent.pool or f"\0{agent.name}" for agent in self.agents]
        order = list(dict.fromkeys(keys))
        return tuple(order.index(key) for key in keys)

    @cached_property
    def shares_money(self) -> bool:
        """Whether some agents share a ledger."""
        return len(set(self.ledgers)) < len(self.agents)

    def width(self, agent: AgentConfig) -> int:
        """Candidate rows of an agent, padded."""
        if all(kind.footprint == "single" for kind in agent.types):
            return min(self.max_candidates, len(agent.types) * self.map.slot_count)
        return self.max_candidates
