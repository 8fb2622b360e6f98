"""Settings: their checks, their scenarios, and that they cost no torch import."""

import importlib
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from lockstep.errors import UnknownName
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import PAPER, SCENARIOS, SETTABLE, UavMecConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_users": 0}, "n_users must be at least 1, got 0"),
        ({"bandwidth_mhz": -1.0}, "bandwidth_mhz must be positive, got -1.0"),
        ({"deviation": 1.5}, "deviation must lie in 0..1, got 1.5"),
        ({"drag_ratio": -0.1}, "drag_ratio must not be negative, got -0.1"),
        ({"task_min_mbit": 2.0}, "task_min_mbit must not exceed task_max_mbit, got 2.0 and 1.5"),
        ({"cycles_max": 10.0}, "cycles_min must not exceed cycles_max, got 500.0 and 10.0"),
        ({"start_margin": 0.5}, "start_margin must be below 0.5"),
        ({"timeout_bootstrap": True, "at_horizon": "continue"}, "set at_horizon='reset'"),
        ({"wo_dt_noise": True, "relative_coordinates": True}, "set relative_coordinates=false"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PAPER, **changes)  # type: ignore[arg-type]  # wrong on purpose


def test_the_profiles_have_the_numbers_of_their_sources() -> None:
    paper, reference, demo = (SCENARIOS[name] for name in ("paper", "reference", "demo"))
    assert (paper.task_max_mbit, paper.deviation, paper.drag_ratio, paper.share_floor) == (
        1.5,
        0.05,
        0.6,
        0.05,
    )
    assert paper.two_phase
    assert not reference.two_phase
    assert (reference.task_max_mbit, reference.deviation, reference.reward_scale) == (2.0, 0.0, 10)
    assert (demo.n_users, demo.n_uavs) == (20, 4)
    assert replace(demo, n_users=60, n_uavs=10) == paper
    assert paper.noise_w_hz == pytest.approx(1.99526e-16, rel=1e-5)
    assert (paper.gamma_mu, paper.gamma_uav) == (0.8, 0.95)


def test_settable_numbers_are_plain_floats_of_the_config() -> None:
    kinds = {field.name: field.type for field in fields(UavMecConfig)}
    assert all(kinds[name] is float for name in SETTABLE)


def test_scenarios_are_listed_without_importing_torch() -> None:
    code = (
        "import sys; from lockstep.worlds import registry; "
        "assert 'paper' in registry.scenarios('uav-mec'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_registry_builds_the_world_of_a_config_and_suggests_names() -> None:
    assert "uav-mec" in registry.names()
    world = registry.build(registry.scenarios("uav-mec")["demo"], lanes=2)
    assert world.spec.name == "uav-mec"
    assert set(registry.heuristics("uav-mec")) >= {"random", "greedy"}
    assert registry.summary("uav-mec").endswith(".")
    with pytest.raises(UnknownName, match="did you mean 'uav-mec'"):
        registry.scenarios("uav-mce")


def test_the_registrys_config_paths_lead_to_the_class_of_the_scenarios() -> None:
    for name, entry in registry.WORLDS.items():
        module, _, attribute = entry.config.partition(":")
        config_class = getattr(importlib.import_module(module), attribute)
        assert config_class.name == name
        assert all(isinstance(c, config_class) for c in registry.scenarios(name).values())
