import itertools
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from lockstep.run.pulse import WINDOW, Pulse


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def update(pulse: Pulse, clock: Clock, number: int, *, seconds: float, rate: float) -> None:
    pulse.enter("collect")
    clock.now += seconds
    pulse.updated(update=number, step=12 * number, rate=rate, value=1.0 / number)


def test_a_run_that_has_told_nothing_is_starting_and_has_no_rates():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    clock.now += 3
    view = pulse.view()
    assert (view.phase, view.phase_s, view.idle_s, view.step_s) == ("start", 3.0, 3.0, None)
    assert (view.update, view.updates, view.step) == (0, 10, 0)
    assert view.steps_per_s is view.updates_per_s is view.eta_s is view.value is None
    assert view.saved_step is view.saved_s is None


def test_a_view_shows_what_was_told_last():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    update(pulse, clock, 1, seconds=2.0, rate=50.0)
    pulse.saved(12)
    clock.now += 1
    pulse.enter("learn")
    clock.now += 4
    view = pulse.view()
    assert (view.phase, view.phase_s, view.idle_s) == ("learn", 4.0, 4.0)
    assert (view.update, view.step, view.value) == (1, 12, 1.0)
    assert (view.saved_step, view.saved_s) == (12, 5.0)
    assert view.moved_at == clock.now - 4


def test_rates_are_those_of_the_last_updates_only():
    clock = Clock()
    pulse = Pulse(updates=100, clock=clock)
    update(pulse, clock, 1, seconds=500.0, rate=0.01)  # the first one compiles
    for number in range(2, 2 + WINDOW):
        update(pulse, clock, number, seconds=2.0, rate=30.0)
    assert pulse.view().updates_per_s == pytest.approx(0.5)
    update(pulse, clock, WINDOW + 2, seconds=2.0, rate=30.0)
    view = pulse.view()
    assert view.steps_per_s == pytest.approx(30.0)
    assert view.eta_s == pytest.approx((100 - WINDOW - 2) * 2.0)


def test_the_rate_of_a_fast_and_a_slow_update_is_that_of_both_together():
    clock = Clock()
    pulse = Pulse(updates=2, clock=clock)
    update(pulse, clock, 1, seconds=1.0, rate=120.0)
    update(pulse, clock, 2, seconds=3.0, rate=40.0)
    view = pulse.view()
    assert view.steps_per_s == pytest.approx(60.0)
    assert view.updates_per_s == pytest.approx(0.5)
    assert view.eta_s == 0.0


def test_a_run_taken_up_counts_from_there_and_rates_begin_anew():
    clock = Clock()
    pulse = Pulse(updates=100, update=90, step=1080, clock=clock)
    assert (pulse.view().update, pulse.view().step) == (90, 1080)
    update(pulse, clock, 91, seconds=2.0, rate=10.0)
    assert pulse.view().eta_s == pytest.approx(18.0)


def test_a_step_is_counted_from_the_one_before_or_from_the_start_of_its_phase():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    pulse.enter("learn")
    clock.now += 100
    pulse.enter("collect")
    for seconds in (0.5, 0.25):
        clock.now += seconds
        pulse.step()
    clock.now += 2
    view = pulse.view()
    assert view.step_durations == (0.5, 0.25)
    assert view.step_s == 2.0
    pulse.enter("learn")
    assert pulse.view().step_s is None


def test_as_many_steps_are_remembered_as_asked_for():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    pulse.enter("collect")
    pulse.keep(3)
    for seconds in (1.0, 2.0, 3.0, 4.0):
        clock.now += seconds
        pulse.step()
    assert pulse.view().step_durations == (2.0, 3.0, 4.0)


def test_a_clock_that_goes_backwards_gives_no_negative_rate_age_or_time_left():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    update(pulse, clock, 1, seconds=2.0, rate=10.0)
    pulse.saved(12)
    clock.now -= 1000
    view = pulse.view()
    assert (view.phase_s, view.idle_s, view.saved_s) == (0.0, 0.0, 0.0)
    update(pulse, clock, 2, seconds=1.0, rate=-5.0)
    view = pulse.view()
    assert view.updates_per_s is None
    assert view.eta_s is None
    assert view.steps_per_s == 10.0


def test_a_step_is_never_seen_older_than_its_phase_whenever_the_loop_comes_in_between():
    """Between any two lines of the reader the loop goes on; learning lasts 1000 s, a step none."""
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)

    def loop() -> Iterator[None]:
        while True:
            pulse.enter("collect")
            yield
            pulse.step()
            yield
            pulse.enter("learn")
            clock.now += 1000.0
            yield

    telling = loop()

    def between_lines(frame: FrameType, event: str, argument: object) -> object:
        code = frame.f_code
        if (Path(code.co_filename).name, code.co_name) != ("pulse.py", "view"):
            return None
        if event == "line":
            for _ in range(next(counts)):
                next(telling)
        return between_lines

    counts = itertools.cycle([0, 1, 0, 2, 1, 0, 0, 3, 1, 1, 0, 2, 0])
    before = sys.gettrace()
    sys.settrace(between_lines)
    try:
        views = [pulse.view() for _ in range(200)]
    finally:
        sys.settrace(before)
    assert {view.phase for view in views} >= {"collect", "learn"}
    assert all(view.idle_s >= 0 and view.phase_s >= 0 for view in views)
    assert all(view.idle_s <= view.phase_s for view in views if view.step_s is not None)


def test_a_view_can_be_taken_while_another_thread_tells():
    pulse, over = Pulse(updates=10), threading.Event()

    def tell() -> None:
        while not over.is_set():
            pulse.enter("collect")
            pulse.step()
            pulse.updated(update=1, step=12, rate=10.0, value=1.0)

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        views = [pulse.view() for _ in range(2_000)]
    finally:
        over.set()
        teller.join()
    ages = [age for v in views for age in (v.idle_s, v.phase_s, *v.step_durations)]
    assert min(ages) >= 0
