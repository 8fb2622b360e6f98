"""The layout of what users, UAVs and the critic see."""

from dataclasses import replace

import pytest
import torch

from lockstep.worlds.uav_mec.heuristics import random_actions
from tests.unit.worlds.uav_mec.helpers import SMALL_REFERENCE, made, slot, small

K, M = 8, 3


def test_a_users_vector_is_own_place_uavs_task_and_last_load() -> None:
    world = small(deviation=0.0)
    actions = random_actions(world)
    before = world.world_state.task_bits * world.world_state.task_cycles_per_bit
    slot(world, actions)
    state, last = world.world_state, world.last
    assert last is not None
    seen = world.observe("mu").features["obs"]
    assert seen.shape == (4, K, 2 + 2 * M + 2 + M)
    assert torch.equal(seen[..., :2], state.mu_xy_m / 1000)
    assert torch.equal(seen[:, 5, 2 : 2 + 2 * M], (state.uav_xy_m / 1000).flatten(1))
    assert torch.allclose(seen[..., 2 + 2 * M], state.task_bits / 1.5e6)
    assert torch.allclose(seen[..., 3 + 2 * M], state.task_cycles_per_bit / 1500)
    for m in range(M):
        on = (last.association == m + 1) & ~last.relay
        load = torch.where(on, last.rho * before, 0.0) / (1.5e6 * 1500)
        assert torch.allclose(seen[..., 4 + 2 * M + m], load)


def test_relayed_tasks_count_as_load_only_in_the_reference() -> None:
    for counts in (False, True):
        world = small(load_counts_relayed=counts)
        actions = random_actions(world)
        actions["mu"]["relay"] = torch.ones(4, K, 1)
        slot(world, actions)
        load = world.observe("mu").features["obs"][..., 4 + 2 * M :]
        assert bool(load.any()) == counts


def test_uav_rows_hold_relative_place_its_square_place_task_and_load() -> None:
    world = small()
    slot(world)
    seen = world.observe("mu")
    vector, rows = seen.features["obs"], seen.entities["uav"]
    assert rows.shape == (4, K, M, 7)
    uav = vector[..., 2 : 2 + 2 * M].unflatten(-1, (M, 2))
    relative = uav - vector[..., None, :2]
    assert torch.equal(rows[..., :2], relative)
    assert torch.allclose(rows[..., 2], relative.square().sum(dim=-1))
    assert torch.equal(rows[..., 3:5], uav)
    assert torch.equal(rows[..., 5], vector[..., 2 + 2 * M, None].expand(4, K, M))
    assert torch.equal(rows[..., 6], vector[..., 4 + 2 * M :])


def test_entity_rows_are_offered_only_when_asked_for() -> None:
    world = small(entity_rows=False)
    assert world.observe("mu").entities == {}
    assert world.spec.role("mu").entities == {}
    assert world.spec.role("mu").action["assoc"].rows is None


def test_uavs_see_this_slots_requests_of_their_own_users_only() -> None:
    world = small(deviation=0.0)
    actions = random_actions(world)
    world.act("mu", actions["mu"])
    seen = world.observe("uav").features["obs"]
    assert seen.shape == (4, M, 2 + 5 * K + 2 * (M - 1))
    world.act("uav", actions["uav"])
    place = world.world_state.mu_xy_m.clone() / 1000
    own = world.world_state.uav_xy_m.clone() / 1000
    bits = world.world_state.task_bits.clone() / 1.5e6
    cycles = world.world_state.task_cycles_per_bit.clone() / 1500
    world.advance()
    last = world.last
    assert last is not None
    users = seen[..., 2 : 2 + 5 * K].unflatten(-1, (K, 5))
    for m in range(M):
        on = last.association == m + 1
        assert torch.equal(seen[:, m, :2], own[:, m])
        assert torch.equal(users[:, m, :, :2], place)
        for field, value in ((2, last.rho), (3, bits), (4, cycles)):
            assert torch.allclose(users[:, m, :, field], torch.where(on, value, 0.0))
        others = [j for j in range(M) if j != m]
        assert torch.equal(seen[:, m, 2 + 5 * K :], own[:, others].flatten(1))


def test_uavs_cannot_look_before_users_have_asked() -> None:
    with pytest.raises(ValueError, match=r"observe\('uav'\) must follow act\('mu'\)"):
        small().observe("uav")


def test_the_critics_uav_rows_do_not_depend_on_this_slots_requests() -> None:
    world = small()
    slot(world)
    before = world.state("uav")["uav"]
    world.act("mu", random_actions(world)["mu"])
    assert torch.equal(world.state("uav")["uav"], before)
    assert not torch.equal(world.observe("uav").features["obs"], before)
    users = before[..., 2 : 2 + 5 * K].unflatten(-1, (K, 5))
    on = world.world_state.last_choice.unsqueeze(1) == torch.arange(1, M + 1).unsqueeze(-1)
    assert world.last is not None
    assert torch.equal(users[..., 2], torch.where(on, world.last.rho.unsqueeze(1), 0.0))


