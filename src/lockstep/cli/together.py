"""A verb in several processes: the first one reads the flags and speaks, the others follow it."""

import os
from collections.abc import Callable, Sequence


def run(lead: Callable[..., int], argv: Sequence[str]) -> int:
    """`lead(argv)`; where torchrun started several processes, `lead(argv, company=...)` in one."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return lead(argv)
    from lockstep.run import loop  # these import torch, which takes seconds
    from lockstep.run.processes import joined

    with joined() as company:
        if company.index == 0:
            code = lead(argv, company=company)
            company.dismiss()
            return code
        loop.follow(company)
        return 0
