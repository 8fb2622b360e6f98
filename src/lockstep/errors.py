"""What a caller may catch, and the answer to a package that is not installed.

```
LockstepError              a run or a command failed; the command line exits with 1
├── AuditFailure           a stored decision could not be replayed; the run stops
├── CannotWrite            a file of a run could not be written; the old one stays
│   └── DiskFull           ... for want of room
└── BadInput               what was asked for cannot be done; exit 2, nothing is touched
    ├── UnknownName        no world, scenario, learner, ... of that name; suggests one
    ├── RunExists          the folder of a new run is already there
    ├── RunBusy            another process is writing the run
    ├── NotARun            the folder holds no run, or one that cannot be read
    │   └── BadCheckpoint  a checkpoint is damaged, of another run, or not to be trusted
    └── MissingExtra       an optional package is not installed; says how to install it
```
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

DISTRIBUTION = "lockstep-rl"


class LockstepError(Exception):
    """The base of every error that Lockstep raises for a caller to catch."""


class AuditFailure(LockstepError):
    """A decision in the rollout differs when it is rebuilt from what was stored.

    `gates` are the checks that failed, each with its number: `("G4 log_prob (uav)",)`.
    """

    def __init__(self, message: str, *, gates: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.gates = tuple(gates)


class CannotWrite(LockstepError):
    """A file of a run could not be written; what stood there before still does."""

    def __init__(self, path: object, why: str, hint: str = "") -> None:
        super().__init__(f"{path} could not be written: {why}{hint and f'; {hint}'}")
        self.path, self.why = path, why


class DiskFull(CannotWrite):
    """There is no room for a file, or a limit on its size."""


class BadInput(LockstepError):
    """The request cannot be carried out as stated; nothing has been touched."""


class UnknownName(BadInput):
    """A name that is not in its table."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join(known) or 'none'}"
        super().__init__(f"there is no {what} called '{name}'; {hint}")


class RunExists(BadInput):
    """A new run would fall on an old one."""

    def __init__(self, folder: object) -> None:
        super().__init__(
            f"the run folder {folder} exists already; choose another name, or continue it with "
            f"`lockstep resume {folder}`"
        )


class RunBusy(BadInput):
    """Two processes may not write one run."""


class NotARun(BadInput):
    """A folder that holds no readable run."""

    def __init__(self, folder: object, why: str) -> None:
        super().__init__(f"{folder} is not a run: {why}")


class BadCheckpoint(NotARun):
    """A checkpoint that must not be taken up; `hint` says what can be done instead."""

    def __init__(self, path: object, why: str, hint: str = "") -> None:
        BadInput.__init__(self, f"{path} {why}{hint and f'; {hint}'}")
        self.path, self.why, self.hint = path, why, hint


class MissingExtra(BadInput):
    """An optional package is absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install '{DISTRIBUTION}[{extra}]'")


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Answers an import that fails inside the block with the command that installs `extra`.

    A failing import of Lockstep's own modules passes through: no extra would cure it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "a package").partition(".")[0]
        if package == "lockstep":
            raise
        raise MissingExtra(package, extra) from error


def known(what: str, name: str, table: Iterable[str]) -> str:
    """`name`, if it is in `table`; otherwise an UnknownName that suggests the nearest."""
    names = list(table)
    if name not in names:
        raise UnknownName(what, name, names)
    return name
