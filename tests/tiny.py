"""A scene small enough to train in a second, as a config and as flags."""

from dataclasses import replace

from lockstep.learners.config import PPOConfig
from lockstep.run.config import TrainConfig, preset

WORLD = {"n_users": 4, "n_uavs": 2, "n_slots": 6}
LEARNER = {"lanes": 2, "steps": 6, "hidden": 16}
STEPS_PER_UPDATE = 12


def config(updates: int = 4, *, seeds: tuple[int, ...] = (0, 1), **settings: object) -> TrainConfig:
    base = preset("uav-mec", scenario="demo", learner="ab-mappo")
    assert isinstance(base.learner, PPOConfig)
    return replace(
        base,
        world=replace(base.world, **WORLD),
        learner=replace(base.learner, **LEARNER),
        seeds=seeds,
        total_steps=updates * STEPS_PER_UPDATE,
        device="cpu",
        **settings,
    )


def flags(updates: int = 2) -> list[str]:
    world = [f"--world.{k.replace('_', '-')}={v}" for k, v in WORLD.items()]
    learner = [f"--learner.{k}={v}" for k, v in LEARNER.items()]
    steps = f"--total-steps={updates * STEPS_PER_UPDATE}"
    return ["--scenario=demo", *world, *learner, steps, "--device=cpu"]
