"""Levels of chance and of common sense at K = 60, M = 10 (spec 1.13, 11.2), within 10 %."""

from dataclasses import replace

import pytest

from lockstep.worlds.uav_mec.config import PAPER
from tests.unit.worlds.uav_mec.helpers import episode_means


def test_randomized_meets_the_measured_level() -> None:
    # 11.2 measured with a share floor of .001; the profile's .05 is checked beside it.
    chance = episode_means(replace(PAPER, share_floor=0.001), "random")
    assert chance["weighted_energy_mu_avg"] == pytest.approx(0.853, rel=0.03)
    assert chance["mu_energy_avg"] == pytest.approx(0.714, rel=0.03)
    assert chance["uav_energy_avg"] == pytest.approx(139.0, rel=0.03)
    assert chance["uav_comp_energy_avg"] == pytest.approx(25.0, rel=0.1)
    assert chance["jain_fairness"] == pytest.approx(0.526, rel=0.03)
    assert chance["mu_reward"] == pytest.approx(-1.004, rel=0.03)
    assert chance["uav_reward"] == pytest.approx(-1.18, rel=0.03)
    assert chance["relay_share"] == pytest.approx(0.50, abs=0.02)
    assert chance["local_share"] == pytest.approx(1 / 11, abs=0.01)
    assert chance["nearest_share"] == pytest.approx(0.10, abs=0.01)
    profile = episode_means(PAPER, "random")
    assert profile["weighted_energy_mu_avg"] == pytest.approx(0.85, rel=0.1)


def test_the_late_share_of_chance_is_the_measured_one_without_sharing_the_relay_band() -> None:
    config = replace(PAPER, share_floor=0.001, share_relay_bandwidth=False)
    assert episode_means(config, "random")["late_share"] == pytest.approx(0.55, abs=0.02)


def test_all_local_meets_the_state_into_which_the_gaussian_learner_fell() -> None:
    local = episode_means(PAPER, "all_local")
    assert local["weighted_energy_mu_avg"] == pytest.approx(0.956, rel=0.02)
    assert local["mu_energy_avg"] == pytest.approx(0.836, rel=0.02)
    assert local["jain_fairness"] == pytest.approx(0.689, rel=0.02)
    assert local["late_share"] == pytest.approx(0.39, abs=0.02)


@pytest.mark.parametrize(
    ("changes", "joule"),
    [
        ({}, 0.068),
        ({"bandwidth_mhz": 30.0}, 0.090),
        ({"bandwidth_mhz": 70.0}, 0.057),
        ({"n_users": 100}, 0.092),
        ({"task_max_mbit": 3.0}, 0.125),
        ({"bandwidth_pool": "uav"}, 0.029),
    ],
)
def test_the_oracle_meets_its_anchors(changes: dict[str, object], joule: float) -> None:
    config = replace(PAPER, **changes)  # type: ignore[arg-type]  # test shorthand
    assert episode_means(config, "oracle", lanes=24)["mu_energy_avg"] == pytest.approx(
        joule, rel=0.1
    )


def test_the_oracle_and_its_flying_version_are_far_below_chance() -> None:
    limit, flying = episode_means(PAPER, "oracle"), episode_means(PAPER, "greedy")
    assert limit["weighted_energy_mu_avg"] == pytest.approx(0.189, rel=0.1)
    assert flying["weighted_energy_mu_avg"] == pytest.approx(0.189, rel=0.1)
    assert limit["mu_energy_avg"] < flying["mu_energy_avg"]
    half = episode_means(PAPER, "nearest_equal")
    assert flying["weighted_energy_mu_avg"] < half["weighted_energy_mu_avg"] < 0.5
