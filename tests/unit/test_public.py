import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lockstep
from lockstep.core.world import World
from lockstep.run import api


def test_every_public_name_loads_and_is_listed():
    assert set(lockstep.__all__) == set(lockstep._NAMES) | {"__version__"}
    for name in lockstep.__all__:
        assert getattr(lockstep, name) is not None
    assert dir(lockstep) == sorted(lockstep.__all__)


def test_public_names_are_those_of_their_modules():
    assert lockstep.train is api.train
    assert lockstep.World is World


def test_a_name_that_is_not_public_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = lockstep.trian


def test_the_version_is_that_of_the_distribution():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == lockstep.__version__


@pytest.mark.parametrize(
    "module",
    [
        "lockstep",
        "lockstep.cli",
        "lockstep.cli.flags",
        "lockstep.cli.train",
        "lockstep.cli.demo",
        "lockstep.errors",
        "lockstep.learners.config",
        "lockstep.run.config",
        "lockstep.run.rundir",
        "lockstep.worlds.registry",
        "lockstep.worlds.uav_mec.config",
    ],
)
def test_settings_and_help_import_no_torch(module: str):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
