"""Estimators against slow, obvious loops over one lane, for any pattern of ends and decisions."""

from dataclasses import dataclass

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from lockstep.core.returns import gae, judged, vtrace

numbers = st.floats(-10.0, 10.0, allow_nan=False, width=32)
shares = st.floats(0.0, 1.0)


@dataclass(frozen=True)
class Row:
    """One transition of one lane, as plain numbers."""

    reward: float
    value: float
    next_value: float
    terminated: bool
    truncated: bool
    elapsed: float
    acts: bool
    log_ratio: float

    @property
    def ends(self) -> bool:
        return self.terminated or self.truncated


rows = st.builds(
    Row,
    reward=numbers,
    value=numbers,
    next_value=numbers,
    terminated=st.booleans(),
    truncated=st.booleans(),
    elapsed=st.floats(0.0, 3.0),
    acts=st.booleans(),
    log_ratio=st.floats(-2.0, 2.0),
)
rare_ends = st.builds(
    lambda row, ends: (
        row if ends else Row(**{**vars(row), "terminated": False, "truncated": False})
    ),
    rows,
    st.sampled_from([False, False, True]),
)
lanes = st.lists(rare_ends, min_size=1, max_size=12)


def stacked(lane: list[Row], name: str) -> Tensor:
    """One field of the lane beside a copy of it run backwards: `[T, 2]`."""
    forth = [getattr(row, name) for row in lane]
    dtype = torch.bool if isinstance(forth[0], bool) else torch.float64
    return torch.tensor([forth, forth[::-1]], dtype=dtype).t()


def stacked_transitions(lane: list[Row]) -> list[Tensor]:
    names = ("reward", "value", "next_value", "terminated", "truncated")
    return [stacked(lane, name) for name in names]


def textbook_gae(lane: list[Row], gamma: float, lam: float) -> list[float]:
    """Sums (gamma lam)^k delta over the rows that follow in the same episode."""
    out = []
    for start in range(len(lane)):
        total, weight = 0.0, 1.0
        for row in lane[start:]:
            bootstrap = 0.0 if row.terminated else row.next_value
            total += weight * (row.reward + gamma * bootstrap - row.value)
            weight *= gamma * lam
            if row.ends:
                break
        out.append(total)
    return out


def semi_markov_returns(lane: list[Row], gamma: float, lam: float) -> list[float]:
    """Follows each row forward to the next decision, an end or the last row; then recurs."""

    def earned(start: int) -> float:
        gained, discount = 0.0, 1.0
        for t in range(start, len(lane)):
            row = lane[t]
            gained += discount * row.reward
            discount *= gamma**row.elapsed
            if row.terminated:
                return gained
            gained_with_value = gained + discount * row.next_value
            if row.truncated or t + 1 == len(lane):
                return gained_with_value
            if lane[t + 1].acts:
                return gained_with_value + discount * lam * (earned(t + 1) - lane[t + 1].value)
        raise AssertionError

    return [earned(t) for t in range(len(lane))]


def slow_vtrace(
    lane: list[Row], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> tuple[list[float], list[float]]:
    """The sums of Espeholt et al. 2018, eq. 1, and the advantage from the target one row on."""

    def ratio(row: Row, bar: float) -> float:
        return min(bar, float(torch.tensor(row.log_ratio, dtype=torch.float64).exp()))

    def delta(row: Row) -> float:
        return row.reward + gamma * (0.0 if row.terminated else row.next_value) - row.value

    correction = []
    for start in range(len(lane)):
        total, weight = 0.0, 1.0
        for row in lane[start:]:
            total += weight * ratio(row, rho_bar) * delta(row)
            weight *= gamma * lam * ratio(row, c_bar)
            if row.ends:
                break
        correction.append(total)
    advantage = []
    for t, row in enumerate(lane):
        goes_on = not row.ends and t + 1 < len(lane)
        later = gamma * lam * correction[t + 1] if goes_on else 0.0
        advantage.append(ratio(row, rho_bar) * (delta(row) + later))
    return [row.value + c for row, c in zip(lane, correction, strict=True)], advantage


def both_ways(lane: list[Row]) -> tuple[list[Row], list[Row]]:
    return lane, lane[::-1]


@given(lane=lanes, gamma=shares, lam=shares)
def test_gae_equals_the_textbook_sum(lane: list[Row], gamma: float, lam: float) -> None:
    got = gae(*stacked_transitions(lane), gamma=gamma, lam=lam).advantage
    for column, one in zip(got.unbind(dim=1), both_ways(lane), strict=True):
        expected = torch.tensor(textbook_gae(one, gamma, lam), dtype=torch.float64)
        torch.testing.assert_close(column, expected, atol=1e-9, rtol=1e-9)


@given(lane=lanes, gamma=shares, lam=shares)
def test_semi_markov_gae_equals_following_each_row(
    lane: list[Row], gamma: float, lam: float
) -> None:
    got = gae(
        *stacked_transitions(lane),
        gamma=gamma,
        lam=lam,
        elapsed=stacked(lane, "elapsed"),
        acts=stacked(lane, "acts"),
    )
    for i, one in enumerate(both_ways(lane)):
        target = torch.tensor(semi_markov_returns(one, gamma, lam), dtype=torch.float64)
        torch.testing.assert_close(got.target[:, i], target, atol=1e-9, rtol=1e-9)
        value = torch.tensor([row.value for row in one], dtype=torch.float64)
        acts = torch.tensor([row.acts for row in one])
        advantage = torch.where(acts, target - value, 0.0)
        torch.testing.assert_close(got.advantage[:, i], advantage, atol=1e-9, rtol=1e-9)


@given(lane=lanes)
def test_a_critic_learns_where_a_decision_has_been_made_in_the_episode(lane: list[Row]) -> None:
    got = judged(stacked(lane, "acts"), stacked(lane, "terminated"), stacked(lane, "truncated"))
    for i, one in enumerate(both_ways(lane)):
        expected, decided = [], False
        for row in one:
            decided = decided or row.acts
            expected.append(decided)
            decided = decided and not row.ends
        assert got[:, i].tolist() == expected


@given(lane=lanes, gamma=shares, lam=shares, rho_bar=st.floats(0.1, 3.0), c_bar=st.floats(0.1, 3.0))
def test_vtrace_equals_the_sums_of_the_paper(
    lane: list[Row], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    got = vtrace(
        stacked(lane, "log_ratio"),
        *stacked_transitions(lane),
        gamma=gamma,
        lam=lam,
        rho_bar=rho_bar,
        c_bar=c_bar,
    )
    for i, one in enumerate(both_ways(lane)):
        target, advantage = slow_vtrace(one, gamma, lam, rho_bar, c_bar)
        for ours, slow in ((got.target, target), (got.advantage, advantage)):
            expected = torch.tensor(slow, dtype=torch.float64)
            torch.testing.assert_close(ours[:, i], expected, atol=1e-9, rtol=1e-9)


@given(lane=lanes, gamma=shares, lam=shares)
def test_vtrace_on_its_own_policy_is_gae(lane: list[Row], gamma: float, lam: float) -> None:
    transitions = stacked_transitions(lane)
    target, advantage = gae(*transitions, gamma=gamma, lam=lam)
    got = vtrace(torch.zeros_like(advantage), *transitions, gamma=gamma, lam=lam)
    torch.testing.assert_close(got.advantage, advantage)
    torch.testing.assert_close(got.target, target)
