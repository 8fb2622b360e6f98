"""A city run that was killed ends as one never stopped, and goes on in its own scenario alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.learners.config import PPOConfig
from lockstep.run import loop
from lockstep.run.config import TrainConfig, preset
from lockstep.run.rundir import read_json, write_json
from tests.integration.test_resume import Killed, kill_after, same_result

STEPS = 5
"""Months of a rollout; episodes have seven, so that checkpoints fall into the middle of them."""


def config() -> TrainConfig:
    """Three agents who act by turns, so that some decisions are open at every checkpoint."""
    base = preset("city-growth", scenario="small")
    assert isinstance(base.learner, PPOConfig)
    assert base.learner.reward_norm == "scale"
    ground = replace(base.world.map, n_slots=24, n_maps=2)
    world = replace(base.world, map=ground, horizon=7, max_candidates=64)
    learner = replace(base.learner, lanes=4, steps=STEPS, hidden=16, minibatches=2, epochs=2)
    return replace(
        base,
        world=world,
        learner=learner,
        seeds=(0, 1),
        total_steps=4 * learner.lanes * STEPS,
        checkpoint_every=1,
        device="cpu",
        compile="off",
    )


def test_a_killed_city_run_that_is_resumed_ends_as_one_never_stopped(tmp_path: Path):
    asked = config()
    straight = loop.train(asked, tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(asked, tmp_path / "killed", on_update=kill_after(3))
    same_result(straight, loop.resume(tmp_path / "killed"))


def test_a_run_does_not_go_on_in_another_scenario(tmp_path: Path):
    with pytest.raises(Killed):
        loop.train(config(), tmp_path / "run", on_update=kill_after(2))
    file = tmp_path / "run" / "config.json"
    changed = read_json(file)
    changed["world"]["settings"]["agents"][0]["types"][0]["cost"] += 1
    write_json(file, changed)
    with pytest.raises(BadInput, match="the config has changed since"):
        loop.resume(tmp_path / "run")
