import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributions as reference

from lockstep.core.distributions import (
    Beta,
    Categorical,
    ClippedGaussian,
    Distribution,
    Joint,
    SigmoidGaussian,
)
from lockstep.core.streams import Draw, Streams, lane_keys

L, A, U, C = 4, 3, 5, 6
SIGMOID = [reference.SigmoidTransform()]
INF = math.inf


def draw(*, lanes: int = L, seed: int = 0) -> Draw:
    return Streams(lane_keys([seed], lanes=lanes)).draw("test")


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def beta(seed: int = 1) -> Beta:
    positive = torch.nn.functional.softplus(3.0 * numbers(2, L, A, U, seed=seed)) + 1.0
    return Beta(positive[0], positive[1])


def clipped(seed: int = 1) -> ClippedGaussian:
    return ClippedGaussian(numbers(L, A, U, seed=seed), 0.3 * numbers(U, seed=seed + 50))


def sigmoid(seed: int = 1) -> SigmoidGaussian:
    return SigmoidGaussian(numbers(L, A, U, seed=seed), 0.3 * numbers(U, seed=seed + 50))


def legal() -> Tensor:
    allowed = numbers(L, A, C, seed=9) > -0.3
    return allowed.index_fill(-1, torch.tensor([2]), True)  # every row has a legal choice


def categorical(seed: int = 1) -> Categorical:
    return Categorical(2.0 * numbers(L, A, C, seed=seed), legal())


FAMILIES = [beta, clipped, sigmoid, categorical]


def theirs(part: Distribution) -> reference.Distribution:
    match part:
        case Beta():
            return reference.Beta(part.alpha, part.beta)
        case ClippedGaussian():
            return reference.Normal(part.mean, part.log_std.exp())
        case SigmoidGaussian():
            normal = reference.Normal(part.mean, part.log_std.exp())
            return reference.TransformedDistribution(normal, SIGMOID)
        case Categorical():
            return reference.Categorical(logits=part.log_p.clamp(min=-1e300))
    raise AssertionError(part)


def summed(x: Tensor) -> Tensor:
    return x.sum(dim=-1) if x.ndim == 3 else x


@pytest.mark.parametrize("make", FAMILIES)
def test_log_prob_agrees_with_torch(make: Callable[[], Distribution]) -> None:
    part = make()
    x = part.sample(draw())
    assert part.log_prob(x).shape == (L, A)
    assert torch.allclose(part.log_prob(x), summed(theirs(part).log_prob(x)), atol=1e-9)


@pytest.mark.parametrize("make", FAMILIES)
def test_entropy_agrees_with_torch(make: Callable[[], Distribution]) -> None:
    part = make()
    if isinstance(part, SigmoidGaussian):  # by design that of the normal before squashing
        expected = reference.Normal(part.mean, part.log_std.exp()).entropy()
    else:
        expected = theirs(part).entropy()
    assert torch.allclose(part.entropy(), summed(expected), atol=1e-9)


@pytest.mark.parametrize("make", FAMILIES)
def test_divergence_agrees_with_torch(make: Callable[..., Distribution]) -> None:
    p, q = make(seed=1), make(seed=2)
    expected = summed(reference.kl_divergence(theirs(p), theirs(q)))
    assert torch.allclose(p.kl(q), expected, atol=1e-9)
    assert torch.allclose(p.kl(p), torch.zeros(L, A, dtype=torch.float64), atol=1e-9)


@pytest.mark.parametrize("make", FAMILIES)
def test_the_fused_pair_equals_its_halves(make: Callable[[], Distribution]) -> None:
    part = make()
    x = part.sample(draw())
    log_prob, entropy = part.log_prob_and_entropy(x)
    assert torch.equal(log_prob, part.log_prob(x))
    assert torch.equal(entropy, part.entropy())


