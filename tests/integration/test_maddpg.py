"""A learner with a replay through the run layer: checkpoints, resume, evaluation, one member."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.learners.config import MADDPGConfig
from lockstep.run import checkpoint, loop
from lockstep.run.api import evaluate, load
from lockstep.run.config import TrainConfig, preset
from lockstep.run.loop import Progress
from lockstep.run.members import extract
from lockstep.worlds import registry
from tests import tiny


def config(updates: int) -> TrainConfig:
    base = preset("uav-mec", scenario="demo", learner="maddpg")
    assert isinstance(base.learner, MADDPGConfig)
    sizes = {"hidden": 16, "hidden_critic": 16, "replay": 30, "warm_up": 20, "batch": 8}
    learner = replace(base.learner, lanes=2, steps=6, updates_per_step=0.5, **sizes)
    return replace(
        base,
        world=replace(base.world, **tiny.WORLD),
        learner=learner,
        seeds=(0, 1),
        total_steps=updates * tiny.STEPS_PER_UPDATE,
        checkpoint_every=1,
        device="cpu",
    )


class Killed(BaseException):
    """Stands for a process that ends without another word."""


@pytest.mark.parametrize("at", [1, 4])  # warming up; after the ring has wrapped
def test_a_killed_run_resumes_with_its_replay(tmp_path: Path, at: int) -> None:
    def kill(progress: Progress) -> None:
        if progress.update == at:
            raise Killed

    straight = loop.train(config(6), tmp_path / "straight")
    with pytest.raises(Killed):
        loop.train(config(6), tmp_path / "killed", on_update=kill)
    resumed = loop.resume(tmp_path / "killed")
    assert straight.dir.metrics.read_bytes() == resumed.dir.metrics.read_bytes()
    step = checkpoint.pointed(straight.dir.checkpoints, "latest")
    assert checkpoint.digest_at(straight.dir.checkpoints, step) == checkpoint.digest_at(
        resumed.dir.checkpoints, step
    )


def test_a_trained_run_is_evaluated_and_a_member_goes_on_alone(tmp_path: Path) -> None:
    run = loop.train(config(3), tmp_path / "pack")
    world = registry.build(run.config.world, lanes=4)
    found = evaluate(load(run), world, episodes=4)
    assert found.episodes["weighted_energy"].shape == (1, 4)  # of the better member
    alone = extract(run, 1, tmp_path / "alone")
    assert alone.config.seeds == (1,)
    assert checkpoint.newest(alone.dir.checkpoints) == 3 * tiny.STEPS_PER_UPDATE
