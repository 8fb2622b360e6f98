"""Checkpoints: a file of tensors, one of counters and hashes, pointers to the latest and best.

Each file is written under a temporary name, made durable and renamed, and the pointers move last:
a process killed at any instant leaves the previous checkpoint in force. What is loaded is what was
saved: whole, under its own name, of this run, and tensors and numbers only.
"""

import hashlib
import io
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import BadCheckpoint, CannotWrite, NotARun
from lockstep.run.jsonable import decode, encode
from lockstep.run.pickles import read_untrusted
from lockstep.run.rundir import read_json, sweep, write_atomic, write_json

FORMAT = 2

log = logging.getLogger(__name__)

_NUMBER = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Where a run stood when its checkpoint was written."""

    format: int
    """Layout of the file; another number is refused."""
    update: int
    """Updates made."""
    step: int
    """Environment steps of each member."""
    metrics_bytes: int
    """Length of metrics.jsonl, to which a resumed run cuts it back."""
    best_step: int | None
    """Step of the best checkpoint so far."""
    best_value: float | None
    """What it was judged by."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The file beside the tensors."""

    counters: Counters
    owner: str
    """Hash of the configuration of the run that wrote it; empty for a checkpoint of no run."""
    sha256: str
    state: str
    """Digest of the tensors alone, equal for equal weights, optimizer and world."""
    bytes: int
    history: tuple[str, ...] = ()
    """What was done to it since it was written, a sentence each."""


def save(
    folder: Path, counters: Counters, state: Mapping[str, Any], *, keep: int, owner: str = ""
) -> None:
    """Writes a checkpoint, points `latest` to it, drops all but the newest `keep` and the best.

    `owner` is the hash of the run's configuration. CannotWrite, or DiskFull, leaves the checkpoint
    before this one in force and says which one that is.
    """
    sweep(folder)
    try:
        write(folder, counters, state, owner=owner)
        settle(folder, counters, keep=keep)
    except CannotWrite as error:
        if counters.step not in steps(folder):
            (folder / f"{counters.step}.pt").unlink(missing_ok=True)
        last = newest(folder)
        held = "there is no checkpoint yet" if last is None else f"step {last} stays in force"
        run = folder.parent
        hint = f"{held}: make room or make it writable, then continue with `lockstep resume {run}`"
        raise type(error)(error.path, error.why, hint) from error
    log.info("checkpoint at step %d (update %d)", counters.step, counters.update)


def write(
    folder: Path,
    counters: Counters,
    state: Mapping[str, Any],
    *,
    owner: str,
    history: tuple[str, ...] = (),
) -> None:
    """Writes the two files of a checkpoint; no pointer moves."""
    buffer = io.BytesIO()
    torch.save({"counters": encode(counters), "owner": owner, "state": dict(state)}, buffer)
    data = buffer.getvalue()
    write_atomic(folder / f"{counters.step}.pt", data)
    stamp = Stamp(
        counters=counters,
        owner=owner,
        sha256=hashlib.sha256(data).hexdigest(),
        state=state_digest(state),
        bytes=len(data),
        history=history,
    )
    write_json(folder / f"{counters.step}.json", encode(stamp))


def settle(folder: Path, counters: Counters, *, keep: int) -> None:
    """Moves the pointers to the checkpoint of `counters` and prunes, as the end of a save.

    A resumed run calls it as well: the process before it may have been killed within a save.
    """
    if counters.best_step in steps(folder):
        write_atomic(folder / "best", f"{counters.best_step}\n".encode())
    else:  # none yet, or one that was dropped before the run went back to an older checkpoint
        (folder / "best").unlink(missing_ok=True)
    write_atomic(folder / "latest", f"{counters.step}\n".encode())
    _prune(folder, keep=keep, best=counters.best_step, newest=counters.step)


