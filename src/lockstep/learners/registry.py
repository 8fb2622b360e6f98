"""From a learner's settings to the learner."""

from collections.abc import Callable, Mapping, Sequence

import torch

from lockstep.core.learner import Learner
from lockstep.core.world import WorldSpec
from lockstep.errors import known
from lockstep.learners.config import LearnerConfig, PPOConfig, RandomizedConfig
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
    make = _KINDS[known("kind of learner", config.kind, _KINDS)]
    how = {"compile": compile, "graphs": graphs, "accumulate": accumulate}
    return make(config, spec, seeds=seeds, device=device, **how)


def _randomized(
    config: RandomizedConfig,
    spec: WorldSpec,
    *,
    seeds: Sequence[int],
    device: torch.device | str,
    **_: bool | int,
) -> Randomized:
    """Without networks there is nothing to compile, to replay as a graph or to learn in parts."""
    return Randomized(config, spec, seeds=seeds, device=device)


_KINDS: Mapping[str, Callable[..., Learner]] = {
    PPOConfig.kind: PPO,
    RandomizedConfig.kind: _randomized,
}
