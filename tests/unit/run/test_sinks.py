import json
import logging
import math
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.errors import DiskFull, MissingExtra, NotARun
from lockstep.run import sinks
from lockstep.run.config import Operations
from lockstep.run.lines import read_lines
from lockstep.run.rundir import RunDir
from lockstep.run.sinks import Record, Recorder
from tests import tiny

SEEDS = (3, 7)
CONFIG = tiny.config(seeds=SEEDS)


def record(update: int, **metrics: list[float]) -> Record:
    return Record(
        update=update,
        step=12 * update,
        seeds=SEEDS,
        metrics=metrics or {"x": [0.1 * update, math.nan], "y/z": [1e-7, -0.0]},
        perf={"perf/update_s": 0.5, "perf/write_s": math.inf},
    )


def plain(records: list[Record]) -> bytes:
    """The bytes of metrics.jsonl, said as shortly as possible."""
    lines = []
    for r in records:
        for member, seed in enumerate(r.seeds):
            row = {"update": r.update, "step": r.step, "member": member, "seed": seed}
            row |= {key: values[member] for key, values in r.metrics.items()}
            finite = {key: x if math.isfinite(x) else None for key, x in row.items()}
            lines.append(json.dumps(finite, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond `limit` bytes, which is how a full disk shows."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def held_up(recorder: Recorder) -> Iterator[None]:
    """Keeps the thread of a recorder from writing, as a slow disk would."""
    go = threading.Event()
    write = recorder._write

    def wait(item: Record) -> None:
        go.wait()
        write(item)

    recorder._write = wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        go.set()


def test_records_are_written_in_order_with_the_bytes_of_json(tmp_path: Path):
    run = RunDir(tmp_path)
    records = [record(update) for update in range(1, 60)] + [record(60, new=[1.0, 2.0])]
    with Recorder(run, CONFIG) as recorder:
        for item in records:
            recorder.put(item)
        length = recorder.sync()
        assert run.metrics.read_bytes() == plain(records)
        assert length == len(plain(records))
        recorder.put(record(61))
    assert run.metrics.read_bytes() == plain([*records, record(61)])
    perf = read_lines(run.perf)
    assert [row["update"] for row in perf] == list(range(1, 62))
    assert perf[0] == {"update": 1, "perf/update_s": 0.5, "perf/write_s": None}


def test_a_resumed_run_continues_at_its_checkpoint_in_both_files(tmp_path: Path):
    run = RunDir(tmp_path)
    with Recorder(run, CONFIG) as recorder:
        recorder.put(record(1))
        offset = recorder.sync()
        recorder.put(record(2))
    for path in (run.metrics, run.perf):
        path.write_bytes(path.read_bytes()[:-5])  # killed in a line
    with Recorder(run, CONFIG, offset=offset, update=1, step=12) as recorder:
        recorder.put(record(2))
        recorder.put(record(3))
    assert run.metrics.read_bytes() == plain([record(1), record(2), record(3)])
    assert [row["update"] for row in read_lines(run.perf)] == [1, 2, 3]
    with pytest.raises(NotARun, match="its checkpoint expects 100000"):
        Recorder(run, CONFIG, offset=100_000)


def test_put_takes_the_training_thread_less_than_a_millisecond(tmp_path: Path):
    seeds = tuple(range(64))
    metrics = {f"train/uav/key_{i}": [random.gauss(0, 1) for _ in seeds] for i in range(60)}
    seconds = []
    with Recorder(RunDir(tmp_path), tiny.config(seeds=seeds)) as recorder:
        for update in range(1, 101):
            item = Record(update=update, step=update, seeds=seeds, metrics=metrics, perf={})
            start = time.perf_counter()
            recorder.put(item)
            seconds.append(time.perf_counter() - start)
            time.sleep(0.002)
    assert statistics.median(seconds) < 1e-3
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 6400


def test_put_does_not_wait_for_a_disk_that_hangs_and_says_once_that_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sinks, "BACKLOG", 10)
    records = [record(update) for update in range(1, 31)]
    caplog.set_level(logging.WARNING)
    with Recorder(RunDir(tmp_path), CONFIG) as recorder, held_up(recorder):
        start = time.perf_counter()
        for item in records:
            recorder.put(item)
        assert time.perf_counter() - start < 0.5
    assert [entry.message for entry in caplog.records] == [
        "the disk is slower than training: 11 updates wait to be written"
    ]
    assert (tmp_path / "metrics.jsonl").read_bytes() == plain(records)


def put_on(recorder: Recorder) -> None:
    """Puts records until a call says what happened to the first."""
    for _ in range(2000):
        recorder.put(record(3))
        time.sleep(0.001)


@pytest.mark.parametrize("call", [put_on, Recorder.sync, Recorder.close])
def test_a_full_disk_is_raised_at_the_next_call_and_keeps_what_was_written(
    tmp_path: Path, call: Callable[[Recorder], object]
):
    run = RunDir(tmp_path)
    recorder = Recorder(run, CONFIG)
    recorder.put(record(1))
    recorder.sync()
    full = r"metrics\.jsonl could not be written: File too large; make room"
    with largest_file(len(plain([record(1)])) + 10):
        recorder.put(record(2))
        with pytest.raises(DiskFull, match=full):
            call(recorder)
    recorder.close()
    recorder.close()
    assert read_lines(run.metrics) == [json.loads(x) for x in plain([record(1)]).splitlines()]
    assert run.metrics.stat().st_size == len(plain([record(1)])) + 10


def test_what_is_wrong_with_a_record_is_raised_too(tmp_path: Path):
    recorder = Recorder(RunDir(tmp_path), CONFIG)
    recorder.put(record(1, x=[1.0]))
    with pytest.raises(ValueError, match="zip"):
        recorder.sync()
    recorder.close()
    with pytest.raises(ValueError, match="the recorder is closed"):
        recorder.put(record(2))


def test_an_interrupt_while_waiting_leaves_a_recorder_that_still_works(tmp_path: Path):
    def interrupt() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    with Recorder(RunDir(tmp_path), CONFIG) as recorder:
        with held_up(recorder):
            recorder.put(record(1))
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                recorder.sync()
        assert recorder.sync() == len(plain([record(1)]))


def test_everything_asked_for_is_written(tmp_path: Path):
    config = replace(CONFIG, ops=Operations(board=True, parquet=True))
    with Recorder(RunDir(tmp_path), config) as recorder:
        for update in (1, 2, 3):
            recorder.put(record(update))
        recorder.sync()
        latest = pyarrow.parquet.read_table(tmp_path / "metrics" / "latest.parquet")
        assert latest.column("update").to_pylist() == [3, 3]
        recorder.put(record(4))
    latest = pyarrow.parquet.read_table(tmp_path / "metrics" / "latest.parquet")
    assert latest.column("seed").to_pylist() == [3, 7]
    assert latest.column("update").to_pylist() == [4, 4]
    events = EventAccumulator(str(tmp_path / "events" / "seed-3"))
    events.Reload()
    assert [event.step for event in events.Scalars("x")] == [12, 24, 36, 48]


def test_the_parquet_file_follows_without_another_record(tmp_path: Path):
    config = replace(CONFIG, ops=Operations(parquet=True))
    with Recorder(RunDir(tmp_path), config) as recorder:
        for update in (1, 2):
            recorder.put(record(update))
        path = tmp_path / "metrics" / "latest.parquet"
        deadline = time.monotonic() + 10
        while not path.exists() or pyarrow.parquet.read_table(path)["update"][0].as_py() != 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_an_extra_that_is_missing_is_named_before_anything_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    config = replace(CONFIG, ops=Operations(parquet=True))
    with pytest.raises(MissingExtra, match="pyarrow is not installed"):
        Recorder(RunDir(tmp_path), config)
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from lockstep.run.rundir import RunDir
from lockstep.run.sinks import Record, Recorder
from tests import tiny

recorder = Recorder(RunDir(Path(sys.argv[1])), tiny.config(seeds=(0, 1)))
for update in range(1, 10**9):
    metrics = {f"key_{i}": [update / 3, i / 7] for i in range(40)}
    recorder.put(Record(update=update, step=update, seeds=(0, 1), metrics=metrics, perf={}))
    if update == 1 or update % 50 == 0:
        recorder.sync()
        print(update, flush=True)
    if sys.argv[2:] and update == 200:
        break  # without close
"""


def test_whole_lines_are_right_whenever_the_process_is_killed(tmp_path: Path):
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "1\n"
        time.sleep(random.uniform(0, 0.3))
        writer.kill()
        durable = [1, *map(int, writer.stdout.read().split())][-1]
        writer.stdout.close()
        writer.wait()
        rows = read_lines(folder / "metrics.jsonl")
        assert len(rows) >= 2 * durable
        for place, row in enumerate(rows):
            update, member = place // 2 + 1, place % 2
            assert (row["update"], row["member"]) == (update, member)
            assert row["key_3"] == (3 / 7 if member else update / 3)


def test_a_process_that_forgets_to_close_still_ends(tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), "stop"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 400


def test_a_damaged_perf_file_does_not_keep_a_run_from_going_on(tmp_path: Path):
    run = RunDir(tmp_path)
    with Recorder(run, CONFIG) as recorder:
        for update in (1, 2):
            recorder.put(record(update))
        offset = recorder.sync()
    run.perf.write_bytes(b"\x00" * 20 + b"\n" + run.perf.read_bytes())
    with Recorder(run, CONFIG, offset=offset, update=2, step=24) as recorder:
        recorder.put(record(3))
    assert [row["update"] for row in read_lines(run.perf)] == [3]


def test_a_full_disk_at_the_end_does_not_take_the_place_of_the_error_that_ended_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    def fail(recorder: Recorder) -> None:
        recorder.put(record(1))
        raise ZeroDivisionError("the real error")

    with (
        largest_file(10),
        pytest.raises(ZeroDivisionError, match="the real error"),
        Recorder(RunDir(tmp_path), CONFIG) as recorder,
    ):
        fail(recorder)
    assert "the last metrics could not be written: DiskFull" in caplog.text
