"""One pack as a process: `python -m lockstep.studies.worker ORDER`.

It trains the pack, or takes it up where it stopped, and files its trials. How it ended is in its
exit code, and in words in its log. It does not survive the process that started it.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lockstep.errors import BadInput, LockstepError, RunBusy
from lockstep.run.config import TrainConfig
from lockstep.run.rundir import read_json, write_json
from lockstep.studies import catalogue
from lockstep.studies.local import PARENT
from lockstep.studies.store import file_pack, runs_in

if TYPE_CHECKING:
    from lockstep.run.record import Run

DONE, FAILED, REFUSED = 0, 1, 2
STOPPED = 10
"""Exit code of a pack that was asked to stop; a checkpoint holds what it learned."""
OUT_OF_MEMORY = 11
"""Exit code of a pack that did not fit into memory."""

LOOK_EVERY = 0.5
"""Seconds between two looks whether the parent is still there."""
BUSY_S = 60.0
"""Seconds in which a worker that was left behind may bring its last update to an end."""

Ended = TypeVar("Ended")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to do; a file, since it may have to reach another machine."""

    root: Path
    """The study's root."""
    name: str
    """Name of the run."""
    config: TrainConfig
    """Its settings, and where and how it is carried out."""
    source: str = ""
    """The file that declares the study, if it is one: it may bring a world with it."""

    def write(self, file: Path) -> None:
        """Puts the order where a worker finds it."""
        told = {"root": str(self.root), "name": self.name, "source": self.source}
        write_json(file, told | {"config": self.config.to_json()}, durable=False)

    @classmethod
    def read(cls, file: Path) -> "Order":
        """The order that `write` wrote."""
        data = read_json(file)
        if data["source"]:
            catalogue.module(data["source"])
        return cls(
            root=Path(data["root"]),
            name=data["name"],
            source=data["source"],
            config=TrainConfig.from_json(data["config"]),
        )


def main(argv: list[str]) -> int:
    """Carries out the order in the file that `argv` names; its exit code."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    parent = os.environ.get(PARENT)
    if parent is not None:
        threading.Thread(target=_outlive_nobody, args=(int(parent),), daemon=True).start()
    try:
        return carry_out(Order.read(Path(argv[0])))
    except BadInput as error:
        log.error("refused: %s", error)
        return REFUSED
    except Exception as error:
        if _ran_out(error):
            log.error("memory ran out: %s", error)
            return OUT_OF_MEMORY
        if not isinstance(error, LockstepError):
            log.exception("failed")
        log.error("%s: %s", type(error).__name__, error)
        return FAILED
    except KeyboardInterrupt:
        log.error("stopped at once, at a second request; the last checkpoint stays")
        return STOPPED


def carry_out(order: Order) -> int:
    """Trains the pack to its end and files it."""
    from lockstep.run import loop  # imports torch

    folder = runs_in(order.root) / order.name
    how = {name: getattr(order.config, name) for name in ("device", "threads")}
    run: Run
    if folder.exists():
        run = _patiently(lambda: loop.resume(folder, **how))
    else:
        run = loop.train(order.config, folder)
    if not run.finished:
        log.info("stopped; it goes on when the study does")
        return STOPPED
    names = file_pack(order.root, order.name, run)
    log.info("filed %d trials", len(names))
    return DONE


def _patiently(attempt: Callable[[], Ended]) -> Ended:
    """Waits while another process holds the run: one whose scheduler was killed is on its way out.

    It writes a last checkpoint, from which this one goes on.
    """
    until = time.monotonic() + BUSY_S
    while True:
        try:
            return attempt()
        except RunBusy as busy:
            if time.monotonic() > until:
                raise
            log.info("waiting: %s", busy)
            time.sleep(LOOK_EVERY)


def _outlive_nobody(parent: int) -> None:
    """Asks this process to stop when its parent has ended, however that happened."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    log.warning("process %d, which started this one, is gone", parent)
    os.kill(os.getpid(), signal.SIGTERM)


def _ran_out(error: BaseException) -> bool:
    from lockstep.run import memory

    return any(memory.ran_out(one) for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
