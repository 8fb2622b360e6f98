"""Stopping on request: the first signal asks, the second insists."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yields a question: has SIGINT or SIGTERM asked the run to stop after this update?

    A second signal of either kind raises KeyboardInterrupt at once. Only the main thread receives
    signals; elsewhere the answer is always no.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
