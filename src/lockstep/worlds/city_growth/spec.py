"""What the world states about itself."""

import torch

from lockstep.core.actions import Field, Picks
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.worlds.city_growth.config import SETTABLE, CityConfig
from lockstep.worlds.city_growth.metrics import world_metrics
from lockstep.worlds.city_growth.observe import RASTER, own_names, shared_names
from lockstep.worlds.city_growth.parties import AgentConfig
from lockstep.worlds.city_growth.schedule import world_phases
from lockstep.worlds.city_growth.tables import POOLED, Tables, n_features


def world_spec(config: CityConfig, tables: Tables) -> WorldSpec:
    """Roles, phases, shapes, metrics."""
    shared, own = len(shared_names(config)), len(own_names(config))
    pool = len(POOLED)
    critic = {name: Field(shape=(1, shared + own + pool)) for name in config.agent_names}
    return WorldSpec(
        name=config.name,
        roles=tuple(
            _role(agent, depth=universe.place.shape[-1], tables=tables, config=config)
            for agent, universe in zip(config.agents, tables.universes, strict=True)
        ),
        phases=world_phases(config),
        critic=critic | {"state": Field(shape=(shared + len(config.agents) * own + pool,))},
        horizon=config.horizon,
        metrics=world_metrics(config),
        objective="return",
        critic_at="phase",
        every_step=False,
        capturable=True,
        settable=SETTABLE,
    )


def _role(agent: AgentConfig, *, depth: int, tables: Tables, config: CityConfig) -> RoleSpec:
    C = config.width(agent)
    obs = len(shared_names(config)) + len(own_names(config))
    features = {
        "obs": Field(shape=(obs,)),
        "candidate/id": Field(shape=(C,), dtype=torch.int64),
        "candidate/resource": Field(shape=(C, depth), dtype=torch.int64),
    }
    if config.debt == "hard":
        features |= {"candidate/cost": Field(shape=(C,)), "candidate/budget": Field(shape=())}
    if config.raster:
        features["raster"] = Field(shape=RASTER)
    return RoleSpec(
        name=agent.name,
        agents=1,
        features=features,
        entities={"candidate": Field(shape=(C, n_features(config)))},
        action={
            "build": Picks(
                max=config.picks,
                over="candidate",
                width=C,
                ids=len(agent.types) * tables.n_footprints,
            )
        },
        discount=agent.discount,
    )