def set_aside(folder: Path, *, after: int) -> list[int]:
    """Renames the checkpoints beyond step `after` to `<name>.aside`; their steps."""
    newer = [step for step in steps(folder) if step > after]
    for suffix in (".json", ".pt"):  # the stamp first: a checkpoint without one does not count
        for step in newer:
            if (folder / f"{step}{suffix}").is_file():
                (folder / f"{step}{suffix}").replace(folder / f"{step}{suffix}.aside")
    return newer


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that have a stamp, oldest first."""
    return _numbered(folder, ".json")


def pointed(folder: Path, pointer: str) -> int | None:
    """The step that `latest` or `best` names; None before the first checkpoint."""
    path = folder / pointer
    if not path.is_file():
        return None
    try:
        text = path.read_text().strip()
    except UnicodeDecodeError:
        text = ""
    if not _NUMBER.fullmatch(text):
        raise NotARun(folder.parent, f"checkpoints/{pointer} is damaged")
    return int(text)


def newest(folder: Path) -> int | None:
    """The step to continue from: the newest numbered checkpoint, or what `latest` names beyond it.

    A process killed inside a save leaves a checkpoint that no pointer names yet. A pointer beyond
    every checkpoint means that one was lost: `load` refuses it.
    """
    named = [*steps(folder)[-1:], pointed(folder, "latest")]
    return max((step for step in named if step is not None), default=None)


def load(
    folder: Path,
    step: int,
    *,
    device: torch.device | str = "cpu",
    owner: str | Collection[str] | None = None,
) -> tuple[Counters, dict[str, Any]]:
    """Counters and state of the checkpoint at `step`; BadCheckpoint if it is not what was saved.

    With `owner`, the hash of a configuration or several that the run has had, a checkpoint of
    another run is refused as well. A refusal names the newest whole checkpoint before it, which
    can be asked for by its path.
    """
    owners = (owner,) if isinstance(owner, str) else owner
    with _way_out(folder, step, owners):
        stamp = _stamp(folder, step)
        content = _content(folder / f"{step}.pt", _whole(folder, step, stamp), stamp)
        if owners is not None and stamp.owner not in owners:
            raise BadCheckpoint(folder / f"{step}.pt", _stranger(stamp.owner, ", ".join(owners)))
    return stamp.counters, _moved(content["state"], device)


def read_stamp(folder: Path, step: int) -> Stamp:
    """What stands beside the tensors of the checkpoint at `step`."""
    with _way_out(folder, step):
        return _stamp(folder, step)


@contextmanager
def _way_out(folder: Path, step: int, owners: Collection[str] | None = None) -> Iterator[None]:
    """Adds to a refusal which older checkpoint can be asked for instead."""
    try:
        yield
    except BadCheckpoint as refusal:
        older = _older_whole(folder, step, owners)
        if older is None or refusal.hint:  # there is none, or it has been said
            raise
        way = f"step {older} before it is whole: lockstep resume {folder / f'{older}.pt'}"
        raise BadCheckpoint(refusal.path, refusal.why, f"{way} --set-aside-newer") from refusal


def _stamp(folder: Path, step: int) -> Stamp:
    path = folder / f"{step}.json"
    if not path.is_file():
        raise BadCheckpoint(path, "is missing, so nothing says whether the checkpoint is whole")
    try:
        data = read_json(path)
    except NotARun as error:
        raise BadCheckpoint(path, "is damaged: it is not JSON") from error
    found = data.get("counters", {}).get("format") if isinstance(data, dict) else None
    if isinstance(found, int) and found != FORMAT:
        way = f"upgrade it with `lockstep migrate {folder.parent}`" if found < FORMAT else ""
        why = f"has format {found}, and this version of Lockstep reads {FORMAT}"
        raise BadCheckpoint(path, why, way)
    try:
        stamp: Stamp = decode(Stamp, data, path.name)
    except ValueError as error:
        raise BadCheckpoint(path, f"is damaged: {error}") from error
    return stamp


def digest_at(folder: Path, step: int) -> str:
    """Digest of the tensors of the checkpoint at `step`."""
    return read_stamp(folder, step).state


def state_digest(state: object) -> str:
    """SHA-256 over every number of a nested state, in the order of its keys."""
    digest = hashlib.sha256()
    _feed(digest, "", state)
    return digest.hexdigest()


def _feed(digest: Any, name: str, value: object) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        if plain.numel():  # a copy: a single number may have a stride that no view as bytes takes
            digest.update(torch.cat((plain.flatten(),)).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _feed(digest, f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _feed(digest, f"{name}/{index}", item)
    else:
        digest.update(f"{name} {value!r}\n".encode())


def _whole(folder: Path, step: int, stamp: Stamp) -> bytes:
    """The bytes of the tensors' file, if they are those of the stamp and of this step."""
    path = folder / f"{step}.pt"
    if stamp.counters.step != step:
        raise BadCheckpoint(
            folder / f"{step}.json", f"is of step {stamp.counters.step}: it was renamed or copied"
        )
    if not path.is_file():
        raise BadCheckpoint(path, "is missing")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() == stamp.sha256:
        return data
    twin = _twin(folder, step, hashlib.sha256(data).hexdigest())
    if twin is not None:
        raise BadCheckpoint(path, f"holds step {twin}: it was renamed or copied")
    if len(data) < stamp.bytes:
        raise BadCheckpoint(path, f"is cut short: it has {len(data)} of {stamp.bytes} bytes")
    raise BadCheckpoint(path, "is damaged (its hash differs)")


