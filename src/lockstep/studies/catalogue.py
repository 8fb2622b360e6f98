"""Studies by name, or from a Python file of one's own; imports no torch."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType

from lockstep.errors import BadInput, UnknownName
from lockstep.studies.study import Precision, Study, at_precision

STUDIES = {
    "uav-paper": "lockstep.studies.uav_paper",
    "uav-flights": "lockstep.studies.uav_flights",
}
"""Names of the studies that come with Lockstep, and the modules that declare them."""


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
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)  # a study may import what lies beside it
    try:
        spec.loader.exec_module(made)
    except (SyntaxError, ImportError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as Python: {error}") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path} cannot be read: {_raised(error, made)}") from error
    finally:
        sys.path.remove(folder)
    return made


def _raised(error: BaseException, module: ModuleType) -> str:
    """What the code of a study raised, and at which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    line = [frame.lineno for frame in frames if frame.filename == module.__file__][-1:]
    said = ": ".join(filter(None, (type(error).__name__, str(error))))
    return f"line {line[0]} raises {said}" if line else said
