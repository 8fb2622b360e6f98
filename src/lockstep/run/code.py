"""The version of the code that decides results, as a digest of its sources; imports no torch."""

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import lockstep
from lockstep.worlds.registry import WorldConfig

_VERSIONS: dict[str, str] = {}  # by the module in which a world's settings are defined
_SHARED = ("core", "nets", "learners", "collect")


def present_code(world: WorldConfig) -> str:
    """The code version that this process runs: sources are read once.

    A process runs what it has imported, so what is written to its sources later does not count.
    """
    module = type(world).__module__
    if module not in _VERSIONS:
        _VERSIONS[module] = code_version(world)
    return _VERSIONS[module]


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
