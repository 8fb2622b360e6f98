import time
from pathlib import Path

import pyarrow.parquet
import pytest

from lockstep.errors import MissingExtra
from lockstep.run.parquet import Latest
from lockstep.run.sinks import Record


def record(update: int) -> Record:
    return Record(
        update=update,
        step=10 * update,
        seeds=(3, 7),
        metrics={"train/uav/entropy": [0.5, float("nan")]},
        perf={"perf/update_s": 0.25},
    )


def updates(path: Path) -> list[int]:
    return pyarrow.parquet.read_table(path).column("update").to_pylist()


def test_the_newest_record_is_there_with_a_row_for_each_member(tmp_path: Path):
    path = tmp_path / "metrics" / "latest.parquet"
    Latest(path).offer(record(4))
    table = pyarrow.parquet.read_table(path).to_pydict()
    assert str(table.pop("train/uav/entropy")) == "[0.5, nan]"
    assert table == {
        "update": [4, 4],
        "step": [40, 40],
        "member": [0, 1],
        "seed": [3, 7],
        "perf/update_s": [0.25, 0.25],
    }
    assert [file.name for file in path.parent.iterdir()] == ["latest.parquet"]


def test_it_is_replaced_at_most_once_in_a_while_and_at_last_holds_the_newest(tmp_path: Path):
    path = tmp_path / "latest.parquet"
    latest = Latest(path, every=0.2)
    assert latest.wait is None
    for update in (1, 2, 3):
        latest.offer(record(update))
    assert updates(path) == [1, 1]
    assert latest.wait is not None
    time.sleep(latest.wait + 0.01)
    latest.write_if_due()
    assert updates(path) == [3, 3]
    assert latest.wait is None
    latest.offer(record(4))
    latest.write()
    assert updates(path) == [4, 4]


def test_without_arrow_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"pyarrow is not installed; run: pip install '.*study"):
        Latest(tmp_path / "latest.parquet")
