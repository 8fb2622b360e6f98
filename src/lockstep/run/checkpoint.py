"""Checkpoints: a file of tensors, one of counters and hashes, pointers to the latest and best.

Each file is written under a temporary name, made durable and renamed, and the pointer moves last:
a process killed at any instant leaves the previous checkpoint in force.
"""

import hashlib
import io
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import NotARun
from lockstep.run.jsonable import decode, encode
from lockstep.run.rundir import read_json, write_atomic, write_json

FORMAT = 1

log = logging.getLogger(__name__)


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
    """Its tail mean of the world's objective, over all members."""


@dataclass(frozen=True, kw_only=True)
class _Stamp:
    """The file beside the tensors."""

    counters: Counters
    sha256: str
    state: str
    """Digest of the tensors alone, equal for equal weights, optimizer and world."""
    bytes: int


def save(folder: Path, counters: Counters, state: Mapping[str, Any], *, keep: int) -> None:
    """Writes a checkpoint, points `latest` to it, drops all but the newest `keep` and the best."""
    buffer = io.BytesIO()
    torch.save({"counters": encode(counters), "state": dict(state)}, buffer)
    data = buffer.getvalue()
    write_atomic(folder / f"{counters.step}.pt", data)
    stamp = _Stamp(
        counters=counters,
        sha256=hashlib.sha256(data).hexdigest(),
        state=state_digest(state),
        bytes=len(data),
    )
    write_json(folder / f"{counters.step}.json", encode(stamp))
    write_atomic(folder / "latest", f"{counters.step}\n".encode())
    if counters.best_step is not None:
        write_atomic(folder / "best", f"{counters.best_step}\n".encode())
    _prune(folder, keep=keep, best=counters.best_step)
    log.info("checkpoint at step %d (update %d)", counters.step, counters.update)


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that are whole, oldest first."""
    return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdecimal())


def pointed(folder: Path, pointer: str) -> int | None:
    """The step that `latest` or `best` names; None before the first checkpoint."""
    path = folder / pointer
    if not path.is_file():
        return None
    text = path.read_text().strip()
    if not text.isdecimal():
        raise NotARun(folder.parent, f"checkpoints/{pointer} is damaged")
    return int(text)


def newest(folder: Path) -> int | None:
    """The step to continue from: what `latest` names, or else the newest whole checkpoint.

    The pointer can be missing where whole checkpoints are: a process killed inside its first save.
    """
    step = pointed(folder, "latest")
    whole = steps(folder)
    return whole[-1] if step is None and whole else step


def load(
    folder: Path, step: int, *, device: torch.device | str = "cpu"
) -> tuple[Counters, dict[str, Any]]:
    """Counters and state of the checkpoint at `step`; NotARun if its bytes have changed."""
    stamp: _Stamp = _read_stamp(folder, step)
    path = folder / f"{step}.pt"
    if not path.is_file():
        raise NotARun(folder.parent, f"checkpoints/{path.name} is missing")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != stamp.sha256:
        raise NotARun(folder.parent, f"checkpoints/{path.name} is damaged (its hash differs)")
    if stamp.counters.format != FORMAT:
        raise NotARun(
            folder.parent,
            f"checkpoints/{path.name} has format {stamp.counters.format}, and this version of "
            f"Lockstep reads {FORMAT}",
        )
    try:
        content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise NotARun(folder.parent, f"checkpoints/{path.name} cannot be read: {error}") from error
    return stamp.counters, content["state"]


def digest_at(folder: Path, step: int) -> str:
    """Digest of the tensors of the checkpoint at `step`."""
    return _read_stamp(folder, step).state


def state_digest(state: object) -> str:
    """SHA-256 over every number of a nested state, in the order of its keys."""
    digest = hashlib.sha256()
    _feed(digest, "", state)
    return digest.hexdigest()


def _feed(digest: Any, name: str, value: object) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _feed(digest, f"{name}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _feed(digest, f"{name}/{index}", item)
    else:
        digest.update(f"{name} {value!r}\n".encode())


def _read_stamp(folder: Path, step: int) -> _Stamp:
    path = folder / f"{step}.json"
    if not path.is_file():
        raise NotARun(folder.parent, f"checkpoints/{path.name} is missing")
    data = read_json(path)
    try:
        stamp: _Stamp = decode(_Stamp, data, f"checkpoints/{path.name}")
    except ValueError as error:
        raise NotARun(folder.parent, str(error)) from error
    return stamp


def _prune(folder: Path, *, keep: int, best: int | None) -> None:
    for step in steps(folder)[:-keep]:
        if step != best:
            # The stamp goes first: a checkpoint without one does not count.
            (folder / f"{step}.json").unlink()
            (folder / f"{step}.pt").unlink()
