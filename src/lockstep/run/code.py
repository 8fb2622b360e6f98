"""The version of the code that decides results, as a digest of its sources; imports no torch."""

import hashlib
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import lockstep
from lockstep.errors import BadInput
from lockstep.worlds.registry import WorldConfig

_VERSIONS: dict[type, str] = {}  # by the class of a world's settings; one read anew is another
_SHARED = ("core", "nets", "learners", "collect")


def present_code(world: WorldConfig) -> str:
    """The code version that this process runs: sources are read once.

    A process runs what it has imported, so what is written to its sources later does not count.
    """
    kind = type(world)
    if kind not in _VERSIONS:
        _VERSIONS[kind] = code_version(world)
    return _VERSIONS[kind]


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
    spec = _spec(package or module)
    if spec is None or spec.origin is None:
        raise BadInput(
            f"the sources of world {world.name} (module {module}) cannot be found; define it in a "
            "file that can be imported"
        )
    origin = Path(spec.origin)
    if not package:
        return {(f"{module}.py", origin)}
    files = _named(origin.parent, origin.parent.rglob("*.py"))
    return {(f"world/{name}", file) for name, file in files}


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except (ImportError, ValueError):  # not there, or __main__, which has none
        return None
