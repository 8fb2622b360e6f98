"""What README and docs print is true: Python runs, commands exist, tables are the code's."""

import importlib
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from lockstep.learners.config import PPOConfig
from lockstep.worlds import registry
from tests.helpers import assemble, train
from tests.toys import Match

DOCS = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md"]
NAME = re.compile(r"`(lockstep(?:\.\w+)+)`")


def blocks(page: str) -> list[str]:
    """The Python of a page, apart from files it shows (those have a title)."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def run(page: str) -> None:
    for block in blocks(page):
        exec(compile(block, page, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert blocks(page)
    monkeypatch.chdir(tmp_path)
    run(page)
    assert "weighted_energy" in capsys.readouterr().out


def test_the_world_in_one_file_is_registered_trained_and_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = "docs/worlds/your_own.md"
    files = re.findall(r'```python title="(.+?)"\n(.*?)```', (DOCS / page).read_text(), flags=re.S)
    for name, text in files:
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "WORLDS", dict(registry.WORLDS))
    try:
        run(page)
        monkeypatch.setattr(sys, "argv", ["guess_cli.py", "worlds", "guess"])
        with pytest.raises(SystemExit, match="0"):
            runpy.run_path("guess_cli.py", run_name="__main__")
    finally:
        sys.modules.pop("guess", None)
    said = capsys.readouterr().out
    assert "Say the number you see." in said
    learned = float(re.findall(r"^miss +([\d.]+)", said, flags=re.M)[0])
    assert learned < 0.03  # uniform numbers: 0.167


def test_every_command_of_the_readme_is_a_verb_with_flags_that_exist(
    capsys: pytest.CaptureFixture[str],
):
    from lockstep.cli import main

    lines = re.findall(r"^lockstep (.+?)(?:\s+#.*)?$", (DOCS / "README.md").read_text(), flags=re.M)
    assert len(lines) >= 6
    for line in lines:
        words = line.split()
        assert main([*words[:2], "--help"]) == 0
        known_flags = capsys.readouterr().out
        for flag in [word for word in words if word.startswith("--")]:
            assert flag in known_flags, line


@pytest.mark.parametrize("page", sorted((DOCS / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_function_that_a_page_names_exists(page: Path):
    for name in NAME.findall(page.read_text()):
        parts = name.split(".")
        place = next(n for n in range(len(parts), 0, -1) if _module(".".join(parts[:n])))
        found: object = sys.modules[".".join(parts[:place])]
        for part in parts[place:]:
            found = getattr(found, part)


def test_the_page_of_the_learner_explains_every_number_of_an_update():
    learner, collector, rollout = assemble(Match, PPOConfig(hidden=16, lanes=2, steps=3), [0])
    (stats,) = train(learner, collector, rollout, updates=1)
    text = (DOCS / "docs/learners/ppo.md").read_text()
    keys = {key.replace("/player/", "/<role>/") for key in stats}
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_the_tables_of_learning_are_those_of_the_results():
    script = runpy.run_path(str(DOCS / "benchmarks/plot_learning.py"))
    text = (DOCS / "docs/benchmarks.md").read_text()
    for table in script["tables"](json.loads(script["RESULTS"].read_text())).values():
        assert table in text


def _module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
