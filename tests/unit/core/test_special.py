import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from lockstep.core.special import beta_log_prob_entropy


def grid(dtype: torch.dtype, *, largest: float = 1000.0) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters from exactly 1 to `largest`, each pair with points across its density."""
    span = torch.logspace(0.0, torch.tensor(largest).log10().item(), 25, dtype=torch.float64)
    alpha, beta, level = torch.meshgrid(
        span, span, torch.tensor([1e-3, 0.2, 0.5, 0.9], dtype=torch.float64), indexing="ij"
    )
    x = torch.from_numpy(stats.beta.ppf(level.numpy(), alpha.numpy(), beta.numpy()))
    return alpha.to(dtype), beta.to(dtype), x.clamp(1e-6, 1.0 - 1e-6).to(dtype)


def reference(alpha: Tensor, beta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = alpha.double().numpy(), beta.double().numpy()
    log_prob = stats.beta.logpdf(x.double().numpy(), a, b)
    entropy = (
        special.betaln(a, b)
        - (a - 1.0) * special.psi(a)
        - (b - 1.0) * special.psi(b)
        + (a + b - 2.0) * special.psi(a + b)
    )
    return torch.from_numpy(log_prob), torch.from_numpy(entropy)


def test_float64_agrees_with_scipy() -> None:
    args = grid(torch.float64)
    for ours, theirs in zip(beta_log_prob_entropy(*args), reference(*args), strict=True):
        assert float((ours - theirs).abs().max()) < 1e-9


def test_float32_agrees_with_scipy_to_a_few_roundings() -> None:
    alpha, beta, x = grid(torch.float32)
    log_prob, entropy = beta_log_prob_entropy(alpha, beta, x)
    true_log_prob, true_entropy = reference(alpha, beta, x)
    assert log_prob.dtype == entropy.dtype == torch.float32
    assert float((entropy - true_entropy).abs().max()) < 2e-6
    assert float(((log_prob - true_log_prob).abs() / (alpha + beta)).max()) < 6e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_agree_with_digamma_and_trigamma(dtype: torch.dtype) -> None:
    alpha, beta, x = grid(dtype)
    alpha.requires_grad_()
    beta.requires_grad_()
    log_prob, entropy = beta_log_prob_entropy(alpha, beta, x)
    score = torch.autograd.grad(log_prob.sum(), (alpha, beta), retain_graph=True)
    slope = torch.autograd.grad(entropy.sum(), (alpha, beta))

    a, b, y = (z.detach().double().numpy() for z in (alpha, beta, x))
    total = (a + b - 2.0) * special.polygamma(1, a + b)
    expected = [
        special.psi(a + b) - special.psi(a) + np.log(y),
        special.psi(a + b) - special.psi(b) + np.log1p(-y),
        total - (a - 1.0) * special.polygamma(1, a),
        total - (b - 1.0) * special.polygamma(1, b),
    ]
    tolerance = 2e-6 if dtype == torch.float32 else 1e-9
    for ours, theirs in zip((*score, *slope), expected, strict=True):
        assert float((ours - torch.from_numpy(theirs)).abs().max()) < tolerance


def test_gradcheck_passes_for_both_outputs_together() -> None:
    alpha = torch.tensor([1.0 + 1e-3, 1.69, 7.0, 80.0], dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([3.0, 1.69, 1.2, 40.0], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.1, 0.5, 0.99, 0.6], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: beta_log_prob_entropy(a, b, x), (alpha, beta))


def test_the_uniform_law_has_no_entropy_and_a_flat_density() -> None:
    one = torch.ones(3)
    log_prob, entropy = beta_log_prob_entropy(one, one, torch.tensor([1e-6, 0.5, 1.0 - 1e-6]))
    assert torch.allclose(log_prob, torch.zeros(3), atol=2e-6)
    assert torch.allclose(entropy, torch.zeros(3), atol=1e-6)
