"""Transitions in every form they may come in, and each gate of their audit."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lockstep.run.doctor import Batch, Transitions, audit_transitions, fingerprints

N, C, F = 64, 6, 3
RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.standard_normal(F)
ROWS = RANDOM.standard_normal((N, C, F))
COUNT = RANDOM.integers(2, C + 1, N)
MASK = np.arange(C) < COUNT[:, None]


def policy(batch: Batch) -> np.ndarray:
    scores = np.where(batch.mask, batch.candidates @ WEIGHTS, -np.inf)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def stored(**changes: object) -> Transitions:
    log_p = policy(Batch(obs=np.zeros((N, 1)), mask=MASK, candidates=ROWS, agent=None))
    index = np.array([RANDOM.choice(C, p=np.exp(row)) for row in log_p])
    return replace(
        Transitions(
            obs=np.zeros((N, 1)),
            index=index,
            log_prob=log_p[np.arange(N), index],
            candidates=ROWS,
            count=COUNT,
            episode=np.arange(N) // 16,
            time=np.arange(N) % 16 // 2,
            agent=np.arange(N) % 2,
            policy_version=np.full(N, 3),
            key=[f"{row}:{i}" for row, i in enumerate(index)],
            keys=[[f"{row}:{i}" for i in range(C)] for row in range(N)],
        ),
        **changes,
    )


def broken(audit) -> list[str]:
    return [f"{check.id} {check.name}" for check in audit.checks if check.ok is False]


def test_right_transitions_pass_every_gate_and_say_so_in_one_line():
    audit = audit_transitions(policy, stored(), version=3)
    assert audit.ok
    assert str(audit).startswith("64 transitions replay: largest difference")


def test_a_mask_serves_as_well_as_a_count():
    assert audit_transitions(policy, stored(count=None, mask=MASK)).ok


def test_rows_of_any_length_are_padded():
    full = stored()
    rows = [
        {
            "obs": [0.0],
            "candidates": ROWS[row, : COUNT[row]].tolist(),
            "index": int(full.index[row]),
            "log_prob": float(full.log_prob[row]),
        }
        for row in range(N)
    ]
    audit = audit_transitions(policy, Transitions.from_rows(json.loads(json.dumps(rows))))
    assert audit.ok, str(audit)
    assert audit.rows == N


def test_masks_in_rows_of_any_length_are_padded():
    rows = [{"obs": [0.0], "mask": [1, 1], "index": 0, "log_prob": math.log(0.5)}]
    rows += [{"obs": [0.0], "mask": [1, 0, 1, 1], "index": 3, "log_prob": math.log(1 / 3)}]

    def uniform(batch: Batch) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(batch.mask / batch.mask.sum(axis=1, keepdims=True))

    assert audit_transitions(uniform, Transitions.from_rows(rows)).ok


def test_tensors_are_handed_on_as_tensors_and_dicts_as_dicts():
    seen = []

    def torch_policy(batch: Batch) -> torch.Tensor:
        seen.append((type(batch.obs["x"]), batch.mask.dtype, batch.agent.tolist()))
        scores = batch.candidates @ torch.as_tensor(WEIGHTS)
        return scores.masked_fill(~batch.mask, -math.inf).log_softmax(dim=-1)

    full = stored(obs={"x": torch.zeros(N, 1)}, candidates=torch.as_tensor(ROWS))
    assert audit_transitions(torch_policy, full, batch=N).ok
    assert seen[0] == (torch.Tensor, torch.bool, [0, 1] * (N // 2))


def test_the_first_offender_is_given_with_its_place_and_both_log_probs():
    full = stored()
    log_prob = np.array(full.log_prob)
    log_prob[[20, 40]] -= 0.5
    audit = audit_transitions(policy, replace(full, log_prob=log_prob))
    first = audit.first
    assert first is not None
    assert (first.row, first.episode, first.time, first.agent) == (20, 1, 2, 0)
    assert (first.choices, first.index) == (COUNT[20], full.index[20])
    assert first.stored == pytest.approx(first.replayed - 0.5)
    assert first.key == f"20:{first.index}"
    assert broken(audit) == ["G4 replay"]
    assert "row 20, episode 1, time 2, agent 0: index" in str(audit)


def test_the_limit_can_be_set():
    full = stored()
    off = replace(full, log_prob=np.array(full.log_prob) - 1e-3)
    assert not audit_transitions(policy, off).ok
    assert audit_transitions(policy, off, limit=2e-3).ok


def test_rows_out_of_order_and_rows_given_twice_are_named():
    full = stored()
    time = np.array(full.time)
    time[5] = 7
    audit = audit_transitions(policy, replace(full, time=time))
    assert broken(audit) == ["G2 order"]
    assert "the first at row 6" in str(audit)
    assert audit.fault == "rows out of place"
    assert broken(audit_transitions(policy, replace(full, agent=np.zeros(N)))) == ["G2 order"]


def test_order_is_by_the_triple_and_not_by_each_column_alone():
    assert audit_transitions(policy, stored()).ok  # times start again in every episode


def test_rows_of_another_policy_version_are_named():
    full = stored()
    assert broken(audit_transitions(policy, full, version=4)) == ["G3 policy version"]
    mixed = replace(full, policy_version=np.arange(N) // 40)
    assert broken(audit_transitions(policy, mixed)) == ["G3 policy version"]


def test_an_index_that_points_at_another_candidate_is_named_by_its_key():
    full = stored()
    audit = audit_transitions(policy, replace(full, keys=[row[::-1] for row in full.keys]))
    assert "G5 key" in broken(audit)


def test_an_index_outside_its_set_is_named():
    index = np.array(stored().index)
    index[3] = COUNT[3]
    audit = audit_transitions(policy, replace(stored(key=None), index=index))
    assert {"G1 valid share", "G5 support"} <= set(broken(audit))
    assert audit.valid_share < 1


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.5])
def test_a_log_prob_that_is_none_is_not_valid(value: float):
    full = stored()
    log_prob = np.array(full.log_prob)
    log_prob[9] = value
    audit = audit_transitions(policy, replace(full, log_prob=log_prob))
    assert broken(audit) == ["G1 valid share"]
    assert audit.first is not None
    assert audit.first.row == 9
    assert audit.fault == "log-prob is none"
    json.dumps(audit.to_json(), allow_nan=False)


def test_a_policy_that_answers_with_no_number_at_all_is_named():
    audit = audit_transitions(lambda batch: np.full(batch.mask.shape, np.nan), stored())
    assert audit.fault == "nothing can be replayed"
    assert audit.valid_share == 0
    json.dumps(audit.to_json(), allow_nan=False)


def test_an_observation_that_changed_is_named_though_log_probs_agree():
    full = stored(fingerprint=fingerprints(np.ones((N, 1)), mask=MASK, candidates=ROWS))
    audit = audit_transitions(policy, full)
    assert broken(audit) == ["G5 observation"]
    assert audit.fault == "observation changed"
    assert audit.first is not None
    assert audit.first.observation == "CHANGED"


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_])
def test_a_mask_has_one_fingerprint_whatever_numbers_it_is_written_in(kind: type):
    made = fingerprints(np.zeros((N, 1)), mask=MASK.astype(kind), candidates=ROWS)
    assert audit_transitions(policy, stored(fingerprint=made)).ok
    counted = fingerprints(np.zeros((N, 1)), count=COUNT, candidates=ROWS)
    assert counted.tolist() == made.tolist()


def test_rows_that_were_padded_since_keep_their_fingerprints():
    rows = [
        {"obs": [0.5], "candidates": ROWS[row, : COUNT[row]].tolist(), "index": 0, "log_prob": -1.0}
        for row in range(4)
    ]
    rows = [
        row
        | {
            "fingerprint": fingerprints(
                np.array([row["obs"]], dtype=np.float32),
                count=[len(row["candidates"])],
                candidates=np.array([row["candidates"]], dtype=np.float32),
            ).item()
        }
        for row in rows
    ]
    audit = audit_transitions(policy, Transitions.from_rows(json.loads(json.dumps(rows))))
    assert "G5 observation" not in broken(audit)
    rows[2]["candidates"][1][0] += 0.1
    audit = audit_transitions(policy, Transitions.from_rows(rows))
    assert "G5 observation" in broken(audit)


def test_a_mask_that_changed_since_is_named():
    other = MASK.copy()
    other[5, 0] = False
    made = fingerprints(np.zeros((N, 1)), mask=other, candidates=ROWS)
    assert "G5 observation" in broken(audit_transitions(policy, stored(fingerprint=made)))


def test_a_fingerprint_of_observations_alone_is_refused():
    with pytest.raises(ValueError, match="a mask, or candidates with count"):
        fingerprints(np.zeros((N, 1)))


def test_gates_without_their_columns_are_left_open():
    bare = replace(stored(), time=None, policy_version=None, key=None, keys=None, fingerprint=None)
    audit = audit_transitions(policy, bare)
    assert audit.ok
    open_gates = [check.name for check in audit.checks if check.ok is None]
    assert open_gates == ["order", "policy version", "key", "observation"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": None}, "a mask, or candidates with count"),
        ({"log_prob": np.zeros((N, 1))}, r"log_prob must have one entry .* shape \(64, 1\)"),
        ({"index": np.zeros(3)}, "one row for each transition, got 3, 64 and 64"),
    ],
)
def test_transitions_that_cannot_be_compared_are_refused(changes, message: str):
    with pytest.raises(ValueError, match=message):
        audit_transitions(policy, stored(**changes))


def test_a_policy_that_answers_in_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"policy must give log-probs of shape \(64, 6\)"):
        audit_transitions(lambda batch: policy(batch)[:, :2], stored())


def test_rows_that_lack_what_others_have_are_refused():
    with pytest.raises(ValueError, match="every row must have 'agent'"):
        Transitions.from_rows([{"obs": [0], "agent": 1}, {"obs": [0]}])
    with pytest.raises(ValueError, match="at least one transition"):
        Transitions.from_rows([])
