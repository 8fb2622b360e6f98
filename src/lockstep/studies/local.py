"""Jobs as processes of this machine; no torch."""

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.studies.jobs import Exit, Job
from lockstep.studies.store import making

PARENT = "LOCKSTEP_PARENT"
"""Environment variable with the number of the process whose end a job is not to survive."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job that this process starts; what it says reaches its log at once."""
    return os.environ | dict(extra) | {"PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}


class LocalPool:
    """Carries out jobs as child processes, each with a session of its own.

    A session of their own keeps an interrupt at the terminal from them: a run takes a second
    request to stop for impatience, and the scheduler sends the first.
    """

    def __init__(self, extra: Mapping[str, str]) -> None:
        """`extra` is added to the environment of every job."""
        self._environment = environment(extra)
        self._ended: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}

    def start(self, job: Job) -> None:
        """Starts the process."""
        process = _start(job.command, self._environment, job.log)
        self._running[job.name] = job, process
        # A thread that waits costs nothing while it does, and tells at once.
        threading.Thread(target=self._watch, args=(job.name, process), daemon=True).start()

    def wait(self, timeout: float) -> list[Exit]:
        """The processes that have ended."""
        names = []
        try:
            names.append(self._ended.get(timeout=timeout))
            while True:
                names.append(self._ended.get_nowait())
        except queue.Empty:
            return [self._exit(name) for name in names]

    def stop(self, *, grace: float) -> list[Exit]:
        """SIGTERM to all, and after `grace` seconds SIGKILL to those that are left."""
        self._signal(signal.SIGTERM)
        ended = self._all(grace)
        self._signal(signal.SIGKILL)
        while self._running:  # nothing survives that, but the system may take a moment
            ended += self.wait(1.0)
        return ended

    def _all(self, seconds: float) -> list[Exit]:
        """What ends within that time."""
        until = time.monotonic() + seconds
        ended: list[Exit] = []
        while self._running and (left := until - time.monotonic()) > 0:
            ended += self.wait(left)
        return ended

    def _signal(self, number: signal.Signals) -> None:
        for _, process in self._running.values():
            _signal_group(process, number)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._ended.put(name)

    def _exit(self, name: str) -> Exit:
        job, process = self._running.pop(name)
        return Exit(job=job, code=process.returncode)


def carry_out(
    command: Sequence[str], extra: Mapping[str, str], log: str, *, grace: float = 3.0
) -> int:
    """Carries out one command from beginning to end, on whichever machine this is; its exit code.

    An interrupt meanwhile stops it as `LocalPool.stop` does. A process that is killed cannot: then
    the command itself has to notice (`PARENT`).
    """
    process = _start(command, environment(extra), Path(log))
    try:
        while True:
            try:
                # In small parts: elsewhere an interrupt may come between two lines of Python only.
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
    except BaseException:
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(timeout=grace)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        raise


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with making(log.parent):
        log.parent.mkdir(parents=True, exist_ok=True)
    with making(log):
        file = log.open("ab")
    with file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Sends a signal to a process and what it has started, unless it has ended."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # it has ended since
            return
