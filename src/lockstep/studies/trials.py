"""What identifies a trial: its settings and the version of the code that they run; no torch."""

import hashlib

from lockstep.run.code import present_code
from lockstep.run.config import TrainConfig


def trial_id(config: TrainConfig, code: str | None = None) -> str:
    """The name of a trial: equal for equal settings and code, however and wherever it is trained.

    `config` has one member. `code` is the code version it was trained with; by default the present
    one, so that a trial of older code has another name and is never taken for this one.
    """
    if config.members != 1:
        raise ValueError(f"a trial must have one member, got {config.members}")
    code = present_code(config.world) if code is None else code
    return hashlib.sha256(f"{config.hash} {code}".encode()).hexdigest()
