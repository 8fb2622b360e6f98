"""Checkpoints of older formats, and foreign metadata without step counters, brought up to date.

Nothing is guessed silently: what was worked out, and how, is written beside it; the file before
is kept as `<name>.bak`; a second time nothing is left to do.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, NotARun
from lockstep.run import migrate_own
from lockstep.run.jsonable import Json
from lockstep.run.pickles import read_untrusted
from lockstep.run.rundir import keep_backup, read_json, write_json

AUDIT = "reconstructed_step_source"
ASSUMED_STEPS = 64


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to go about it."""

    dry_run: bool = False
    """Say what would be done, and write nothing."""
    backup: bool = True
    """Keep the file before as `<name>.bak`; one that is there already is never overwritten."""
    update_if_lower: bool = False
    """Replace a step counter that is lower than the one worked out."""
    assume_steps: int = ASSUMED_STEPS
    """Steps of a rollout where the metadata does not say."""

    def __post_init__(self) -> None:
        if self.assume_steps < 1:
            raise BadInput(f"--assume-steps must be at least 1, got {self.assume_steps}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one file."""

    path: Path
    status: str
    """One of the words of the documentation, with the number where one was written."""

    @property
    def failed(self) -> bool:
        """Whether the file needs somebody's attention."""
        return self.status.startswith(("damaged", "unreadable"))


def migrate(root: Path, plan: Plan) -> list[Outcome]:
    """Goes through every checkpoint under `root` in the order of names; links are not followed."""
    if not root.is_dir():
        raise BadInput(f"{root} is not a folder, so there is nothing to migrate")
    outcomes = []
    for folder, names in _folders(root):
        if folder.name == "checkpoints" and (folder.parent / "config.json").is_file():
            found = migrate_own.upgrade(folder.parent, dry_run=plan.dry_run, backup=plan.backup)
            outcomes += [Outcome(path=path, status=status) for path, status in found]
            continue
        for name in names:
            outcome = _foreign(folder / name, plan) if name.endswith(".json") else None
            if outcome is not None:
                outcomes.append(outcome)
    return outcomes


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    for folder, inner, names in os.walk(root):
        inner.sort()
        yield Path(folder), sorted(names)


def _foreign(path: Path, plan: Plan) -> Outcome | None:
    """Fills `save_state.global_step` of a metadata file beside a `.pt`; None if it is no such."""
    if not path.with_suffix(".pt").is_file():
        return None
    try:
        meta = read_json(path)
    except NotARun:
        return Outcome(path=path, status="damaged: not JSON")
    state = meta.get("save_state") if isinstance(meta, dict) else None
    if not isinstance(state, dict):
        return None
    try:
        return Outcome(path=path, status=_fill(path, meta, state, plan))
    except ValueError as error:
        return Outcome(path=path, status=f"unreadable: {error}")


def _fill(path: Path, meta: dict[str, Any], state: dict[str, Any], plan: Plan) -> str:
    current = _count(state.get("global_step"))
    if AUDIT in meta and not plan.update_if_lower:
        return "already_reconstructed"
    if current and not plan.update_if_lower:
        return "already_has_step"
    envs = meta.get("vector_env")
    lanes = _count(envs.get("num_envs")) if isinstance(envs, dict) else 0
    if not lanes:
        return "missing_num_envs"
    update = _count(state.get("global_update"))
    hint = None if update else _update_inside(path.with_suffix(".pt"))
    update = update or hint or 0
    if not update:
        return "no_update_info"
    recorded = _count(meta.get("rollout_steps"))
    steps = recorded or plan.assume_steps
    computed = update * lanes * steps
    if current >= computed:
        return "already_reconstructed" if AUDIT in meta else "current_step>=computed"
    if plan.dry_run:
        return f"would_update:{computed}"
    audit: dict[str, Json] = {
        "method": "checkpoint_plus_rollout" if hint else "assumed_rollout_steps",
        "rollout_steps": steps,
        "rollout_steps_from": "metadata" if recorded else "assumed",
        "formula": f"{update} updates x {lanes} lanes x {steps} steps",
        "computed_at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "global_step_before": current,
    }
    if hint:
        audit["checkpoint_global_update"] = hint
    if plan.backup:
        keep_backup(path)
    filled = state | {"global_step": computed, "global_update": update}
    write_json(path, meta | {"save_state": filled, AUDIT: audit})
    return f"updated:{computed}"


def _count(value: object) -> int:
    """A whole number above 0; everything else counts as absent."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _update_inside(path: Path) -> int | None:
    """The update that the tensors' file records, read without executing anything."""
    content = read_untrusted(path.read_bytes())
    return (_count(content.get("global_update")) or None) if isinstance(content, dict) else None
