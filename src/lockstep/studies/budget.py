"""How many processes may train at once, and how many threads each of them gets; no torch."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from lockstep.errors import BadInput

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What the libraries under torch and numpy read before they start their threads."""

COMPILERS_VARIABLE = "TORCHINDUCTOR_COMPILE_THREADS"
"""With how many processes torch compiles."""

GB = 1e9
RESERVE = 4 * GB
"""Memory that is left to everything else on the machine."""
PER_PROCESS = 0.8 * GB
"""Memory that a process is expected to take."""
PER_REPLAY = 3 * GB
"""Memory that a member with a replay is expected to take there, when it writes a checkpoint."""
GPU_RESERVE = 1.5 * GB
"""Memory of the GPU that is left free."""
GPU_CONTEXT = 0.6 * GB
"""Memory that a process takes on the GPU before it has computed anything."""
GPU_PER_AGENT = 6e6
"""Memory that each agent of each member is expected to take there: in the UAV paper's scene 5.7 MB
were measured in tf32, and half of that in bf16. Where it is more, fewer packs go on at once when
memory runs out, and then smaller ones."""
GPU_PER_REPLAY = 3 * GB
"""Memory that a member with a replay takes there besides: the replay, and once more while a
checkpoint is written."""
GPU_PROCESSES = 12
"""More processes than this gain nothing on one GPU: they take turns."""


def thread_environment(threads: int) -> dict[str, str]:
    """What to add to a process's environment so that its libraries take `threads` threads each."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def compiler_environment(*, slots: int, cores: int) -> dict[str, str]:
    """What bounds the processes with which each of `slots` jobs compiles.

    By itself torch starts one for each core, and that in every job. What is set already counts.
    """
    each = max(1, 2 * cores // slots)
    return {COMPILERS_VARIABLE: os.environ.get(COMPILERS_VARIABLE, str(each))}


def cpu_slots(asked: int, *, threads: int, cores: int, available: float) -> int:
    """Processes at once on the CPU: as asked, as cores allow and as memory allows; at least one.

    `asked` 0 means as many as there is room for. `available` is free memory in bytes.
    """
    fits = min(cores // threads, int((available - RESERVE) // PER_PROCESS))
    return max(1, min(asked, fits) if asked else fits)


def need(device: str, *, agents: int, replays: int = 0) -> float:
    """Bytes that a pack is expected to take where it trains: of the GPU, or of the machine."""
    return gpu_need(agents, replays) if device == "cuda" else PER_PROCESS + replays * PER_REPLAY


def gpu_need(agents: int, replays: int = 0) -> float:
    """Bytes of a GPU that a pack is expected to take, by the agents of all its members."""
    return GPU_CONTEXT + agents * GPU_PER_AGENT + replays * GPU_PER_REPLAY


def slots(asked: int, *, threads: int, device: str) -> int:
    """Processes at once on this machine, as it is now; `room` says how large they may be."""
    fits = cpu_slots(asked, threads=threads, cores=cores(), available=_available())
    return min(fits, GPU_PROCESSES) if device == "cuda" else fits


def room(device: str) -> float:
    """Bytes that jobs on `device` may share: of the GPU, or of the machine."""
    return gpu_free() - GPU_RESERVE if device == "cuda" else _available() - RESERVE


def _available() -> float:
    return float(psutil.virtual_memory().available)


def cores() -> int:
    """Cores that this process may use; on a shared machine that can be fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def disk_room(folder: Path) -> float:
    """Bytes that may be written beside `folder`: what is free, less a tenth."""
    return 0.9 * shutil.disk_usage(folder).free


def gpu_there() -> bool:
    """Whether CUDA finds a GPU; another process asks, as in `gpu_free`."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_ASK = "import torch; print(torch.cuda.mem_get_info()[0])"


def gpu_free(environment: Mapping[str, str] | None = None) -> float:
    """Free bytes of the GPU that CUDA takes by default.

    Another process asks: whoever does so keeps a part of the GPU until its end.
    """
    asked = subprocess.run(
        [sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, env=environment
    )
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BadInput(f"the GPU's free memory could not be read: {why}; use --device cpu")
    return float(asked.stdout)
