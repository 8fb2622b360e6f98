import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lockstep.errors import NotARun
from lockstep.run.lines import Encoder, LineWriter, by_member, columns, offset_after, read_lines

NUMBERS = st.floats() | st.integers(-(10**6), 10**18) | st.floats(width=32)


def write(path: Path, *rows: dict[str, float]) -> None:
    writer = LineWriter(path)
    for row in rows:
        writer.write(row)
    writer.close()


@given(st.dictionaries(st.text(max_size=8), NUMBERS, max_size=6), NUMBERS)
def test_a_line_has_the_bytes_that_json_would_write(row: dict[str, float], other: float):
    encoder = Encoder()
    for values in (row.values(), [other] * len(row)):
        finite = [x if math.isfinite(x) else None for x in values]
        plain = json.dumps(dict(zip(row, finite, strict=True)), separators=(",", ":"))
        assert encoder.line(tuple(row), values) == plain + "\n"


def test_numbers_of_numpy_are_written_as_those_of_python():
    keys, values = ("x", "y%s", "z"), (np.float64(0.1), np.float64("nan"), True)
    assert Encoder().line(keys, values) == '{"x":0.1,"y%s":null,"z":true}\n'


def test_numbers_come_back_exactly_and_what_is_not_finite_as_nan(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    write(
        path,
        {"update": 1, "member": 0, "x": 0.1 + 0.2, "y": math.inf},
        {"update": 1, "member": 1, "x": 1e-300},
    )
    assert json.loads(path.read_text().splitlines()[0])["y"] is None
    table = columns(read_lines(path))
    assert table["update"].dtype == np.int64
    assert table["x"].tolist() == [0.1 + 0.2, 1e-300]
    assert np.isnan(table["y"]).all()
    assert by_member(table, "x").shape == (2, 1)


def test_a_line_that_lacks_a_key_or_a_counter_is_read_all_the_same():
    table = columns([{"update": 1, "x": 2.0}, {"y": None}])
    assert table["update"][0] == 1
    assert np.isnan(table["update"][1])
    assert np.isnan([table["x"][1], *table["y"]]).all()


def test_an_update_that_not_every_member_has_yet_is_left_out():
    rows = [{"member": m, "x": 10.0 * u + m} for u, m in [(1, 0), (1, 1), (2, 0)]]
    assert by_member(columns(rows), "x").tolist() == [[10.0], [11.0]]


def test_a_half_written_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update":1}\n{"upd')
    assert read_lines(path) == [{"update": 1}]
    for damaged in (b'{"upd', b"\xff\xfe", b"12"):
        path.write_bytes(b'{"update":1}\n' + damaged + b"\n")
        with pytest.raises(NotARun, match=r"line 2 of metrics\.jsonl is damaged"):
            read_lines(path)


def test_opening_at_an_offset_cuts_what_came_after(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    writer = LineWriter(path, offset=0)
    writer.write({"update": 1})
    kept = writer.sync()
    writer.write({"update": 2})
    writer.close()
    again = LineWriter(path, offset=kept)
    again.write({"update": 3})
    assert again.sync() == path.stat().st_size
    again.close()
    assert [row["update"] for row in read_lines(path)] == [1, 3]


def test_opening_without_an_offset_cuts_a_line_without_its_end(tmp_path: Path):
    path = tmp_path / "perf.jsonl"
    path.write_bytes(b'{"update":1}\n{"upda')
    write(path, {"update": 2})
    assert [row["update"] for row in read_lines(path)] == [1, 2]


@pytest.mark.parametrize("content", [b"", None])
def test_a_file_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path, content: bytes | None):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NotARun, match="has 0 bytes and its checkpoint expects 10"):
        LineWriter(path, offset=10)


def test_the_lines_up_to_an_update_are_measured(tmp_path: Path):
    path = tmp_path / "perf.jsonl"
    assert offset_after(path, update=3) == 0
    path.write_bytes(b'{"update":1}\n{"update":2}\n{"update":3}\n{"upd')
    assert [offset_after(path, update=n) for n in (0, 2, 9)] == [0, 26, 39]


@pytest.mark.parametrize("damage", [b"\x00\x00\x00", b"12", b'{"update":null}', b"{}"])
def test_a_damaged_line_ends_the_lines_that_are_measured_and_the_log_says_so(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "perf.jsonl"
    path.write_bytes(b'{"update":1}\n' + damage + b'\n{"update":3}\n')
    assert offset_after(path, update=9) == 13
    assert f"line 2 of {path} is damaged; what follows it is cut off" in caplog.messages
