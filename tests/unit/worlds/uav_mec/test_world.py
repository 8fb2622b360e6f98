"""Stepping: streams, lanes, ends, scenario numbers, checkpoints, metrics."""

from dataclasses import replace

import pytest
import torch

from lockstep.core.actions import Action
from lockstep.core.streams import lane_keys
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.heuristics import random_actions
from lockstep.worlds.uav_mec.metrics import METRICS
from lockstep.worlds.uav_mec.world import UavMec
from tests.unit.worlds.uav_mec.helpers import (
    SMALL,
    SMALL_REFERENCE,
    decided,
    everything,
    made,
    same,
    slot,
    small,
)


def lane(actions: dict[str, Action], index: int) -> dict[str, Action]:
    return {
        role: {name: part[index : index + 1] for name, part in action.items()}
        for role, action in actions.items()
    }


@pytest.mark.parametrize("config", [SMALL, SMALL_REFERENCE], ids=["paper", "reference"])
def test_a_lanes_history_is_bit_equal_alone_and_among_64(config: UavMecConfig) -> None:
    crowd, alone = made(config, lanes=65), UavMec(config, lanes=1)
    alone.reset(lane_keys([0], lanes=65)[41:42])
    for _ in range(config.n_slots + 5):  # past a reset
        actions = random_actions(crowd)
        step, lone = slot(crowd, actions), slot(alone, lane(actions, 41))
        for a, b in zip(everything(crowd, step), everything(alone, lone), strict=True):
            assert torch.equal(a[41], b[0])


def test_the_same_seed_gives_the_same_trajectory_and_another_seed_another() -> None:
    worlds = [small(seed=5), small(seed=5), small(seed=6)]
    assert same(*(list(w.world_state.tensors().values()) for w in worlds[:2]))
    for _ in range(5):
        a, b, c = (everything(w, slot(w)) for w in worlds)
        assert same(a, b)
        assert not same(a, c)


def test_reset_with_the_same_keys_starts_the_same_history_again() -> None:
    world = small()
    first = [everything(world, slot(world)) for _ in range(3)]
    world.reset(lane_keys([0], lanes=4))
    assert all(same(a, everything(world, slot(world))) for a in first)


def test_nothing_draws_from_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    slot(small())
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_was_returned_never_changes_when_the_world_steps_on() -> None:
    world = small()
    for _ in range(3):
        seen = [*world.observe("mu").tensors().values(), *world.state("mu").values()]
        actions = random_actions(world)
        world.act("mu", actions["mu"])
        seen += world.observe("uav").tensors().values()
        world.act("uav", actions["uav"])
        step = world.advance()
        assert world.last is not None
        seen += [*step.reward.values(), *step.metrics.values(), step.terminated]
        seen += list(vars(world.last).values())
        kept = [x.clone() for x in seen]
        slot(world)
        slot(world)
        assert same(seen, kept)


def test_state_lives_in_tensors_that_are_written_in_place() -> None:
    world = small()
    places = {name: x.data_ptr() for name, x in world.world_state.tensors().items()}
    assert len(set(places.values())) == len(places)  # each with memory of its own
    for _ in range(61):
        slot(world)
    world.reset(lane_keys([1], lanes=4))
    world.load_state_dict(world.state_dict())
    assert places == {name: x.data_ptr() for name, x in world.world_state.tensors().items()}


def test_the_last_slot_terminates_and_starts_a_new_period() -> None:
    world = small(n_slots=4)
    for n in range(1, 9):
        step = slot(world)
        assert bool(step.terminated.all()) == (n % 4 == 0)
        assert not step.truncated.any()
        assert step.final == {}
        assert (world.world_state.slot == n % 4).all()
    state = world.world_state
    assert not state.last_rho.any()
    assert not state.last_choice.any()
    assert not state.uav_velocity_mps.any()
    assert ((state.uav_xy_m >= 100) & (state.uav_xy_m <= 900)).all()
    assert (state.mu_speed_mps == 5.5).all()


def test_a_period_is_60_slots_in_both_profiles() -> None:
    for config in (SMALL, SMALL_REFERENCE):
        world = made(config, lanes=1)
        ends = [bool(slot(world).terminated) for _ in range(60)]
        assert ends == [False] * 59 + [True]


