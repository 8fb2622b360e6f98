"""Studies by name and from files."""

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.errors import BadInput, UnknownName
from lockstep.studies import catalogue
from lockstep.studies.catalogue import default_root, load
from lockstep.worlds import registry

REPOSITORY = Path(__file__).parents[3]
BODY = """
from lockstep.run.config import preset
from lockstep.studies.study import Figure, Study, sweep
from names import NAME

def study({arguments}):
    points = sweep("one", {{"A": preset("uav-mec", scenario="demo")}}, seeds=(1,))
    figure = Figure(name="one", title="", kind="curves", x_label="", y_label="",
                    metrics=("world/jain_fairness",), points=points)
    return Study(name=NAME, smoke=smoke, figures=(figure,))
"""

WORLD = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lockstep.worlds import registry

@dataclass(frozen=True, kw_only=True)
class Settings:
    name: ClassVar[str] = "own"
    size: int = {size}

SCENARIOS = {{"standard": Settings()}}
registry.WORLDS["own"] = registry.Entry(
    config=f"{{__name__}}:Settings", world="later:World", scenarios=f"{{__name__}}:SCENARIOS",
    heuristics="later:HEURISTICS", summary="",
)
"""
OF_OWN = BODY.replace('"uav-mec", scenario="demo"', '"own"').format(arguments="smoke")


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a study registers and imports is gone after a test."""
    monkeypatch.setattr(registry, "WORLDS", dict(registry.WORLDS))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("mine", "names", "own", "later"):
            del sys.modules[name]


def write(folder: Path, text: str) -> str:
    (folder / "names.py").write_text("NAME = 'mine'\n")
    (folder / "mine.py").write_text(text)
    return str(folder / "mine.py")


@pytest.mark.parametrize("name", catalogue.STUDIES)
def test_every_study_that_ships_can_be_declared_in_both_lengths(name: str):
    assert load(name).name == name
    assert load(name, smoke=True).smoke
    assert len(load(name, smoke=True).distinct()) <= len(load(name).distinct())


def test_a_grid_is_chosen_by_name():
    assert load("uav-paper").grid == "reference"
    assert load("uav-paper", grid="paper").grid == "paper"
    with pytest.raises(BadInput, match="grid must be one of reference, paper, got 'fine'"):
        load("uav-paper", grid="fine")
    with pytest.raises(BadInput, match=r"uav-flights has one grid only, so leave out --grid \(p\)"):
        load("uav-flights", grid="p")


def test_an_unknown_study_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no study called 'uav-papr'; did you mean 'uav-paper'"):
        load("uav-papr")


def test_a_study_may_be_a_file_with_others_beside_it(tmp_path: Path):
    study = load(write(tmp_path, BODY.format(arguments="smoke")), smoke=True)
    assert (study.name, study.smoke) == ("mine", True)


def test_a_world_may_be_in_the_file_of_its_study(tmp_path: Path):
    file = write(tmp_path, WORLD.format(size=3) + OF_OWN)
    (first,) = load(file).trials()
    assert first.config.world.size == 3
    assert type(first.config).from_json(first.config.to_json()) == first.config
    assert load(file).trials()[0].hash == first.hash


def test_a_world_may_be_in_a_file_beside_its_study_or_imported_later(tmp_path: Path):
    (tmp_path / "own.py").write_text(WORLD.format(size=3))
    (tmp_path / "later.py").write_text("HEURISTICS = {'idle': None}")
    file = write(tmp_path, f"import own\n{OF_OWN}")
    first = load(file).trials()[0].hash
    assert registry.heuristics("own") == {"idle": None}
    write(tmp_path, f"import own  # the world is as it was\n{OF_OWN}")
    assert load(file).trials()[0].hash == first


def test_a_world_in_another_file_of_the_same_name_is_another(tmp_path: Path):
    """Also in one process, which reads both."""
    found = []
    for size in (3, 4):
        folder = tmp_path / str(size)
        folder.mkdir()
        text = WORLD.format(size=size) + OF_OWN
        found.append(load(write(folder, text)).trials()[0])
    assert [trial.config.world.size for trial in found] == [3, 4]
    assert found[0].hash != found[1].hash
    write(tmp_path / "4", f"{WORLD.format(size=4)}{OF_OWN}# a change")
    assert load(str(tmp_path / "4/mine.py")).trials()[0].hash != found[1].hash


def test_a_study_does_not_take_the_name_of_another_module(tmp_path: Path):
    for name in ("json", "imaplib"):  # one that is imported, and one that may be
        file = tmp_path / f"{name}.py"
        file.write_text("def study(smoke): return 3")
        there = find_spec(name)
        with pytest.raises(BadInput, match=rf"{name}.py must not .* the module .*{name}.*; rename"):
            load(str(file))
        assert find_spec(name) == there
        assert str(tmp_path) not in sys.path


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path):
    file = write(tmp_path, "1 / 0")
    with pytest.raises(BadInput):
        load(file)
    assert "mine" not in sys.modules
    assert str(tmp_path) not in sys.path
    assert load(write(tmp_path, BODY.format(arguments="smoke"))).name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "cannot be read as Python"),
        ("import nothing_of_that_name", "cannot be read as Python: No module named"),
        ("x = 1", r"must have a function study\(smoke\) that returns a Study, got none"),
        ("def study(smoke): return 3", "the function study of .* must return a Study, got int"),
        ("def study(): return 3", "cannot be declared: .* unexpected keyword argument 'smoke'"),
        ("def study(smoke): raise ValueError('values are odd')", "cannot be declared: values are"),
        ("x = 1\n1 / 0", r"mine.py cannot be read: line 2 raises ZeroDivisionError: division by"),
        ("raise SystemExit('no')", r"mine.py cannot be read: line 1 raises SystemExit: no"),
        (
            "def study(smoke):\n  return nothing",
            "cannot be declared: line 2 raises NameError: name",
        ),
        ("def study(smoke):\n  raise RuntimeError", "be declared: line 2 raises RuntimeError$"),
    ],
)
def test_a_file_that_declares_no_study_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(BadInput, match=message):
        load(write(tmp_path, text))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match=r"there is no file gone.py to read a study from"):
        load("gone.py")


def test_results_of_other_grids_and_lengths_have_other_folders():
    roots = {
        str(default_root(load("uav-paper", grid=grid, smoke=smoke, precision=precision)))
        for grid in ("reference", "paper")
        for smoke in (False, True)
        for precision in (None, "tf32")
    }
    assert len(roots) == 8
    assert {"studies/uav-paper-paper-smoke", "studies/uav-paper-reference-tf32"} < roots


def test_the_page_on_studies_moves_the_root_that_a_study_has():
    page = (REPOSITORY / "docs/studies.md").read_text()
    assert re.findall(r"tar -C (\S+)", page) == [str(default_root(load("uav-paper")))]


def test_the_studies_of_the_readme_look_where_the_one_before_has_written():
    text = (REPOSITORY / "README.md").read_text()
    lines = re.findall(r"^lockstep study .*", text, flags=re.M)
    assert len(lines) == 2
    assert {"--smoke" in line for line in lines} == {True}
