"""The rows of the benchmark of packs, and what it concludes from them."""

import json
from pathlib import Path

import pytest

from benchmarks.one_by_one import Book
from benchmarks.packs_rows import Case, chosen, groups
from benchmarks.packs_uav_mec import equality, overlap


def test_every_row_has_a_name_of_its_own_and_settings_that_can_be_trained():
    cases = chosen(list(groups()), quick=False)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        config = case.config("cpu")
        assert (config.members, config.world.n_users) == (case.members, case.users)
        assert config.steps_per_update == case.lanes * case.steps


def test_the_scaling_table_is_among_them():
    packs = {c for c in chosen(list(groups()), quick=False) if c.kind == "pack"}
    fast = {c for c in packs if c.path == "compiled"}
    assert {c.members for c in fast if c.lanes * c.steps == 300} >= {1, 8, 32, 64}
    assert {c.users + c.uavs for c in fast} >= {11, 70, 110}
    assert {c.lanes * c.steps for c in fast} == {300, 4096}
    assert {c.path for c in packs if c.members == 8} >= {"eager", "graphs", "compiled"}


@pytest.mark.parametrize(("shift", "said"), [(0.0, "overlap"), (0.5, "DO NOT overlap")])
def test_learning_is_compared_after_as_many_updates_as_all_made(shift: float, said: str):
    short = [[0.1 * seed + shift for seed in range(5)] for _ in range(12)]
    long = [[0.1 * seed for seed in range(5)] for _ in range(12)] + 9 * [[9.0] * 5]
    found = overlap([{"curve": short}, {"curve": long}])
    assert found.startswith(f"intervals of the energy after 12 updates {said}: ")
    assert overlap([{"curve": short}]) == "learning was not compared"


def test_a_timed_row_says_whether_its_path_was_found_equal(tmp_path: Path):
    book = Book(tmp_path / "rows.json", {})
    case = Case(path="graphs", members=8)
    assert equality(case, book) == {"equal": False}
    gate = {"kind": "gate", "path": "graphs", "members": 2, "gap": 1e-6, "tolerance": 1e-5}
    book.put("gate", gate)
    assert equality(case, book) == {"equal": True}
    assert equality(Case(path="graphs", members=1), book) == {"equal": False}
    assert equality(Case(path="eager"), book) == {}
    book.put("gate", gate | {"gap": 1e-3})
    assert equality(case, book) == {"equal": False}


def test_rows_survive_who_measures_and_failures_are_made_again(tmp_path: Path):
    path = tmp_path / "rows.json"
    book = Book(path, {"machine": "x"})
    book.put("good", {"rate": 1.0})
    book.put("bad", {"error": "cut"})
    again = Book(path, {"machine": "y"})
    assert again.has("good")
    assert not again.has("bad")
    again.put("bad", {"rate": 2.0})
    assert [row["rate"] for row in json.loads(path.read_text())["rows"]] == [1.0, 2.0]
