from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.run import loop
from lockstep.run.lines import WHOLE, read_lines
from lockstep.run.metrics import (
    ALIASES,
    COUNTERS,
    METRICS_FILE,
    PERF_FILE,
    alias_table,
    declared,
    describe,
    markdown_table,
    per_member,
    role_in,
    world_keys,
)
from lockstep.run.record import Run
from lockstep.worlds import registry
from tests import tiny
from tests.toys import Match


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = tiny.config(updates=2)
    config = replace(config, ops=replace(config.ops, resources_every=0.05))
    return loop.train(config, tmp_path_factory.mktemp("runs") / "run")


def test_a_member_gets_the_mean_over_its_own_lanes():
    metric = torch.arange(12.0).view(2, 6)  # [T, L], two members of three lanes
    found = per_member({"regret": metric}, Match().spec, members=2)
    assert found["world/regret"].tolist() == [4.0, 7.0]


def test_a_number_of_a_whole_episode_is_not_averaged_over_steps():
    plain = Match().spec
    spec = replace(plain, metrics=(replace(plain.metrics[0], over="last"),))
    assert per_member({"regret": torch.ones(2, 6)}, spec, members=2) == {}
    (key,) = world_keys(spec)
    assert key.meaning == "distance from the best reward; last of an episode"


def test_the_tables_in_the_documentation_are_those_of_the_code():
    page = (Path(__file__).parents[3] / "docs/running.md").read_text()
    for table in (markdown_table(METRICS_FILE), markdown_table(PERF_FILE), alias_table()):
        assert table in page


def test_every_key_that_a_run_writes_is_in_the_table(run: Run):
    for path, table in ((run.dir.metrics, METRICS_FILE), (run.dir.perf, PERF_FILE)):
        rows = read_lines(path)
        assert len(rows) == 2 * (2 if table is METRICS_FILE else 1)
        keys = {key for row in rows for key in row}
        assert sorted(key for key in keys if declared(key, table) is None) == []


def test_what_a_world_is_said_to_write_holds_all_that_it_writes(run: Run):
    config = run.config
    spec = registry.build(config.world, lanes=1).spec
    said = [key.key for key in describe(spec)]
    assert len(said) == len(set(said))
    written = {key for path in (run.dir.metrics, run.dir.perf) for key in read_lines(path)[0]}
    assert sorted(written - set(said)) == []


def test_no_key_is_declared_twice_and_every_alias_has_a_key():
    keys = [key.key for key in (*METRICS_FILE, *PERF_FILE[1:])]
    assert len(keys) == len(set(keys))
    assert {alias.key for alias in ALIASES} <= set(keys)
    tags = [tag for alias in ALIASES for tag in (alias.sb3, alias.cleanrl) if tag]
    assert len(tags) == len(set(tags))
    assert tuple(key.key for key in COUNTERS) == WHOLE


def test_a_key_fits_the_pattern_of_its_role_and_a_whole_name_goes_first():
    assert role_in("train/uav/entropy", "train/<role>/entropy") == "uav"
    assert role_in("train/uav/x/entropy", "train/<role>/entropy") is None
    assert role_in("train/max_kl", "train/max_kl") == ""
    row = declared("train/critic/grad_norm", METRICS_FILE)
    assert row is not None
    assert row.key == "train/critic/grad_norm"
    assert declared("train/unheard_of", METRICS_FILE) is None
