"""Laws of the UAV world that hold for any actions, even those outside [0, 1]."""

from typing import Any

import torch
from hypothesis import given, settings, strategies as st

from lockstep.core.streams import lane_keys
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.world import UavMec

LANES = 3

configs = st.builds(
    UavMecConfig,
    n_users=st.integers(1, 7),
    n_uavs=st.integers(1, 4),
    n_slots=st.integers(1, 4),
    width_m=st.floats(50.0, 2000.0),
    height_m=st.floats(50.0, 2000.0),
    deviation=st.floats(0.0, 1.0),
    assoc_head=st.sampled_from(["beta_argmax", "categorical", "categorical_rule"]),
    relay_rule=st.sampled_from(["nearest", "best_snr", "min_load"]),
    bandwidth_pool=st.sampled_from(["network", "uav"]),
    share_rule=st.sampled_from(["plain", "softmax"]),
    share_floor=st.sampled_from([0.0, 0.001, 0.05]),
    share_relay_bandwidth=st.booleans(),
    uav_control=st.sampled_from(["accel", "target_velocity"]),
    limit=st.sampled_from(["norm", "axis"]),
    uav_obs_mask_mode=st.sampled_from(["none", "prev_assoc", "current_assoc"]),
    relative_coordinates=st.booleans(),
    at_horizon=st.sampled_from(["reset", "continue"]),
    forwarding_energy=st.booleans(),
    distance_bonus=st.booleans(),
)


def wild(world: UavMec, role: str, scale: float, generator: torch.Generator) -> dict[str, Any]:
    """Raw numbers as a clipped Gaussian sends them, and any label."""
    spec = world.spec.role(role)
    action = {}
    for name, part in spec.action.items():
        if name == "assoc" and world.config.assoc_head != "beta_argmax":
            shape = (LANES, spec.agents)
            action[name] = torch.randint(0, part.n, shape, generator=generator)
        else:
            noise = torch.randn(LANES, spec.agents, part.n, generator=generator)
            action[name] = 0.5 + scale * noise
    return action


@settings(max_examples=40)
@given(
    config=configs,
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.0, 0.3, 5.0, float("inf")]),
)
def test_any_actions_leave_a_lawful_world(config: UavMecConfig, seed: int, scale: float) -> None:
    world = UavMec(config, lanes=LANES)
    world.reset(lane_keys([seed], lanes=LANES))
    generator = torch.Generator().manual_seed(seed)
    area_m = torch.tensor([config.width_m, config.height_m])
    for _ in range(6):
        seen = [*world.observe("mu").tensors().values(), *world.state("mu").values()]
        world.act("mu", wild(world, "mu", scale, generator))
        seen += world.observe("uav").tensors().values()
        world.act("uav", wild(world, "uav", scale, generator))
        step = world.advance()
        state, last = world.world_state, world.last
        assert last is not None
        seen += [*step.reward.values(), *step.metrics.values(), *vars(last).values()]
        seen += state.tensors().values()
        assert all(torch.isfinite(x.float()).all() for x in seen)
        for xy_m in (state.mu_xy_m, state.uav_xy_m):
            assert ((xy_m >= 0) & (xy_m <= area_m)).all()
        for share in (last.rho, last.bandwidth_share, last.cpu_share):
            assert ((share >= 0) & (share <= 1)).all()
        assert (last.rho[last.association == 0] == 0).all()
        for joule in (last.mu_energy_j, last.uav_energy_j, last.uav_comp_energy_j):
            assert (joule >= 0).all()
        fair = step.metrics["jain_fairness"]
        assert ((fair > 0) & (fair <= 1 + 1e-5)).all()
        speed = state.uav_velocity_mps.square().sum(dim=-1).sqrt()
        assert (speed <= config.v_max_mps * (1.5 if config.limit == "axis" else 1.0001)).all()
        assert ((state.slot >= 0) & (state.slot < config.n_slots)).all()
