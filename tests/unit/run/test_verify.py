import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep.cli import verify_resume as verb
from lockstep.errors import BadInput, LockstepError, UnknownName
from lockstep.run import checkpoint, loop, verify as verifying
from lockstep.run.record import Run
from lockstep.run.verify import Row, Verdict, compare, verify
from tests import tiny


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.train(tiny.config(updates=3), tmp_path_factory.mktemp("x") / "run").folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where proofs put their temporary folders."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_killed_run_is_proved_equal_and_leaves_nothing(place: Path):
    said: list[str] = []
    verdict = verify(tiny.config(checkpoint_every=1), updates=2, kills=1, seed=3, say=said.append)
    assert verdict.equal
    assert verdict.kills == 1
    assert [row.what for row in verdict.rows] == [
        "parameters",
        "optimizer",
        "all other state",
        "metrics.jsonl",
        "best checkpoint",
        "summary.json",
    ]
    assert said[0] == "4 updates straight, then killed once (instants of seed 3)"
    assert said[1].startswith("killed ")
    assert verdict.folder is None
    assert list(place.iterdir()) == []


def test_two_copies_of_a_run_are_equal(straight: Path, tmp_path: Path):
    other = shutil.copytree(straight, tmp_path / "other")
    rows = list(compare(straight, other))
    assert all(row.equal for row in rows)
    assert all(row.straight == row.resumed for row in rows)


def test_a_line_that_differs_is_named(straight: Path, tmp_path: Path):
    other = shutil.copytree(straight, tmp_path / "other")
    metrics = other / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"0.", b"1.", 1)
    metrics.write_bytes(b"".join(lines))
    (row,) = [row for row in compare(straight, other) if not row.equal]
    assert (row.what, row.where) == ("metrics.jsonl", "line 4")
    assert row.straight != row.resumed
    metrics.write_bytes(b"".join(lines[:3]))
    (row,) = [row for row in compare(straight, other) if not row.equal]
    assert row.where == "line 4"


@pytest.mark.parametrize(
    ("way", "what"),
    [
        (("learner", "weights", "mu"), "parameters"),
        (("learner", "optimizers", "critic", "steps"), "optimizer"),
        (("collector", "starts"), "all other state"),
    ],
)
def test_a_tensor_that_differs_is_named(
    straight: Path, tmp_path: Path, way: tuple[str, ...], what: str
):
    other = shutil.copytree(straight, tmp_path / "other")
    run = Run.open(other)
    step = checkpoint.newest(run.dir.checkpoints)
    assert step is not None
    counters, state = checkpoint.load(run.dir.checkpoints, step)
    part = state
    for name in way[:-1]:
        part = part[name]
    tensor = part[way[-1]]
    part[way[-1]] = ~tensor if tensor.dtype == torch.bool else tensor + 1
    checkpoint.save(run.dir.checkpoints, counters, state, keep=9, owner=run.config.hash)
    rows = [row for row in compare(straight, other) if not row.equal]
    assert rows[0].what == what
    assert rows[0].where == f"{'/'.join(way)} (1 parts)"


def verdict(*, equal: bool, folder: Path | None = None) -> Verdict:
    where = "" if equal else "line 7"
    row = Row(what="metrics.jsonl", straight="aa", resumed="aa" if equal else "bb", where=where)
    blow = verifying.Blow(update=2, delay_s=0.1, landed=True)
    return Verdict(rows=(row,), blows=(blow,), seed=11, folder=folder)


@pytest.mark.parametrize("equal", [True, False])
def test_the_verb_prints_a_verdict_and_its_exit_code_says_it(
    equal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    found = verdict(equal=equal, folder=None if equal else Path("kept"))
    asked: dict[str, object] = {}

    def answer(config: object, **options: object) -> Verdict:
        asked.update(options)
        return found

    monkeypatch.setattr(verifying, "verify", answer)
    assert verb.main(["uav-mec", "--updates=5", "--seed-of-instants=11"]) == (0 if equal else 1)
    said = capsys.readouterr().out
    assert (asked["updates"], asked["kills"], asked["seed"]) == (5, 2, 11)
    if equal:
        assert "equal after 1 kill (instants drawn from seed 11)" in said
    else:
        assert "differs first at line 7" in said
        assert "DIFFERENT after 1 kill" in said
        assert "both runs are in kept" in said
    assert verb.main(["uav-mec", "--json"]) == (0 if equal else 1)
    told = json.loads(capsys.readouterr().out)
    assert told["equal"] is equal
    assert told["compared"][0]["first_difference"] == (None if equal else "line 7")


def test_bad_input_is_refused_before_anything_runs(place: Path):
    with pytest.raises(UnknownName, match="there is no world called 'mars'"):
        verb.main(["mars"])
    with pytest.raises(BadInput, match="--updates and --kills must be at least 1, got 0 and 2"):
        verb.main(["uav-mec", "--updates=0"])
    assert list(place.iterdir()) == []


def test_a_process_that_fails_is_quoted_and_its_log_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verifying, "_CHILD", "raise SystemExit('the oven is cold')")
    with pytest.raises(
        LockstepError, match=r"the straight run failed: the oven is cold \(see .*log"
    ):
        verify(tiny.config(), updates=1)
    assert list(place.glob("lockstep-verify-*/straight.log"))
