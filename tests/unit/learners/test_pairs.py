import torch

from lockstep.learners.health import by_pairs


def test_sums_of_pairs_are_the_product_of_a_matrix_with_its_transpose() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(3, 4, 50, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(by_pairs(columns), columns @ columns.mT, rtol=1e-12, atol=1e-12)
