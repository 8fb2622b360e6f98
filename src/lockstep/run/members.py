"""One member of a pack as a run of its own, which goes on alone where the pack stood."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from lockstep.errors import BadInput
from lockstep.run import checkpoint
from lockstep.run.jsonable import Json
from lockstep.run.record import Run
from lockstep.run.rundir import create, write_atomic

_BY_LANE = ("collector/", "episodes/running/")
"""Parts of a trainer's state whose tensors lead with L."""
_BY_MEMBER = ("learner/", "episodes/")
"""The others, whose tensors lead with P."""


def extract(run: Run, member: int, folder: Path, *, step: int | None = None) -> Run:
    """Puts a member of `run` into the new run folder `folder`, at `step` or the newest checkpoint.

    Its metrics are the pack's lines, number for number; its future agrees with the pack's to
    rounding, since sums over one member may be taken in another order than over several. Which of
    the pack's checkpoints was best says nothing about one member, so it starts without a best one.
    """
    config = run.config
    alone = config.member(member)
    step = checkpoint.newest(run.dir.checkpoints) if step is None else step
    if step is None:
        raise BadInput(f"{run.folder} has no checkpoint yet; let it train further")
    counters, state = checkpoint.load(run.dir.checkpoints, step, owner=config.hash)
    lines = _lines(run.dir.metrics, member, length=counters.metrics_bytes)
    mine = slice_state(state, member, members=config.members, lanes=config.learner.lanes)

    made = create(
        folder,
        {
            "config.json": alone.to_json(),
            "manifest.json": _manifest(run, member, step=step),
        },
    )
    write_atomic(made.metrics, lines)
    taken = replace(counters, metrics_bytes=len(lines), best_step=None, best_value=None)
    checkpoint.save(made.checkpoints, taken, mine, keep=alone.keep_checkpoints, owner=alone.hash)
    return Run.open(folder)


def slice_state(
    state: Mapping[str, Any], member: int, *, members: int, lanes: int
) -> dict[str, Any]:
    """A trainer's state cut to one member; ValueError names a part that cannot be.

    Tensors lead with P members or, what runs in lanes, with `L = members * lanes`, member-major. A
    tensor without dimensions, and every plain number, belongs to all members.
    """
    return {
        name: _cut(part, name, member=member, members=members, lanes=lanes)
        for name, part in state.items()
    }


def _cut(part: Any, name: str, *, member: int, members: int, lanes: int) -> Any:
    """The member's rows of every tensor under the way `name`."""
    if isinstance(part, Mapping):
        return {
            key: _cut(value, f"{name}/{key}", member=member, members=members, lanes=lanes)
            for key, value in part.items()
        }
    if not isinstance(part, Tensor) or not part.ndim:
        if isinstance(part, list | tuple):
            raise ValueError(f"{name} cannot be split: it is a {type(part).__name__}")
        return part
    if not name.startswith(_BY_LANE + _BY_MEMBER):
        raise ValueError(f"{name} cannot be split: nothing says whose its rows are")
    width = lanes if name.startswith(_BY_LANE) else 1
    if len(part) != members * width:
        raise ValueError(
            f"{name} cannot be split: it must have {members * width} rows, "
            f"got shape {tuple(part.shape)}"
        )
    return part[member * width : (member + 1) * width].clone()


def _lines(metrics: Path, member: int, *, length: int) -> bytes:
    """The member's lines up to `length` bytes of the file, renumbered to member 0."""
    kept = []
    number = re.compile(rb'("member": ?)%d\b' % member)
    for line in metrics.read_bytes()[:length].splitlines(keepends=True):
        if json.loads(line)["member"] == member:
            kept.append(number.sub(rb"\g<1>0", line, count=1))
    return b"".join(kept)


def _manifest(run: Run, member: int, *, step: int) -> Json:
    alone = run.config.member(member)
    taken_out = {
        "event": "extract",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": str(run.folder),
        "member": member,
        "step": step,
        "trial": alone.hash,
        "config_hash": alone.hash,
        "best": "the pack's best checkpoint was judged over all members, so none is taken over",
    }
    last = run.manifest["history"][-1]
    return run.manifest | {"seeds": list(alone.seeds), "history": [last | taken_out]}