def test_a_time_out_is_truncated_with_the_critic_input_before_the_reset() -> None:
    cut, endless = small(n_slots=3, timeout_bootstrap=True), small(n_slots=3, at_horizon="continue")
    assert cut.spec.truncates
    for n in (1, 2, 3):
        step, other = slot(cut), slot(endless)
        assert bool(step.truncated.all()) == (n == 3)
        assert not step.terminated.any()
        assert not other.terminated.any()
        assert set(step.final) == {"mu", "uav", "state"}
        # before any reset both worlds are the same, and `continue` goes on from there
        assert same(list(step.final.values()), list(endless.state("mu").values()))
    assert not same(list(step.final.values()), list(cut.state("mu").values()))


def test_setting_a_number_changes_only_its_lane() -> None:
    plain, changed = small(), small()
    changed.set("bandwidth_mhz", torch.tensor([50.0, 50.0, 20.0, 50.0]))
    changed.set("deviation", torch.tensor([0.05, 0.05, 0.05, 0.25]))
    for _ in range(3):
        a, b = slot(plain), slot(changed)
        equal = a.metrics["mu_energy_avg"] == b.metrics["mu_energy_avg"]
        assert equal.tolist() == [True, True, False, False]
        assert (b.metrics["mu_energy_avg"] > a.metrics["mu_energy_avg"])[2]


def test_task_limits_follow_the_lane_and_so_does_the_scaling() -> None:
    world = small()
    world.set("task_max_mbit", torch.tensor([1.5, 3.0, 0.5, 1.5]))
    slot(world)
    bits = world.world_state.task_bits
    assert bits[1].max() > 1.5e6
    assert (bits[2] == 0.5e6).all()
    size = world.observe("mu").features["obs"][..., 2 + 2 * 3]
    assert torch.allclose(size[1], bits[1] / 3e6)


def test_set_refuses_what_is_not_a_number_of_the_scenario() -> None:
    world = small()
    with pytest.raises(ValueError, match="did you mean 'bandwidth_mhz'"):
        world.set("bandwith_mhz", torch.ones(4))
    with pytest.raises(ValueError, match="one number per lane"):
        world.set("bandwidth_mhz", torch.ones(3))


def test_every_settable_number_can_be_set_and_is_checkpointed() -> None:
    world = small()
    for name in world.spec.settable:
        assert getattr(SMALL, name) == pytest.approx(getattr(world.numbers, name)[0].item())
        world.set(name, torch.full((4,), getattr(SMALL, name) * 1.5))
    other = small(seed=9)
    other.load_state_dict(world.state_dict())
    assert same(list(world.numbers.tensors().values()), list(other.numbers.tensors().values()))
    assert all(torch.isfinite(x).all() for x in slot(world).reward.values())


@pytest.mark.parametrize("config", [SMALL, SMALL_REFERENCE], ids=["paper", "reference"])
def test_a_saved_world_continues_bit_equally(config: UavMecConfig) -> None:
    world = made(config)
    world.set("energy_weight", torch.tensor([0.001, 0.002, 0.003, 0.004]))
    for _ in range(7):
        slot(world)
    saved = world.state_dict()
    expected = [everything(world, slot(world)) for _ in range(60)]
    other = made(config, seed=99)
    other.load_state_dict(saved)
    assert all(same(a, everything(other, slot(other))) for a in expected)


def test_deviation_zero_leaves_frequencies_exact() -> None:
    world = small(deviation=0.0)
    actions = random_actions(world)
    task = world.world_state.task_bits * world.world_state.task_cycles_per_bit
    slot(world, actions)
    last = world.last
    assert last is not None
    work = (1.0 - last.rho) * task
    within = work <= 1e9
    assert torch.allclose(last.local_delay_s[within], torch.ones(int(within.sum())), rtol=1e-6)
    assert torch.allclose(last.local_delay_s[~within], work[~within] / 1e9)


