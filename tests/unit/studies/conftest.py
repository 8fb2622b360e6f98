"""A tiny study, the root it was trained in, and copies of that to spoil."""

import shutil
from pathlib import Path

import pytest

from lockstep.studies.study import Study
from tests.unit.studies import roots


@pytest.fixture(scope="module")
def study() -> Study:
    return roots.tiny_study()


@pytest.fixture(scope="module")
def trained(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roots.train(study, tmp_path_factory.mktemp("study") / "root")


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "root"))
