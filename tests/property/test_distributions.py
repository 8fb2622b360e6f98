"""Laws of the distributions that hold for any parameters."""

import torch
from hypothesis import given, strategies as st
from torch import Tensor

from lockstep.core.distributions import Beta, Categorical
from lockstep.core.streams import Streams, lane_keys

seeds = st.integers(0, 2**31)


def candidates(seed: int, *, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Scores of `rows` candidate sets of up to `width`, and which of them exist."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3.0 * torch.randn(rows, width, generator=generator)
    count = torch.randint(1, width + 1, (rows, 1), generator=generator)
    return logits, torch.arange(width) < count


@given(seed=seeds, width=st.integers(1, 12), padding=st.integers(0, 40))
def test_padding_width_does_not_change_a_candidate_set(seed: int, width: int, padding: int) -> None:
    logits, exists = candidates(seed, rows=5, width=width)
    garbage = torch.full((5, padding), 1e9)
    narrow = Categorical(logits, exists)
    wide = Categorical(
        torch.cat((logits, garbage), dim=-1),
        torch.cat((exists, torch.zeros(5, padding, dtype=torch.bool)), dim=-1),
    )
    x = narrow.mode()
    assert torch.equal(wide.mode(), x)
    torch.testing.assert_close(wide.log_prob(x), narrow.log_prob(x), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(wide.entropy(), narrow.entropy(), atol=2e-6, rtol=0.0)
    torch.testing.assert_close(wide.entropy_share(), narrow.entropy_share(), atol=2e-6, rtol=0.0)


@given(seed=seeds, width=st.integers(1, 12), row=st.integers(0, 4))
def test_company_does_not_change_a_log_prob(seed: int, width: int, row: int) -> None:
    logits, exists = candidates(seed, rows=5, width=width)
    together, alone = Categorical(logits, exists), Categorical(logits[row], exists[row])
    x = together.mode()
    assert torch.equal(together.log_prob(x)[row], alone.log_prob(x[row]))


@given(seed=seeds, width=st.integers(1, 12))
def test_permuting_candidates_permutes_probabilities(seed: int, width: int) -> None:
    logits, exists = candidates(seed, rows=5, width=width)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    plain, shuffled = Categorical(logits, exists), Categorical(logits[:, order], exists[:, order])
    torch.testing.assert_close(shuffled.log_p, plain.log_p[:, order], atol=1e-6, rtol=0.0)
    torch.testing.assert_close(shuffled.entropy(), plain.entropy(), atol=2e-6, rtol=0.0)


@given(seed=seeds, width=st.integers(1, 30))
def test_only_legal_choices_are_drawn(seed: int, width: int) -> None:
    logits, exists = candidates(seed, rows=50, width=width)
    draw = Streams(lane_keys([seed], lanes=50)).draw("choice")
    x = Categorical(torch.where(exists, logits, 1e9), exists).sample(draw)
    assert exists.gather(-1, x.unsqueeze(-1)).all()


@given(seed=seeds)
def test_probabilities_of_the_legal_choices_sum_to_one(seed: int) -> None:
    part = Categorical(*candidates(seed, rows=20, width=9))
    torch.testing.assert_close(part.log_p.exp().sum(dim=-1), torch.ones(20))
    assert (part.entropy_share() <= 1.0 + 1e-6).all()
    assert (part.entropy_share() >= 0.0).all()


@given(seed=seeds, scale=st.floats(0.0, 4.0))
def test_beta_density_is_finite_and_divergence_never_negative(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    params = 1.0 + torch.rand(4, 8, 3, generator=generator, dtype=torch.float64) * 10.0**scale
    p, q = Beta(params[0], params[1]), Beta(params[2], params[3])
    x = p.sample(Streams(lane_keys([seed], lanes=8)).draw("x"))
    log_prob, entropy = p.log_prob_and_entropy(x)
    assert log_prob.isfinite().all()
    assert (entropy <= 1e-9).all()  # the uniform law has the most entropy in (0, 1): none
    assert (p.kl(q) >= -1e-6).all()
