import math

import pytest
import torch

from lockstep.core.actions import Candidates, Categorical as CategoricalPart, Picks
from lockstep.core.distributions import Beta, Categorical, Exploration, Joint
from lockstep.core.picks import PickSequence, PickSet, choice
from lockstep.core.streams import Streams, lane_keys

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0]])  # stop and three rows


def options(**changes) -> PickSet:
    plain = {"legal": torch.ones(1, 4, dtype=torch.bool), "picks": 2}
    return PickSet(**(plain | changes))


def weights(*entries: int) -> torch.Tensor:
    return LOGITS[0, list(entries)].exp().sum()


def test_a_turn_is_a_product_of_softmaxes_over_what_is_left():
    x = torch.tensor([[3, 1]])
    expected = (3 - weights(0, 1, 2, 3).log()) + (1 - weights(0, 1, 2).log())
    torch.testing.assert_close(PickSequence(LOGITS, options()).log_prob(x)[0], expected)


def test_a_stop_is_a_factor_and_nothing_follows_it():
    part = PickSequence(LOGITS, options(picks=3))
    one_pick = part.log_prob(torch.tensor([[3, 0, 0]]))[0]
    expected = (3 - weights(0, 1, 2, 3).log()) + (0 - weights(0, 1, 2).log())
    torch.testing.assert_close(one_pick, expected)
    assert part.log_prob(torch.tensor([[3, 0, 1]])).isneginf().all()


def test_after_the_last_possible_pick_there_is_no_stop_to_choose():
    one = PickSequence(LOGITS, options(picks=1))
    torch.testing.assert_close(one.log_prob(torch.tensor([[2]]))[0], 2 - weights(0, 1, 2, 3).log())


def test_entropies_of_the_visited_sets_add_up_and_depend_on_the_action():
    part = PickSequence(torch.zeros(1, 4), options())
    for x, sets in (([1, 2], (4, 3)), ([0, 0], (4, 1))):
        _, entropy = part.log_prob_and_entropy(torch.tensor([x]))
        assert entropy.item() == pytest.approx(sum(math.log(n) for n in sets), abs=1e-6)


def test_the_mean_of_visited_entropies_is_the_entropy_of_the_sequence():
    resource = torch.tensor([[[0], [0], [1]]])
    pairs = [(i, j) for i in range(4) for j in range(4)]
    x = torch.tensor(pairs)
    many = PickSet(
        legal=torch.ones(16, 4, dtype=torch.bool), picks=2, resource=resource.expand(16, 3, 1)
    )
    log_prob, visited = PickSequence(LOGITS.expand(16, 4), many).log_prob_and_entropy(x)
    possible = log_prob.isfinite()
    p = log_prob[possible].exp()
    torch.testing.assert_close(
        (p * visited[possible]).sum(), -(p * log_prob[possible]).sum(), atol=1e-5, rtol=0.0
    )


def test_the_mode_takes_the_best_row_that_earlier_picks_left():
    resource = torch.tensor([[[5, -1], [6, 7], [7, -1]]])  # rows 2 and 3 share resource 7
    part = PickSequence(LOGITS, options(picks=3, resource=resource))
    assert part.mode().tolist() == [[3, 1, 0]]


def test_a_row_without_resources_conflicts_with_nothing():
    resource = torch.full((1, 3, 2), -1)
    part = PickSequence(LOGITS, options(picks=3, resource=resource))
    assert part.mode().tolist() == [[3, 2, 1]]


def test_a_row_is_open_while_what_is_left_pays_it_to_the_last_cent():
    cost = torch.tensor([[1.0, 2.0, 3.0]])
    exact = options(picks=3, cost=cost, budget=torch.tensor([4.0]))
    assert PickSequence(LOGITS, exact).mode().tolist() == [[3, 1, 0]]  # 3 then 1; 2 is too dear
    poor = options(cost=cost, budget=torch.tensor([0.5]))
    assert PickSequence(LOGITS, poor).choices().tolist() == [1]
    assert not poor.supports(torch.tensor([[1, 0]])).any()


def test_an_extra_beside_the_stop_can_be_picked_once_and_occupies_nothing():
    options_ = options(extras=2, picks=3, resource=torch.zeros(1, 2, 1, dtype=torch.int64))
    assert options_.supports(torch.tensor([[1, 3, 0]])).all()
    assert not options_.supports(torch.tensor([[1, 1, 0]])).any()
    assert not options_.supports(torch.tensor([[2, 3, 0]])).any()


