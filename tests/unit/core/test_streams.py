from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from lockstep.core.streams import Draw, Streams, lane_keys

N = 60_000  # numbers per distribution test; fixed seeds, so nothing here is flaky
CHANCE = 1e-3  # smallest p-value let through; over 60 seeds the p-values are uniform
ALPHAS = (1.0001, 1.69, 5.0, 100.0)


def streams(*, lanes: int, seed: int = 0) -> Streams:
    return Streams(lane_keys([seed], lanes=lanes))


def one_draw(purpose: str = "test") -> Draw:
    return streams(lanes=20).draw(purpose)


def p_value(sample: Tensor, cdf: Callable[..., object]) -> float:
    return float(stats.kstest(sample.double().flatten().numpy(), cdf).pvalue)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


def every_kind(draw: Draw) -> list[Tensor]:
    """Each kind of number once, with parameters that depend on the lane-independent index only."""
    lanes = draw.uniform().shape[0]
    alpha = torch.linspace(1.0, 30.0, 77).expand(lanes, 77)
    return [
        draw.uniform(3, 5),
        draw.normal(41),
        draw.integers(10, 7),
        draw.gamma(alpha),
        draw.beta(alpha, alpha.flip(-1)),
        draw.normal(),
    ]


def test_uniform_numbers_are_uniform() -> None:
    x = one_draw().uniform(N // 20).double()
    assert abs(float(x.mean()) - 1 / 2) < 4 * (1 / 12 / N) ** 0.5
    assert abs(float(x.var()) - 1 / 12) < 4 * (1 / 180 / N) ** 0.5
    assert p_value(x, stats.uniform.cdf) > CHANCE


def test_normal_numbers_are_normal() -> None:
    x = one_draw().normal(N // 20)
    assert p_value(x, stats.norm.cdf) > CHANCE
    assert abs(float(stats.kurtosis(x.double().flatten().numpy()))) < 4 * (24 / N) ** 0.5


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gamma_numbers_follow_the_gamma_law(alpha: float) -> None:
    x = one_draw().gamma(torch.full((20, N // 20), alpha))
    assert p_value(x, stats.gamma(alpha).cdf) > CHANCE


@pytest.mark.parametrize(
    ("alpha", "beta"),
    [*zip(ALPHAS, ALPHAS, strict=True), (1.0001, 5.0), (100.0, 1.69), (5.0, 100.0)],
)
def test_beta_numbers_follow_the_beta_law(alpha: float, beta: float) -> None:
    x = one_draw().beta(torch.full((20, N // 20), alpha), torch.full((20, N // 20), beta))
    assert p_value(x, stats.beta(alpha, beta).cdf) > CHANCE


def test_mixed_parameters_each_follow_their_own_law() -> None:
    alpha = torch.tensor(ALPHAS).repeat(20, N // 20)  # [20, 4 * N / 20]
    x = one_draw().gamma(alpha)
    assert all(p_value(x[alpha == a], stats.gamma(a).cdf) > CHANCE for a in alpha.unique().tolist())


def test_integers_hit_every_value_equally_often() -> None:
    x = one_draw().integers(7, N // 20)
    assert stats.chisquare(torch.bincount(x.flatten(), minlength=7).numpy()).pvalue > CHANCE


@pytest.mark.parametrize("high", [0, -1, 2**31 + 1])
def test_an_impossible_range_of_integers_is_refused(high: int) -> None:
    with pytest.raises(ValueError, match=r"high must be in 1\.\.2\^31"):
        one_draw().integers(high)


def test_uniform_numbers_never_touch_zero_or_one() -> None:
    x = streams(lanes=64).draw("edge").uniform(2**15)  # 2^21 numbers from 2^23 cells
    assert float(x.min()) > 0.0
    assert float(x.max()) < 1.0


def test_neighbours_in_any_direction_are_uncorrelated() -> None:
    def block(*, seed: int = 0, ticks: int = 0, purpose: str = "a") -> Tensor:
        source = streams(lanes=100, seed=seed)
        for _ in range(ticks):
            source.tick()
        return source.draw(purpose).uniform(1000)  # [100, 1000]

    x = block()
    pairs = {
        "lanes": (x[:-1], x[1:]),
        "indices": (x[:, :-1], x[:, 1:]),
        "steps": (x, block(ticks=1)),
        "purposes": (x, block(purpose="b")),
        "seeds": (x, block(seed=1)),
        "a lane's next step and the next lane": (x[1:], block(ticks=1)[:-1]),
    }
    assert {name: correlation(*pair) for name, pair in pairs.items()} == {
        name: pytest.approx(0.0, abs=4 / 100_000**0.5) for name in pairs
    }


def test_no_two_numbers_share_a_counter() -> None:
    source = streams(lanes=50)
    blocks = []
    for _ in range(5):
        for purpose in ("a", "b", "c"):
            draw = source.draw(purpose)
            blocks += [draw.uniform(20), draw.uniform(20)]
        source.tick()
    numbers = torch.stack(blocks).flatten()
    # 23-bit numbers repeat by chance, n^2 / 2^24 of them; a shared counter would add thousands.
    n = numbers.numel()
    assert n - numbers.unique().numel() < 1.3 * n**2 / 2**24


def test_a_refused_gamma_proposal_is_not_replaced_by_its_neighbours() -> None:
    x = one_draw().gamma(torch.full((20, N // 20), 1.0001))  # 5 % refused at first
    assert int((x[:, 1:] == x[:, :-1]).sum()) < 5


@pytest.mark.parametrize("lanes", [2, 7, 64])
def test_a_lane_draws_the_same_bits_alone_and_in_company(lanes: int) -> None:
    company = every_kind(streams(lanes=lanes).draw("x"))
    for lane in (0, lanes - 1):
        alone = every_kind(Streams(lane_keys([0], lanes=lanes)[lane : lane + 1]).draw("x"))
        for one, many in zip(alone, company, strict=True):
            assert torch.equal(one[0], many[lane])


def test_members_of_a_pack_keep_the_keys_they_have_alone() -> None:
    pack = lane_keys([3, 8], lanes=4)
    assert torch.equal(pack, torch.cat((lane_keys([3], lanes=4), lane_keys([8], lanes=4))))
    assert pack.unique().numel() == 8


def test_the_shape_of_a_call_does_not_change_its_numbers() -> None:
    assert torch.equal(one_draw().uniform(12), one_draw().uniform(3, 4).flatten(1))
    assert torch.equal(one_draw().uniform(1).squeeze(-1), one_draw().uniform())
    assert one_draw().normal(0, 3).shape == (20, 0, 3)


def test_calls_continue_where_the_last_one_stopped() -> None:
    draw = one_draw()
    parts = [draw.uniform(5), draw.uniform(), draw.uniform(4)]
    whole = one_draw().uniform(10)
    assert torch.equal(torch.cat((parts[0], parts[1].unsqueeze(-1), parts[2]), dim=-1), whole)


def test_refused_proposals_are_redrawn_alike_in_a_graph_and_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eager = every_kind(one_draw())
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for a, b in zip(eager, every_kind(one_draw()), strict=True):
        assert torch.equal(a, b)


def test_float64_parameters_promote_the_same_numbers() -> None:
    alpha = torch.linspace(1.0, 20.0, 50).expand(20, 50)
    wide = one_draw().beta(alpha.double(), alpha.double())
    assert wide.dtype == torch.float64
    assert torch.allclose(wide, one_draw().beta(alpha, alpha).double(), atol=1e-5)


def test_no_global_generator_is_touched() -> None:
    before = torch.get_rng_state()
    every_kind(one_draw())
    assert torch.equal(torch.get_rng_state(), before)


def test_saved_streams_continue_exactly() -> None:
    source = streams(lanes=3, seed=5)
    source.tick()
    saved = source.state_dict()
    source.tick()
    expected = source.draw("x").uniform(4)

    resumed = streams(lanes=3, seed=99)
    resumed.load_state_dict(saved)
    resumed.tick()
    assert torch.equal(resumed.draw("x").uniform(4), expected)
    assert int(saved["step"][0]) == 1  # the saved state is a copy


def test_streams_of_another_number_of_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match="saved streams have 1 lanes, these have 3"):
        streams(lanes=3).load_state_dict(streams(lanes=1).state_dict())
