import sys
from pathlib import Path

import matplotlib  # noqa: F401  (it is taken away below, and put back)
import pytest

from lockstep.studies.figures.cache import choose_cache


def test_the_first_cache_folder_that_can_be_written_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    monkeypatch.delitem(sys.modules, "matplotlib")
    (tmp_path / "file").touch()
    good = tmp_path / "good" / "matplotlib"
    assert choose_cache([tmp_path / "file" / "x", good, tmp_path / "later"]) == good
    assert list(good.iterdir()) == []  # the probe is gone
    assert not (tmp_path / "later").exists()


def test_no_cache_folder_is_no_failure_and_the_users_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delitem(sys.modules, "matplotlib")
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    (tmp_path / "file").touch()
    assert choose_cache([tmp_path / "file" / "x"]) is None
    monkeypatch.setenv("MPLCONFIGDIR", "/mine")
    assert choose_cache([tmp_path / "good"]) is None
    assert not (tmp_path / "good").exists()
