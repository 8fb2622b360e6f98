"""What a run was made with: code, packages, machine, command line."""

import hashlib
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

import lockstep
from lockstep.core.world import World
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json
from lockstep.run.metrics import SCHEMA
from lockstep.run.rundir import RunDir, read_json, write_json
from lockstep.worlds.registry import WorldConfig

_SHARED = ("core", "nets", "learners", "collect")
_PACKAGES = ("lockstep-rl", "torch", "numpy", "gymnasium", "tyro")


def code_version(world: WorldConfig) -> str:
    """Digest of the sources of core, nets, learners, collect and the world of `world`.

    A commit that touches none of these makes no result stale.
    """
    root = Path(lockstep.__path__[0])
    files = [file for part in _SHARED for file in (root / part).rglob("*.py")]
    digest = hashlib.sha256()
    for name, file in sorted(_named(root, files) | _world_sources(world)):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


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
        "code_version": code_version(config.world),
        "config_hash": config.hash,
    }


def _named(root: Path, files: Iterable[Path]) -> set[tuple[str, Path]]:
    return {(file.relative_to(root).as_posix(), file) for file in files}


def _world_sources(world: WorldConfig) -> set[tuple[str, Path]]:
    """The files of the package in which the world's settings are defined, or its one file."""
    module = type(world).__module__
    package = module.rpartition(".")[0]
    spec = find_spec(package) if package else find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the sources of world {world.name} ({module}) cannot be found")
    origin = Path(spec.origin)
    if not package:
        return {(f"{module}.py", origin)}
    files = _named(origin.parent, origin.parent.rglob("*.py"))
    return {(f"world/{name}", file) for name, file in files}


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
