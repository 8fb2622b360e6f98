"""Radio, propulsion, chips, walls and flight against tables and slow versions."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lockstep.worlds.uav_mec import channel, computing, energy, kinematics, mobility
from lockstep.worlds.uav_mec.config import PAPER

RADIO = [  # horizontal m, P_L, gain, Mb/s at .8333 MHz, Mb/s at 8.3333 MHz
    (0.0, 1.000000, 8.664e-9, 2.928, 8.584),
    (100.0, 1.000000, 6.778e-9, 2.662, 7.169),
    (300.0, 0.998691, 2.367e-9, 1.620, 3.012),
    (500.0, 0.666557, 7.188e-10, 0.749, 0.997),
    (700.0, 0.096620, 1.400e-10, 0.187, 0.201),
    (1000.0, 0.010425, 5.012e-11, 0.070, 0.072),
]


def t(*values: float) -> Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize(("distance_m", "los", "gain", "narrow", "wide"), RADIO)
def test_the_uplink_meets_the_table_of_anchors(
    distance_m: float, los: float, gain: float, narrow: float, wide: float
) -> None:
    d = t(distance_m)
    assert channel.los_probability(d, config=PAPER).item() == pytest.approx(los, rel=1e-4)
    assert channel.uplink_gain(d, config=PAPER).item() == pytest.approx(gain, rel=2e-4)
    for hz, mbps in ((5e7 / 60, narrow), (5e7 / 6, wide)):
        rate = channel.uplink_bps(
            torch.zeros(1, 2),
            torch.tensor([[distance_m, 0.0]]),
            t(hz),
            power_w=t(0.2),
            config=PAPER,
        )
        assert rate.item() / 1e6 == pytest.approx(mbps, abs=5.1e-4)


@pytest.mark.parametrize(
    ("x", "y", "mbps"), [(0.0, 0.0, 7.302), (500.0, 500.0, 2.374), (1000.0, 1000.0, 1.024)]
)
def test_the_relay_link_meets_the_anchors(x: float, y: float, mbps: float) -> None:
    rate = channel.relay_bps(torch.tensor([[x, y]]), t(5e6), power_w=t(0.5), config=PAPER)
    assert rate.item() / 1e6 == pytest.approx(mbps, abs=5.1e-4)


@pytest.mark.parametrize(
    ("speed", "watt"),
    [(0.0, 118.1), (5.0, 91.9), (10.0, 77.3), (15.0, 91.0), (20.0, 130.5), (30.0, 305.4)],
)
def test_propulsion_meets_the_anchors(speed: float, watt: float) -> None:
    power = energy.propulsion_w(t(speed), drag_ratio=t(0.6), config=PAPER)
    assert power.item() == pytest.approx(watt, abs=0.051)


def test_propulsion_equals_the_printed_form_of_the_cited_model() -> None:
    v = torch.linspace(0.0, 40.0, 81, dtype=torch.float64)
    c = PAPER
    expected = (
        0.5 * 0.6 * 1.225 * 0.05 * 0.503 * v**3
        + c.blade_power_w * (1 + 3 * v**2 / 120.0**2)
        + c.induced_power_w * (torch.sqrt(1 + v**4 / (4 * 3.6**4)) - v**2 / (2 * 3.6**2)) ** 0.5
    )
    actual = energy.propulsion_w(v.float(), drag_ratio=t(0.6), config=c)
    assert torch.allclose(actual.double(), expected, rtol=2e-6)


def scalar_rate_bps(dx: float, dy: float, hz: float, *, power_w: float = 0.2) -> float:
    horizontal = max(math.hypot(dx, dy), 1e-6)
    elevation = math.degrees(math.atan(200.0 / horizontal))
    los = 1.0 / (1.0 + 15.0 * math.exp(-0.5 * (elevation - 15.0)))
    gain = 1e-3 * (los + 0.2 * (1.0 - los)) / math.hypot(horizontal, 200.0) ** 2.2
    return max(1e3, hz * math.log2(1.0 + power_w * gain / (hz * 10**-12.7 * 1e-3)))


def test_batched_rates_equal_a_scalar_loop_for_any_broadcast() -> None:
    generator = torch.Generator().manual_seed(0)
    mu = 1000 * torch.rand(3, 5, 1, 2, generator=generator)
    uav = 1000 * torch.rand(3, 1, 4, 2, generator=generator)
    hz = 1e5 + 1e7 * torch.rand(3, 5, 4, generator=generator)
    batched = channel.uplink_bps(mu, uav, hz, power_w=t(0.2), config=PAPER)  # [3, 5, 4]
    assert batched.shape == (3, 5, 4)
    for i in range(3):
        for k in range(5):
            for m in range(4):
                dx, dy = (mu[i, k, 0] - uav[i, 0, m]).tolist()
                expected = scalar_rate_bps(dx, dy, hz[i, k, m].item())
                assert batched[i, k, m].item() == pytest.approx(expected, rel=1e-4)


def test_a_starved_link_is_slow_and_not_infinite() -> None:
    rate = channel.shannon_bps(t(0.0), t(0.2), t(1e-20), noise_w_hz=PAPER.noise_w_hz)
    assert rate.item() == channel.MIN_RATE_BPS


def test_dvfs_takes_the_slowest_clock_that_finishes_in_the_slot() -> None:
    work = t(0.0, 4e8, 2e9)
    clock = computing.dvfs_hz(work, slot_s=1.0, f_max_hz=t(1e9))
    assert clock.tolist() == [0.0, 4e8, 1e9]
    assert computing.compute_s(work, clock).tolist() == [0.0, 1.0, 2.0]


def test_no_deviation_leaves_the_clock_exact_and_a_large_one_keeps_a_tenth() -> None:
    clock = 1e9 * torch.rand(1000)
    draw = 2 * torch.rand(1000) - 1
    assert torch.equal(computing.real_hz(clock, t(0.0), draw), clock)
    assert computing.real_hz(t(1e9), t(1.0), t(-0.999)).item() == pytest.approx(1e8)


def test_the_delay_correction_of_the_paper_is_work_over_the_real_clock() -> None:
    work, estimate, off = 8e8, 9e8, -3e7
    paper = work / estimate - work * off / (estimate * (estimate + off))
    ours = computing.compute_s(t(work), computing.real_hz(t(estimate), t(1.0), t(off / estimate)))
    assert ours.item() == pytest.approx(paper, rel=1e-6)


def test_walls_reflect_x_and_y_separately_in_position_and_heading() -> None:
    xy = torch.tensor([[-3.0, 50.0], [1004.0, 50.0], [50.0, -2.0], [50.0, 405.0], [-1.0, -1.0]])
    heading = torch.full((5,), 0.3)
    inside, turned = mobility.bounce(xy, heading, width_m=1000.0, height_m=400.0)
    assert inside.tolist() == [[3, 50], [996, 50], [50, 2], [50, 395], [1, 1]]
    x_wall, y_wall = math.pi - 0.3, -0.3
    expected = t(x_wall, x_wall, y_wall, y_wall, -x_wall)
    assert torch.allclose(turned, expected)


def test_a_bounced_user_moves_away_from_the_wall() -> None:
    heading = torch.tensor([math.pi - 0.1])  # towards x = 0
    _, turned = mobility.bounce(torch.tensor([[-1.0, 5.0]]), heading, width_m=10.0, height_m=10.0)
    assert torch.cos(turned).item() > 0
    assert torch.sin(turned).item() == pytest.approx(math.sin(math.pi - 0.1), abs=1e-5)


def test_gauss_markov_keeps_its_stationary_spread() -> None:
    generator = torch.Generator().manual_seed(1)
    speed = torch.full((20_000,), 5.5)
    for _ in range(40):
        noise = 1.7 * torch.randn(20_000, generator=generator)
        speed = mobility.gauss_markov(speed, t(5.5), noise, memory=0.8)
    assert speed.mean().item() == pytest.approx(5.5, abs=0.05)
    assert speed.std().item() == pytest.approx(1.7, rel=0.03)


def flown(velocity: list[float], motion: list[float], **changes: object) -> kinematics.Flight:
    return kinematics.fly(
        torch.tensor([[[500.0, 500.0]]]),
        torch.tensor([[velocity]]),
        torch.tensor([[motion]]),
        v_max_mps=t(30.0),
        a_max_mps2=t(5.0),
        config=replace(PAPER, **changes),  # type: ignore[arg-type]  # test shorthand
    )


def test_acceleration_moves_by_v_dt_plus_half_a_dt_squared() -> None:
    flight = flown([10.0, 0.0], [0.5, 0.8])
    assert flight.xy_m.flatten().tolist() == pytest.approx([510.0, 501.5])
    assert flight.velocity_mps.flatten().tolist() == pytest.approx([10.0, 3.0])


def test_limits_hold_in_norm_or_per_axis() -> None:
    norm, axis = flown([0.0, 0.0], [1.0, 1.0]), flown([0.0, 0.0], [1.0, 1.0], limit="axis")
    assert norm.velocity_mps.norm().item() == pytest.approx(5.0)
    assert axis.velocity_mps.flatten().tolist() == pytest.approx([5.0, 5.0])
    fast = flown([30.0, 0.0], [1.0, 1.0])
    assert fast.velocity_mps.norm().item() == pytest.approx(30.0, rel=1e-6)


def test_a_target_velocity_is_approached_with_the_largest_acceleration() -> None:
    flight = flown([0.0, 0.0], [1.0, 0.5], uav_control="target_velocity")
    assert flight.velocity_mps.flatten().tolist() == pytest.approx([5.0, 0.0])
    assert flight.xy_m.flatten().tolist() == pytest.approx([502.5, 500.0])
    near = flown([29.0, 0.0], [1.0, 0.5], uav_control="target_velocity")
    assert near.velocity_mps.flatten().tolist() == pytest.approx([30.0, 0.0])


def test_a_wall_stops_a_uav_and_width_and_height_are_separate() -> None:
    flight = kinematics.fly(
        torch.tensor([[[995.0, 395.0], [995.0, 395.0], [995.0, 200.0]]]),
        torch.tensor([[[9.0, 0.0], [9.0, 17.0], [2.0, 0.0]]]),
        torch.full((1, 3, 2), 0.5),
        v_max_mps=t(30.0),
        a_max_mps2=t(5.0),
        config=replace(PAPER, height_m=400.0),
    )
    assert flight.overshoot_m.flatten().tolist() == pytest.approx([4.0, math.hypot(4, 12), 0.0])
    assert flight.xy_m.flatten(0, 1).tolist() == [[1000.0, 395.0], [1000.0, 400.0], [997.0, 200.0]]
    assert flight.velocity_mps.flatten(0, 1).tolist() == [[0.0, 0.0], [0.0, 0.0], [2.0, 0.0]]
