"""Fixed numbers: `pytest tests/golden --regen-golden` writes them anew."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "numbers"
RTOL, ATOL = 1e-4, 1e-6  # processors differ in the last bits, and feedback makes more of them

Check = Callable[[str, dict[str, Any]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regen-golden", action="store_true", help="write the golden numbers instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Check:
    """Compares named numbers with those on file, or files them."""
    # In a run of the whole suite this file is read too late for its option to exist.
    regenerate = request.config.getoption("--regen-golden", default=False)

    def check(name: str, found: dict[str, Any]) -> None:
        path = FOLDER / f"{name}.json"
        if regenerate:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(json.dumps(found, indent=1) + "\n")
        expected = json.loads(path.read_text())
        assert list(found) == list(expected)
        for key, numbers in expected.items():
            assert found[key] == pytest.approx(numbers, rel=RTOL, abs=ATOL), key

    return check
