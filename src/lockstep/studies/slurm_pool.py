"""Jobs as jobs of Slurm, through submitit; no torch.

The study's root must be a folder that every machine of the cluster sees under the same path.
"""

import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from lockstep.errors import BadInput, needs_extra
from lockstep.studies.jobs import KILLED, STOPPED, Exit, Job
from lockstep.studies.local import carry_out
from lockstep.studies.worker import FAILED

JOBS = 100
"""Jobs at once unless asked for otherwise; Slurm lets those wait that have no machine yet."""
WARNING_S = 120
"""Seconds before the end of its time at which a job is told, so that it writes a checkpoint."""
GRACE = 100.0
"""Seconds of these that it may take."""
LOOK_EVERY = 1.0
"""Seconds between two looks for the results of jobs, which are files."""
ASK_EVERY = 5.0
"""Seconds between two questions to Slurm, once jobs were told to stop."""


class SlurmPool:
    """Carries out each job as a Slurm job of one task: the process that `LocalPool` would start.

    A job whose time is up is told as paused, and one whose machine fails as lost: either can be
    handed in again and goes on from its last checkpoint.
    """

    def __init__(
        self,
        extra: Mapping[str, str],
        *,
        folder: Path,
        threads: int = 1,
        gpu: bool = False,
        minutes: int = 60,
        partition: str | None = None,
        cluster: Literal["slurm", "local"] = "slurm",
    ) -> None:
        """`extra` is added to the environment of every job, `folder` is for submitit's files.

        It is made when the first job is submitted.
        `cluster` local carries the jobs out as processes here, which is how this is tested.
        """
        if 60 * minutes <= WARNING_S:
            raise BadInput(
                f"slurm_minutes must be more than {WARNING_S // 60}, which a job has to write a "
                f"checkpoint, got {minutes}"
            )
        with needs_extra("slurm"):
            import submitit
        self._extra, self._minutes, self._slurm = dict(extra), minutes, cluster == "slurm"
        self._errors = (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError)
        self._folder = folder
        self._executor: Any
        if self._slurm:

            class Anywhere(submitit.SlurmExecutor):
                """One that can be made where there is no Slurm, to show what it would submit."""

                @classmethod
                def affinity(cls) -> int:
                    return 1

            self._executor = Anywhere(folder=folder)
            self._executor.update_parameters(
                time=minutes,
                nodes=1,
                ntasks_per_node=1,
                cpus_per_task=threads,
                signal_delay_s=WARNING_S,
                **({"gpus_per_node": 1} if gpu else {}),
                **({"partition": partition} if partition else {}),
            )
        else:
            self._executor = submitit.LocalExecutor(folder=folder)
            self._executor.update_parameters(timeout_min=minutes, signal_delay_s=WARNING_S)
        self._running: dict[str, tuple[Job, Any]] = {}

    def check(self) -> None:
        """BadInput unless this machine can submit jobs."""
        lacking = [name for name in ("sbatch", "srun", "sacct") if shutil.which(name) is None]
        if self._slurm and lacking:
            raise BadInput(
                f"there is no Slurm here ({', '.join(lacking)} not found); start this on a machine "
                "that submits jobs, or see what it would submit with --dry-run"
            )

    def script(self, job: Job) -> str:
        """What would be submitted for a job, with the job's own command in place of submitit's."""
        variables = [f"{name}={value}" for name, value in self._extra.items()]
        command = shlex.join(["env", *variables, *job.command])
        text: str = self._named(job)._make_submission_file_text(command, job.name)
        return text

    def start(self, job: Job) -> None:
        """Submits the job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        handed_in = self._named(job).submit(attend, job.command, self._extra, str(job.log))
        self._running[job.name] = job, handed_in

    def wait(self, timeout: float) -> list[Exit]:
        """The jobs that have ended."""
        until = time.monotonic() + timeout
        while True:
            ended = [name for name, (_, handed_in) in self._running.items() if handed_in.done()]
            left = until - time.monotonic()
            if ended or left <= 0:
                return [self._exit(name) for name in ended]
            time.sleep(min(left, LOOK_EVERY))

    def stop(self, *, grace: float) -> list[Exit]:
        """Cancels all jobs: Slurm asks them to stop, and insists after a time that it is set to."""
        for _, handed_in in self._running.values():
            handed_in.cancel(check=False)
        every = ASK_EVERY if self._slurm else LOOK_EVERY
        until = time.monotonic() + max(grace, every)
        ended: list[Exit] = []
        while self._running and time.monotonic() < until:
            over = [name for name, (_, one) in self._running.items() if one.done(force_check=True)]
            ended += [self._cancelled(name) for name in over]
            if self._running:
                time.sleep(min(every, max(0.0, until - time.monotonic())))
        for job, _ in self._running.values():
            ended.append(Exit(job=job, code=None, note="Slurm has not said yet that it is over"))
        self._running.clear()
        return ended

    def _named(self, job: Job) -> Any:
        if self._slurm:
            self._executor.update_parameters(job_name=job.name)
        return self._executor

    def _exit(self, name: str) -> Exit:
        job, handed_in = self._running.pop(name)
        try:
            code: int = handed_in.result()
        except self._errors as error:
            return self._unfinished(job, str(handed_in.state), str(error))
        if code == STOPPED:
            note = f"its {self._minutes} minutes were over, or Slurm needed the machine"
            return Exit(job=job, code=code, note=note, paused=True)
        return Exit(job=job, code=code)

    def _cancelled(self, name: str) -> Exit:
        """A job that was cancelled, unless it had come to its end before."""
        job, handed_in = self._running[name]
        if handed_in.paths.result_pickle.exists():
            return self._exit(name)
        del self._running[name]
        return Exit(job=job, code=STOPPED)

    def _unfinished(self, job: Job, state: str, said: str) -> Exit:
        """A job without a result, or whose attendant failed; `state` is Slurm's word for it."""
        if state.startswith("OUT_OF_ME"):
            return Exit(job=job, code=KILLED, note=state)
        if state.startswith(("FAILED", "FINISHED", "COMPLETED")):
            lines = said.strip().splitlines() or [state]
            return Exit(job=job, code=FAILED, note=lines[-1])
        return Exit(job=job, code=None, note=f"Slurm calls it {state}")


def attend(command: Sequence[str], extra: Mapping[str, str], log: str) -> int:
    """Carries out a command as a Slurm job; its exit code.

    Slurm warns every process of the job before its time is over. The command heeds that by itself
    (see `worker`); here nothing must come of it, or it would be stopped twice.
    """
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    return carry_out(command, extra, log, grace=GRACE)
