"""What identifies a trial: its settings and the version of the code that they run; no torch."""

import hashlib

from lockstep.run.code import code_version
from lockstep.run.config import TrainConfig
from lockstep.worlds.registry import WorldConfig

_VERSIONS: dict[str, str] = {}
"""Code versions by the module in which a world's settings are defined."""


def trial_id(config: TrainConfig, code: str | None = None) -> str:
    """The name of a trial: equal for equal settings and code, however and wherever it is trained.

    `config` has one member. `code` is the code version it was trained with; by default the present
    one, so that a trial of older code has another name and is never taken for this one.
    """
    if config.members != 1:
        raise ValueError(f"a trial must have one member, got {config.members}")
    code = present_code(config.world) if code is None else code
    return hashlib.sha256(f"{config.hash} {code}".encode()).hexdigest()


def present_code(world: WorldConfig) -> str:
    """The code version of a world's trials; its sources are read once in a process.

    A process runs what it has imported, so what is written to its sources later does not count.
    """
    module = type(world).__module__
    if module not in _VERSIONS:
        _VERSIONS[module] = code_version(world)
    return _VERSIONS[module]
