"""Jobs as tasks of a Ray cluster, one that exists or a local one that ends with this process.

The study's root must be a folder that every machine of the cluster sees under the same path.
"""

import logging
import math
import os
import socket
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
_ANSWER = 120.0  # seconds in which a GPU must come free to be asked
REACH = 10.0
"""Seconds in which somebody must answer at an address; Ray itself would ask for many minutes."""


class RayCluster:
    """A Ray cluster that this process takes part in until the end of the context."""

    def __init__(self, address: str | None = None) -> None:
        """Joins the cluster at `address`; None starts one here, which ends with the context.

        A cluster that this process is in already is taken as it is, and stays.
        """
        with needs_extra("ray"):
            import ray
        # Ray warns that it will hide GPUs from tasks that ask for none; those train on the CPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.ray: Any = ray
        """The package, through which the cluster is spoken to."""
        self._joined = not ray.is_initialized()
        if self._joined:
            self._join(address)

    def __enter__(self) -> "RayCluster":
        return self

    def __exit__(self, *error: object) -> None:
        if self._joined:
            self.ray.shutdown()

    @property
    def machines(self) -> list[Mapping[str, float]]:
        """What each machine has: CPUs, GPUs, bytes of memory."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    @property
    def gpus(self) -> float:
        """How many GPUs there are."""
        return math.fsum(machine.get("GPU", 0.0) for machine in self.machines)

    def _join(self, address: str | None) -> None:
        own = {"num_cpus": budget.cores(), "object_store_memory": OBJECTS}
        try:
            if address is not None:
                _reach(address)
            self.ray.init(
                address=address or "local",
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **(own if address is None else {}),
            )
        except (OSError, ValueError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or " ".join(str(error).split()).split(". ")[0]
            if address is None:
                raise BadInput(f"no Ray cluster can be started here: {why}") from error
            raise BadInput(
                f"there is no Ray cluster to join at {address} ({why}); start one with "
                "`ray start --head`, or leave out --ray-address for one of this machine"
            ) from error


class RayPool:
    """Carries out jobs as Ray tasks: each starts the process as `LocalPool` would, where it is."""

    def __init__(
        self,
        extra: Mapping[str, str],
        cluster: RayCluster,
        *,
        threads: int = 1,
        device: str = "cpu",
        asked: int = 0,
    ) -> None:
        """`extra` is added to the environment of every job.

        Each job takes `threads` CPUs of one machine, and what it needs of memory: with `device`
        cuda as a share of a GPU, else of the machine. `asked` is the number of jobs at once, 0 for
        as many as there is room for.
        """
        gpus = cluster.gpus if device == "cuda" else 0.0
        if device == "cuda" and not gpus:
            raise BadInput("the Ray cluster has no GPU; use --device cpu")
        machines = [
            machine
            for machine in cluster.machines
            if machine.get("CPU", 0.0) >= threads and (machine.get("GPU", 0.0) or not gpus)
        ]
        if not machines:
            which = "machine with a GPU and" if gpus else "machine with"
            raise BadInput(
                f"the Ray cluster has no {which} {threads} CPUs for a job; use fewer --threads"
            )
        gpus = math.fsum(machine.get("GPU", 0.0) for machine in machines) if gpus else 0.0
        self._ray, self._extra = cluster.ray, dict(extra)
        self._running: dict[Any, Job] = {}
        rooms = sum(int(machine["CPU"]) // threads for machine in machines)
        each = [machine.get("memory", 0.0) for machine in machines]
        self._largest, self._gpu = max(each), 0.0
        self.memory = math.fsum(each) or math.inf
        """Bytes that jobs may share: of the machines, or of the GPUs."""
        if gpus:
            self._gpu = max(self._gpu_free() - budget.GPU_RESERVE, 1.0)
            self.memory = gpus * self._gpu
            rooms = min(rooms, int(gpus * budget.GPU_PROCESSES))
        self.slots = min(asked, rooms) if asked else rooms
        """Jobs at once."""
        # A worker that is lost is the scheduler's business, and none is used twice: what a job
        # leaves behind in its process is not the next one's.
        self._task = self._ray.remote(num_cpus=threads, max_retries=0, max_calls=1)(carry_out)

    def start(self, job: Job) -> None:
        """Hands the job to the cluster, which starts it where there is room."""
        task = self._task.options(name=job.name, **self._needs(job))
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

    def _needs(self, job: Job) -> dict[str, int | float]:
        """What Ray sets aside for a job, which is never more than there is."""
        if not self._gpu:
            return {"memory": int(min(job.memory, self._largest))}
        return {"num_gpus": min(max(job.memory / self._gpu, 1.0 / budget.GPU_PROCESSES), 1.0)}

    def _gpu_free(self) -> float:
        """Free bytes of one GPU: they are taken to be alike."""
        ask = self._ray.remote(num_gpus=1, max_calls=1)(budget.gpu_free)
        try:
            return float(self._ray.get(ask.remote(), timeout=_ANSWER))
        except self._ray.exceptions.GetTimeoutError as error:
            raise BadInput(
                f"no GPU of the Ray cluster was free for {_ANSWER:g} s to say how much memory it "
                "has; wait for other work there, or use --device cpu"
            ) from error
        except self._ray.exceptions.RayTaskError as error:
            raise BadInput(_line(error.cause)) from error

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


def _reach(address: str) -> None:
    """BadInput or OSError unless somebody answers at an address; auto is for Ray to find."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"ray_address must be auto or HOST:PORT, got {address}")
    socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
