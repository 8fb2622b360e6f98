import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.errors import BadCheckpoint, BadInput, NotARun
from lockstep.run import checkpoint, find as finding
from lockstep.run.checkpoint import FORMAT, Counters
from lockstep.run.config import TrainConfig
from lockstep.run.find import find
from lockstep.run.lock import RunLock
from lockstep.run.rundir import create, write_json
from tests import tiny


def make(folder: Path, *steps: int, config: TrainConfig | None = None, clock: float = 0) -> Path:
    """An unfinished run with checkpoints at `steps`, the last one written at `clock`."""
    config = config or tiny.config()
    run = create(folder, {"config.json": config.to_json(), "manifest.json": {}})
    for step in steps:
        counters = Counters(
            format=FORMAT,
            update=step,
            step=step,
            metrics_bytes=0,
            best_step=None,
            best_value=None,
        )
        state = {"w": torch.tensor([float(step)])}
        checkpoint.save(run.checkpoints, counters, state, keep=9, owner=config.hash)
        os.utime(run.checkpoints / f"{step}.json", (clock, clock))
    os.utime(run.config, (clock, clock))
    return folder


def test_a_run_that_is_asked_for_gives_its_newest_checkpoint(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600, 900)
    found = find(folder, root=tmp_path)
    assert (found.folder, found.step) == (folder, 900)
    assert found.why == (
        f"{folder} at step 900: it was asked for, and this is its newest checkpoint"
    )


def test_the_newest_is_the_one_of_most_steps_whatever_the_clock_says(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600, 900)
    for clock, step in enumerate((900, 600, 300)):
        for name in (f"{step}.json", f"{step}.pt"):
            os.utime(folder / "checkpoints" / name, (1000 + clock, 1000 + clock))
    assert find(folder, root=tmp_path).step == 900


def test_a_save_that_no_pointer_names_yet_counts(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600)
    (folder / "checkpoints" / "latest").write_text("300\n")
    assert find(folder, root=tmp_path).step == 600


def test_a_run_without_checkpoints_starts_from_its_beginning(tmp_path: Path):
    found = find(make(tmp_path / "a"), root=tmp_path)
    assert found.step is None
    assert "from its beginning: it was asked for, and it has no checkpoint yet" in found.why


def test_a_lost_checkpoint_is_not_skipped(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600)
    (folder / "checkpoints" / "600.json").unlink()
    found = find(folder, root=tmp_path)
    assert found.step == 600
    assert "`latest` names this checkpoint" in found.why
    with pytest.raises(BadCheckpoint, match=r"600\.json is missing.*step 300 before it is whole"):
        checkpoint.load(folder / "checkpoints", 600)


def test_a_checkpoint_is_taken_by_its_path(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600)
    for name in ("600.pt", "600.json", "latest"):
        found = find(folder / "checkpoints" / name, root=tmp_path)
        assert (found.folder, found.step) == (folder, 600)


def test_an_older_checkpoint_needs_the_word_to_set_the_newer_aside(tmp_path: Path):
    folder = make(tmp_path / "a", 300, 600, 900)
    path = folder / "checkpoints" / "300.pt"
    message = r"300\.pt is not the newest.*\(that is step 900\); pass --set-aside-newer"
    with pytest.raises(BadInput, match=message):
        find(path, root=tmp_path)
    found = find(path, root=tmp_path, set_aside_newer=True)
    assert found.step == 300
    assert found.why.endswith("this checkpoint was asked for; set aside: 600, 900")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path):
    folder = make(tmp_path / "a", 300)
    with pytest.raises(BadInput, match="is a file, and neither a run folder nor a checkpoint"):
        find(folder / "config.json", root=tmp_path)
    (folder / "checkpoints" / "900.pt").write_bytes(b"")
    with pytest.raises(BadCheckpoint, match=r"900\.json is missing"):
        find(folder / "checkpoints" / "900.pt", root=tmp_path)