@pytest.mark.parametrize("family", [Beta, ClippedGaussian, SigmoidGaussian])
def test_gradients_of_continuous_parts_pass_gradcheck(
    family: Callable[[Tensor, Tensor], Distribution],
) -> None:
    first = (numbers(2, 3).abs() + 1.1).requires_grad_()
    second = (numbers(2, 3, seed=2).abs() + 1.1).requires_grad_()
    other = family(*(numbers(2, 2, 3, seed=4).abs() + 1.1))
    x = family(first, second).sample(draw(lanes=2))

    def everything(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        part = family(a, b)
        return (*part.log_prob_and_entropy(x), part.kl(other), part.mode())

    assert not x.requires_grad
    assert torch.autograd.gradcheck(everything, (first, second))


@pytest.mark.parametrize("shared", [(), (U,), (1, U), (L, 1, U), (L, A, 1)])
@pytest.mark.parametrize("family", [ClippedGaussian, SigmoidGaussian])
def test_a_deviation_that_rows_share_gives_the_numbers_and_gradients_of_each_rows_own(
    family: Callable[[Tensor, Tensor], Distribution], shared: tuple[int, ...]
) -> None:
    mean, log_std = numbers(L, A, U).requires_grad_(), 0.3 * numbers(*shared, seed=2)
    log_std.requires_grad_()
    other = family(numbers(L, A, U, seed=3), 0.3 * numbers(*shared, seed=4))
    x = family(mean, log_std).sample(draw())

    def everything(mean: Tensor, log_std: Tensor) -> tuple[Tensor, ...]:
        part = family(mean, log_std)
        return (*part.log_prob_and_entropy(x), part.kl(other))

    own = everything(mean, log_std.expand(L, A, U).contiguous())
    for together, apart in zip(everything(mean, log_std), own, strict=True):
        assert together.shape == (L, A)
        assert torch.allclose(together, apart, rtol=1e-12)
    assert torch.autograd.gradcheck(everything, (mean, log_std))


def test_gradients_of_a_masked_choice_pass_gradcheck() -> None:
    logits = numbers(L, A, C).requires_grad_()
    other, x = categorical(seed=2), categorical().sample(draw())

    def everything(logits: Tensor) -> tuple[Tensor, ...]:
        part = Categorical(logits, legal())
        return (*part.log_prob_and_entropy(x), part.kl(other), part.entropy_share())

    assert torch.autograd.gradcheck(everything, (logits,))


def test_continuous_samples_have_the_moments_of_their_law() -> None:
    n = 20_000
    part = Beta(torch.full((L, n, 1), 1.69), torch.full((L, n, 1), 4.0))
    assert float(part.sample(draw()).mean()) == pytest.approx(1.69 / 5.69, abs=3e-3)

    mean, log_std = torch.full((L, n, 1), 0.5), torch.tensor(-0.7)
    raw = ClippedGaussian(mean, log_std).sample(draw())
    assert float(raw.mean()) == pytest.approx(0.5, abs=7e-3)
    assert float(raw.std()) == pytest.approx(math.exp(-0.7), abs=7e-3)
    assert float(raw.max()) > 1.0  # it is the world that clamps
    squashed = SigmoidGaussian(mean, log_std).sample(draw())
    assert torch.allclose(squashed, torch.sigmoid(raw))


def test_choices_are_drawn_as_often_as_they_are_probable() -> None:
    n = 40_000
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0]).expand(1, n, 5)
    allowed = torch.tensor([True, True, False, True, True]).expand(1, n, 5)
    part = Categorical(logits, allowed)
    frequency = torch.bincount(part.sample(draw(lanes=1)).flatten(), minlength=5) / n
    assert torch.allclose(frequency, part.log_p[0, 0].exp(), atol=0.01)
    assert float(frequency[2]) == 0.0


@pytest.mark.parametrize("family", [Beta, SigmoidGaussian])
def test_samples_in_the_unit_interval_keep_off_its_edges(
    family: Callable[[Tensor, Tensor], Distribution],
) -> None:
    extreme = family(torch.full((L, A, U), 80.0), torch.full((L, A, U), 1.0))
    huge = Beta(torch.full((L, A, U), 1e8), torch.ones(L, A, U))
    for part in (extreme, huge):
        x = part.sample(draw())
        assert float(x.min()) >= 1e-6
        assert float(x.max()) <= 1.0 - 0.9e-6
        assert part.log_prob(x).isfinite().all()


@pytest.mark.parametrize("family", [Beta, SigmoidGaussian])
@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_log_prob_is_finite_at_the_edges(
    family: Callable[[Tensor, Tensor], Distribution], edge: float
) -> None:
    first = torch.full((L, U), 1.5, requires_grad=True)
    log_prob = family(first, torch.full((L, U), 1.2)).log_prob(torch.full((L, U), edge))
    log_prob.sum().backward()
    assert log_prob.isfinite().all()
    assert first.grad is not None
    assert first.grad.isfinite().all()


