"""Each rule speaks of the fault it is for, with its numbers, and is silent otherwise."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lockstep.run.doctor import RULES, Log, examine
from lockstep.run.doctor.step_rules import ratio_behind
from tests.unit.run.doctor.sick import UPDATES, from_update, healthy, sick

T = np.arange(UPDATES)
WIGGLE = 1 + 0.01 * np.sin(T)


def flat(column):
    """The score goes nowhere."""
    return np.tile(2 + 0.05 * np.sin(7.0 * T), (2, 1))


def every(step: int, value: float):
    def change(column):
        column[:, ::step] = value
        return column

    return change


def steps_that_stop() -> Log:
    log = healthy()
    return replace(log, columns={**log.columns, "step": np.minimum(log.columns["step"], 15_000)})


# What is planted, a piece of the evidence that must be given, and what may be found beside it.
FAULTS: dict[str, tuple[Callable[[], Log], str, set[str]]] = {
    "G7": (lambda: sick(train__minibatches=3.0), r"100% of 120 updates.*never let go", set()),
    "G8": (
        lambda: sick(clip_fraction=0.45),
        r"clip fraction is 0\.45 .*above 0\.05\.\.0\.3",
        set(),
    ),
    "G9": (lambda: sick(approx_kl=0.06), r"KL of an update is 0\.06 .*above", {"D5"}),
    "G10": (lambda: sick(entropy_share=0.9995), r"0\.9995 or more of its maximum", set()),
    "G11": (lambda: sick(entropy=1.234), r"entropy is 1\.234000", set()),
    "G12": (lambda: sick(ratio_mean=0.57 * WIGGLE), r"outside 0\.9\.\.1\.1 in 100%", set()),
    "G13": (lambda: sick(explained_variance=-0.3), r"explain -0\.300", set()),
    "G14": (lambda: sick(behaviour_shift=0.0), r"not moved in 120 looks.*KL of 0\.012", set()),
    "G16": (
        lambda: replace(sick(), broken={"train/value_loss": np.repeat([T == 7], 2, axis=0)}),
        r"train/value_loss is not a finite number at update 8",
        set(),
    ),
    "D1": (
        lambda: sick(approx_kl=every(40, 0.9), clip_fraction=every(40, 0.8)),
        r"KL of 0\.9 .*clip fraction of 0\.80",
        set(),
    ),
    "D2": (
        lambda: sick(entropy=math.log(5) * (1 + 1e-4 * np.sin(T)), concentration=None),
        r"ln 5 = 1\.6094, while the agents had 28\.9 choices",
        {"D6"},
    ),
    "D3": (
        lambda: sick(entropy=from_update(30, 0.01), concentration=None),
        r"entropy fell from 2\.\d+ to 0\.01 by update 30",
        {"G11"},
    ),
    "D4": (
        lambda: sick(
            approx_kl=4.92 * WIGGLE,
            clip_fraction=0.995,
            k1=None,
            ratio_mean=None,
            entropy=math.log(5) * (1 + 1e-4 * np.sin(T)),
            concentration=None,
        ),
        r"K/k = 8\.0\d \(from the KL alone\); with k = 5 from the entropy, K is about 40",
        {"G8", "G9", "D2", "D5"},
    ),
    "D5": (lambda: sick(approx_kl=0.2 * WIGGLE), r"stays at 0\.2 .*3\.0e-04 to 3\.0e-05", {"G9"}),
    "D6": (lambda: sick(concentration=from_update(90, 4000.0)), r"4e\+03 on average", set()),
    "D7": (lambda: sick(forced_share=0.97), r"97\.0% of decisions", set()),
    "D8": (lambda: sick(advantage_corr=-0.1), r"correlate by -0\.100", set()),
    "D9": (lambda: sick(reward_std=4000.0), r"rewards is 4e\+03", set()),
    "D10": (lambda: sick(train__value_loss=14329.0), r"value loss is 1\.43e\+04", set()),
    "D11": (
        lambda: sick(value_mean=lambda x: x + 0.1 * T),
        r"13\.\d standard deviations.*4\.\d in the first",
        set(),
    ),
    "D12": (lambda: sick(world__cost=flat), r"rose from 0\.1\d to 0\.6\d over 120", set()),
    "D13": (lambda: sick(replay__fill=0.01), r"1\.0% full after update 120", set()),
    "D14": (steps_that_stop, r"stays at 15000", set()),
    "D15": (lambda: sick(episode__finished=0.0), r"no episode has finished in 120", set()),
    "D16": (
        lambda: sick(world__cost=2.0, world__delay=1.0),
        r"none of the world's 2 numbers",
        {"D12"},
    ),
    "D17": (lambda: sick(res__gpu_percent=2.0), r"busy 2\.0 %", set()),
    "D18": (
        lambda: sick(perf__env_s=None, perf__collect_s=0.95, perf__learn_s=0.05),
        r"collecting takes 95% of the time of 120 updates",
        set(),
    ),
    "D19": (lambda: sick(train__lr_actor=from_update(100, 0.0)), r"lr_actor is 0 in 21", set()),
    "D20": (lambda: sick(train__minibatches=every(10, 0.0)), r"12 of 120 updates took no", set()),
    "D21": (lambda: sick(train__n_updates=8.0), r"stays at 8 over 120", set()),
}


def test_a_healthy_training_raises_nothing_and_every_rule_has_looked_at_it():
    report = examine(healthy())
    assert report.findings == ()
    assert report.not_applicable == {}
    assert report.checked == tuple(rule.id for rule in RULES)


def test_there_is_a_fault_for_every_rule():
    assert list(FAULTS) == [rule.id for rule in RULES]


@pytest.mark.parametrize("id", FAULTS)
def test_a_planted_fault_is_named_with_its_numbers_and_nothing_else_is(id: str):
    plant, evidence, beside = FAULTS[id]
    found = {finding.id: finding for finding in examine(plant()).findings}
    assert id in found
    assert set(found) - {id} <= beside
    assert re.search(evidence, found[id].evidence), found[id].evidence
    assert found[id].values
    assert all(math.isfinite(value) for value in found[id].values.values())
    assert found[id].cause
    assert found[id].knob


def test_a_finding_names_the_members_and_the_role_it_is_about():
    log = sick()
    kl = log.columns["train/agent/approx_kl"]
    kl[1] = 0.06
    (finding,) = (f for f in examine(log).findings if f.id == "G9")
    assert (finding.role, finding.members) == ("agent", (1,))
    assert finding.where == "role agent, member 1"


def test_a_finding_about_the_machine_names_no_member():
    (finding,) = examine(sick(res__gpu_percent=1.0)).findings
    assert (finding.role, finding.members, finding.where) == (None, (), "")


def test_rules_without_their_numbers_say_what_they_miss():
    report = examine(sick(behaviour_shift=None, res__gpu_percent=None))
    assert report.not_applicable == {
        "G14": "needs train/<role>/behaviour_shift, train/<role>/approx_kl",
        "D17": "needs res/gpu_percent",
    }
    assert "G14" not in report.checked


def test_rules_about_health_wait_for_the_warm_up():
    log = healthy(updates=15)
    log.columns["train/agent/clip_fraction"][:] = 0.6
    report = examine(log)
    assert report.findings == ()
    assert report.not_applicable["G8"] == "needs 20 updates after the first 20"


@pytest.mark.parametrize(
    ("key", "level", "id"), [("clip_fraction", 0.001, "G8"), ("approx_kl", 1e-6, "G9")]
)
def test_small_steps_are_held_against_a_training_only_if_its_score_stands_still(key, level, id):
    assert examine(sick(**{key: level})).findings == ()
    still = examine(sick(**{key: level}, world__cost=flat, explained_variance=0.5)).findings
    assert [finding.id for finding in still] == [id]
    assert "while the score is where it started" in still[0].evidence


def test_a_critic_a_little_below_zero_is_forgiven_only_while_the_score_moves():
    assert examine(sick(explained_variance=-0.02)).findings == ()
    found = examine(sick(explained_variance=-0.02, world__cost=flat)).findings
    assert [finding.id for finding in found] == ["G13"]


def test_the_log_of_the_city_failure_is_told_from_its_numbers_alone():
    """KL 5.24, 4.93, 5.69 after three remedies were just K = 41.8, 40.0 and 44.4 over k = 5."""
    assert [5 * ratio_behind(kl) for kl in (5.24, 4.93, 5.69)] == pytest.approx(
        [41.8, 40.0, 44.4], abs=0.1
    )


def test_uniform_choices_among_all_there_are_is_not_taken_for_a_constant():
    log = sick(entropy=math.log(29) * (1 - 1e-5 * np.sin(T)), concentration=None, entropy_share=1.0)
    assert {finding.id for finding in examine(log).findings} == {"G10", "G11"}


def test_entropy_of_numbers_is_never_taken_for_the_log_of_a_constant():
    found = examine(sick(entropy=math.log(5) * (1 + 1e-4 * np.sin(T)))).findings
    assert [finding.id for finding in found] == []


def test_standardised_rewards_may_have_any_scale():
    log = sick(reward_std=4000.0)
    scaled = replace(log, facts=replace(log.facts, rewards_scaled=True))
    assert examine(scaled).findings == ()


def test_an_idle_gpu_is_no_matter_to_a_training_on_the_cpu():
    log = sick(res__gpu_percent=0.0)
    assert examine(replace(log, facts=replace(log.facts, device="cpu"))).findings == ()


def test_where_the_world_has_a_clock_of_its_own_it_is_told_from_deciding():
    slow = {"perf__collect_s": 0.97, "perf__learn_s": 0.03}
    (finding,) = examine(sick(**slow, perf__env_s=0.96)).findings
    assert (finding.id, finding.evidence) == (
        "D18",
        "the world takes 96% of the time of 120 updates",
    )
    assert examine(sick(**slow, perf__env_s=0.5)).findings == ()  # the policy is what is slow
