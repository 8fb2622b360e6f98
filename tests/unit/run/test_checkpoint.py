import contextlib
import hashlib
import io
import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.errors import BadCheckpoint, NotARun
from lockstep.run import checkpoint
from lockstep.run.checkpoint import Counters
from lockstep.run.rundir import read_json, write_json

STATE = {"learner": {"w": torch.arange(6.0), "n": torch.tensor(3)}, "names": ["a", 1, 2.5, None]}


def counters(step: int, *, best: int | None = None) -> Counters:
    return Counters(
        format=checkpoint.FORMAT,
        update=step // 10,
        step=step,
        metrics_bytes=7,
        best_step=best,
        best_value=0.5 if best is not None else None,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def test_what_is_saved_is_loaded(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    step = checkpoint.pointed(folder, "latest")
    assert step == 10
    found, state = checkpoint.load(folder, step)
    assert found == counters(10)
    assert torch.equal(state["learner"]["w"], STATE["learner"]["w"])
    assert checkpoint.digest_at(folder, 10) == checkpoint.state_digest(STATE)
    assert not list(folder.glob("*.tmp"))


def test_the_newest_and_the_best_are_kept(folder: Path):
    for step in (10, 20, 30, 40, 100):
        checkpoint.save(folder, counters(step, best=10), STATE, keep=2)
    assert checkpoint.steps(folder) == [10, 40, 100]
    assert sorted(f.name for f in folder.glob("*.pt")) == ["10.pt", "100.pt", "40.pt"]
    assert checkpoint.pointed(folder, "best") == 10


def test_before_the_first_checkpoint_nothing_is_pointed_at(folder: Path):
    assert checkpoint.pointed(folder, "latest") is None
    assert checkpoint.newest(folder) is None


def test_numbers_that_are_not_plain_are_no_steps(folder: Path):
    for name in ("007.json", "٣.json", "-1.json", "1.5.json", "x.json", "7.json.bak"):
        (folder / name).write_text("{}")
    assert checkpoint.steps(folder) == []


def test_a_flipped_bit_is_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    path = folder / "10.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadCheckpoint, match=r"10\.pt is damaged \(its hash differs\)$"):
        checkpoint.load(folder, 10)


def test_a_file_cut_short_is_refused_with_its_length(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    path = folder / "10.pt"
    size = path.stat().st_size
    with path.open("rb+") as file:
        file.truncate(100)
    with pytest.raises(BadCheckpoint, match=rf"10\.pt is cut short: it has 100 of {size} bytes"):
        checkpoint.load(folder, 10)


@pytest.mark.parametrize("name", ["10.pt", "10.json"])
def test_a_file_that_is_missing_is_named(folder: Path, name: str):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    (folder / name).unlink()
    with pytest.raises(BadCheckpoint, match=f"{name} is missing"):
        checkpoint.load(folder, 10)


def test_a_checkpoint_under_another_name_is_refused(folder: Path):
    checkpoint.save(folder, counters(600), STATE, keep=2)
    checkpoint.save(folder, counters(900), {**STATE, "more": torch.ones(2)}, keep=2)
    shutil.copy(folder / "900.pt", folder / "600.pt")
    with pytest.raises(BadCheckpoint, match=r"600\.pt holds step 900: it was renamed or copied"):
        checkpoint.load(folder, 600)
    shutil.copy(folder / "900.json", folder / "600.json")
    with pytest.raises(BadCheckpoint, match=r"600\.json is of step 900: it was renamed or copied"):
        checkpoint.load(folder, 600)


def test_a_stamp_that_was_edited_is_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    stamp = read_json(folder / "10.json")
    stamp["counters"]["update"] = 99
    write_json(folder / "10.json", stamp)
    with pytest.raises(BadCheckpoint, match=r"10\.pt has counters other than 10\.json"):
        checkpoint.load(folder, 10)


def test_a_checkpoint_of_another_run_is_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2, owner="a" * 64)
    assert checkpoint.load(folder, 10, owner="a" * 64)[0] == counters(10)
    message = (
        "belongs to another run.*of configuration aaaaaaaaaaaa, and the run is of bbbbbbbbbbbb"
    )
    with pytest.raises(BadCheckpoint, match=message):
        checkpoint.load(folder, 10, owner="b" * 64)
    stamp = read_json(folder / "10.json")
    write_json(folder / "10.json", stamp | {"owner": "b" * 64})
    with pytest.raises(BadCheckpoint, match="belongs to another run"):
        checkpoint.load(folder, 10, owner="b" * 64)


class Payload:
    """Would make a file if it were ever unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("kind", ["torch", "0", "2", "5"])
def test_a_pickle_with_a_program_in_it_is_refused_and_never_run(
    folder: Path, tmp_path: Path, kind: str
):
    target = tmp_path / "owned"
    checkpoint.save(folder, counters(10), STATE, keep=2)
    content = {"counters": {}, "owner": "", "state": Payload(target)}
    buffer = io.BytesIO()
    if kind == "torch":
        torch.save(content, buffer)
    else:
        pickle.dump(content, buffer, protocol=int(kind))
    data = buffer.getvalue()
    (folder / "10.pt").write_bytes(data)
    forged = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    write_json(folder / "10.json", read_json(folder / "10.json") | forged)
    with pytest.raises(BadCheckpoint) as refusal:
        checkpoint.load(folder, 10)
    assert "holds a program (posix.mkdir), not only tensors, and was not executed" in str(
        refusal.value
    )
    assert "\n" not in str(refusal.value)
    assert not target.exists()
    with contextlib.suppress(RuntimeError):  # a plain pickle is run first and refused then
        torch.load(io.BytesIO(data), weights_only=False)
    assert target.exists()


def test_bytes_that_are_no_tensors_are_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    for data, message in (
        (b"years of work", "cannot be read as tensors"),
        (_torch([1, 2]), "holds no checkpoint of Lockstep"),
    ):
        (folder / "10.pt").write_bytes(data)
        forged = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        write_json(folder / "10.json", read_json(folder / "10.json") | forged)
        with pytest.raises(BadCheckpoint, match=message):
            checkpoint.load(folder, 10)


def _torch(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_a_refusal_names_the_whole_checkpoint_before_it(folder: Path):
    for step in (10, 20, 30):
        checkpoint.save(folder, counters(step), STATE, keep=3)
    for step in (20, 30):
        (folder / f"{step}.pt").write_bytes(b"")
    message = rf"30\.pt is cut short.*step 10 before it is whole: lockstep resume {folder}/10\.pt"
    with pytest.raises(BadCheckpoint, match=message):
        checkpoint.load(folder, 30)


def test_a_refusal_recommends_no_checkpoint_of_another_run(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=3, owner="a")
    checkpoint.save(folder, counters(20), STATE, keep=3, owner="a")
    with pytest.raises(BadCheckpoint, match=r"belongs to another run[^;]*$"):
        checkpoint.load(folder, 20, owner="b")
    checkpoint.save(folder, counters(5), STATE, keep=3, owner="b")
    with pytest.raises(BadCheckpoint, match="step 5 before it is whole"):
        checkpoint.load(folder, 20, owner="b")
    assert checkpoint.load(folder, 20, owner={"a", "b"})[0] == counters(20)


def test_a_damaged_pointer_is_named(folder: Path):
    (folder / "latest").write_text("ten\n")
    with pytest.raises(NotARun, match="latest is damaged"):
        checkpoint.pointed(folder, "latest")
    (folder / "latest").write_bytes(b"\xff")
    with pytest.raises(NotARun, match="latest is damaged"):
        checkpoint.newest(folder)


def test_another_format_is_refused_with_the_way_out_if_there_is_one(folder: Path):
    checkpoint.save(folder, replace(counters(10), format=99), STATE, keep=2)
    with pytest.raises(
        BadCheckpoint, match=r"has format 99, and this version of Lockstep reads 2$"
    ):
        checkpoint.load(folder, 10)
    checkpoint.save(folder, replace(counters(10), format=1), STATE, keep=2)
    with pytest.raises(BadCheckpoint, match=r"has format 1.*upgrade it with `lockstep migrate"):
        checkpoint.load(folder, 10)


def test_a_stamp_that_does_not_fit_is_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    stamp = read_json(folder / "10.json")
    write_json(folder / "10.json", stamp | {"colour": "red"})
    with pytest.raises(BadCheckpoint, match="unknown settings: colour"):
        checkpoint.load(folder, 10)
    (folder / "10.json").write_text("{")
    with pytest.raises(BadCheckpoint, match=r"10\.json is damaged: it is not JSON"):
        checkpoint.load(folder, 10)


def test_a_save_cut_off_before_its_pointers_is_completed_by_settling(folder: Path):
    checkpoint.save(folder, counters(10, best=10), STATE, keep=1)
    checkpoint.write(folder, counters(20, best=20), STATE, owner="")
    assert checkpoint.newest(folder) == 20
    assert checkpoint.pointed(folder, "latest") == 10
    checkpoint.settle(folder, counters(20, best=20), keep=1)
    assert checkpoint.pointed(folder, "latest") == checkpoint.pointed(folder, "best") == 20
    assert sorted(f.name for f in folder.iterdir()) == ["20.json", "20.pt", "best", "latest"]


def test_a_save_cut_off_before_its_stamp_does_not_count(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=1)
    (folder / "20.pt").write_bytes(b"half")
    (folder / ".30.pt.tmp").write_bytes(b"ha")
    assert checkpoint.newest(folder) == 10
    checkpoint.save(folder, counters(30), STATE, keep=2)
    assert sorted(f.name for f in folder.iterdir()) == [
        "10.json",
        "10.pt",
        "30.json",
        "30.pt",
        "latest",
    ]


def test_a_pointer_beyond_every_checkpoint_means_that_one_was_lost(folder: Path):
    for step in (10, 20):
        checkpoint.save(folder, counters(step), STATE, keep=2)
    (folder / "20.json").unlink()
    assert checkpoint.newest(folder) == 20
    with pytest.raises(BadCheckpoint, match=r"20\.json is missing.*step 10 before it is whole"):
        checkpoint.load(folder, 20)


def test_newer_checkpoints_are_set_aside_and_not_lost(folder: Path):
    for step in (10, 20, 30):
        checkpoint.save(folder, counters(step, best=20 if step > 10 else None), STATE, keep=3)
    assert checkpoint.set_aside(folder, after=10) == [20, 30]
    assert (folder / "30.pt.aside").is_file()
    checkpoint.settle(folder, checkpoint.load(folder, 10)[0], keep=3)
    assert checkpoint.newest(folder) == 10
    assert checkpoint.pointed(folder, "best") is None
    assert checkpoint.set_aside(folder, after=10) == []


def test_a_state_loads_onto_another_device(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    _, state = checkpoint.load(folder, 10, device="meta")
    assert state["learner"]["w"].device.type == "meta"
    assert state["names"] == STATE["names"]


def test_the_digest_sees_every_number_and_name():
    digest = checkpoint.state_digest(STATE)
    assert digest == checkpoint.state_digest(dict(reversed(STATE.items())))
    changed = {**STATE, "learner": {"w": torch.arange(6.0) + 1e-6, "n": torch.tensor(3)}}
    assert digest != checkpoint.state_digest(changed)
    assert digest != checkpoint.state_digest({**STATE, "names": ["a", 1, 2.5, 0]})


def test_the_digest_takes_a_single_number_of_any_stride():
    one = torch.arange(12).view(2, 6)[:1, 0]
    assert one.stride() == (6,)
    assert checkpoint.state_digest({"x": one}) == checkpoint.state_digest({"x": torch.tensor([0])})
