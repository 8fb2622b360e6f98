"""The report of a run that failed: what it was asked, where it broke, what it last saw."""

import dataclasses
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from lockstep.errors import AuditFailure
from lockstep.run.jsonable import Json, finite
from lockstep.run.rundir import RunDir, write_json
from lockstep.run.trainer import Trainer


def write_report(
    run: RunDir, error: BaseException, trainer: Trainer, last: Mapping[str, list[float]]
) -> Path:
    """Writes `crash/<n>.json` into the run's folder: config, stack, last metrics, batch summary."""
    folder = run.folder / "crash"
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.glob('*.json'))) + 1}.json"
    report = {
        "time": datetime.now(UTC).isoformat(),
        "error": f"{type(error).__name__}: {error}",
        "gates": list(error.gates) if isinstance(error, AuditFailure) else [],
        "update": trainer.updates,
        "stack": traceback.format_exception(error),
        "last_metrics": finite(dict(last)),
        "batch": {name: summary(x) for name, x in tensors(trainer.rollout)},
        "config": trainer.config.to_json(),
    }
    write_json(path, report)
    return path


def tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside nested dataclasses and mappings, with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{name}/{key}".lstrip("/"))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), f"{name}/{field.name}".lstrip("/"))


def summary(x: Tensor) -> Json:
    """Shape, type and range of a tensor, and how many of its numbers are not finite."""
    about: dict[str, Json] = {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
    if x.numel() == 0:
        return about
    number = x.detach().cpu().double()  # the device may be what has run out of memory
    whole = torch.isfinite(number)
    about["not_finite"] = int((~whole).sum())
    if whole.any():
        kept = number[whole]
        about |= {name: float(getattr(kept, name)()) for name in ("min", "max", "mean")}
    return about
