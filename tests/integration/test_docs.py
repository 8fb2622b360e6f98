"""The Python in README and docs runs as printed."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2]
PAGES = ["README.md", "docs/quickstart.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "__main__"})
    assert "weighted_energy" in capsys.readouterr().out


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