@pytest.mark.parametrize("x", [[1, 1], [0, 1], [4, 0], [-1, 0]])
def test_twice_the_same_row_a_pick_after_a_stop_and_an_index_out_of_range_are_no_turns(x):
    assert not options().supports(torch.tensor([x])).any()


def test_samples_follow_the_probabilities():
    lanes = 20_000
    part = PickSequence(
        LOGITS.expand(lanes, 4),
        PickSet(legal=torch.ones(lanes, 4, dtype=torch.bool), picks=2),
    )
    x = part.sample(Streams(lane_keys([0], lanes=lanes)).draw("x"))
    for turn in ([3, 2], [3, 0], [0, 0], [1, 3]):
        share = (x == torch.tensor(turn)).all(dim=-1).float().mean().item()
        expected = part.log_prob(torch.tensor(turn).expand(lanes, 2))[0].exp().item()
        assert share == pytest.approx(expected, abs=4 * math.sqrt(expected / lanes))


def test_divergence_along_the_likely_picks_is_zero_to_itself_and_positive_to_another():
    part, other = (PickSequence(x, options()) for x in (LOGITS, LOGITS.flip(-1)))
    assert part.kl(part).item() == 0.0
    assert part.kl(other).item() > 0.5


def test_half_precision_scores_are_computed_in_float32():
    part = PickSequence(LOGITS.bfloat16(), options())
    log_prob, entropy = part.log_prob_and_entropy(part.mode())
    assert log_prob.dtype == entropy.dtype == torch.float32


def test_choices_and_shares_count_legal_entries():
    legal = torch.tensor([[True, True, False, True]])
    part = PickSequence(torch.zeros(1, 4), options(legal=legal))
    assert part.choices().tolist() == [3]
    assert part.entropy_share().item() == pytest.approx(1.0)
    x = torch.tensor([[1, 0]])
    assert part.most_entropy(x).item() == pytest.approx(math.log(3) + math.log(2))
    torch.testing.assert_close(part.log_prob_and_entropy(x)[1], part.most_entropy(x))


def test_the_joint_adds_up_what_its_choices_could_have_at_most():
    legal = torch.tensor([[True, True, False, True]])
    both = Joint(
        {
            "turn": PickSequence(torch.zeros(1, 4), options()),
            "one": Categorical(torch.zeros(1, 4), legal),
            "share": Beta(torch.ones(1, 2), torch.ones(1, 2)),
        }
    )
    x = {"turn": torch.tensor([[2, 0]]), "one": torch.tensor([0]), "share": torch.ones(1, 2) / 2}
    expected = math.log(4) + math.log(3) + math.log(3)
    assert both.most_entropy(x).item() == pytest.approx(expected, abs=1e-6)


def test_a_temperature_divides_scores_and_chance_is_mixed_in():
    legal = torch.tensor([[True, True, False, True]])
    plain = Categorical(LOGITS / 2, legal)
    hot = Categorical(LOGITS, legal, Exploration(temperature=2.0))
    torch.testing.assert_close(hot.log_p, plain.log_p)
    mixed = Categorical(LOGITS, legal, Exploration(temperature=2.0, epsilon=0.3))
    expected = 0.7 * plain.log_p.exp() + 0.3 * legal / 3
    torch.testing.assert_close(mixed.log_p.exp(), expected)
    assert mixed.mode().tolist() == plain.mode().tolist()


def test_each_discrete_part_gets_its_law():
    logits, legal = torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool)
    turn = choice(Picks(max=2, over="row", width=3), logits, legal, {})
    one = choice(Candidates(max=4, over="row"), logits, legal, {})
    plain = choice(CategoricalPart(n=4), logits, None, {})
    assert isinstance(turn, PickSequence)
    assert isinstance(one, Categorical)
    assert isinstance(plain, Categorical)
    with pytest.raises(ValueError, match="Picks over row need their legal entries"):
        choice(Picks(max=2, over="row", width=3), logits, None, {})


def test_impossible_parts_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="max of Picks must be at least 1, got 0"):
        Picks(max=0, over="row", width=3)
    with pytest.raises(ValueError, match="width of Picks must be at least 1, got 0"):
        Picks(max=1, over="row", width=0)
    with pytest.raises(ValueError, match=r"extra of Picks must begin with 'stop', got \('skip',\)"):
        Picks(max=1, over="row", width=3, extra=("skip",))
