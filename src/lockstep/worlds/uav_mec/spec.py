"""What the world states about itself."""

from dataclasses import replace

from lockstep.core.actions import ActionSpec, Categorical, Field, Rows, Unit
from lockstep.core.world import RoleSpec, WorldSpec
from lockstep.worlds.uav_mec.config import SETTABLE, UavMecConfig
from lockstep.worlds.uav_mec.metrics import METRICS


def user_action(config: UavMecConfig) -> ActionSpec:
    """Association (by `assoc_head`) and the offloaded share rho."""
    rho = Unit(n=1)
    # The base by position is what the reproduction was measured with (docs/decisions).
    rows = Rows(over="uav", extra=("local",), base="positional")
    direct = rows if config.entity_rows else None
    both = replace(rows, per_row=2) if config.entity_rows else None
    if config.assoc_head == "beta_argmax":
        scores = Unit(n=config.n_uavs + 1, rows=direct)
        return {"assoc": scores, "relay": Unit(n=1), "rho": rho}
    if config.assoc_head == "categorical":
        return {"assoc": Categorical(n=2 * config.n_uavs + 1, rows=both), "rho": rho}
    return {"assoc": Categorical(n=config.n_uavs + 2), "rho": rho}


def uav_action(config: UavMecConfig) -> ActionSpec:
    """Motion and a score for the bandwidth and the CPU of every user."""
    return {
        "motion": Unit(n=2),
        "bandwidth": Unit(n=config.n_users),
        "cpu": Unit(n=config.n_users),
    }


def world_spec(config: UavMecConfig) -> WorldSpec:
    """Roles, phases, shapes, metrics."""
    K, M = config.n_users, config.n_uavs
    d_mu, d_uav = 2 + 2 * M + 2 + M, 2 + 5 * K + 2 * (M - 1)
    users = RoleSpec(
        name="mu",
        agents=K,
        features={"obs": Field(shape=(d_mu,))},
        action=user_action(config),
        discount=config.gamma_mu,
        entities={"uav": Field(shape=(M, 7))} if config.entity_rows else {},
    )
    uavs = RoleSpec(
        name="uav",
        agents=M,
        features={"obs": Field(shape=(d_uav,))},
        action=uav_action(config),
        discount=config.gamma_uav,
    )
    return WorldSpec(
        name=config.name,
        roles=(users, uavs),
        phases=(("mu",), ("uav",)) if config.two_phase else (("mu", "uav"),),
        critic={
            "mu": Field(shape=(K, d_mu)),
            "uav": Field(shape=(M, d_uav)),
            "state": Field(shape=(4 * K + 4 * M,)),
        },
        horizon=config.n_slots,
        metrics=METRICS,
        objective="weighted_energy_mu_avg",
        truncates=config.timeout_bootstrap,
        capturable=True,
        settable=SETTABLE,
    )