def test_mask_none_shows_everything_and_prev_assoc_hides_all_five_fields() -> None:
    open_ = small(uav_obs_mask_mode="none", deviation=0.0)
    hidden = small(uav_obs_mask_mode="prev_assoc", deviation=0.0)
    for world in (open_, hidden):
        slot(world)
    shown = open_.observe("uav").features["obs"][..., 2 : 2 + 5 * K].unflatten(-1, (K, 5))
    masked = hidden.observe("uav").features["obs"][..., 2 : 2 + 5 * K].unflatten(-1, (K, 5))
    assert (shown[..., [0, 1, 3, 4]] > 0).all()
    on = hidden.world_state.last_choice.unsqueeze(1) == torch.arange(1, M + 1).unsqueeze(-1)
    assert torch.equal(masked, torch.where(on.unsqueeze(-1), shown, 0.0))


def test_the_state_vector_has_its_documented_order_and_no_twin_error() -> None:
    world = small(deviation=0.5)
    for _ in range(3):
        slot(world)
    s = world.world_state
    expected = torch.cat(
        (
            s.mu_xy_m[..., 0] / 1000,
            s.mu_xy_m[..., 1] / 1000,
            s.uav_xy_m[..., 0] / 1000,
            s.uav_xy_m[..., 1] / 1000,
            s.uav_velocity_mps.flatten(1) / 30,
            s.task_bits / 1.5e6,
            s.task_cycles_per_bit / 1500,
        ),
        dim=-1,
    )
    vector = world.state("mu")["state"]
    assert vector.shape == (4, 4 * K + 4 * M)
    assert torch.allclose(vector, expected)


def test_width_and_height_scale_their_own_axis() -> None:
    world = small(height_m=400.0, deviation=0.0)
    seen = world.observe("mu").features["obs"]
    assert torch.allclose(seen[..., 1], world.world_state.mu_xy_m[..., 1] / 400)
    assert (world.world_state.uav_xy_m[..., 1] <= 360).all()


def test_no_deviation_leaves_observed_positions_exact() -> None:
    with_twin, without = small(deviation=0.0), small(deviation=0.0, deviation_on_positions=False)
    for _ in range(3):
        slot(with_twin)
        slot(without)
    a, b = with_twin.observe("mu"), without.observe("mu")
    assert torch.equal(a.features["obs"], b.features["obs"])
    assert torch.equal(a.entities["uav"], b.entities["uav"])


def test_the_twin_has_one_estimate_of_each_entity_for_all_observers() -> None:
    world = small(deviation=0.2)
    users = world.observe("mu").features["obs"]
    world.act("mu", random_actions(world)["mu"])
    uavs = world.observe("uav").features["obs"]
    for m in range(M):
        seen_uav = users[..., 2 + 2 * m : 4 + 2 * m]
        assert torch.equal(seen_uav, uavs[:, m : m + 1, :2].expand(4, K, 2))
    seen_users = uavs[..., 2 : 2 + 5 * K].unflatten(-1, (K, 5))[..., :2]
    assert torch.equal(seen_users, users[..., :2].unsqueeze(1).expand(4, M, K, 2))
    error = users[..., :2] - world.world_state.mu_xy_m / 1000
    assert 0.1 < error.abs().max().item() <= 0.2
    assert users[..., : 2 + 2 * M].min() >= 0
    assert users[..., : 2 + 2 * M].max() <= 1


def test_relative_coordinates_show_others_from_where_the_observer_is() -> None:
    plain, relative = small(), small(relative_coordinates=True)
    a, b = plain.observe("mu").features["obs"], relative.observe("mu").features["obs"]
    uavs = a[..., 2 : 2 + 2 * M].unflatten(-1, (M, 2)) - a[..., None, :2]
    assert torch.equal(b[..., 2 : 2 + 2 * M], uavs.flatten(-2))
    assert torch.equal(a[..., :2], b[..., :2])
    a, b = plain.state("uav")["uav"], relative.state("uav")["uav"]
    others = a[..., 2 + 5 * K :].unflatten(-1, (M - 1, 2)) - a[..., None, :2]
    assert torch.equal(b[..., 2 + 5 * K :], others.flatten(-2))


def test_noise_without_a_twin_is_per_entry_covers_task_size_and_stays_in_the_unit_interval() -> (
    None
):
    clean, noisy = made(SMALL_REFERENCE), made(replace(SMALL_REFERENCE, wo_dt_noise=True))
    a, b = clean.observe("mu").features["obs"], noisy.observe("mu").features["obs"]
    assert (a[..., : 4 + 2 * M] != b[..., : 4 + 2 * M]).float().mean() > 0.95
    assert torch.equal(a[..., 4 + 2 * M :], b[..., 4 + 2 * M :])  # the load stays exact
    assert b.min() >= 0
    assert b.max() <= 1
    assert torch.equal(b, noisy.observe("mu").features["obs"])  # the same look, the same error
    a, b = clean.observe("uav").features["obs"], noisy.observe("uav").features["obs"]
    users_a, users_b = (x[..., 2 : 2 + 5 * K].unflatten(-1, (K, 5)) for x in (a, b))
    assert torch.equal(users_a[..., 2:4], users_b[..., 2:4])  # rho and task size stay exact
    assert not torch.equal(users_b[:, 0, :, 0], users_b[:, 1, :, 0])
    step_a, step_b = slot(clean), slot(noisy)
    assert torch.equal(step_a.reward["mu"], step_b.reward["mu"])
