"""What the end of a job means, from its exit code and from what its log says last; no torch."""

from pathlib import Path

from lockstep.studies import worker
from lockstep.studies.jobs import KILLED, STOPPED, Exit, Failure

_OUT_OF_MEMORY = ("out of memory", "std::bad_alloc", "Cannot allocate memory", "MemoryError")
_END_BYTES = 4000


def ran_out(exit: Exit) -> bool:
    """Whether a job ended for want of memory, by its code or else by the end of its log.

    Not every such end is an exception: allocators also end the process. One that was stopped or
    refused says what it was doing, which is something else.
    """
    if exit.code in (worker.OUT_OF_MEMORY, KILLED):
        return True
    said = "" if exit.code in (STOPPED, worker.REFUSED) else _end_of(exit.job.log)
    return any(words in said for words in _OUT_OF_MEMORY)


def failure(exit: Exit, why: str) -> Failure:
    """That the job failed, with what it said last."""
    said = exit.note or _last_words(exit.job.log)
    return Failure(
        name=exit.job.name,
        code=exit.code,
        log=exit.job.log,
        why=f"{why}: {said}" if said else why,
    )


def _last_words(file: Path) -> str:
    lines = _end_of(file).strip().splitlines()
    return lines[-1] if lines else ""


def _end_of(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _END_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
