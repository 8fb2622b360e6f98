"""Runs of Lockstep's own older format brought to the present one.

Format 1 did not say which run a checkpoint belongs to, in neither of its files; format 2 does.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, NotARun
from lockstep.run import checkpoint
from lockstep.run.checkpoint import FORMAT, Counters, write
from lockstep.run.config import Operations, TrainConfig
from lockstep.run.jsonable import Json, decode, encode
from lockstep.run.lock import RunLock
from lockstep.run.pickles import read_untrusted
from lockstep.run.rundir import keep_backup, read_json, write_json

_DECISIVE = frozenset({"world", "learner", "seeds", "total_steps"})


def upgrade(run: Path, *, dry_run: bool, backup: bool) -> list[tuple[Path, str]]:
    """Brings the configuration and every checkpoint of `run` up to date; a status for each file."""
    try:
        data = read_json(run / "config.json")
        filled, missing = _filled(data)
        config = TrainConfig.from_json(filled)
    except (NotARun, ValueError, BadInput) as error:
        return [(run / "config.json", f"damaged: {error}")]
    found = [_old(run / "checkpoints", step) for step in checkpoint.steps(run / "checkpoints")]
    if not missing and not any(old.status == "old" for old in found):
        return [(old.path, old.status) for old in found]
    if dry_run:
        would = [(run / "config.json", f"would_add:{','.join(missing)}")] if missing else []
        renamed = {"old": f"would_upgrade:format {FORMAT}"}
        return would + [(old.path, renamed.get(old.status, old.status)) for old in found]
    with RunLock(run):
        outcomes = []
        if missing:
            if backup:
                keep_backup(run / "config.json")
            write_json(run / "config.json", filled)
            outcomes.append((run / "config.json", f"added:{','.join(missing)}"))
        return outcomes + list(_upgraded(found, config.hash, backup=backup))


@dataclass(frozen=True, kw_only=True)
class _Old:
    """A checkpoint as it was found."""

    path: Path
    """Its stamp."""
    status: str
    """`old` if it can be upgraded, and otherwise its final status."""
    counters: Json = field(default_factory=dict)
    sha256: str = ""


def _old(folder: Path, step: int) -> _Old:
    path = folder / f"{step}.json"
    try:
        data = read_json(path)
    except NotARun:
        return _Old(path=path, status="damaged: not JSON")
    counters = data.get("counters") if isinstance(data, dict) else None
    counters = counters if isinstance(counters, dict) else {}
    found = counters.get("format")
    if found == FORMAT:
        return _Old(path=path, status=f"already_format_{FORMAT}")
    if found != 1 or counters.get("step") != step or not isinstance(data.get("sha256"), str):
        return _Old(path=path, status=f"damaged: no stamp of format 1 to {FORMAT} for this step")
    old = _Old(path=path, status="old", counters=counters, sha256=data["sha256"])
    return old if _source(old) is not None else replace(old, status="damaged: its hash differs")


def _source(old: _Old) -> bytes | None:
    """The tensors' file as its stamp knows it.

    After a kill between the new tensors and the new stamp, that is the backup.
    """
    for path in (old.path.with_suffix(".pt"), old.path.with_suffix(".pt.bak")):
        if path.is_file():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == old.sha256:
                return data
    return None


def _upgraded(found: list[_Old], owner: str, *, backup: bool) -> Iterator[tuple[Path, str]]:
    for old in found:
        if old.status != "old":
            yield old.path, old.status
            continue
        try:
            kept = _rewrite(old, owner)
        except ValueError as error:
            yield old.path, f"unreadable: {error}"
            continue
        if not backup:
            for path in kept:
                path.unlink()
        yield old.path, f"upgraded:format {FORMAT}"


def _rewrite(old: _Old, owner: str) -> list[Path]:
    """Writes both files anew; the backups it made, which stand at least until both are there."""
    data = _source(old)
    assert data is not None
    content = read_untrusted(data)
    if not isinstance(content, dict) or content.get("counters") != old.counters:
        raise ValueError("its counters are not those of its stamp")
    counters: Counters = decode(Counters, old.counters | {"format": FORMAT}, old.path.name)
    kept = [keep_backup(path) for path in (old.path.with_suffix(".pt"), old.path)]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    history = (f"from format 1 at {at}: its run was taken from the folder it lay in",)
    write(old.path.parent, counters, content["state"], owner=owner, history=history)
    return [path for path in kept if path is not None]


def _filled(data: Json) -> tuple[dict[str, Any], list[str]]:
    """A configuration with the defaults of settings that came later; only such as decide nothing.

    A missing setting of the world or the learner is left for the reader to refuse: nobody can say
    which value the run was made with.
    """
    if not isinstance(data, dict):
        raise ValueError("config must be a table")
    defaults = {
        setting.name: encode(setting.default)
        for setting in fields(TrainConfig)
        if setting.default is not MISSING and setting.name not in _DECISIVE
    }
    filled = defaults | data
    if isinstance(data.get("ops"), dict):
        filled["ops"] = encode(Operations()) | data["ops"]
    missing = [name for name in filled if filled[name] != data.get(name)]
    return filled, missing
