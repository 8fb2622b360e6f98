"""When memory runs out: the ladder of smaller parts, from the asked configuration down."""

import gc
from collections.abc import Iterator
from dataclasses import replace

import torch

from lockstep.learners.config import PPOConfig
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json

_SAID = (
    "can't allocate memory",
    "could not create a primitive",  # oneDNN, where there is no room for the program it writes
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def ladder(config: TrainConfig, *, fresh: bool) -> Iterator[TrainConfig]:
    """What to try instead of `config`, each rung needing less memory than the one before.

    First a minibatch is learned from in more and more parts, whose gradients are summed: the step
    stays the same but for rounding. Then, as long as the run has learned nothing (`fresh`), lanes
    are halved and steps doubled: an update still learns from as many samples, of longer stretches
    of fewer lanes.
    """
    learner = config.learner
    if isinstance(learner, PPOConfig):
        yield from (replace(config, accumulate=n) for n in _parts(learner) if n > config.accumulate)
    minibatches = getattr(learner, "minibatches", 1)
    while fresh and learner.lanes % (2 * minibatches) == 0:
        learner = replace(learner, lanes=learner.lanes // 2, steps=learner.steps * 2)
        parts = learner.lanes // minibatches if isinstance(learner, PPOConfig) else 1
        yield replace(config, learner=learner, accumulate=parts)


def lower(config: TrainConfig, error: BaseException, *, fresh: bool) -> TrainConfig | None:
    """The next rung, if `error` is about memory and the ladder may be used; None otherwise."""
    if not ran_out(error) or not config.auto_memory or config.deterministic:
        return None
    return next(ladder(config, fresh=fresh), None)


def _parts(learner: PPOConfig) -> list[int]:
    lanes = learner.lanes // learner.minibatches
    return [n for n in range(1, lanes + 1) if lanes % n == 0]


def rung(config: TrainConfig) -> Json:
    """What a rung of the ladder sets, for the manifest."""
    return {
        "accumulate": config.accumulate,
        "lanes": config.learner.lanes,
        "steps": config.learner.steps,
    }


def described(config: TrainConfig) -> str:
    """A rung in words."""
    return ", ".join(f"{name} {value}" for name, value in rung(config).items())


def release() -> None:
    """Hands back what a failed attempt held."""
    # A backward pass that broke off leaves its graph in the engine's queue until the next pass.
    torch.ones((), requires_grad=True).exp().backward()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
