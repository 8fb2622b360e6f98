"""The comparison with other libraries: its gate, on the loop that needs none, and its clocks."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from lockstep.worlds import registry


@pytest.fixture(scope="module")
def peers() -> Iterator[SimpleNamespace]:
    """The scripts' parts; importing them registers a world, which must not outlive these tests."""
    before = dict(registry.WORLDS)
    from benchmarks.peers import compare, gate, ours, plain, report, task, timing, world

    parts = {"gate": gate, "ours": ours, "plain": plain, "report": report, "task": task}
    yield SimpleNamespace(**parts, compare=compare, timing=timing, world=world)
    for name in registry.WORLDS.keys() - before:
        del registry.WORLDS[name]


@pytest.fixture(scope="module")
def tiny(peers):
    return peers.task.Task(n_users=3, n_uavs=2, n_slots=4, lanes=4, steps=6, hidden=16)


def checked(peers, task, make):
    out = io.StringIO()
    label = peers.gate.Gate(task, device="cpu").check(make, peers.report.Record(out))
    return label, [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_plain_loop_computes_what_lockstep_computes(peers, tiny) -> None:
    label, lines = checked(peers, tiny, peers.plain.Plain)
    assert label == "numerically equal"
    found = {line["between"]: line["label"] for line in lines}
    assert found["plain loop to lockstep"] == "numerically equal"
    assert found["peer to plain loop"] == "identical"


def test_a_peer_that_divides_by_n_minus_1_passes_and_its_label_says_so(peers, tiny) -> None:
    label, _ = checked(peers, tiny, partial(peers.plain.Plain, unbiased=True))
    assert label == "numerically equal, advantages / sqrt(1 - 1/n)"


@pytest.mark.parametrize(
    ("setting", "what"),
    [("discount", "advantage"), ("entropy_weight", "loss"), ("value_weight", "loss")],
)
def test_a_peer_of_another_arithmetic_is_not_timed(peers, tiny, setting: str, what: str) -> None:
    def make(task, *args, **options):
        return peers.plain.Plain(replace(task, **{setting: 0.3}), *args, **options)

    with pytest.raises(SystemExit, match=f"does not pass the gate .*: {what} is off by"):
        checked(peers, tiny, make)


def test_both_sides_play_the_same_histories_and_learn_from_them(peers, tiny) -> None:
    ours = peers.ours.Ours(tiny)
    plain = peers.plain.Plain(tiny, ours.weights())
    assert ours.world.seen().equal(plain.world.seen())
    for side in (ours, plain):
        side.step_world()
        before = side.world.seen()
        side.train()
        assert not side.world.seen().equal(before)
        assert side.reward() < 0


def test_a_ratio_is_that_of_pairs_and_its_interval_holds_it(peers) -> None:
    ratio = peers.timing.paired_ratio([20.0, 44.0, 30.0], [10.0, 20.0, 10.0])
    assert (ratio.median, ratio.pairs) == (pytest.approx(2.2), 3)
    assert 2.0 <= ratio.low <= ratio.median <= ratio.high <= 3.0
    with pytest.raises(ValueError, match="at least 2 pairs of rates, got 1 and 1"):
        peers.timing.paired_ratio([1.0], [1.0])


def test_a_slope_counts_calls_after_its_first_tenth(peers) -> None:
    events = []
    found = peers.timing.slope(
        lambda: events.append("call"), seconds=0.01, settle=lambda: events.append("settle")
    )
    begin = events.index("settle")
    assert begin >= 1
    assert events.count("settle") == 2
    assert events[-1] == "settle"
    assert found.calls == len(events) - begin - 2
    assert found.wall_s > 0


def test_the_table_shows_both_sides_and_the_ratio(peers) -> None:
    row = {"lockstep_env_steps_per_s": 2000.0, "peer_env_steps_per_s": 1000.0}
    ratio = {"median": 2.0, "low": 1.9, "high": 2.125}
    summary = {"peer": "other", "agents": 7, "rates": {"world": {"cpu": row | {"ratio": ratio}}}}
    shown = peers.report.table([summary], "cpu")
    assert "| other | world | 2,000 | 1,000 | 2.00 (1.90 to 2.12) |" in shown
    assert "one env-step is 7 agent-steps" in shown


def test_a_peer_that_fails_is_written_down_and_loses_the_others_nothing(peers, capsys) -> None:
    def against(name: str) -> dict[str, str]:
        if name == "broken":
            raise SystemExit("broken does not pass the gate")
        return {"peer": name}

    out = io.StringIO()
    race = SimpleNamespace(record=peers.report.Record(out), against=against)
    assert peers.compare.held(race, "whole") == {"peer": "whole"}
    assert peers.compare.held(race, "broken") is None
    assert "broken does not pass the gate" in json.loads(out.getvalue())["said"]
    assert "broken was not measured" in capsys.readouterr().err
