"""From a learner's settings to the learner."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lockstep.core.company import ALONE, Company
from lockstep.core.learner import Learner
from lockstep.core.world import WorldSpec
from lockstep.errors import BadInput, known
from lockstep.learners.config import LearnerConfig, MADDPGConfig, PPOConfig, RandomizedConfig
from lockstep.learners.maddpg import MADDPG
from lockstep.learners.ppo import PPO
from lockstep.learners.randomized import Randomized


def build(
    config: LearnerConfig,
    spec: WorldSpec,
    *,
    seeds: Sequence[int],
    vary: Mapping[str, Sequence[float]] | None = None,
    device: torch.device | str = "cpu",
    compile: bool = False,
    graphs: bool = False,
    accumulate: int = 1,
    company: Company = ALONE,
) -> Learner:
    """A pack of one member for each seed; `vary` gives the settings in which members differ.

    `compile` fuses acting into few kernels, `graphs` replays updates as CUDA graphs, `accumulate`
    learns from each minibatch in that many parts; it learns together with the learners of the
    other processes of its `company`.
    """
    make = _KINDS[known("kind of learner", config.kind, _KINDS)]
    for name in vary or {}:
        known(f"setting of {config.kind} in which members may differ", name, config.variable)
    how: dict[str, Any] = {"compile": compile, "graphs": graphs, "accumulate": accumulate}
    if vary:
        how["vary"] = vary
    return make(config, spec, seeds=seeds, device=device, company=company, **how)


def _randomized(
    config: RandomizedConfig,
    spec: WorldSpec,
    *,
    seeds: Sequence[int],
    device: torch.device | str,
    company: Company,
    **_: bool | int,
) -> Randomized:
    """Without networks there is nothing to compile, to replay as a graph or to learn in parts."""
    own = replace(config, lanes=config.lanes // company.size)
    return Randomized(own, spec, seeds=seeds, device=device)


def _maddpg(
    config: MADDPGConfig,
    spec: WorldSpec,
    *,
    company: Company,
    compile: bool,  # noqa: ARG001 - acting is not compiled
    accumulate: int,  # noqa: ARG001 - a batch from the replay is small; it is learned from whole
    **how: Any,
) -> MADDPG:
    if company.size > 1:
        raise BadInput(
            f"maddpg must train in one process, since its replay is not shared, got "
            f"{company.size} processes; leave them out, or use ppo"
        )
    return MADDPG(config, spec, **how)


_KINDS: Mapping[str, Callable[..., Learner]] = {
    PPOConfig.kind: PPO,
    MADDPGConfig.kind: _maddpg,
    RandomizedConfig.kind: _randomized,
}
