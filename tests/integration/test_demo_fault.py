"""`lockstep demo-fault`: the original failure beside the right replay, with the audit naming it."""

import json
import math
from functools import cache
from typing import Any

import pytest

from lockstep.cli import demo_fault as verb
from lockstep.errors import BadInput
from lockstep.run.fault_demo import HEADS, Replayed, replayed
from lockstep.run.fault_learning import VARIANTS, Learned, learn

WRONG = {
    "K = 5, index clamped": "choice set cut",
    "K = 5, index >= 5 dropped": "choice set cut",
    "no mask in the update": "mask not applied",
    "order of candidates changed": "order of choices changed",
    "temperature 0.5 in the update only": "temperature differs",
}


@cache
def table(head: str) -> dict[str, Replayed]:
    return {row.replay: row for row in replayed(head, HEADS[head], decisions=2048)}


@pytest.mark.parametrize("head", HEADS)
def test_the_stored_choice_set_replays_exactly_and_is_learned_from(head: str):
    row = table(head)["stored choice set"]
    assert (row.valid_share, row.ratio_mean, row.k3, row.clip_fraction) == (1.0, 1.0, 0.0, 0.0)
    assert (row.max_gap, row.slo, row.audit, row.engine) == (0.0, (), "ok", "learned")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("fault", WRONG)
def test_every_wrong_replay_is_named_by_the_audit_and_stops_the_learner(fault: str, head: str):
    row = table(head)[fault]
    assert row.audit == WRONG[fault]
    assert row.engine.startswith("stopped by G")
    assert row.max_gap > 1e-3


def test_a_fixed_k_shows_the_numbers_that_were_logged():
    row = table("near uniform")["K = 5, index clamped"]
    assert row.entropy == pytest.approx(math.log(5), abs=1e-4)
    assert row.ratio_mean == pytest.approx(5.8, rel=0.05)  # the mean of K / 5
    assert row.k3 == pytest.approx(3.1, rel=0.1)
    assert row.clip_fraction == 1.0
    assert set(row.slo) == {"ratio", "KL", "clip", "entropy"}
    dropped = table("near uniform")["K = 5, index >= 5 dropped"]
    assert dropped.valid_share == pytest.approx(0.22, abs=0.03)
    assert "valid" in dropped.slo


def test_a_near_uniform_policy_hides_two_of_the_faults_from_the_usual_checks():
    hidden = [name for name, row in table("near uniform").items() if not row.slo]
    assert hidden == [
        "stored choice set",
        "order of candidates changed",
        "temperature 0.5 in the update only",
    ]
    caught = [table("sharp")[name].slo for name in hidden[1:]]
    assert all("clip" in slo for slo in caught)


def learned(name: str, updates: int) -> Learned:
    return learn(next(v for v in VARIANTS if v.name == name), updates=updates)


def test_the_right_replay_learns_and_a_fixed_k_does_not():
    right = learned("stored choice set", 20)
    wrong = learned("K = 5, index clamped", 20)
    assert (right.first_ratio, right.first_k3) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))
    assert wrong.first_ratio > 5
    assert right.score > 0.8
    assert wrong.score < right.score - 0.25


@pytest.mark.parametrize("variant", [v.name for v in VARIANTS[3:]])
def test_with_its_safety_belts_on_the_wrong_replay_never_takes_a_step(variant: str):
    result = learned(variant, 8)
    assert result.used == 0.0
    assert abs(result.score) < 0.05


@pytest.mark.slow
def test_a_hundred_updates_reach_the_score_of_the_specification():
    assert learned("stored choice set", 100).score > 0.9
    assert learned("K = 5, index clamped", 100).score < 0.75


def test_programs_and_pages_get_the_same_numbers(capsys: pytest.CaptureFixture[str]):
    flags = ["--decisions=300", "--updates=1"]
    assert verb.main([*flags, "--json"]) == 0
    found: Any = json.loads(capsys.readouterr().out)
    assert len(found["replays"]) == 2 * 6
    assert len(found["learned"]) == len(VARIANTS)
    assert verb.main([*flags, "--markdown"]) == 0
    text = capsys.readouterr().out
    for row in found["replays"]:
        assert f"| {row['replay']} | {row['valid_share']:.2f} | {row['ratio_mean']:.3f} ±" in text
    for row in found["learned"]:
        assert f"| {row['name']} | {row['score']:.2f} |" in text


def test_people_get_tables(capsys: pytest.CaptureFixture[str]):
    assert verb.main(["--decisions=200", "--updates=1"]) == 0
    text = capsys.readouterr().out
    assert "near uniform head" in text
    assert "audit finds" in text
    assert "Learning for 1 updates" in text


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--decisions=10", "--decisions must be at least 100, got 10"),
        ("--updates=0", "--updates must be at least 1, got 0"),
    ],
)
def test_too_little_is_refused(flag: str, message: str):
    with pytest.raises(BadInput, match=message):
        verb.main([flag])


def test_two_forms_at_once_are_refused():
    with pytest.raises(BadInput, match="--json and --markdown exclude each other; leave one out"):
        verb.main(["--json", "--markdown"])