def _twin(folder: Path, step: int, sha256: str) -> int | None:
    """Another step whose stamp has this hash."""
    for other in steps(folder):
        try:
            if other != step and _stamp(folder, other).sha256 == sha256:
                return other
        except BadCheckpoint:  # a broken neighbour answers nothing here
            continue
    return None


def _content(path: Path, data: bytes, stamp: Stamp) -> dict[str, Any]:
    """What the file holds, if it is a checkpoint and agrees with its stamp."""
    try:
        content = read_untrusted(data)
    except ValueError as error:
        raise BadCheckpoint(path, str(error)) from error
    if not isinstance(content, dict) or set(content) != {"counters", "owner", "state"}:
        raise BadCheckpoint(path, "holds no checkpoint of Lockstep")
    if content["counters"] != encode(stamp.counters):
        inside = content["counters"]
        inside = inside.get("step") if isinstance(inside, dict) else None
        raise BadCheckpoint(
            path, f"has counters other than {path.stem}.json (step {inside}): one was exchanged"
        )
    if content["owner"] != stamp.owner:
        raise BadCheckpoint(path, _stranger(str(content["owner"]), stamp.owner))
    return content


def _stranger(found: str, wanted: str) -> str:
    whose = f"of configuration {found[:12]}" if found else "of no run"
    return (
        "belongs to another run, or config.json was changed since "
        f"(it is {whose}, and the run is of {wanted[:12] or 'none'})"
    )


def _older_whole(folder: Path, step: int, owners: Collection[str] | None) -> int | None:
    for older in reversed([s for s in steps(folder) if s < step]):
        try:
            stamp = _stamp(folder, older)
            _whole(folder, older, stamp)
        except BadCheckpoint:  # damaged as well, so not the one to recommend
            continue
        if owners is None or stamp.owner in owners:
            return older
    return None


def _moved(state: Any, device: torch.device | str) -> Any:
    if isinstance(state, Tensor):
        return state.to(device)
    if isinstance(state, dict):
        return {key: _moved(value, device) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_moved(value, device) for value in state)
    return state


def _numbered(folder: Path, suffix: str) -> list[int]:
    found = (file.stem for file in folder.glob(f"*{suffix}"))
    return sorted(int(stem) for stem in found if _NUMBER.fullmatch(stem))


def _prune(folder: Path, *, keep: int, best: int | None, newest: int) -> None:
    # The stamp goes first: a checkpoint without one does not count.
    for step in [s for s in steps(folder) if s <= newest][:-keep]:
        if step != best:
            (folder / f"{step}.json").unlink()
    stamped = set(steps(folder))
    for step in _numbered(folder, ".pt"):
        if step < newest and step not in stamped:
            (folder / f"{step}.pt").unlink()
