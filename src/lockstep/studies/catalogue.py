"""Studies by name, or from a Python file of one's own; imports no torch."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from lockstep.errors import BadInput, UnknownName
from lockstep.studies.study import Precision, Study, at_precision

STUDIES = {
    "uav-paper": "lockstep.studies.uav_paper",
    "uav-flights": "lockstep.studies.uav_flights",
}
"""Names of the studies that come with Lockstep, and the modules that declare them."""

_READ: set[str] = set()  # names of modules that were read from files of studies


def load(
    name: str, *, grid: str | None = None, smoke: bool = False, precision: Precision | None = None
) -> Study:
    """The study called `name`, or declared in the file `name`.

    Its module has a function `study(smoke)`, or `study(smoke, grid)` where there is more than one
    grid; a grid that is not asked for is the function's default, and so is the precision.
    """
    found = module(name)
    declare = getattr(found, "study", None)
    if not callable(declare):
        raise BadInput(
            f"{name} must have a function study(smoke) that returns a Study, got none; the page on "
            "studies shows one"
        )
    asked: dict[str, object] = {"smoke": smoke}
    if grid is not None:
        if "grid" not in inspect.signature(declare).parameters:
            raise BadInput(f"{name} has one grid only, so leave out --grid ({grid})")
        asked["grid"] = grid
    try:
        declared = declare(**asked)
    except (ValueError, TypeError) as error:
        raise BadInput(f"{name} cannot be declared: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{name} cannot be declared: {_raised(error, found)}") from error
    if not isinstance(declared, Study):
        raise BadInput(
            f"the function study of {name} must return a Study, got {type(declared).__name__}"
        )
    return declared if precision is None else at_precision(declared, precision)


def default_root(study: Study) -> Path:
    """Where a study keeps its results unless asked for otherwise."""
    parts = [study.name, study.grid, "smoke" if study.smoke else "", study.precision]
    return Path("studies") / "-".join(part for part in parts if part)


def module(name: str) -> ModuleType:
    """The module that declares a study; what it registers is there from now on."""
    if name in STUDIES:
        return importlib.import_module(STUDIES[name])
    path = Path(name)
    if path.suffix != ".py":
        raise UnknownName("study", name, STUDIES)
    if not path.is_file():
        raise BadInput(f"there is no file {path} to read a study from")
    return _from_file(path)


def _from_file(path: Path) -> ModuleType:
    name = path.stem.replace(".", "_")  # a dot would make it part of a package
    _check_free(name, path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    try:
        with _importable(name, made, beside=path.parent):
            spec.loader.exec_module(made)
    except (SyntaxError, ImportError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as Python: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path} cannot be read: {_raised(error, made)}") from error
    return made


def _check_free(name: str, path: Path) -> None:
    """Refuses a file under whose name Python would find another module; a study may be replaced."""
    if name in _READ:
        return
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # __main__ has none
        raise BadInput(f"{path} must not have the name of the module {name}; rename it") from None
    if spec is not None and spec.origin and Path(spec.origin).resolve() != path.resolve():
        raise BadInput(
            f"{path} must not have the name of the module {name} ({spec.origin}); rename it"
        )


@contextmanager
def _importable(name: str, module: ModuleType, *, beside: Path) -> Iterator[None]:
    """Makes a study's file and what lies `beside` it importable, for good unless reading it fails.

    A world that it brings is looked up by the name of its module.
    """
    paths, folder, before = list(sys.path), str(beside.resolve()), sys.modules.get(name)
    sys.modules[name] = module
    if folder not in paths:
        sys.path.append(folder)  # what lies there must not stand in for a library
    try:
        yield
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        sys.path[:] = paths
        raise
    _READ.add(name)


def _raised(error: BaseException, module: ModuleType) -> str:
    """What the code of a study raised, and at which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    line = [frame.lineno for frame in frames if frame.filename == module.__file__][-1:]
    said = ": ".join(filter(None, (type(error).__name__, str(error))))
    return f"line {line[0]} raises {said}" if line else said
