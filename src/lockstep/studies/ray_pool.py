"""Jobs as tasks of a Ray cluster, one that exists or a local one that ends with this process.

The study's root must be a folder that every machine of the cluster sees under the same path.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from lockstep.errors import BadInput, needs_extra
from lockstep.studies import budget
from lockstep.studies.jobs import KILLED, STOPPED, Exit, Job
from lockstep.studies.local import carry_out
from lockstep.studies.worker import FAILED

OBJECTS = 100_000_000
"""Bytes that a local cluster keeps for objects; jobs exchange none."""
GRACE = 60.0
"""Seconds in which a job that was asked to stop may write its checkpoint, unless Ray insists."""
LAST = 10.0
"""Seconds in which Ray may say that a task which it was to kill is gone."""


class RayPool:
    """Carries out jobs as Ray tasks: each starts the process as `LocalPool` would, where it is."""

    def __init__(
        self,
        extra: Mapping[str, str],
        *,
        address: str | None = None,
        threads: int = 1,
        device: str = "cpu",
        memory: float = budget.GPU_CONTEXT,
        asked: int = 0,
    ) -> None:
        """`extra` is added to the environment of every job.

        Each job takes `threads` CPUs, and with a GPU the share that packs of up to `memory` bytes
        leave it. `asked` is the number of jobs at once, 0 for as many as there is room for.
        """
        with needs_extra("ray"):
            import ray
        # Ray warns that it will hide GPUs from tasks that ask for none; those train on the CPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray: Any = ray
        self._extra = dict(extra)
        self._joined = not ray.is_initialized()
        if self._joined:
            self._join(address)
        self._running: dict[Any, Job] = {}
        try:
            self.slots, gpu = self._rooms(threads, device, memory=memory, asked=asked)
        except BaseException:
            self.close()
            raise
        # A worker that is lost is the scheduler's business, and none is used twice: what a job
        # leaves behind in its process is not the next one's.
        self._task = self._ray.remote(num_cpus=threads, num_gpus=gpu, max_retries=0, max_calls=1)(
            carry_out
        )

    def start(self, job: Job) -> None:
        """Hands the job to the cluster, which starts it where there is room."""
        task = self._task.options(name=job.name)
        ref = task.remote(job.command, self._extra, str(job.log), grace=GRACE)
        self._running[ref] = job

    def wait(self, timeout: float) -> list[Exit]:
        """The jobs that have ended or were lost."""
        if not self._running:
            time.sleep(timeout)
            return []
        refs = list(self._running)
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        return [self._exit(ref) for ref in ready]

    def stop(self, *, grace: float) -> list[Exit]:
        """Interrupts all tasks, and after `grace` seconds kills the workers of those left.

        A job whose worker was killed asks itself to stop: see `worker`.
        """
        ended: list[Exit] = []
        for force, seconds in ((False, grace), (True, LAST)):
            for ref in self._running:
                self._ray.cancel(ref, force=force)
            until = time.monotonic() + seconds
            while self._running and (left := until - time.monotonic()) > 0:
                ended += self.wait(left)
        for job in self._running.values():
            ended.append(Exit(job=job, code=None, note="its machine does not answer"))
        self._running.clear()
        return ended

    def close(self) -> None:
        """Leaves the cluster; one that was started for this ends."""
        if self._joined:
            self._ray.shutdown()

    def _join(self, address: str | None) -> None:
        own = {"num_cpus": budget.cores(), "object_store_memory": OBJECTS}
        try:
            self._ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(own if address is None else {}),
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = address or "on this machine"
            raise BadInput(f"there is no Ray cluster {where}: {error}") from error

    def _rooms(self, threads: int, device: str, *, memory: float, asked: int) -> tuple[int, float]:
        """How many jobs at once, and the share of a GPU that each takes."""
        total = self._ray.cluster_resources()
        rooms = int(total.get("CPU", 0.0)) // threads
        gpus = float(total.get("GPU", 0.0)) if device != "cpu" else 0.0
        if device == "cuda" and not gpus:
            raise BadInput("the Ray cluster has no GPU; use --device cpu")
        if not rooms:
            raise BadInput(f"the Ray cluster has no {threads} CPUs for a job; use fewer --threads")
        share = 0.0
        if gpus:
            ask = self._ray.remote(num_gpus=1, max_calls=1)(budget.gpu_free)
            free = self._ray.get(ask.remote())  # of one GPU: they are taken to be alike
            each = budget.gpu_slots(0, need=memory, cores=rooms, free=free)
            share, rooms = 1.0 / each, min(rooms, int(gpus * each))
        return (min(asked, rooms) if asked else rooms), share

    def _exit(self, ref: Any) -> Exit:
        job = self._running.pop(ref)
        errors = self._ray.exceptions
        try:
            return Exit(job=job, code=self._ray.get(ref))
        except errors.OutOfMemoryError as error:
            return Exit(job=job, code=KILLED, note=_line(error))
        except errors.TaskCancelledError:
            return Exit(job=job, code=STOPPED)
        except errors.RayTaskError as error:
            return Exit(job=job, code=FAILED, note=_line(error.cause))
        except errors.RayError as error:  # its worker, its machine, or what it returned is lost
            return Exit(job=job, code=None, note=_line(error))


def _line(error: object) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
