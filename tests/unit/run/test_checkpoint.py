from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.errors import NotARun
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


def test_a_damaged_checkpoint_is_refused(folder: Path):
    checkpoint.save(folder, counters(10), STATE, keep=2)
    path = folder / "10.pt"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(NotARun, match=r"10\.pt is damaged \(its hash differs\)"):
        checkpoint.load(folder, 10)
    path.unlink()
    with pytest.raises(NotARun, match=r"10\.pt is missing"):
        checkpoint.load(folder, 10)
    (folder / "latest").write_text("ten\n")
    with pytest.raises(NotARun, match="latest is damaged"):
        checkpoint.pointed(folder, "latest")


def test_another_format_is_refused(folder: Path):
    checkpoint.save(folder, replace(counters(10), format=99), STATE, keep=2)
    with pytest.raises(NotARun, match="has format 99"):
        checkpoint.load(folder, 10)
    stamp = read_json(folder / "10.json")
    write_json(folder / "10.json", stamp | {"colour": "red"})
    with pytest.raises(NotARun, match="unknown settings: colour"):
        checkpoint.load(folder, 10)


def test_the_digest_sees_every_number_and_name():
    digest = checkpoint.state_digest(STATE)
    assert digest == checkpoint.state_digest(dict(reversed(STATE.items())))
    changed = {**STATE, "learner": {"w": torch.arange(6.0) + 1e-6, "n": torch.tensor(3)}}
    assert digest != checkpoint.state_digest(changed)
    assert digest != checkpoint.state_digest({**STATE, "names": ["a", 1, 2.5, 0]})
