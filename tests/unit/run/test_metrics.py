import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.errors import NotARun
from lockstep.run.metrics import (
    AUDIT,
    COUNTERS,
    PERF,
    TRAIN,
    LineWriter,
    by_member,
    columns,
    markdown_table,
    per_member,
    read_lines,
)
from lockstep.run.trainer import Trainer
from tests import tiny


def test_a_member_gets_the_mean_over_its_own_lanes():
    metric = torch.arange(12.0).view(2, 6)  # [T, L], two members of three lanes
    assert per_member({"x": metric}, members=2)["world/x"].tolist() == [4.0, 7.0]


def test_numbers_come_back_exactly_and_what_is_not_finite_as_nan(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    writer = LineWriter(path)
    writer.write({"update": 1, "member": 0, "x": 0.1 + 0.2, "y": math.inf})
    writer.write({"update": 1, "member": 1, "x": 1e-300})
    writer.close()
    assert json.loads(path.read_text().splitlines()[0])["y"] is None
    table = columns(read_lines(path))
    assert table["update"].dtype == np.int64
    assert table["x"].tolist() == [0.1 + 0.2, 1e-300]
    assert np.isnan(table["y"]).all()
    assert by_member(table, "x").shape == (2, 1)


def test_a_half_written_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update":1}\n{"upd')
    assert read_lines(path) == [{"update": 1}]
    path.write_bytes(b'{"update":1}\n{"upd\n')
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


def test_a_file_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"")
    with pytest.raises(NotARun, match="has 0 bytes and its checkpoint expects 10"):
        LineWriter(path, offset=10)


def test_the_table_in_the_documentation_is_the_table_of_the_code():
    assert markdown_table([*COUNTERS, *TRAIN, *AUDIT]) in Path("docs/running.md").read_text()
    assert markdown_table(PERF) in Path("docs/running.md").read_text()


def test_every_key_an_update_reports_is_in_the_table_with_its_unit():
    trainer = Trainer(tiny.config())
    roles = [role.name for role in trainer.world.spec.roles]
    known = {row.key.replace("<role>", role) for row in TRAIN + AUDIT for role in roles}
    assert set(trainer.update()) - {f"world/{m.name}" for m in trainer.world.spec.metrics} == known
