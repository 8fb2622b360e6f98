"""What scheduling costs: 500 trivial jobs through the real driver and real processes.

A job is `sleep S`. Compared are (A) the study's own `Driver` and `LocalPool`, and (B) the least
that starting the same processes takes: a loop that keeps the same number of `subprocess.Popen`
going and does nothing else. Both are set against the time that the sleeping alone takes (S for
each round of as many jobs as there are slots). A and B alternate. The overhead of the scheduler is
(A - B) / B; the rest is the system's price for processes. Its CPU time is told as well: whatever it
is, training cannot have it.

    python benchmarks/study_overhead.py --jobs 500 --sleep 0.5 --slots 8
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections import deque
from pathlib import Path

from lockstep.studies.jobs import Driver, Event, Exit, Job, Limits
from lockstep.studies.local import LocalPool


def scheduled(jobs: int, sleep: float, slots: int, folder: Path) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, that the study's scheduler takes."""
    asked = [
        Job(name=str(i), command=("sleep", str(sleep)), log=folder / f"{i}.log", cost=float(i))
        for i in range(jobs)
    ]
    done: list[str] = []
    events: list[Event] = []

    def judge(exit: Exit, at_once: int) -> None:
        del at_once
        assert exit.code == 0
        done.append(exit.job.name)

    begun, cpu = time.perf_counter(), time.process_time()
    driver = Driver(
        asked,
        LocalPool({}),
        limits=Limits(slots=slots, timeout=600.0),
        judge=judge,
        on_event=events.append,
    )
    outcome = driver.go(lambda: False)
    assert outcome.failure is None
    assert len(done) == jobs
    return time.perf_counter() - begun, time.process_time() - cpu


def bare(jobs: int, sleep: float, slots: int, folder: Path) -> tuple[float, float]:
    """The same for a loop that starts processes and waits for the oldest."""
    begun, cpu = time.perf_counter(), time.process_time()
    going: deque[subprocess.Popen[bytes]] = deque()
    for i in range(jobs):
        if len(going) == slots:
            going.popleft().wait()
        with (folder / f"{i}.log").open("ab") as log:
            going.append(subprocess.Popen(["sleep", str(sleep)], stdout=log, stderr=log))
    for process in going:
        process.wait()
    return time.perf_counter() - begun, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--sleep", type=float, default=0.5)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    ideal = math.ceil(asked.jobs / asked.slots) * asked.sleep
    times: dict[str, list[tuple[float, float]]] = {"scheduled": [], "bare": []}
    for _ in range(asked.rounds):
        for name, run in (("bare", bare), ("scheduled", scheduled)):
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(run(asked.jobs, asked.sleep, asked.slots, Path(folder)))
    median = {name: statistics.median(t for t, _ in found) for name, found in times.items()}
    cpu = statistics.median(seconds for _, seconds in times["scheduled"])
    told = {
        "jobs": asked.jobs,
        "sleep_s": asked.sleep,
        "slots": asked.slots,
        "rounds": asked.rounds,
        "ideal_s": ideal,
        "scheduled_s": median["scheduled"],
        "bare_s": median["bare"],
        "overhead": (median["scheduled"] - median["bare"]) / median["bare"],
        "overhead_over_sleep": median["scheduled"] / ideal - 1.0,
        "cpu_share": cpu / median["scheduled"],
        "cpu_ms_per_job": 1e3 * cpu / asked.jobs,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    print(json.dumps(told, indent=2))
    if asked.out is not None:
        asked.out.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
