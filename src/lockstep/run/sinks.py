"""Where an update's numbers go: a thread writes them, so that training does not wait for a disk."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType

from lockstep.run.config import Operations, TrainConfig
from lockstep.run.doctor import Attendant, Finding, Hints
from lockstep.run.lines import Encoder, LineWriter, Number, offset_after
from lockstep.run.rundir import RunDir

log = logging.getLogger(__name__)

BACKLOG = 1000
"""Records that wait to be written beyond which the log says so."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one update brought."""

    update: int
    step: int
    """Environment steps of a member so far."""
    seeds: tuple[int, ...]
    """The members' seeds."""
    metrics: Mapping[str, Sequence[Number]]
    """Key to one number for each member: what follows from config and seeds."""
    perf: Mapping[str, Number]
    """Key to a number of the whole pack: what depends on the clock."""


class _Sync:
    """A request to make everything written so far durable."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.length = 0


class Recorder:
    """Writes records to metrics.jsonl, perf.jsonl and whatever else was asked for, in order.

    Opening cuts metrics.jsonl at `offset` and forgets in the other files what came after `update`
    and `step`, the counters of the checkpoint that the run continues from. An error in the thread
    is raised by the next call; nothing is written after it, and what was written before stays. The
    doctor's `hints`, if any, look at what has been written; an error of theirs ends only them.
    """

    def __init__(
        self,
        run: RunDir,
        config: TrainConfig,
        *,
        offset: int | None = 0,
        update: int = 0,
        step: int = 0,
        hints: Hints | None = None,
    ) -> None:
        check(config.ops)
        self._doctor = None if hints is None else Attendant(run, hints, update=update)
        with ExitStack() as files:
            self._metrics = LineWriter(run.metrics, offset=offset)
            files.callback(self._metrics.close)
            self._perf = LineWriter(run.perf, offset=offset_after(run.perf, update=update))
            files.callback(self._perf.close)
            self._board = self._latest = None
            if config.ops.board:
                from lockstep.run.board import Board

                self._board = Board(run.folder / "events", config, step=step)
                files.callback(self._board.close)
            if config.ops.parquet:
                from lockstep.run.parquet import Latest

                self._latest = Latest(run.folder / "metrics" / "latest.parquet")
            self._files = files.pop_all()
        self._encoder = Encoder()
        self._queue: SimpleQueue[Record | _Sync | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._told = self._warned = self._closed = False
        # A daemon: a run that ends without close() must not wait for it.
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Hands over a record, which must not change any more; takes microseconds."""
        self._check()
        self._queue.put(record)
        if not self._warned and self._queue.qsize() > BACKLOG:
            self._warned = True
            log.warning(
                "the disk is slower than training: %d updates wait to be written",
                self._queue.qsize(),
            )

    def findings(self) -> tuple[Finding, ...]:
        """What the doctor has said since this was last asked; takes microseconds."""
        return () if self._doctor is None else self._doctor.findings()

    def sync(self) -> int:
        """Waits until every record is on disk, durably; the length of metrics.jsonl in bytes."""
        self._check()
        request = _Sync()
        self._queue.put(request)
        # Not one endless wait: at the end of the interpreter the thread stops without a word.
        while not request.done.wait(timeout=1.0):
            if not self._thread.is_alive():
                raise RuntimeError("the thread that writes metrics has ended")
        self._check()
        return request.length

    def close(self) -> None:
        """Writes what is left and closes the files; an error that was raised before is not again.

        A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        if not self._told:
            self._raise()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as trouble:
            if kind is None:
                raise
            log.error("the last metrics could not be written: %r", trouble)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the recorder is closed")
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            self._told = True
            raise self._failure

    def _work(self) -> None:
        for item in self._items():
            try:
                if self._failure is None:
                    self._do(item)
            except Exception as error:  # handed to the training thread
                self._failure = error
            finally:
                if isinstance(item, _Sync):
                    item.done.set()
        try:
            with self._files:
                if self._latest is not None and self._failure is None:
                    self._latest.write()
        except Exception as error:
            self._failure = self._failure or error

    def _items(self) -> Iterator[Record | _Sync | None]:
        """What comes through the queue until it is closed; None when the Parquet file is due."""
        while True:
            wait = self._latest.wait if self._latest is not None else None
            try:
                item = self._queue.get(timeout=wait)
            except Empty:
                yield None
                continue
            if item is None:
                return
            yield item

    def _do(self, item: Record | _Sync | None) -> None:
        if isinstance(item, _Sync):
            self._perf.sync()
            if self._board is not None:
                self._board.sync()
            if self._latest is not None:
                self._latest.write()
            item.length = self._metrics.sync()
        elif isinstance(item, Record):
            self._write(item)
            if self._doctor is not None:
                self._doctor.see(
                    update=item.update, step=item.step, metrics=item.metrics, perf=item.perf
                )
        elif self._latest is not None:
            self._latest.write_if_due()

    def _write(self, record: Record) -> None:
        keys = ("update", "step", "member", "seed", *record.metrics)
        rows = zip(record.seeds, *record.metrics.values(), strict=True)
        lines = [
            self._encoder.line(keys, (record.update, record.step, member, *row))
            for member, row in enumerate(rows)
        ]
        self._metrics.add("".join(lines).encode())
        self._metrics.flush()
        self._perf.write({"update": record.update, **record.perf})
        self._perf.flush()
        if self._board is not None:
            self._board.write(record)
        if self._latest is not None:
            self._latest.offer(record)


def check(ops: Operations) -> None:
    """Loads what the sinks need; MissingExtra names a package that is not installed."""
    if ops.board:
        from lockstep.run import board

        board.load()
    if ops.parquet:
        from lockstep.run import parquet

        parquet.load()
