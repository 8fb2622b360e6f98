"""From a learner's settings to the learner."""

from collections.abc import Sequence

import torch

from lockstep.core.learner import Learner
from lockstep.core.world import WorldSpec
from lockstep.learners.config import LearnerConfig, PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.learners.randomized import Randomized


def build(
    config: LearnerConfig,
    spec: WorldSpec,
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    compile: bool = False,
    graphs: bool = False,
    accumulate: int = 1,
) -> Learner:
    """A pack of one member for each seed.

    `compile` fuses acting into few kernels, `graphs` replays updates as CUDA graphs, `accumulate`
    learns from each minibatch in that many parts.
    """
    if isinstance(config, PPOConfig):
        return PPO(
            config,
            spec,
            seeds=seeds,
            device=device,
            compile=compile,
            graphs=graphs,
            accumulate=accumulate,
        )
    return Randomized(config, spec, seeds=seeds, device=device)
