import os
import signal
import threading

import pytest

from lockstep.run.stop import SIGNALS, stop_on_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_insists(number: signal.Signals):
    before = {n: signal.getsignal(n) for n in SIGNALS}
    with stop_on_signals() as stopped:
        assert not stopped()
        os.kill(os.getpid(), number)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert before == {n: signal.getsignal(n) for n in SIGNALS}


def test_a_signal_of_the_other_kind_insists_as_well():
    with stop_on_signals() as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_are_left_out():
    answers: list[bool] = []

    def run() -> None:
        with stop_on_signals() as stopped:
            answers.append(stopped())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert answers == [False]
