import threading
from pathlib import Path

import pytest

from lockstep.run.pulse import Pulse
from lockstep.run.rundir import RunDir
from lockstep.run.stacks import Alarm, Hangs, SlowSteps, write_stacks
from tests.unit.run.test_pulse import Clock


def stepping(clock: Clock) -> Pulse:
    pulse = Pulse(updates=10, clock=clock)
    pulse.enter("collect")
    return pulse


def steps(pulse: Pulse, clock: Clock, *seconds: float) -> None:
    for duration in seconds:
        clock.now += duration
        pulse.step()


def test_slow_steps_are_told_while_the_last_of_them_goes_on():
    clock = Clock()
    pulse = stepping(clock)
    rule = SlowSteps(limit=1.0, count=3, of=5, every=60.0)
    steps(pulse, clock, 2.0, 0.1, 2.0)
    clock.now += 0.5
    assert rule.look(pulse.view()) is None  # two were slow, this one is not yet
    clock.now += 1.0
    alarm = rule.look(pulse.view())
    assert alarm is not None
    assert alarm.kind == "slow"
    assert alarm.message == (
        "3 of the last 4 steps took more than 1 s; the one going on has taken 1.5 s"
    )


def test_slow_steps_that_lie_further_back_do_not_count():
    clock = Clock()
    pulse = stepping(clock)
    rule = SlowSteps(limit=1.0, count=2, of=3, every=60.0)
    steps(pulse, clock, 2.0, 0.1, 0.1)
    clock.now += 2.0
    assert rule.look(pulse.view()) is None


def test_one_slow_step_is_enough_where_one_is_asked_for():
    clock = Clock()
    pulse = stepping(clock)
    clock.now += 2.0
    assert SlowSteps(limit=1.0, count=1, of=1, every=0.0).look(pulse.view()) is not None


def test_slow_steps_are_told_once_in_a_window():
    clock = Clock()
    pulse = stepping(clock)
    rule = SlowSteps(limit=1.0, count=1, of=10, every=60.0)
    clock.now += 2.0
    assert rule.look(pulse.view()) is not None
    clock.now += 59.0
    assert rule.look(pulse.view()) is None
    clock.now += 1.0
    assert rule.look(pulse.view()) is not None


def test_learning_for_long_is_no_slow_step():
    clock = Clock()
    pulse = stepping(clock)
    rule = SlowSteps(limit=1.0, count=1, of=10, every=60.0)
    pulse.enter("learn")
    clock.now += 100.0
    assert rule.look(pulse.view()) is None


@pytest.mark.parametrize("excess", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("pattern", [(0.1, 0.2), (0.9, 0.7, 0.3), (0.05,)])
def test_whoever_looks_when_told_to_sees_every_slow_step(excess: float, pattern: tuple[float, ...]):
    """Quick steps and then a slow one, by a made-up clock; the watcher sleeps as it is told."""
    clock = Clock()
    pulse = stepping(clock)
    rule = SlowSteps(limit=1.0, count=1, of=10, every=0.0)
    ends, at = [], clock.now
    for seconds in (*pattern * 3, 1.0 + excess, *pattern):
        at += seconds
        ends.append(at)
    seen = False
    while clock.now < ends[-1]:
        wake = clock.now + max(0.005, rule.next_look(pulse.view()))
        for end in [end for end in ends if clock.now < end <= wake]:
            clock.now = end
            pulse.step()
        clock.now = wake
        seen = seen or rule.look(pulse.view()) is not None
    assert seen


def test_a_hang_is_told_once_and_names_its_phase():
    clock = Clock()
    pulse = Pulse(updates=10, clock=clock)
    pulse.enter("checkpoint")
    rule = Hangs(after=5.0)
    clock.now += 5.0
    assert rule.look(pulse.view()) is None
    assert rule.next_look(pulse.view()) == pytest.approx(0.0)
    clock.now += 0.1
    alarm = rule.look(pulse.view())
    assert alarm is not None
    assert alarm.message == (
        "nothing has moved for 5.1 s in phase checkpoint, which began 5.1 s ago"
    )
    for _ in range(50):
        clock.now += 7.3
        assert rule.look(pulse.view()) is None
    pulse.enter("collect")
    clock.now += 6.0
    again = rule.look(pulse.view())
    assert again is not None
    assert "in phase collect" in again.message


def test_stacks_show_every_thread_by_name_and_where_it_is(tmp_path: Path):
    begun, over = threading.Event(), threading.Event()

    def waits_for_the_emulator() -> None:
        begun.set()
        over.wait()

    worker = threading.Thread(target=waits_for_the_emulator, name="lane 7")
    worker.start()
    begun.wait()
    clock = Clock()
    pulse = stepping(clock)
    steps(pulse, clock, 0.5, 12.0)
    clock.now += 3.0
    try:
        path = write_stacks(RunDir(tmp_path), Alarm(kind="hang", message="it hangs"), pulse.view())
    finally:
        over.set()
        worker.join()
    assert path == tmp_path / "stacks" / "hang-1.txt"
    text = path.read_text()
    assert text.startswith("it hangs\n")
    assert "phase   collect, for 15.5 s\n" in text
    assert "steps   0.5, 12 (seconds, the newest last)\n" in text
    main, _, other = text.partition("thread lane 7")
    assert "thread MainThread" in main
    assert "test_stacks_show_every_thread_by_name" in main
    assert "waits_for_the_emulator" in other


def test_stacks_never_fall_on_older_ones(tmp_path: Path):
    view = Pulse(updates=1).view()
    names = [
        write_stacks(RunDir(tmp_path), Alarm(kind=kind, message=""), view).name
        for kind in ("slow", "slow", "hang", "slow")
    ]
    assert names == ["slow-1.txt", "slow-2.txt", "hang-1.txt", "slow-3.txt"]
