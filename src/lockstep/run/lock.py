"""One writer for a run folder: a lock that ends with its process, however that ends."""

import errno
import fcntl
import json
import logging
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from lockstep.errors import BadInput, RunBusy

NAME = ".lock"

log = logging.getLogger(__name__)

_held: set[int] = set()


class RunLock:
    """Holds the run in `folder` for this process; RunBusy says who else does.

    The lock is the operating system's (flock on `.lock`), so a killed process leaves none behind;
    what the file says is only for people to read. Readers of a run need no lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def __enter__(self) -> "RunLock":
        path = self.folder / NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadInput(
                f"{self.folder} cannot be written to ({error.strerror}); make it writable, or copy "
                "the run to a folder that is"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunBusy(f"{self.folder} is being written by {_holder(path)}") from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                os.close(descriptor)
                raise
            log.warning(
                "%s lies on a file system without locks (%s): see to it that one process writes it",
                self.folder,
                error.strerror,
            )
        self._descriptor = descriptor
        _held.add(descriptor)
        self._say({"pid": os.getpid(), "host": platform.node(), "since": _now()})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._descriptor is not None
        # The file stays: were it removed, two processes could lock two files of its name.
        if self._descriptor in _held:  # not in a forked child, which let go of it at its birth
            _held.discard(self._descriptor)
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
        self._descriptor = None

    def _say(self, holder: dict[str, str | int]) -> None:
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(holder).encode() + b"\n", 0)


def is_held(folder: Path) -> bool:
    """Whether a process is writing the run in `folder`; nothing is made or changed."""
    try:
        descriptor = os.open(folder / NAME, os.O_RDONLY)
    except OSError:  # never locked, or not ours to read
        return False
    try:
        # An empty file names nobody: who is about to write its name must not meet this lock.
        if os.fstat(descriptor).st_size:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_bytes())
        return (
            f"process {who['pid']} on host {who['host']} since {who['since']}; "
            "wait for it, or stop it"
        )
    except (OSError, ValueError, KeyError, TypeError):  # it has only just got the lock
        return "another process; wait for it, or stop it"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _let_go() -> None:
    """A forked worker must not keep the lock of a parent that is killed."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
