"""The layout of a run folder, and files that are either whole or absent."""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from lockstep.errors import BadInput, CannotWrite, DiskFull, NotARun, RunExists
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_RIGHT = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_STARTING = ".starting"


@dataclass(frozen=True)
class RunDir:
    """Where each file of a run lies."""

    folder: Path

    @property
    def config(self) -> Path:
        """The whole resolved configuration."""
        return self.folder / "config.json"

    @property
    def manifest(self) -> Path:
        """Code version, package versions, machine, command line, seeds, config hash."""
        return self.folder / "manifest.json"

    @property
    def metrics(self) -> Path:
        """One line per update and member: only what follows from config and seeds."""
        return self.folder / "metrics.jsonl"

    @property
    def perf(self) -> Path:
        """One line per update: what depends on the clock."""
        return self.folder / "perf.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints and the pointers `latest` and `best`."""
        return self.folder / "checkpoints"

    @property
    def findings(self) -> Path:
        """What the doctor said while the run was going on."""
        return self.folder / "findings.json"

    @property
    def summary(self) -> Path:
        """Written last: its presence means that the run finished."""
        return self.folder / "summary.json"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary.is_file()


def create(folder: Path, content: Mapping[str, Json] | None = None) -> RunDir:
    """A new run folder; one that exists is refused and left as it is.

    The JSON files of `content` come with it: the folder is filled under another name and renamed,
    so that a process killed meanwhile leaves a run or none, and no name that is taken.
    """
    if folder.exists() or folder.is_symlink():
        raise RunExists(folder)
    unready = folder.with_name(f".{folder.name}.{os.getpid()}{_STARTING}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{folder.name}.*{_STARTING}"):
            _clear_if_dead(left)
        unready.mkdir()
        (unready / "checkpoints").mkdir()
        for name, data in (content or {}).items():
            write_json(unready / name, data)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInput(f"{folder.parent} is not a folder, so no run can be put there") from error
    except OSError as error:
        raise BadInput(f"the run folder {folder} cannot be made: {error.strerror}") from error
    except CannotWrite as error:
        raise BadInput(f"the run folder {folder} cannot be made: {error.why}") from error
    try:
        unready.rename(folder)
    except OSError as error:  # another process made it at this moment
        _clear(unready)
        raise RunExists(folder) from error
    sync_folder(folder.parent)
    return RunDir(folder)


def _clear_if_dead(unready: Path) -> None:
    """Removes what a process left that was killed while it made a run folder."""
    maker = unready.name.removesuffix(_STARTING).rpartition(".")[2]
    if maker.isdecimal() and (int(maker) == os.getpid() or not psutil.pid_exists(int(maker))):
        _clear(unready)


def _clear(unready: Path) -> None:
    for file in unready.iterdir():
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()
    unready.rmdir()


def open_run(folder: Path) -> RunDir:
    """The run in `folder`; NotARun if there is none."""
    if not folder.is_dir():
        raise NotARun(folder, "there is no such folder")
    run = RunDir(folder)
    if not run.config.is_file():
        raise NotARun(folder, "it has no config.json")
    return run


def run_folder(config: TrainConfig, *, name: str | None, root: Path) -> Path:
    """Where a new run goes: `root/name`, or `<world>-<learner>-<n>` with the first free n."""
    if name is None:
        return free_folder(root, f"{config.world.name}-{config.algorithm}")
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0"):
        raise BadInput(f"a run's name must be a plain folder name, got '{name}'")
    return root / name


def free_folder(root: Path, stem: str) -> Path:
    """`root/<stem>-<n>` with the first n that is not taken."""
    n = 1
    while (root / f"{stem}-{n}").exists():
        n += 1
    return root / f"{stem}-{n}"


def walk(root: Path, *, depth: int, links: bool = False) -> Iterator[tuple[Path, frozenset[str]]]:
    """Folders down to `depth` below `root` with the names in them, in the order of names.

    Runs are not entered, nor hidden folders: such a one is a run that has no name yet. Folders that
    are gone or not ours to read are left out, and so are links unless they are asked for.
    """
    try:
        with os.scandir(root) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    names = frozenset(entry.name for entry in entries)
    yield root, names
    if "config.json" in names or depth == 0:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=links) and not entry.name.startswith("."):
            yield from walk(root / entry.name, depth=depth - 1, links=links)


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Puts `data` at `path` such that a reader sees the old file or the new one, never a part.

    CannotWrite (DiskFull for want of room) leaves the old file, and nothing beside it. What need
    not survive a power cut is written without `durable`, which waits for no disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a full disk and a folder that is read-only into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFull(path, str(error.strerror), "make room") from error
        if error.errno in _NO_RIGHT:
            raise CannotWrite(path, str(error.strerror), "make its folder writable") from error
        raise


def sweep(folder: Path) -> list[str]:
    """Removes the temporary files of killed writers; their names. Only for who holds the lock."""
    stale = sorted(folder.glob(".*.tmp"))
    for file in stale:
        file.unlink(missing_ok=True)
    return [file.name for file in stale]


def write_json(path: Path, data: Json, *, durable: bool = True) -> None:
    """Writes `data` in a form for people to read, whole or not at all."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text.encode() + b"\n", durable=durable)


def keep_backup(path: Path) -> Path | None:
    """Copies a file to `<name>.bak`; None if one is there: the first one is the original."""
    backup = path.with_name(f"{path.name}.bak")
    if backup.exists():
        return None
    write_atomic(backup, path.read_bytes())
    return backup


def read_json(path: Path) -> Json:
    """The content of a JSON file; NotARun names the file if it is absent or broken."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NotARun(path.parent, f"it has no {path.name}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise NotARun(path.parent, f"{path.name} is damaged ({error})") from error


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` survive a power cut, as fsync does for a file's content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
