"""One pack as a process: what it leaves behind, and how it says how it ended."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.run import loop
from lockstep.run.lock import RunLock
from lockstep.run.record import Run
from lockstep.studies import store, worker
from lockstep.studies.local import PARENT
from lockstep.studies.packing import Pack, packs
from lockstep.studies.worker import Order
from tests.unit.studies import roots


@pytest.fixture
def pack() -> Pack:
    study = roots.tiny_study()
    return next(pack for pack in packs(study.trials()) if pack.config.world.n_users == 5)


def order(pack: Pack, root: Path, **about) -> Order:
    return Order(root=root, name=pack.name, config=pack.config, **about)


def written(asked: Order) -> Path:
    file = asked.root / "order.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    asked.write(file)
    return file


def start(asked: Order, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", worker.__name__, str(written(asked))]
    return subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE)


def test_an_order_is_read_as_it_was_written(pack: Pack, tmp_path: Path):
    asked = order(pack, tmp_path, keep="policies", policies=("a", "b"))
    assert Order.read(written(asked)) == asked


def test_a_pack_is_trained_and_its_trials_filed(pack: Pack, tmp_path: Path):
    assert worker.carry_out(order(pack, tmp_path)) == worker.DONE
    assert sorted(store.filed(tmp_path)) == sorted(trial.hash for trial in pack.trials)
    summary = store.read_trial(tmp_path, pack.trials[0].hash)
    assert summary is not None
    assert (summary.pack, summary.members) == (pack.name, len(pack.trials))


def test_a_pack_that_was_begun_goes_on_where_it_stopped(pack: Pack, tmp_path: Path):
    folder = store.runs_in(tmp_path) / pack.name

    def stop_soon(progress: loop.Progress) -> None:
        if progress.update == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    begun = replace(pack.config, checkpoint_every=1)
    assert not loop.train(begun, folder, on_update=stop_soon).finished
    assert worker.carry_out(order(pack, tmp_path)) == worker.DONE
    events = [(e["event"], e.get("step")) for e in Run.open(folder).manifest["history"]]
    assert events == [("start", None), ("resume", 12)]


def test_a_pack_that_another_process_still_writes_is_waited_for(pack: Pack, tmp_path: Path):
    folder = store.runs_in(tmp_path) / pack.name
    loop.train(pack.config, folder, on_update=_stop_at_once)
    with RunLock(folder):
        process = start(order(pack, tmp_path))
        assert process.stderr is not None
        said = _until(process, "waiting: ")
        assert "is being written by process" in said
    assert process.wait(timeout=60) == worker.DONE
    process.stderr.close()


def test_bad_input_has_an_exit_code_of_its_own(
    pack: Pack, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    taken = store.runs_in(tmp_path) / pack.name
    taken.mkdir(parents=True)
    (taken / "notes.txt").write_text("no run")
    with _signals_kept():
        assert worker.main([str(written(order(pack, tmp_path)))]) == worker.REFUSED
    assert "is not a run: it has no config.json" in caplog.text
    assert (taken / "notes.txt").read_text() == "no run"


def test_running_out_of_memory_has_an_exit_code_of_its_own(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As an allocator raises it: the loop turns it into an error that tells the way out."""

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 EB")

    monkeypatch.setattr(loop, "Trainer", full)
    with _signals_kept():
        assert worker.main([str(written(order(pack, tmp_path)))]) == worker.OUT_OF_MEMORY


def test_a_worker_whose_parent_is_gone_stops_with_a_checkpoint(pack: Pack, tmp_path: Path):
    longer = replace(pack.config, total_steps=12 * 5000)
    process = start(
        Order(root=tmp_path, name=pack.name, config=longer), **{PARENT: str(os.getpid() + 1)}
    )
    assert process.wait(timeout=60) == worker.STOPPED
    assert process.stderr is not None
    assert b"which started this one, is gone" in process.stderr.read()
    process.stderr.close()


def test_a_worker_that_gets_notice_from_slurm_stops_with_a_checkpoint(pack: Pack, tmp_path: Path):
    """SIGUSR2 is passed on as SIGTERM, so this is how a request to stop is heeded as well."""
    longer = replace(pack.config, total_steps=12 * 5000, checkpoint_every=1)
    process = start(Order(root=tmp_path, name=pack.name, config=longer))
    _until(process, "checkpoint at step 12")
    process.send_signal(signal.SIGUSR2)
    assert process.wait(timeout=60) == worker.STOPPED
    assert process.stderr is not None
    assert b"stopped; it goes on when the study does" in process.stderr.read()
    process.stderr.close()
    latest = store.runs_in(tmp_path) / pack.name / "checkpoints/latest"
    assert int(latest.read_text()) > 0


def _stop_at_once(progress: loop.Progress) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _until(process: subprocess.Popen, words: str) -> str:
    """The first line of a process's log with these words; fails if it ends without."""
    assert process.stderr is not None
    killer = threading.Timer(60.0, process.kill)
    killer.start()
    try:
        for line in process.stderr:
            if words in line.decode():
                return line.decode()
    finally:
        killer.cancel()
    raise AssertionError(f"the worker did not say {words!r}")


class _signals_kept:
    """Puts back the handlers that a worker's main installs."""

    def __enter__(self) -> None:
        self.before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2)}

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
