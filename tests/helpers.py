"""What several test modules need: a learner and a collector on a world, ready to run."""

from collections.abc import Sequence
from typing import Any

from lockstep.collect.synchronous import Collector
from lockstep.core.rollout import Rollout
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import World
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from tests.toys import Toy


def assemble(
    make: Any, config: PPOConfig, seeds: Sequence[int], **options: Any
) -> tuple[PPO, Collector, Rollout]:
    """A PPO pack on `make(lanes=...)`, its collector and its rollout; `options` are the pack's."""
    lanes = len(seeds) * config.lanes
    world: World | Toy = make(lanes=lanes)
    keys = lane_keys(seeds, lanes=config.lanes)
    world.reset(keys)
    learner = PPO(config, world.spec, seeds=seeds, **options)
    return learner, Collector(world, learner, Streams(keys)), learner.rollout()


def train(learner: PPO, collector: Collector, rollout: Rollout, updates: int) -> list[Any]:
    """Collects and learns `updates` times; the statistics of each."""
    stats = []
    for _ in range(updates):
        collector.collect(rollout)
        stats.append(learner.update(rollout).scalars)
    return stats
