"""Several processes for one run, started by torchrun: how they meet, talk, and fail together.

A process that fails says so in the store that all share, and only then closes its connections. The
others find their next exchange broken, read what was said and end with the same message and exit
code, so nobody waits for somebody who is gone.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from lockstep.core.company import Company
from lockstep.errors import AuditFailure, BadInput, LockstepError
from lockstep.run import memory

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for the others, who may be writing a checkpoint."""
HEAR_S = 5.0
"""How long a process that fails waits until the others have read why."""

_FAILURE = "lockstep/failure"
_ERRORS: dict[str, type[Exception]] = {
    "audit": AuditFailure,
    "input": BadInput,
    "failed": LockstepError,
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a process ended, as the others hear it."""

    index: int
    """Which process it was."""
    kind: str
    """audit, input, failed, crashed, exit or interrupt."""
    code: int
    """The exit code of all."""
    text: str
    """What it had to say."""

    @classmethod
    def of(cls, error: BaseException, *, index: int) -> "Failure":
        """What to tell of `error`."""
        kind, code, text = "crashed", 1, f"{type(error).__name__}: {error}"
        if isinstance(error, LockstepError):
            text = str(error)
            kind = next(kind for kind, known in _ERRORS.items() if isinstance(error, known))
            code = 2 if kind == "input" else 1
        elif isinstance(error, SystemExit):
            kind, code = "exit", _code(error)
        elif isinstance(error, KeyboardInterrupt):
            kind = "interrupt"
        return cls(index=index, kind=kind, code=code, text=text)

    def error(self, *, size: int) -> BaseException:
        """The same as an exception of a process that only heard of it."""
        if self.kind == "exit":
            return SystemExit(self.code)
        if self.kind == "interrupt":
            return KeyboardInterrupt()
        kind = _ERRORS.get(self.kind, LockstepError)
        return kind(f"process {self.index} of {size} ended the run: {self.text}")


class Processes(Company):
    """This process among the others of its run; `with joined()` makes one."""

    def __init__(self, store: Store, *, index: int, size: int, local: int) -> None:
        self.index, self.size, self._local = index, size, local
        self._store = store
        self._heard: Failure | None = None
        self._has_told = False

    def device(self, kind: str) -> torch.device:
        """The GPU of this process's number on its machine, or the CPU."""
        if kind != "cuda":
            return torch.device(kind)
        found = torch.cuda.device_count()
        if self._local >= found:
            raise BadInput(
                f"device cuda needs a GPU for each process of a machine, got process {self._local} "
                f"of this one and {found} GPUs; start fewer processes, or use --device cpu"
            )
        torch.cuda.set_device(self._local)
        return torch.device("cuda", self._local)

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes: one exchange for each dtype."""
        found = dict[int, Tensor]()
        for dtype in dict.fromkeys(x.dtype for x in tensors):
            at = [i for i, x in enumerate(tensors) if x.dtype == dtype]
            flat = torch.cat([tensors[i].detach().flatten() for i in at])
            self._exchange(lambda flat=flat: dist.all_reduce(flat))  # type: ignore[misc]
            parts = flat.split([tensors[i].numel() for i in at])
            found |= {i: part.view(tensors[i].shape) for i, part in zip(at, parts, strict=True)}
        return [found[i] for i in range(len(tensors))]

    def max(self, x: Tensor) -> Tensor:
        """The largest of the processes' numbers, element by element."""
        largest = x.detach().clone(memory_format=torch.contiguous_format)
        self._exchange(lambda: dist.all_reduce(largest, op=dist.ReduceOp.MAX))
        return largest

    def pooled(self, mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of all rows, from those of equally many rows in each process."""
        centre = self.sum(mean) / self.size
        variance = self.sum(deviation**2 + (mean - centre) ** 2) / self.size
        return centre, variance.sqrt()

    def joined(self, x: Tensor, *, dim: int) -> Tensor:
        """All lanes at `dim`, of which each process has its own in `x`."""
        own = x.contiguous()
        all_of_them = [torch.empty_like(own) for _ in range(self.size)]
        self._exchange(lambda: dist.all_gather(all_of_them, own))
        return torch.cat(all_of_them, dim=dim)

    def told(self, word: Any) -> Any:
        """The `word` of the first process; what the others give does not matter."""
        self._has_told = True
        words = [_on_cpu(word) if self.index == 0 else None]
        self._exchange(lambda: dist.broadcast_object_list(words, src=0))
        return words[0]

    def dismiss(self) -> None:
        """Tells the others that there is nothing to do, if they were told nothing yet."""
        if not self._has_told:
            self.told(None)

    def gathered(self, thing: Any) -> list[Any]:
        """Every process's `thing`, tensors on the CPU; the first gets them, the others nothing."""
        things: list[Any] | None = [None] * self.size if self.index == 0 else None
        self._exchange(lambda: dist.gather_object(_on_cpu(thing), things, dst=0))
        return things or []

    def agreed(self, asked: Callable[[], bool]) -> Callable[[], bool]:
        """A question that is answered with yes by all as soon as one process would."""
        return lambda: bool(self.max(torch.tensor(int(asked()))))

    def _exchange(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except RuntimeError as broken:
            if memory.ran_out(broken):
                raise  # this one's own trouble
            raise self._why(broken) from broken

    def _why(self, broken: RuntimeError) -> BaseException:
        """What broke an exchange: what another process said, or that it is gone without a word."""
        self._heard = self._said() or self._heard
        if self._heard is not None:
            return self._heard.error(size=self.size)
        return LockstepError(
            f"another of the {self.size} processes of this run was lost ({_first_line(broken)}); "
            "the last checkpoint is whole: continue with `lockstep resume`, with as many processes "
            "as you like"
        )

    def _said(self) -> Failure | None:
        try:
            if not self._store.check([_FAILURE]):
                return None
            return Failure(**json.loads(self._store.get(_FAILURE)))
        except RuntimeError:  # the store went with the process that kept it
            return None

    def end(self, error: BaseException) -> NoReturn:
        """Ends this process because of `error`, after the others were told of it.

        The first process speaks for all: the others end with its exit code and say nothing, unless
        it could not be reached or their own code crashed.
        """
        mine = Failure.of(error, index=self.index)
        failure = self._heard or self._put(mine)
        own = self._heard is None and failure == mine
        if dist.is_initialized():
            dist.destroy_process_group()  # whoever waits for this process now stops waiting
        spoken = self._leave(failure, wait=own)
        if self.index == 0:
            if own or self._heard is not None:
                raise error
            raise failure.error(size=self.size) from error
        if own and (mine.kind == "crashed" or not spoken):
            raise error
        raise SystemExit(failure.code) from error

    def _put(self, mine: Failure) -> Failure:
        """Says why this process fails; whoever did so before it is the reason for all."""
        said = json.dumps(asdict(mine))
        try:
            return Failure(**json.loads(self._store.compare_set(_FAILURE, "", said)))
        except RuntimeError:  # the store is gone, and so is who would read it
            return mine

    def _leave(self, failure: Failure, *, wait: bool) -> bool:
        """Notes that this process knows; whether the first process does.

        Who failed first waits a little for the others, since the store may end with it.
        """
        deadline = time.monotonic() + (HEAR_S if wait else 0.0)
        everyone = [f"lockstep/heard/{i}" for i in range(self.size)]
        try:
            self._store.set(everyone[self.index], "")
            while not self._store.check(everyone) and time.monotonic() < deadline:
                time.sleep(0.02)
            return failure.index == 0 or self._store.check(everyone[:1])
        except RuntimeError:
            return False


@contextmanager
def joined() -> Iterator[Processes]:
    """Meets the other processes that torchrun started, and parts from them at the end.

    On the CPU they exchange by gloo, on GPUs by nccl.
    """
    index, size, local = place(os.environ)
    try:
        store, index, size = next(rendezvous("env://", timeout=TIMEOUT))
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=index, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise LockstepError(
            f"process {index} of {size} could not meet the others ({_first_line(error)}); see that "
            "all are started, and that MASTER_ADDR and MASTER_PORT lead to the first"
        ) from error
    company = Processes(store, index=index, size=size, local=local)
    try:
        yield company
    except BaseException as error:
        company.end(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def place(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """This process's number among all, how many there are, and its number on its machine."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    try:
        index, size, local = (int(environment[name]) for name in names)
    except (KeyError, ValueError) as error:
        raise BadInput(
            f"several processes need {', '.join(names)} as whole numbers in their environment, "
            f"got {error}; start them with torchrun"
        ) from error
    return index, size, local


def _on_cpu(tree: Any) -> Any:
    """Tensors of nested containers on the CPU, from where every process can take them."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, dict):
        return {name: _on_cpu(value) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_on_cpu(value) for value in tree)
    return tree


def _code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
