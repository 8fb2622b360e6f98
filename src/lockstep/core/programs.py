"""Faster forms of a function: compiled into few kernels, or captured as a CUDA graph."""

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar, cast

import torch

Args = ParamSpec("Args")
Result = TypeVar("Result")


def compiled(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """`function` as one compiled graph, on a code object of its own.

    The compiler keeps its versions on the code object, at most 8 of them: without this a ninth
    world or learner of another shape in the same process would fail, or quietly run in pieces.
    """
    plain = cast(FunctionType, function)
    code = plain.__code__.replace()
    own = FunctionType(
        code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    own.__kwdefaults__ = plain.__kwdefaults__
    return torch.compile(own, fullgraph=True, dynamic=False)


def compiled_method(owner: object, name: str) -> Callable[..., Any]:
    """The method of that name, compiled and bound to `owner`."""
    return MethodType(compiled(getattr(type(owner), name)), owner)


_WARM_UPS = 2  # eager calls that let libraries choose kernels and allocate their workspaces


class Captured(Generic[Args, Result]):
    """Calls `function` eagerly at first, then records and replays it.

    A recorded call reads and writes the very tensors of the call that was recorded: the caller
    passes the same objects each time, and the result is overwritten by the next call. Nothing
    inside may wait for the host or have a shape that depends on data.
    """

    def __init__(self, function: Callable[Args, Result]) -> None:
        self.function = function
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()
        self._recorded: tuple[object, ...] = ()  # kept alive, since the graph points into them
        self._result: Result | None = None

    def __call__(self, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        """The function's result; after the warm-up, always the same tensors."""
        given = (*args, *kwargs.values())
        if self._graph is None and self._calls < _WARM_UPS:
            self._calls += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                result = self.function(*args, **kwargs)
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            self._recorded = given
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._result = self.function(*args, **kwargs)
        if any(new is not old for new, old in zip(given, self._recorded, strict=True)):
            raise ValueError(
                "a captured function must be called with the objects it was recorded with"
            )
        self._graph.replay()
        return cast(Result, self._result)


def plain(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """What is called where nothing is to be recorded or replayed."""
    return function.function if isinstance(function, Captured) else function
