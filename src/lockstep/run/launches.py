"""What one call asks of the device, counted by the profiler."""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from lockstep.run.ledger import Calls

_OPERATOR = re.compile(r"aten::|Torch-Compiled Region")
_GRAPH = re.compile(r"cu(da)?GraphLaunch")
_LAUNCH = re.compile(r"cu(da)?(Launch\w*Kernel|GraphLaunch)")


class Event(NamedTuple):
    """One thing that happened, on the host or on the GPU."""

    name: str
    on_gpu: bool
    start_us: float
    end_us: float
    inside: tuple[str, ...] = ()
    """Names of the calls that were under way on the same thread."""


def calls_of(call: Callable[[], object], device: torch.device) -> Calls:
    """What `call` asks of `device`; it is called once, more slowly than usual."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with profile(activities=activities) as profiler:
        call()
        if gpu:
            torch.cuda.synchronize(device)
    return count(map(_event, profiler.events() or ()), gpu=gpu)


def count(events: Iterable[Event], *, gpu: bool) -> Calls:
    """The counts behind a list of events."""
    events = list(events)
    host = [event for event in events if not event.on_gpu]
    operators = sum(_is_outermost(event) for event in host)
    if not gpu:
        return Calls(operators=operators)
    work = [event for event in events if event.on_gpu]
    return Calls(
        operators=operators,
        launches=sum(bool(_LAUNCH.match(event.name)) for event in host),
        graph_launches=sum(bool(_GRAPH.match(event.name)) for event in host),
        kernels=len(work),
        busy_s=covered([(event.start_us, event.end_us) for event in work]) / 1e6,
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans: kernels may run side by side."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _is_outermost(event: Event) -> bool:
    return bool(_OPERATOR.match(event.name)) and not any(map(_OPERATOR.match, event.inside))


def _event(seen: Any) -> Event:
    """A torch FunctionEvent, whose attributes torch does not type."""
    inside, parent = [], seen.cpu_parent
    while parent is not None:
        inside.append(parent.name)
        parent = parent.cpu_parent
    return Event(
        name=seen.name,
        on_gpu=seen.device_type.name == "CUDA",
        start_us=float(seen.time_range.start),
        end_us=float(seen.time_range.end),
        inside=tuple(inside),
    )
