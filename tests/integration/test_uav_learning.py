"""Learning on the UAV world: users find their UAVs and the energy falls."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.cli.demo import QUICK
from lockstep.run.config import TrainConfig, preset
from lockstep.run.trainer import Trainer

STEPS = 9_000


def energies(config: TrainConfig, *, until: float) -> np.ndarray:
    """Weighted energy `[updates, P]`, up to where it has fallen for every member.

    It has when the mean of three updates is at most `until` times the first update.
    """
    trainer = Trainer(replace(config, device="cpu", compile="off"))
    curve: list[list[float]] = []
    for _ in range(trainer.config.updates):
        curve.append(trainer.update()["world/weighted_energy"].tolist())
        if len(curve) > 3 and np.mean(curve[-3:], axis=0).max() <= until * min(curve[0]):
            break
    return np.array(curve)


def test_ab_mappo_lowers_the_energy_by_30_percent_within_9k_steps():
    """Acceptance: each member's last updates are at least 30 % below its first rollout."""
    base = preset("uav-mec", scenario="demo", learner="ab-mappo")
    config = replace(base, learner=replace(base.learner, **QUICK), seeds=(0, 1), total_steps=STEPS)
    assert config.learner.actor == "scorer"
    curve = energies(config, until=0.7)
    assert len(curve) <= STEPS // config.steps_per_update
    assert (curve[-3:].mean(axis=0) <= 0.7 * curve[0]).all(), curve[[0, -3, -2, -1]]


@pytest.mark.slow
def test_the_full_scene_falls_by_30_percent_within_9k_steps_too():
    """K = 60, M = 10 with the default rates and five minibatches, which converge early."""
    base = preset("uav-mec", scenario="paper", learner="ab-mappo")
    config = replace(
        base, learner=replace(base.learner, minibatches=5), seeds=(0,), total_steps=STEPS
    )
    curve = energies(config, until=0.7)
    assert (curve[-3:].mean(axis=0) <= 0.7 * curve[0]).all(), curve[[0, -3, -2, -1]]
