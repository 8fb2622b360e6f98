import errno
import json
import os
from pathlib import Path

import pytest

from lockstep.errors import BadInput, CannotWrite, DiskFull, NotARun, RunExists
from lockstep.run import rundir
from tests import tiny


def test_a_new_run_refuses_a_folder_that_exists_and_leaves_it(tmp_path: Path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years")
    with pytest.raises(RunExists, match="exists already; choose another name"):
        rundir.create(folder)
    assert [file.name for file in folder.iterdir()] == ["thesis.txt"]


def test_a_root_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(BadInput):
        rundir.create(tmp_path / "runs" / "mine")


def test_names_count_up_to_the_first_free_one(tmp_path: Path):
    config = tiny.config()
    first = rundir.run_folder(config, name=None, root=tmp_path)
    assert first == tmp_path / "uav-mec-ab-mappo-1"
    first.mkdir()
    second = rundir.run_folder(config, name=None, root=tmp_path)
    assert second == tmp_path / "uav-mec-ab-mappo-2"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp", "a\\b"])
def test_a_name_may_not_leave_the_root(name: str, tmp_path: Path):
    with pytest.raises(BadInput, match="plain folder name"):
        rundir.run_folder(tiny.config(), name=name, root=tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "config.json"
    rundir.write_json(path, {"a": 1})

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        rundir.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_new_run_comes_with_its_files_or_not_at_all(tmp_path: Path):
    folder = tmp_path / "mine"
    with pytest.raises(TypeError):
        rundir.create(folder, {"config.json": {"a": 1}, "manifest.json": {"b": {1, 2}}})
    assert not folder.exists()  # killed in the middle, the name is still free
    run = rundir.create(folder, {"config.json": {"a": 1}, "manifest.json": {"b": 2}})
    assert json.loads(run.manifest.read_text()) == {"b": 2}
    assert run.checkpoints.is_dir()
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_link_that_leads_nowhere_is_not_overwritten(tmp_path: Path):
    (tmp_path / "mine").symlink_to(tmp_path / "nowhere")
    with pytest.raises(RunExists):
        rundir.create(tmp_path / "mine")


def test_sweeping_takes_the_temporary_files_and_nothing_else(tmp_path: Path):
    for name in (".config.json.tmp", "notes.tmp", ".hidden", "config.json"):
        (tmp_path / name).write_text("x")
    assert rundir.sweep(tmp_path) == [".config.json.tmp"]
    assert sorted(f.name for f in tmp_path.iterdir()) == [".hidden", "config.json", "notes.tmp"]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, DiskFull, "could not be written: No space left on device; make room"),
        (errno.EDQUOT, DiskFull, "Disk quota exceeded"),
        (errno.EROFS, CannotWrite, "Read-only file system; make its folder writable"),
    ],
)
def test_what_stands_in_the_way_of_writing_is_said(
    tmp_path: Path, number: int, kind: type[Exception], message: str
):
    with pytest.raises(kind, match=message), rundir.writing(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    with pytest.raises(IsADirectoryError), rundir.writing(tmp_path / "x"):
        raise IsADirectoryError  # not for this place to explain


def test_the_first_backup_is_never_overwritten(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text("first")
    assert rundir.keep_backup(path) == tmp_path / "a.json.bak"
    path.write_text("second")
    assert rundir.keep_backup(path) is None
    assert (tmp_path / "a.json.bak").read_text() == "first"


def test_what_is_not_a_run_is_said_with_its_reason(tmp_path: Path):
    with pytest.raises(NotARun, match="no such folder"):
        rundir.open_run(tmp_path / "nope")
    with pytest.raises(NotARun, match=r"it has no config\.json"):
        rundir.open_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(NotARun, match=r"config\.json is damaged"):
        rundir.read_json(tmp_path / "config.json")
