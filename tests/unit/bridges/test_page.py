import importlib
import re
import sys
from pathlib import Path

import pytest

from lockstep.errors import MissingExtra

PAGE = Path(__file__).parents[3] / "docs/bridges.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]):
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        exec(compile(block, str(PAGE), "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    assert "(128, " in said
    assert re.search(r"^return -?\d", said, flags=re.M)


def test_without_pettingzoo_the_install_command_is_the_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "lockstep.bridges.pettingzoo", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'lockstep-rl\[pettingzoo\]'"):
        importlib.import_module("lockstep.bridges.pettingzoo")
