"""Requests, relay rules and shares."""

import torch

from lockstep.worlds.uav_mec.allocation import decode_request, served_by
from lockstep.worlds.uav_mec.heuristics import random_actions
from tests.unit.worlds.uav_mec.helpers import SMALL_REFERENCE, decided, made, slot, small


def test_pooled_bandwidth_sums_to_the_band_and_is_zero_for_local_users() -> None:
    world = small(lanes=32)
    for _ in range(5):
        slot(world)
        assert world.last is not None
        anyone = (world.last.association > 0).any(dim=-1).float()
        assert torch.allclose(world.last.bandwidth_share.sum(dim=-1), anyone)
        assert (world.last.bandwidth_share[world.last.association == 0] == 0).all()


def test_bandwidth_per_uav_sums_to_one_for_each_uav_with_users() -> None:
    world = small(lanes=32, bandwidth_pool="uav")
    slot(world)
    assert world.last is not None
    served = served_by(world.last.association, 3)
    total = (served * world.last.bandwidth_share.unsqueeze(1)).sum(dim=-1)
    assert torch.allclose(total, served.any(dim=-1).float())


def test_cpu_shares_sum_to_the_server_and_only_direct_users_have_one() -> None:
    for world in (small(lanes=32), made(SMALL_REFERENCE, lanes=32)):
        slot(world)
        last = world.last
        assert last is not None
        direct = served_by(last.association, 3) & ~last.relay.unsqueeze(1)
        total = (direct * last.cpu_share.unsqueeze(1)).sum(dim=-1)
        assert torch.allclose(total, direct.any(dim=-1).float())
        assert (last.cpu_share[last.relay | (last.association == 0)] == 0).all()


def test_rho_is_zero_if_and_only_if_the_user_is_local() -> None:
    for config in ("beta_argmax", "categorical", "categorical_rule"):
        world = small(lanes=32, assoc_head=config)
        slot(world)
        assert world.last is not None
        assert torch.equal(world.last.rho == 0, world.last.association == 0)


def test_scores_pick_the_largest_and_a_tie_at_the_clip_is_local() -> None:
    world = small(lanes=1)
    action = random_actions(world)["mu"]
    action["assoc"] = torch.zeros(1, 8, 4)
    action["assoc"][0, 0, 2] = 0.9
    action["assoc"][0, 1] = torch.tensor([1.5, 2.0, 3.0, 1.2])  # a clipped Gaussian's raw numbers
    action["relay"] = torch.full((1, 8, 1), 0.7)
    request = decode_request(action, world.world_state, config=world.config)
    assert request.choice[0, :2].tolist() == [2, 0]
    assert request.relayed[0, :2].tolist() == [True, False]


def test_the_2m_plus_1_labels_are_local_then_direct_then_relay() -> None:
    world = small(lanes=1, assoc_head="categorical")
    action = {"assoc": torch.arange(8).unsqueeze(0), "rho": torch.ones(1, 8, 1)}
    request = decode_request(action, world.world_state, config=world.config)
    assert request.choice[0, :7].tolist() == [0, 1, 2, 3, 1, 2, 3]
    assert request.relayed[0, :7].tolist() == [False] * 4 + [True] * 3


def test_the_nearest_rule_relays_through_the_nearest_uav_and_best_snr_agrees() -> None:
    world = made(SMALL_REFERENCE, lanes=16)
    action = {"assoc": torch.full((16, 8), 4), "rho": torch.ones(16, 8, 1)}
    state = world.world_state
    request = decode_request(action, state, config=world.config)
    distance = torch.cdist(state.mu_xy_m, state.uav_xy_m)
    assert torch.equal(request.choice, distance.argmin(dim=-1) + 1)
    snr = made(type(SMALL_REFERENCE)(**{**vars(SMALL_REFERENCE), "relay_rule": "best_snr"}))
    other = decode_request(action, state, config=snr.config)
    assert torch.equal(other.choice, request.choice)


def test_the_min_load_rule_equals_a_greedy_loop() -> None:
    world = small(lanes=16, assoc_head="categorical_rule", relay_rule="min_load")
    label = random_actions(world)["mu"]["assoc"]
    state = world.world_state
    action = {"assoc": label, "rho": torch.ones(16, 8, 1)}
    request = decode_request(action, state, config=world.config)
    distance = torch.cdist(state.mu_xy_m, state.uav_xy_m)
    for i in range(16):
        count = [int((label[i] == m).sum()) for m in (1, 2, 3)]
        for k in range(8):
            if label[i, k] == 4:
                best = min(range(3), key=lambda m: (count[m], distance[i, k, m].item()))
                count[best] += 1
                assert request.choice[i, k] == best + 1
                assert request.relayed[i, k]


def test_softmax_shares_follow_the_temperature_and_zero_means_equal() -> None:
    for temperature, ratio in ((1.0, torch.e), (0.0, 1.0)):
        world = small(lanes=1, share_rule="softmax", share_temperature=temperature)
        actions = random_actions(world)
        actions["mu"]["assoc"] = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(1, 8, 4)
        actions["uav"]["bandwidth"] = torch.zeros(1, 3, 8)
        actions["uav"]["bandwidth"][:, :, 0] = 1.0
        slot(world, actions)
        assert world.last is not None
        share = world.last.bandwidth_share[0]
        assert torch.isclose(share[0] / share[1], torch.tensor(ratio))


def test_plain_shares_have_a_floor_under_the_score() -> None:
    world = small(lanes=1)
    actions = random_actions(world)
    actions["mu"]["assoc"] = torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(1, 8, 4)
    actions["uav"]["bandwidth"] = torch.zeros(1, 3, 8)
    actions["uav"]["bandwidth"][:, :, 0] = 1.0
    slot(world, actions)
    assert world.last is not None
    assert torch.isclose(world.last.bandwidth_share[0, 1], torch.tensor(0.05 / 1.35))


def test_nobody_offloading_is_no_division_by_zero() -> None:
    world = small(lanes=2)
    step = slot(world, decided(world, "all_local"))
    assert all(torch.isfinite(value).all() for value in step.metrics.values())
    assert (step.metrics["local_share"] == 1).all()
