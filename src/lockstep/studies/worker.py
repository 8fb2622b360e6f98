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
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from lockstep.errors import BadInput, LockstepError, RunBusy, RunExists
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json
from lockstep.run.rundir import read_json, write_json
from lockstep.studies import catalogue
from lockstep.studies.jobs import STOPPED
from lockstep.studies.leavings import Keep, leave
from lockstep.studies.local import PARENT
from lockstep.studies.store import runs_in

if TYPE_CHECKING:
    from lockstep.run.record import Run

DONE, FAILED, REFUSED = 0, 1, 2
OUT_OF_MEMORY = 11
"""Exit code of a pack that did not fit into memory."""

LOOK_EVERY = 0.5
"""Seconds between two looks whether the parent is still there."""
BUSY_S = 600.0
"""Seconds in which a worker that was left behind may bring its last update to an end."""
HOW = ("device", "compile", "threads", "checkpoint_every", "keep_checkpoints")
"""What of a run's execution is the order's business, also when it is taken up."""

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
    keep: Keep = "flights"
    """What is kept of the run when it is finished."""
    policies: tuple[str, ...] = ()
    """Of its trials, those whose policies are kept."""

    def write(self, file: Path) -> None:
        """Puts the order where a worker finds it."""
        told: dict[str, Json] = {"root": str(self.root), "name": self.name, "source": self.source}
        told |= {"keep": self.keep, "policies": list(self.policies)}
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
            keep=data["keep"],
            policies=tuple(data["policies"]),
            config=TrainConfig.from_json(data["config"]),
        )


def main(argv: list[str]) -> int:
    """Carries out the order in the file that `argv` names; its exit code."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    _listen()
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
    how = {name: getattr(order.config, name) for name in HOW}

    def train() -> "Run":
        if folder.exists():
            return loop.resume(folder, **how)
        return loop.train(order.config, folder)

    run = _patiently(train)
    if not run.finished:
        log.info("stopped; it goes on when the study does")
        return STOPPED
    names = leave(order.root, order.name, run, keep=order.keep, of=order.policies)
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
        except RunExists:  # made by the other one at this moment
            continue
        except RunBusy as busy:
            if time.monotonic() > until:
                raise
            log.info("waiting: %s", busy)
            time.sleep(LOOK_EVERY)


def _outlive_nobody(parent: int) -> None:
    """Asks this process to stop when its parent has ended, however that happened, and insists."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    log.warning("process %d, which started this one, is gone", parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(BUSY_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _listen() -> None:
    """Heeds a request to stop before and after training; a run in progress heeds it by itself.

    Slurm gives notice by SIGUSR2 that the time of a job is nearly over.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        log.info("asked to stop (%s) while nothing was trained", signal.Signals(number).name)
        sys.exit(STOPPED)

    def pass_on(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, pass_on)


def _ran_out(error: BaseException) -> bool:
    from lockstep.run import memory

    return any(memory.ran_out(one) for one in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
