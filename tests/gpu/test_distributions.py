"""Log-probabilities keep float32's digits where matrix products do not."""

import pytest
import torch

from lockstep.core.distributions import ClippedGaussian

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


@pytest.fixture
def products_in_tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("products_in_tf32")
def test_a_log_probability_of_many_numbers_is_computed_in_float32():
    mean = torch.linspace(-1.0, 1.0, 64 * 2000, device="cuda").view(64, 1, 2000)
    log_std, x = torch.linspace(-0.5, 0.5, 2000, device="cuda"), mean.flip(-1)
    found = ClippedGaussian(mean, log_std).log_prob(x).double()
    exact = ClippedGaussian(mean.double(), log_std.double()).log_prob(x.double())
    torch.testing.assert_close(found, exact, rtol=5e-7, atol=1e-4)