def test_metrics_are_those_of_the_spec_and_follow_their_formulas() -> None:
    world = small(lanes=16)
    step = slot(world)
    last, metric = world.last, step.metrics
    assert last is not None
    assert set(metric) == {m.name for m in METRICS}
    assert all(value.shape == (16,) for value in metric.values())
    mu, uav = last.mu_energy_j, last.uav_energy_j
    delay = torch.maximum(last.local_delay_s, last.edge_delay_s)
    on = last.association > 0
    inverse = 1 / (mu + 1e-8)
    expected = {
        "mu_energy_avg": mu.mean(-1),
        "uav_energy_avg": uav.mean(-1),
        "weighted_energy_mu_avg": mu.mean(-1) + 0.001 * uav.mean(-1),
        "weighted_energy": mu.mean(-1) + 0.001 * uav.mean(-1),
        "weighted_energy_mu_total": mu.sum(-1) + 0.001 * uav.sum(-1),
        "jain_fairness": mu.sum(-1) ** 2 / (8 * (mu**2).sum(-1) + 1e-8),
        "jain_fairness_utility": inverse.sum(-1) ** 2 / (8 * (inverse**2).sum(-1) + 1e-8),
        "avg_delay": delay.mean(-1),
        "delay_violation_rate": (delay > 1.06).float().mean(-1),
        "late_share": (delay > 1.06).float().mean(-1),
        "mu_reward": step.reward["mu"].mean(-1),
        "uav_reward": step.reward["uav"].mean(-1),
        "local_share": (~on).float().mean(-1),
        "relay_share": last.relay.float().sum(-1) / on.sum(-1).clamp(min=1),
    }
    for name, value in expected.items():
        assert torch.allclose(metric[name], value, rtol=1e-5), name
    assert torch.equal(uav, last.uav_fly_energy_j + last.uav_comp_energy_j)


def test_reported_rewards_are_unscaled() -> None:
    world = made(SMALL_REFERENCE)
    step = slot(world)
    assert torch.allclose(10 * step.metrics["mu_reward"], step.reward["mu"].mean(dim=-1))


def test_with_dvfs_a_strict_deadline_calls_half_of_all_local_users_late() -> None:
    # Why `paper` counts lateness only beyond what the deviation explains (spec 11.6).
    for rule, low, high in (("strict", 0.6, 0.8), ("deviation", 0.35, 0.45)):
        world = small(lanes=200, violation_rule=rule)
        step = slot(world, decided(world, "all_local"))
        assert low < step.metrics["delay_violation_rate"].mean() < high


def test_advance_needs_the_actions_of_both_roles() -> None:
    world = small()
    with pytest.raises(ValueError, match="got none of 'mu'"):
        world.advance()
    world.act("mu", random_actions(world)["mu"])
    with pytest.raises(ValueError, match="got none of 'uav'"):
        world.advance()


def test_a_frame_is_a_copy_of_one_lane() -> None:
    world = small()
    slot(world)
    frame = world.frame(2)
    assert frame.slot == 1
    assert frame.mu_xy_m.shape == (8, 2)
    assert frame.association.tolist() == world.world_state.last_choice[2].tolist()
    kept = frame.uav_xy_m.copy()
    slot(world)
    assert (frame.uav_xy_m == kept).all()


def test_shapes_are_those_of_the_spec() -> None:
    for config in (
        SMALL,
        SMALL_REFERENCE,
        replace(SMALL, assoc_head="categorical"),
        replace(SMALL, n_uavs=1, n_users=1),
    ):
        world = made(config)
        for role in world.spec.roles:
            if role.name == "uav":
                world.act("mu", random_actions(world)["mu"])
            seen = world.observe(role.name)
            assert seen.acts.shape == (4, role.agents)
            for name, field in role.features.items():
                assert seen.features[name].shape == (4, role.agents, *field.shape)
            for name, field in role.entities.items():
                assert seen.entities[name].shape == (4, role.agents, *field.shape)
        critic = world.state("mu")
        assert {k: tuple(v.shape[1:]) for k, v in critic.items()} == {
            k: f.shape for k, f in world.spec.critic.items()
        }
        for part in world.spec.role("mu").action.values():
            if part.rows is not None:
                assert part.rows.size(config.n_uavs) == part.n
        assert slot(world).reward["uav"].shape == (4, config.n_uavs)
