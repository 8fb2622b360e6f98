"""Promises about how a slot is computed, not only about its result."""

from typing import Any

import pytest
import torch

from lockstep.worlds.uav_mec import channel, slot as slot_module
from lockstep.worlds.uav_mec.allocation import per_uav, served_by
from lockstep.worlds.uav_mec.config import UavMecConfig
from lockstep.worlds.uav_mec.heuristics import random_actions
from tests.unit.worlds.uav_mec.helpers import SMALL, SMALL_REFERENCE, made, slot, small


def test_delays_of_all_offloaders_equal_one_link_at_a_time() -> None:
    world = small(deviation=0.0)
    bits = world.world_state.task_bits.clone()
    cycles = world.world_state.task_cycles_per_bit.clone()
    users = world.world_state.mu_xy_m.clone()
    slot(world, random_actions(world))
    last, uavs = world.last, world.world_state.uav_xy_m
    assert last is not None
    checked = 0
    for lane in range(4):
        for k in range(8):
            m = int(last.association[lane, k]) - 1
            if m < 0 or last.relay[lane, k]:
                continue
            rate = channel.uplink_bps(
                users[lane, k],
                uavs[lane, m],
                last.bandwidth_share[lane, k] * 50e6,
                power_w=torch.tensor(SMALL.mu_power_w),
                config=SMALL,
            )
            sent = last.rho[lane, k] * bits[lane, k]
            expected = sent / rate + sent * cycles[lane, k] / (last.cpu_share[lane, k] * 10e9)
            assert last.edge_delay_s[lane, k].item() == pytest.approx(expected.item(), rel=1e-4)
            checked += 1
    assert checked > 4


def test_sums_per_uav_equal_a_loop_over_users() -> None:
    generator = torch.Generator().manual_seed(1)
    value = torch.rand(3, 9, generator=generator)
    choice = torch.randint(0, 5, (3, 9), generator=generator)
    found = per_uav(value, served_by(choice, 4))
    expected = torch.zeros(3, 4)
    for lane in range(3):
        for k in range(9):
            if choice[lane, k] > 0:
                expected[lane, choice[lane, k] - 1] += value[lane, k]
    torch.testing.assert_close(found, expected)


def test_who_serves_whom_is_worked_out_once_in_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    world, called = small(), []

    def counting(*args: Any, real: Any = slot_module.served_by) -> Any:
        called.append(args)
        return real(*args)

    monkeypatch.setattr(slot_module, "served_by", counting)
    slot(world)
    assert len(called) == 1


@pytest.mark.parametrize("config", [SMALL, SMALL_REFERENCE], ids=["paper", "reference"])
def test_numbers_are_single_precision_throughout(config: UavMecConfig) -> None:
    world = made(config)
    seen = [*world.observe("mu").tensors().values(), *world.state("mu").values()]
    actions = random_actions(world)
    world.act("mu", actions["mu"])
    seen += world.observe("uav").tensors().values()
    world.act("uav", actions["uav"])
    step = world.advance()
    assert world.last is not None
    seen += [*step.reward.values(), *step.metrics.values(), step.elapsed]
    seen += [*vars(world.last).values(), *world.world_state.tensors().values()]
    seen += world.numbers.tensors().values()
    numbers = [x for x in seen if x.is_floating_point()]
    assert len(numbers) > 40
    assert {x.dtype for x in numbers} == {torch.float32}
