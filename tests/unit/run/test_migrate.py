import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.cli import migrate as verb
from lockstep.errors import BadInput
from lockstep.run import checkpoint
from lockstep.run.migrate import AUDIT, Plan, migrate
from lockstep.run.rundir import create, read_json, write_json
from tests import tiny


def foreign(folder: Path, name: str = "a3c_world1_stage1_latest", **changes: Any) -> Path:
    """Metadata as another program writes it, beside its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = changes.pop("inside", {"global_update": 0})
    torch.save({"model": {"w": torch.ones(2)}, **inside}, folder / f"{name}.pt")
    meta = {
        "version": 1,
        "vector_env": {"num_envs": 8},
        "save_state": {"global_step": 0, "global_update": 50, "type": "latest"},
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(meta | changes))
    return path


def statuses(root: Path, **plan: Any) -> list[str]:
    return [outcome.status for outcome in migrate(root, Plan(**plan))]


def step(path: Path) -> int:
    return read_json(path)["save_state"]["global_step"]


def test_a_missing_step_is_worked_out_and_the_way_recorded(tmp_path: Path):
    path = foreign(tmp_path)
    before = path.read_bytes()
    assert statuses(tmp_path) == ["updated:25600"]
    meta = read_json(path)
    assert meta["save_state"] == {"global_step": 25600, "global_update": 50, "type": "latest"}
    audit = meta[AUDIT]
    assert audit["method"] == "assumed_rollout_steps"
    assert audit["rollout_steps"] == 64
    assert audit["formula"] == "50 updates x 8 lanes x 64 steps"
    assert audit["computed_at"].endswith("Z")
    assert path.with_suffix(".json.bak").read_bytes() == before


def test_a_second_time_nothing_is_left_to_do(tmp_path: Path):
    path = foreign(tmp_path)
    migrate(tmp_path, Plan())
    after = path.read_bytes()
    assert statuses(tmp_path) == ["already_reconstructed"]
    assert statuses(tmp_path, update_if_lower=True) == ["already_reconstructed"]
    assert path.read_bytes() == after


def test_the_first_backup_stays(tmp_path: Path):
    path = foreign(tmp_path)
    before = path.read_bytes()
    migrate(tmp_path, Plan())
    assert statuses(tmp_path, update_if_lower=True, assume_steps=128) == ["updated:51200"]
    assert path.with_suffix(".json.bak").read_bytes() == before


def test_a_dry_run_writes_nothing(tmp_path: Path):
    path = foreign(tmp_path)
    before = path.read_bytes()
    assert statuses(tmp_path, dry_run=True) == ["would_update:25600"]
    assert path.read_bytes() == before
    assert not path.with_suffix(".json.bak").exists()


def test_without_backup_there_is_none(tmp_path: Path):
    path = foreign(tmp_path)
    assert statuses(tmp_path, backup=False) == ["updated:25600"]
    assert not path.with_suffix(".json.bak").exists()


def test_a_step_that_is_there_is_left_unless_lower_ones_are_to_go(tmp_path: Path):
    path = foreign(tmp_path, save_state={"global_step": 100, "global_update": 50})
    assert statuses(tmp_path) == ["already_has_step"]
    assert statuses(tmp_path, update_if_lower=True) == ["updated:25600"]
    assert read_json(path)[AUDIT]["global_step_before"] == 100
    foreign(tmp_path, save_state={"global_step": 99_999, "global_update": 50})
    assert statuses(tmp_path, update_if_lower=True) == ["current_step>=computed"]


def test_the_update_is_read_from_the_tensors_where_the_metadata_has_none(tmp_path: Path):
    path = foreign(tmp_path, save_state={"global_step": 0}, inside={"global_update": 7})
    assert statuses(tmp_path) == ["updated:3584"]
    audit = read_json(path)[AUDIT]
    assert audit["method"] == "checkpoint_plus_rollout"
    assert audit["checkpoint_global_update"] == 7


def test_recorded_rollout_steps_come_before_assumed_ones(tmp_path: Path):
    path = foreign(tmp_path, rollout_steps=10)
    assert statuses(tmp_path, assume_steps=99) == ["updated:4000"]
    assert read_json(path)[AUDIT]["rollout_steps_from"] == "metadata"


def test_what_cannot_be_worked_out_is_said(tmp_path: Path):
    foreign(tmp_path / "a", vector_env={})
    foreign(tmp_path / "b", save_state={"global_update": 0})
    (tmp_path / "c").mkdir()
    foreign(tmp_path / "c").write_text("{")
    assert statuses(tmp_path) == ["missing_num_envs", "no_update_info", "damaged: not JSON"]


class Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("owned",)


def test_a_foreign_pickle_with_a_program_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    foreign(tmp_path, save_state={"global_update": 0}, inside={"global_update": Payload()})
    (status,) = statuses(tmp_path)
    assert status.startswith("unreadable: holds a program (posix.mkdir)")
    assert not (tmp_path / "owned").exists()


def test_other_files_are_left_alone(tmp_path: Path):
    (tmp_path / "notes.json").write_text('{"save_state": {"global_step": 0}}')  # no tensors beside
    torch.save({}, tmp_path / "net.pt")
    (tmp_path / "net.json").write_text("[1, 2]")
    assert statuses(tmp_path) == []


def old_run(folder: Path, **missing: Any) -> Path:
    """A run as format 1 wrote it."""
    config = tiny.config().to_json()
    for name in missing.get("settings", ()):
        del config[name]
    run = create(folder, {"config.json": config, "manifest.json": {}})
    counters = {
        "format": 1,
        "update": 2,
        "step": 24,
        "metrics_bytes": 0,
        "best_step": None,
        "best_value": None,
    }
    state = {"learner": {"w": torch.arange(4.0)}}
    torch.save({"counters": counters, "state": state}, run.checkpoints / "24.pt")
    data = (run.checkpoints / "24.pt").read_bytes()
    stamp = {
        "counters": counters,
        "sha256": hashlib.sha256(data).hexdigest(),
        "state": checkpoint.state_digest(state),
        "bytes": len(data),
    }
    write_json(run.checkpoints / "24.json", stamp)
    (run.checkpoints / "latest").write_text("24\n")
    return folder


def test_a_run_of_the_old_format_becomes_one_of_this_run(tmp_path: Path):
    folder = old_run(tmp_path / "old") / "checkpoints"
    assert statuses(tmp_path, dry_run=True) == ["would_upgrade:format 2"]
    digest = read_json(folder / "24.json")["state"]
    assert statuses(tmp_path) == ["upgraded:format 2"]
    counters, state = checkpoint.load(folder, 24, owner=tiny.config().hash)
    assert (counters.update, counters.format) == (2, 2)
    assert torch.equal(state["learner"]["w"], torch.arange(4.0))
    stamp = checkpoint.read_stamp(folder, 24)
    assert stamp.state == digest
    assert "from format 1" in stamp.history[0]
    assert read_json(folder / "24.json.bak")["counters"]["format"] == 1
    assert (folder / "24.pt.bak").is_file()
    assert statuses(tmp_path) == ["already_format_2"]


def test_an_upgrade_killed_between_its_two_files_is_finished_the_next_time(tmp_path: Path):
    folder = old_run(tmp_path / "old") / "checkpoints"
    old = (folder / "24.json").read_bytes()
    migrate(tmp_path, Plan())
    (folder / "24.json").write_bytes(old)  # the new stamp was never written
    assert statuses(tmp_path) == ["upgraded:format 2"]
    assert checkpoint.load(folder, 24, owner=tiny.config().hash)[0].update == 2


def test_an_upgrade_without_backup_leaves_none(tmp_path: Path):
    folder = old_run(tmp_path / "old") / "checkpoints"
    assert statuses(tmp_path, backup=False) == ["upgraded:format 2"]
    assert sorted(f.name for f in folder.iterdir()) == ["24.json", "24.pt", "latest"]


def test_settings_that_came_later_and_decide_nothing_are_filled_in(tmp_path: Path):
    folder = old_run(tmp_path / "old", settings=("best_by", "ops"))
    assert statuses(tmp_path, dry_run=True)[0] == "would_add:best_by,ops"
    assert statuses(tmp_path)[0] == "added:best_by,ops"
    assert read_json(folder / "config.json") == tiny.config().to_json()
    assert "ops" not in read_json(folder / "config.json.bak")


def test_a_damaged_old_run_is_named_and_left(tmp_path: Path):
    folder = old_run(tmp_path / "old") / "checkpoints"
    (folder / "24.pt").write_bytes(b"x")
    old_run(tmp_path / "other", settings=("seeds",))
    first, second = statuses(tmp_path)
    assert first == "damaged: its hash differs"
    assert second.startswith("damaged: config lacks the settings: seeds")
    assert verb.main([str(tmp_path)]) == 1


def test_the_verb_says_a_line_for_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = foreign(tmp_path)
    assert verb.main([str(tmp_path), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said == f"{path}: would_update:25600\n1 files looked at, nothing written\n"
    assert verb.main([str(tmp_path), "--json", "--no-backup", "--assume-steps=1"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"path": str(path), "status": "updated:400"}]


def test_a_root_that_is_not_there_is_bad_input(tmp_path: Path):
    with pytest.raises(BadInput, match="nope is not a folder, so there is nothing to migrate"):
        verb.main([str(tmp_path / "nope")])
    with pytest.raises(BadInput, match="--assume-steps must be at least 1, got 0"):
        verb.main([str(tmp_path), "--assume-steps=0"])


@pytest.mark.parametrize("envs", [8, [8], "eight", None])
def test_metadata_whose_lanes_are_no_table_gets_a_status(tmp_path: Path, envs: object):
    foreign(tmp_path, vector_env=envs)
    assert statuses(tmp_path) == ["missing_num_envs"]
