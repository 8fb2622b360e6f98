import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import lockstep
from lockstep.errors import BadInput
from lockstep.run import manifest
from lockstep.run.code import code_version, present_code
from lockstep.run.trainer import Trainer
from tests import tiny


def test_the_code_version_follows_the_sources_that_decide_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    world = tiny.config().world
    before = code_version(world)
    assert before == code_version(world)
    copy = tmp_path / "lockstep"
    shutil.copytree(lockstep.__path__[0], copy)
    monkeypatch.setattr(lockstep, "__path__", [str(copy)])
    assert code_version(world) == before
    with (copy / "run" / "loop.py").open("a") as file:
        file.write("# a word\n")
    assert code_version(world) == before
    with (copy / "core" / "world.py").open("a") as file:
        file.write("# a word\n")
    assert code_version(world) != before


def test_a_world_without_sources_is_refused(monkeypatch: pytest.MonkeyPatch):
    """As one that was typed into a notebook."""
    monkeypatch.setitem(sys.modules, "notebook", ModuleType("notebook"))

    class Typed:
        name = "typed"

    for module in ("notebook", "gone", "gone.config"):
        Typed.__module__ = module
        with pytest.raises(
            BadInput, match=rf"world typed \(module {module}\) cannot be found; def"
        ):
            present_code(Typed())


def test_the_manifest_says_what_the_run_was_made_with():
    config = tiny.config()
    made_with = manifest.build(config, Trainer(config).world)
    assert made_with["history"][0]["config_hash"] == config.hash
    assert made_with["seeds"] == [0, 1]
    assert made_with["packages"]["torch"] == torch.__version__
    assert made_with["machine"]["device"] == "cpu"
    assert made_with["metrics"][made_with["objective"]]["better"] == "lower"
