"""Hints during training: on time, once a window, and cheap."""

import math
import time

from lockstep.run.doctor import Facts, Finding, Hints
from lockstep.run.doctor.hints import MEMBERS_A_LOOK, WINDOW

QUIET = {"approx_kl": 0.01, "clip_fraction": 0.1, "explained_variance": 0.5}


def metrics(update: int, members: int = 2, **changes: float) -> dict[str, list[float]]:
    wave = 1 + 0.1 * math.sin(3.0 * update)
    levels = QUIET | {"entropy": 2.0 - 0.001 * update, "advantage_corr": 0.2} | changes
    roles = {f"train/agent/{name}": [level * wave] * members for name, level in levels.items()}
    return roles | {"world/cost": [2.0 - 0.01 * update + 0.02 * wave] * members}


def feed(hints: Hints, updates: int, **changes: float) -> list[tuple[int, Finding]]:
    said = []
    for update in range(1, updates + 1):
        seen = metrics(update, hints.members, **changes)
        new = hints.see(update=update, step=300 * update, metrics=seen, perf={"perf/update_s": 1.0})
        said += [(update, finding) for finding in new]
    return said


def test_a_healthy_training_is_left_alone():
    assert feed(Hints(every=25, seeds=[0, 1], score="world/cost"), 300) == []


def test_a_finding_is_said_at_the_next_look_and_not_again_within_the_window():
    said = feed(Hints(every=50, seeds=[0, 1]), 2 * WINDOW + 50, clip_fraction=0.6)
    assert [(update, finding.id) for update, finding in said] == [
        (50, "G8"),
        (50 + WINDOW, "G8"),
        (50 + 2 * WINDOW, "G8"),
    ]
    assert said[0][1].members == (0, 1)


def test_two_findings_do_not_silence_each_other():
    said = feed(Hints(every=50, seeds=[0]), 60, clip_fraction=0.6, explained_variance=-1.0)
    assert {finding.id for _, finding in said} == {"G8", "G13"}


def test_zero_never_looks():
    assert feed(Hints(every=0, seeds=[0]), 300, clip_fraction=0.9) == []


def test_old_updates_leave_the_window():
    hints = Hints(every=WINDOW, seeds=[0])
    assert [f.id for _, f in feed(hints, 100, clip_fraction=0.9)] == []
    for update in range(101, 3 * WINDOW + 1):
        new = hints.see(update=update, step=update, metrics=metrics(update, 1), perf={})
        assert update < 2 * WINDOW or new == []


def test_a_number_that_is_not_finite_is_said_at_once_at_the_look():
    hints = Hints(every=10, seeds=[0])
    seen = metrics(10, 1) | {"train/value_loss": [math.nan]}
    (finding,) = hints.see(update=10, step=10, metrics=seen, perf={})
    assert finding.id == "G16"


def test_a_key_that_comes_late_is_not_taken_for_a_broken_number():
    hints = Hints(every=10, seeds=[0])
    for update in range(1, 11):
        late = {"train/value_loss": [1.0]} if update > 5 else {}
        new = hints.see(update=update, step=update, metrics=metrics(update, 1) | late, perf={})
    assert new == []


def test_a_score_that_once_moved_is_remembered_beyond_the_window():
    """Small steps after convergence are no fault, though the window shows nothing but a plateau."""
    hints = Hints(every=50, seeds=[0], score="world/cost", facts=Facts(updates=1000))
    for update in range(1, 1000):
        seen = metrics(min(update, 150), 1, clip_fraction=0.001, approx_kl=1e-5)
        seen["world/cost"] = [2 - 0.01 * min(update, 150) + 0.01 * math.sin(5.0 * update)]
        seen["train/agent/entropy"] = [2 - 0.0005 * update + 0.01 * math.sin(update)]
        assert hints.see(update=update, step=update, metrics=seen, perf={}) == []


def test_hints_that_were_not_told_of_the_start_do_not_take_the_middle_for_it():
    hints = Hints(every=50, seeds=[0], score="world/cost")
    for update in range(501, 800):
        seen = metrics(1, 1, clip_fraction=0.001)
        seen["train/agent/entropy"] = [2 - 0.0005 * update]
        seen["world/cost"] = [1 + 0.01 * math.sin(5.0 * update)]
        assert hints.see(update=update, step=update, metrics=seen, perf={}) == []


def test_a_large_pack_takes_turns_so_that_every_member_is_looked_at():
    members = 2 * MEMBERS_A_LOOK
    hints = Hints(every=30, seeds=range(members))
    sick, said = members - 1, []
    for update in range(1, 91):
        seen = metrics(update, members)
        seen["train/agent/clip_fraction"][sick] = 0.9
        said += hints.see(update=update, step=update, metrics=seen, perf={})
    assert [(finding.id, finding.members) for finding in said] == [("G8", (sick,))]


def test_a_look_costs_little_also_in_a_large_pack():
    """Half a millisecond an update was measured without the run-time checks of the tests."""
    hints = Hints(every=50, seeds=range(64))
    rows = [metrics(update, 64) for update in range(1, 201)]
    start = time.process_time()
    for update, row in enumerate(rows, start=1):
        hints.see(update=update, step=update, metrics=row, perf={})
    assert (time.process_time() - start) / len(rows) < 5e-3
