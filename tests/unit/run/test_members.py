import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.errors import BadInput, RunExists
from lockstep.run import checkpoint, loop
from lockstep.run.lines import read_lines
from lockstep.run.loop import Progress
from lockstep.run.members import extract, slice_state
from lockstep.run.record import Run
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry
from tests import tiny


class Killed(BaseException):
    """Stands for a process that ends without another word."""


def kill_after(update: int) -> Callable[[Progress], None]:
    def watch(progress: Progress) -> None:
        if progress.update == update:
            raise Killed

    return watch


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A pack of three that was stopped in the middle."""
    folder = tmp_path_factory.mktemp("pack") / "pack"
    with pytest.raises(Killed):
        loop.train(
            tiny.config(updates=4, seeds=(3, 5, 8), checkpoint_every=1),
            folder,
            on_update=kill_after(2),
        )
    return Run.open(folder)


def test_a_member_has_its_lines_its_config_and_its_origin(pack: Run, tmp_path: Path):
    alone = extract(pack, 1, tmp_path / "alone")
    assert alone.config == replace(pack.config, seeds=(5,))
    assert alone.config.hash == pack.config.trial_hash(1)
    (origin,) = alone.manifest["history"]
    assert (origin["run"], origin["member"], origin["step"]) == (str(pack.folder), 1, 24)
    assert origin["trial"] == alone.config.hash == origin["config_hash"]
    rows = alone.dir.metrics.read_bytes().splitlines()
    theirs = pack.dir.metrics.read_bytes().splitlines()
    theirs = [
        row for row in theirs if json.loads(row)["member"] == 1 and json.loads(row)["update"] <= 2
    ]
    assert [row.replace(b'"member":0,', b'"member":1,') for row in rows] == theirs
    assert checkpoint.newest(alone.dir.checkpoints) == 24
    assert checkpoint.pointed(alone.dir.checkpoints, "best") is None


def test_its_state_is_its_share_of_the_packs(pack: Run, tmp_path: Path):
    alone = extract(pack, 2, tmp_path / "alone")
    _, whole = checkpoint.load(pack.dir.checkpoints, 24)
    _, part = checkpoint.load(alone.dir.checkpoints, 24)
    assert torch.equal(part["learner"]["weights"]["mu"][0], whole["learner"]["weights"]["mu"][2])
    assert torch.equal(
        part["collector"]["world"]["state"]["mu_xy_m"],
        whole["collector"]["world"]["state"]["mu_xy_m"][4:],
    )
    assert torch.equal(part["learner"]["version"], whole["learner"]["version"])
    wanted = Trainer(alone.config).state_dict()
    assert _shapes(part) == _shapes(wanted)


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _shapes(part) if isinstance(part, Mapping) else getattr(part, "shape", None)
        for name, part in state.items()
    }


def test_a_member_goes_on_alone_as_it_would_have_in_the_pack(pack: Run, tmp_path: Path):
    """To rounding: products for one member may be summed in another order than for three."""
    alone = loop.resume(extract(pack, 1, tmp_path / "alone").folder)
    loop.train(pack.config, tmp_path / "together")
    mine = read_lines(alone.dir.metrics)
    theirs = [
        row for row in read_lines(tmp_path / "together" / "metrics.jsonl") if row["member"] == 1
    ]
    assert [row["update"] for row in mine] == [1, 2, 3, 4]
    assert alone.finished
    for one, other in zip(mine, theirs, strict=True):
        assert set(one) == set(other)
        for name in set(one) - {"member"}:
            if name.startswith("audit/"):
                continue  # gaps of rounding are all that these measure
            a, b = (math.nan if row[name] is None else float(row[name]) for row in (one, other))
            assert a == pytest.approx(b, rel=2e-3, abs=2e-4, nan_ok=True), name


def test_a_member_of_a_finished_pack_is_finished_by_resuming(tmp_path: Path):
    loop.train(tiny.config(updates=1), tmp_path / "pack")
    alone = loop.resume(extract(Run.open(tmp_path / "pack"), 0, tmp_path / "alone").folder)
    assert alone.summary["seeds"] == [0]
    assert alone.summary["updates"] == 1


def test_what_cannot_be_extracted_is_said(pack: Run, tmp_path: Path):
    with pytest.raises(BadInput, match="member must be between 0 and 2, got 3"):
        extract(pack, 3, tmp_path / "x")
    (tmp_path / "x").mkdir()
    with pytest.raises(RunExists):
        extract(pack, 0, tmp_path / "x")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"learner": {"w": torch.zeros(5)}}, r"learner/w cannot be split: it must have 3 rows"),
        (
            {"collector": {"w": torch.zeros(3)}},
            r"collector/w cannot be split: it must have 6 rows, got shape \(3,\)",
        ),
        ({"replay": {"w": torch.zeros(3)}}, "replay/w cannot be split: nothing says whose"),
        ({"learner": {"w": [1, 2, 3]}}, "learner/w cannot be split: it is a list"),
    ],
)
def test_a_part_that_cannot_be_split_is_named(state: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        slice_state(state, 1, members=3, lanes=2)


def test_what_has_no_rows_belongs_to_every_member():
    state = {"learner": {"version": torch.tensor(4), "n": 3, "w": torch.arange(3)}}
    assert slice_state(state, 1, members=3, lanes=2) == {
        "learner": {"version": torch.tensor(4), "n": 3, "w": torch.tensor([1])}
    }


def _tensors(state: Mapping[str, Any], way: str = "") -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, part in state.items():
        found |= (
            _tensors(part, f"{way}{name}/") if isinstance(part, Mapping) else {way + name: part}
        )
    return found


@pytest.mark.parametrize("name", registry.names())
def test_every_tensor_of_a_worlds_state_leads_with_its_lanes(name: str):
    """Only so can a member be taken out of a pack."""
    config = next(iter(registry.scenarios(name).values()))
    world = registry.build(config, lanes=3)
    world.reset(torch.arange(3))
    for way, tensor in _tensors(world.state_dict()).items():
        assert isinstance(tensor, Tensor), way
        assert tensor.ndim == 0 or len(tensor) == 3, (way, tensor.shape)
