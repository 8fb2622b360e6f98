"""Kernels and compiled programs are not made of functions that check their types at run time."""

import pytest


@pytest.fixture(autouse=True)
def without_checks_of_types(request):
    if request.config.getoption("--jaxtyping-packages"):
        pytest.skip("Triton and torch.compile do not see through checked functions; make test-gpu")
