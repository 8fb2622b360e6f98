"""Several policies on the same episodes of one world."""

from collections.abc import Callable, Sequence

import torch

from lockstep.core.world import World
from lockstep.run.evaluate import EVALUATION_SEED, Evaluation, evaluate
from lockstep.run.policy import Policy
from lockstep.worlds import registry as worlds
from lockstep.worlds.registry import WorldConfig


def play_all(
    policies: Sequence[Policy],
    config: WorldConfig,
    *,
    episodes: int,
    seed: int = EVALUATION_SEED,
    deterministic: bool = True,
    prepare: Callable[[World], None] | None = None,
) -> list[Evaluation]:
    """Evaluates each policy on the same `episodes` episodes, as lanes of worlds on the CPU.

    `prepare` may set scenario numbers of a world before it is played in.
    """
    sizes = {policy.groups * episodes for policy in policies}
    made = {
        lanes: worlds.build(config, lanes=lanes, device=torch.device("cpu"), compile=False)
        for lanes in sizes
    }
    for world in made.values():
        if prepare is not None:
            prepare(world)
    return [
        evaluate(
            policy,
            made[policy.groups * episodes],
            episodes=episodes,
            seed=seed,
            deterministic=deterministic,
        )
        for policy in policies
    ]
