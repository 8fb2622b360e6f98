"""Reinforcement learning, one learner or a hundred at a time, on exactly what was sampled.

The names below are loaded on first use, so that importing the package costs nothing.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.core.learner import Learner
    from lockstep.core.world import World
    from lockstep.errors import LockstepError
    from lockstep.run.api import (
        evaluate,
        heuristic,
        learner_names,
        load,
        make,
        train,
        trainer,
        world_names,
    )
    from lockstep.run.config import TrainConfig
    from lockstep.run.doctor import Transitions, audit_transitions
    from lockstep.run.record import Run

__version__ = "0.1.0"

_NAMES = {
    "Learner": "lockstep.core.learner",
    "LockstepError": "lockstep.errors",
    "Run": "lockstep.run.record",
    "TrainConfig": "lockstep.run.config",
    "Transitions": "lockstep.run.doctor",
    "World": "lockstep.core.world",
    "audit_transitions": "lockstep.run.doctor",
    "evaluate": "lockstep.run.api",
    "heuristic": "lockstep.run.api",
    "learner_names": "lockstep.run.api",
    "load": "lockstep.run.api",
    "make": "lockstep.run.api",
    "train": "lockstep.run.api",
    "trainer": "lockstep.run.api",
    "world_names": "lockstep.run.api",
}

__all__ = [
    "Learner",
    "LockstepError",
    "Run",
    "TrainConfig",
    "Transitions",
    "World",
    "__version__",
    "audit_transitions",
    "evaluate",
    "heuristic",
    "learner_names",
    "load",
    "make",
    "train",
    "trainer",
    "world_names",
]


def __getattr__(name: str) -> object:
    """Loads a public name from its module and keeps it."""
    if name not in _NAMES:
        raise AttributeError(f"module 'lockstep' has no attribute '{name}'")
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