def test_what_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(NotARun, match="there is no such folder"):
        find(tmp_path / "nope", root=tmp_path)
    message = f"there is no unfinished run under {tmp_path}: 0 names looked at; give the run's path"
    with pytest.raises(BadInput, match=message):
        find(None, root=tmp_path)


def test_without_a_target_the_unfinished_run_written_last_is_taken(tmp_path: Path):
    make(tmp_path / "a", 900, clock=100)
    newest = make(tmp_path / "deep" / "er" / "b", 300, clock=200)
    done = make(tmp_path / "c", 900, clock=300)
    (done / "summary.json").write_text("{}")
    found = find(None, root=tmp_path)
    assert (found.folder, found.step) == (newest, 300)
    assert f"of 2 unfinished runs under {tmp_path} it was written last" in found.why
    assert "1 run finished" in found.why
    assert found.why.endswith(f"others: {tmp_path / 'a'}")
    assert find(tmp_path, root=tmp_path / "elsewhere").folder == newest  # a folder of runs


def test_among_runs_of_one_configuration_the_furthest_is_taken_whatever_the_clock_says(
    tmp_path: Path,
):
    config = tiny.config()
    far = make(tmp_path / "a", 900, clock=100)
    make(tmp_path / "b", 300, clock=200)
    make(tmp_path / "c", 990, config=replace(config, seeds=(5,)), clock=300)
    write_json(create(tmp_path / "d").config, {"broken": True})
    found = find(None, root=tmp_path, config=config)
    assert found.folder == far
    assert "it is the furthest" in found.why
    assert "1 run of another configuration, 1 run that cannot be read" in found.why
    with pytest.raises(BadInput, match="no unfinished run of this configuration under"):
        find(None, root=tmp_path, config=replace(config, seeds=(6,)))


def test_equal_runs_are_taken_in_the_order_of_their_names(tmp_path: Path):
    for name in ("b", "a", "c"):
        make(tmp_path / name, 300, clock=100)
    found = find(None, root=tmp_path, config=tiny.config())
    assert found.folder == tmp_path / "a"
    assert found.why.endswith(f"others: {tmp_path / 'b'}, {tmp_path / 'c'}")


def test_links_hidden_folders_and_what_lies_inside_runs_are_not_searched(tmp_path: Path):
    outside = make(tmp_path / "outside" / "x", 300).parent
    root = tmp_path / "root"
    run = make(root / "run", 300)
    make(run / "videos" / "inner", 900)
    make(root / ".run.starting", 900)
    (root / "link").symlink_to(outside)
    found = find(None, root=root)
    assert found.folder == run
    assert f"it is the one unfinished run under {root}" in found.why


def test_a_search_gives_up_at_its_limit_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make(tmp_path / "zz", 300)
    many = tmp_path / "many"
    many.mkdir()
    for n in range(30):
        (many / f"{n}.txt").touch()
    monkeypatch.setattr(finding, "MAX_ENTRIES", 20)
    with pytest.raises(BadInput, match="20 names looked at, stopped at the limit of 20"):
        find(None, root=tmp_path)
    monkeypatch.setattr(finding, "MAX_ENTRIES", 100)
    assert find(None, root=tmp_path).step == 300
    deep = tmp_path.joinpath("0", *("d" for _ in range(finding.MAX_DEPTH)))
    make(deep, 900, clock=9e9)
    assert find(None, root=tmp_path).step == 300


def test_a_run_that_a_process_is_writing_is_left_out_of_a_search_and_said_so(tmp_path: Path):
    dead, live = make(tmp_path / "dead", 300, clock=100), make(tmp_path / "live", 600, clock=200)
    with RunLock(live):
        found = find(None, root=tmp_path)
        assert found.folder == dead
        assert f"it is the one unfinished run under {tmp_path}" in found.why
        assert "1 run that a process is writing" in found.why
        with RunLock(dead), pytest.raises(BadInput, match="2 runs that a process is writing"):
            find(None, root=tmp_path)
        assert find(live, root=tmp_path).folder == live  # by its name, for the lock to refuse
    assert find(None, root=tmp_path).folder == live
