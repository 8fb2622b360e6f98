"""Laws of several picks in one turn, against a version that is slow and obvious."""

import math
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from lockstep.core.actions import Picks
from lockstep.core.distributions import Exploration, Joint
from lockstep.core.picks import PickSequence, PickSet, choice
from lockstep.core.streams import Draw, Streams, lane_keys

seeds = st.integers(0, 2**31)
EXPLORE = Exploration(temperature=1.7, epsilon=0.15)
LANES = 6


def case(seed: int, *, width: int = 4, picks: int = 3, extras: int = 1, money: bool = True):
    """Scores and choice sets for LANES x 2 agents; ids collide, some rows do not exist."""
    g = torch.Generator().manual_seed(seed)
    n = extras + width
    legal = torch.rand(LANES, 2, n, generator=g) < 0.8
    legal[..., 0] = True
    options = PickSet(
        legal=legal,
        picks=picks,
        extras=extras,
        resource=torch.randint(-1, 4, (LANES, 2, width, 2), generator=g),
        cost=torch.rand(LANES, 2, width, generator=g) if money else None,
        budget=2 * torch.rand(LANES, 2, generator=g) if money else None,
    )
    return 2.0 * torch.randn(LANES, 2, n, generator=g), options


def draw(seed: int) -> Draw:
    return Streams(lane_keys([seed], lanes=LANES)).draw("picks")


class Slow:
    """One agent's turn with Python lists, written from the rules."""

    def __init__(self, logits: Tensor, options: PickSet, at: tuple[int, int], explore: Exploration):
        self.logits, self.explore = logits[at].tolist(), explore
        self.legal, self.options = options.legal[at].tolist(), options
        self.resource = [set(row) - {-1} for row in options.resource[at].tolist()]
        self.money = options.cost is not None
        if self.money:
            self.cost, self.budget = options.cost[at], options.budget[at]

    def open(self, picked: list[int]) -> list[int]:
        if 0 in picked:
            return [0]
        extras = self.options.extras
        rows = [i - extras for i in picked if i >= extras]
        occupied = set().union(*(self.resource[row] for row in rows))
        found = [0]
        for i in range(1, len(self.legal)):
            row = i - extras
            if not self.legal[i] or i in picked:
                continue
            if row >= 0 and self.resource[row] & occupied:
                continue
            if row >= 0 and self.money:
                funds = self.budget.clone()
                for earlier in rows:
                    funds -= self.cost[earlier]
                if self.cost[row] > funds:
                    continue
            found.append(i)
        return found

    def law(self, picked: list[int]) -> dict[int, float]:
        entries = self.open(picked)
        weight = {i: math.exp(self.logits[i] / self.explore.temperature) for i in entries}
        total = sum(weight.values())
        share = self.explore.epsilon
        return {i: (1 - share) * w / total + share / len(entries) for i, w in weight.items()}

    def log_prob_and_entropy(self, x: list[int]) -> tuple[float, float]:
        log_prob = entropy = 0.0
        for j, index in enumerate(x):
            law = self.law(x[:j])
            if index not in law:
                return -math.inf, math.nan
            log_prob += math.log(law[index])
            entropy -= sum(p * math.log(p) for p in law.values())
        return log_prob, entropy

    def sequences(self, picked: list[int] | None = None) -> Iterator[list[int]]:
        picked = picked or []
        if len(picked) == self.options.picks:
            yield picked
            return
        for index in self.open(picked):
            yield from self.sequences([*picked, index])


agents = list(product(range(LANES), range(2)))


@settings(max_examples=40)
@given(seed=seeds, extras=st.integers(1, 2), money=st.booleans(), explore=st.booleans())
def test_log_prob_and_entropy_are_those_of_the_rules_written_out(seed, extras, money, explore):
    law = EXPLORE if explore else Exploration()
    logits, options = case(seed, extras=extras, money=money)
    part = PickSequence(logits, options, law)
    x = part.sample(draw(seed))
    log_prob, entropy = part.log_prob_and_entropy(x)
    for at in agents:
        expected = Slow(logits, options, at, law).log_prob_and_entropy(x[at].tolist())
        assert log_prob[at].item() == pytest.approx(expected[0], abs=1e-5)
        assert entropy[at].item() == pytest.approx(expected[1], abs=1e-5)


@settings(max_examples=15)
@given(seed=seeds, explore=st.booleans())
def test_probabilities_of_all_sequences_sum_to_one_and_nothing_else_has_any(seed, explore):
    law = EXPLORE if explore else Exploration()
    logits, options = case(seed)
    slow = Slow(logits, options, (0, 0), law)
    allowed = {tuple(x) for x in slow.sequences()}
    every = list(product(range(5), repeat=3))
    x = torch.tensor(every).unsqueeze(0)  # [1, 125, 3]
    one = PickSet(
        legal=options.legal[:1, :1].expand(1, 125, -1),
        picks=3,
        resource=options.resource[:1, :1].expand(1, 125, -1, -1),
        cost=options.cost[:1, :1].expand(1, 125, -1),
        budget=options.budget[:1, :1].expand(1, 125),
    )
    log_prob = PickSequence(logits[:1, :1].expand(1, 125, -1), one, law).log_prob(x)
    assert log_prob.double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert {every[i] for i in log_prob[0].isfinite().nonzero().flatten().tolist()} == allowed
    assert torch.equal(one.supports(x), log_prob.isfinite())


