"""What a run was made with: code, packages, machine, command line."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import torch

from lockstep.core.world import World
from lockstep.run.code import present_code
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json
from lockstep.run.metrics import SCHEMA
from lockstep.run.rundir import RunDir, read_json, write_json

_PACKAGES = ("lockstep-rl", "torch", "numpy", "gymnasium", "tyro")


def build(config: TrainConfig, world: World) -> Json:
    """The manifest of a run that starts now in `world`."""
    spec, device = world.spec, world.device
    return {
        "seeds": list(config.seeds),
        "packages": {name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "machine": {
            "system": platform.system(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
        "command": sys.argv,
        "objective": spec.objective,
        "metrics_schema": SCHEMA,
        "metrics": {
            m.name: {"unit": m.unit, "meaning": m.meaning, "better": m.better} for m in spec.metrics
        },
        "history": [_event("start", config)],
    }


def note(run: RunDir, event: str, config: TrainConfig, **facts: Json) -> None:
    """Adds to the run's history that it went on from here, with which code and settings."""
    about = read_json(run.manifest)
    write_json(
        run.manifest, about | {"history": [*about["history"], _event(event, config) | facts]}
    )


def config_hashes(about: Json) -> set[str]:
    """Hashes of every configuration that a run has had."""
    return {event["config_hash"] for event in about["history"]}


def _event(event: str, config: TrainConfig) -> dict[str, Json]:
    return {
        "event": event,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": config.device,
        "code_version": present_code(config.world),
        "config_hash": config.hash,
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