def test_the_deterministic_actions_are_mean_mean_squashed_mean_and_best_legal_choice() -> None:
    assert torch.allclose(beta().mode(), theirs(beta()).mean)
    assert torch.equal(clipped().mode(), clipped().mean)
    assert torch.allclose(sigmoid().mode(), torch.sigmoid(sigmoid().mean))
    best = Categorical(torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([[True, False, True]]))
    assert best.mode().tolist() == [2]


def test_an_illegal_choice_has_log_probability_minus_infinity_and_finite_gradients() -> None:
    logits = torch.tensor([[0.3, 5.0, -1.0]], requires_grad=True)
    part = Categorical(logits, torch.tensor([[True, False, True]]))
    assert part.log_prob(torch.tensor([1])).tolist() == [-INF]
    (part.log_prob(torch.tensor([0])) + part.entropy()).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert float(logits.grad[0, 1]) == 0.0


def test_divergence_is_infinite_where_the_other_forbids_a_choice() -> None:
    logits = torch.zeros(1, 2)
    free, bound = Categorical(logits), Categorical(logits, torch.tensor([[True, False]]))
    assert free.kl(bound).tolist() == [INF]
    assert bound.kl(free).tolist() == pytest.approx([math.log(2.0)])


def test_entropy_share_runs_from_sure_to_uniform_and_is_zero_without_a_choice() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 99.0], [99.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    allowed = torch.tensor([[True] * 3, [True, True, False], [True] * 3, [False, True, False]])
    share = Categorical(logits, allowed).entropy_share()
    assert share.tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-6)
    assert Categorical(torch.zeros(1, 7)).entropy_share().tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_are_upcast(dtype: torch.dtype) -> None:
    half = torch.full((L, A, U), 1.5, dtype=dtype)
    joint = Joint(
        {
            "beta": Beta(half, half),
            "clipped": ClippedGaussian(half, half[0, 0]),
            "sigmoid": SigmoidGaussian(half, half[0, 0]),
            "choice": Categorical(half),
        }
    )
    action = joint.sample(draw())
    assert all(action[name].dtype == torch.float32 for name in ("beta", "clipped", "sigmoid"))
    assert action["choice"].dtype == torch.int64
    assert {x.dtype for x in joint.log_prob_and_entropy(action)} == {torch.float32}


def everything_joint(seed: int = 1) -> Joint:
    return Joint(
        {
            "beta": beta(seed),
            "clipped": clipped(seed),
            "sigmoid": sigmoid(seed),
            "choice": categorical(seed),
        }
    )


def test_log_prob_of_a_joint_action_equals_a_per_sample_loop() -> None:
    joint = everything_joint()
    action = joint.sample(draw())
    log_prob, entropy = joint.log_prob_and_entropy(action)
    for lane in range(L):
        for agent in range(A):
            one_log_prob = one_entropy = 0.0
            for name, part in joint.parts.items():
                law, x = theirs(part), action[name]
                one_log_prob += float(law.log_prob(x)[lane, agent].sum())
                base = law.base_dist if name == "sigmoid" else law
                one_entropy += float(base.entropy()[lane, agent].sum())
            assert float(log_prob[lane, agent]) == pytest.approx(one_log_prob, abs=1e-9)
            assert float(entropy[lane, agent]) == pytest.approx(one_entropy, abs=1e-9)


def test_a_joint_is_the_sum_of_its_parts() -> None:
    joint, other = everything_joint(), everything_joint(seed=2)
    action = joint.sample(draw())
    parts = joint.parts.items()
    assert joint.mode().keys() == action.keys() == joint.parts.keys()
    assert torch.allclose(joint.entropy(), sum(part.entropy() for _, part in parts))
    assert torch.allclose(joint.log_prob(action), sum(p.log_prob(action[n]) for n, p in parts))
    assert torch.allclose(joint.kl(other), sum(p.kl(other.parts[n]) for n, p in parts))


def test_parts_of_a_joint_use_different_numbers() -> None:
    law = ClippedGaussian(torch.zeros(L, A, U), torch.zeros(()))
    action = Joint({"first": law, "second": law}).sample(draw())
    assert not torch.isclose(action["first"], action["second"]).any()


def test_a_lane_decides_the_same_alone_and_in_company() -> None:
    def joint(lanes: int) -> Joint:
        flat = torch.linspace(1.0, 9.0, A * U).view(A, U).expand(lanes, A, U)
        return Joint({"beta": Beta(flat, flat), "choice": Categorical(flat)})

    company = joint(64).sample(draw(lanes=64))
    alone = joint(1).sample(draw(lanes=1))
    for name, x in alone.items():
        assert torch.equal(x[0], company[name][0])