@settings(max_examples=30)
@given(seed=seeds)
def test_permuting_candidates_permutes_log_probs(seed):
    logits, options = case(seed, width=9)
    part = PickSequence(logits, options)
    x = part.sample(draw(seed))
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    where = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + order.argsort()))
    entries = torch.cat((torch.zeros(1, dtype=torch.int64), 1 + order))
    moved = PickSequence(
        logits[..., entries],
        PickSet(
            legal=options.legal[..., entries],
            picks=3,
            resource=options.resource[..., order, :],
            cost=options.cost[..., order],
            budget=options.budget,
        ),
    )
    for mine, theirs in zip(
        part.log_prob_and_entropy(x), moved.log_prob_and_entropy(where[x]), strict=True
    ):
        torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=0.0)
    assert torch.equal(moved.mode(), where[part.mode()])


@settings(max_examples=30)
@given(seed=seeds, extras=st.integers(1, 2), greedy=st.booleans())
def test_conflicting_unpayable_or_absent_rows_are_never_picked(seed, extras, greedy):
    logits, options = case(seed, width=12, picks=4, extras=extras)
    logits = torch.where(options.legal, logits, 1e9)
    part = PickSequence(logits, options)
    x = part.mode() if greedy else part.sample(draw(seed))
    assert options.supports(x).all()
    for at in agents:
        slow = Slow(logits, options, at, Exploration())
        picks = x[at].tolist()
        assert all(index in slow.open(picks[:j]) for j, index in enumerate(picks))


@settings(max_examples=30)
@given(seed=seeds, padding=st.integers(1, 40))
def test_padding_and_company_do_not_change_a_log_prob(seed, padding):
    logits, options = case(seed)
    part = PickSequence(logits, options)
    x = part.sample(draw(seed))
    lead = (LANES, 2, padding)
    wide = PickSequence(
        torch.cat((logits, torch.full(lead, 1e9)), dim=-1),
        PickSet(
            legal=torch.cat((options.legal, torch.zeros(lead, dtype=torch.bool)), dim=-1),
            picks=3,
            resource=torch.cat(
                (options.resource, torch.zeros(*lead, 2, dtype=torch.int64)), dim=-2
            ),
            cost=torch.cat((options.cost, torch.zeros(lead)), dim=-1),
            budget=options.budget,
        ),
    )
    alone = PickSequence(
        logits[2:3],
        PickSet(
            legal=options.legal[2:3],
            picks=3,
            resource=options.resource[2:3],
            cost=options.cost[2:3],
            budget=options.budget[2:3],
        ),
    )
    for mine, theirs, own in zip(
        part.log_prob_and_entropy(x),
        wide.log_prob_and_entropy(x),
        alone.log_prob_and_entropy(x[2:3]),
        strict=True,
    ):
        torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=0.0)
        torch.testing.assert_close(own, mine[2:3], atol=1e-6, rtol=0.0)
    assert torch.equal(wide.mode(), part.mode())


@settings(max_examples=20)
@given(seed=seeds)
def test_replay_of_a_stored_turn_is_bit_equal_to_what_acted(seed):
    logits, options = case(seed)
    features = {
        "site/resource": options.resource,
        "site/cost": options.cost,
        "site/budget": options.budget,
    }
    part = Picks(max=3, over="site", width=4)
    acted = Joint({"build": choice(part, logits, options.legal, features)})
    action = acted.sample(draw(seed))
    before = acted.log_prob_and_entropy(action)
    again = Joint({"build": choice(part, logits.clone(), options.legal, features)})
    assert all(map(torch.equal, before, again.log_prob_and_entropy(action)))
    assert torch.equal(acted.sample(draw(seed))["build"], action["build"])


@settings(max_examples=20)
@given(seed=seeds)
def test_a_share_of_chance_leaves_no_legal_pick_impossible_and_keeps_gradients_finite(seed):
    logits, options = case(seed)
    logits = (1e3 * logits).requires_grad_()
    part = PickSequence(logits, options, Exploration(epsilon=0.1))
    x = part.sample(draw(seed))
    log_prob, entropy = part.log_prob_and_entropy(x)
    assert (log_prob >= 3 * math.log(0.1 / 5) - 1e-5).all()
    (gradient,) = torch.autograd.grad((log_prob + entropy).sum(), logits)
    assert gradient.isfinite().all()
