"""`lockstep compare`: solvers on the same scenarios, as table, JSON, CSV and pictures."""

import csv
import json
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import lockstep as ls
from lockstep.cli import compare as verb, demo_fault
from lockstep.core.streams import lane_keys
from lockstep.core.world import Step
from lockstep.errors import BadInput, CannotWrite, MissingExtra
from lockstep.learners.config import PPOConfig
from lockstep.run.config import preset
from lockstep.run.evaluate import EVALUATION_SEED
from lockstep.run.policy import HeuristicPolicy
from lockstep.run.solver_report import compare, contest
from lockstep.worlds.city_growth.document import dump_scenario
from lockstep.worlds.city_growth.notes import RecordedCity
from lockstep.worlds.registry import heuristics, scenarios
from tests import tiny

PAGE = Path(__file__).parents[2] / "docs/worlds/city_solvers.md"
CITY = ["city-growth", "--scenario=tiny-9", "--scenarios=3"]


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert verb.main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A city run that has hardly learned."""
    base = preset("city-growth", scenario="tiny-9")
    assert isinstance(base.learner, PPOConfig)
    learner = replace(base.learner, lanes=4, steps=4, hidden=16, minibatches=1)
    root = tmp_path_factory.mktemp("runs")
    trained = ls.train(
        base.world, learner=learner, total_steps=32, seeds=2, root=root, name="tiny", device="cpu"
    )
    return trained.folder


@pytest.mark.parametrize(
    ("solver", "scenario"), [("greedy", "small"), ("random", "small"), ("look-ahead", "tiny-9")]
)
def test_a_solver_compared_with_itself_differs_by_exactly_nothing(
    solver: str, scenario: str, capsys: pytest.CaptureFixture[str]
):
    flags = ["city-growth", f"--scenario={scenario}", "--scenarios=2"]
    found = answer(capsys, *flags, f"--solvers={solver},{solver}")
    first, second = found["solvers"]
    assert [first["solver"], second["solver"]] == [solver, f"{solver}-2"]
    assert second["by_scenario"] == first["by_scenario"]
    for difference in second["difference"].values():
        assert difference == {"mean": 0.0, "half_width": 0.0}
    assert first["metrics"]["return"]["mean"] > 0


def test_differences_are_paired_by_scenario():
    asked = contest("city-growth", ["greedy", "npv"], scenarios=4, scenario="small")
    found = compare(asked)
    greedy, npv = found.solvers
    gap = npv.metrics["return"] - greedy.metrics["return"]
    estimate = found.difference(npv, "return")
    assert estimate.mean == pytest.approx(gap.mean())
    t_3 = 3.182
    assert estimate.half_width == pytest.approx(t_3 * gap.std(ddof=1) / 2)
    spread = npv.estimate("return").half_width
    assert estimate.half_width < spread  # cities differ more than solvers do on one of them


def test_another_baseline_turns_the_sign(capsys: pytest.CaptureFixture[str]):
    flags = [*CITY, "--solvers=skip,npv"]
    gain = answer(capsys, *flags)["solvers"][1]["difference"]["return"]["mean"]
    loss = answer(capsys, *flags, "--baseline=npv")["solvers"][0]["difference"]["return"]["mean"]
    assert gain == -loss > 0


def test_a_run_plays_beside_heuristics_in_its_own_scenario(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    found = answer(capsys, "city-growth", f"--solvers=npv,{run}", "--scenarios=3")
    assert [s["solver"] for s in found["solvers"]] == ["npv", "tiny"]
    assert found["scenario"]
    learned = found["solvers"][1]
    assert learned["decisions"] == 3 * 4
    assert learned["ms_per_decision"] > 0
    again = answer(capsys, "city-growth", f"--solvers={run}", "--scenarios=3")
    assert again["solvers"][0]["by_scenario"] == learned["by_scenario"]


def test_a_run_may_sample_and_may_play_another_scenario(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["city-growth", f"--solvers={run}", "--scenarios=8"]
    likely = answer(capsys, *flags)["solvers"][0]["by_scenario"]["return"]
    sampled = answer(capsys, *flags, "--stochastic")["solvers"][0]["by_scenario"]["return"]
    assert sampled != likely
    assert sampled == answer(capsys, *flags, "--stochastic")["solvers"][0]["by_scenario"]["return"]
    other = answer(capsys, *flags, "--scenario=tiny-4")
    assert other["scenario"] == "tiny-4"
    assert other["solvers"][0]["decisions"] == 8 * scenarios("city-growth")["tiny-4"].horizon


def test_a_run_is_called_by_its_folder_however_that_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run)
    asked = contest("city-growth", ["npv", ".", f"../{run.name}/"], scenarios=1)
    assert [policy.label for policy in asked.policies] == ["npv", "tiny", "tiny-2"]


def test_no_two_solvers_share_a_label(run: Path, tmp_path: Path):
    """A run may be called what a heuristic that comes twice would be."""
    shutil.copytree(run, tmp_path / "npv-2")
    asked = contest("city-growth", ["npv", str(tmp_path / "npv-2"), "npv"], scenarios=1)
    assert [policy.label for policy in asked.policies] == ["npv", "npv-2", "npv-3"]


def test_a_run_builds_as_often_as_the_scenario_it_plays_allows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """It was trained with one build a turn."""
    (tmp_path / "three.toml").write_text('base = "tiny-9"\nbuilds = 3\n')
    flags = ["city-growth", f"--scenario={tmp_path / 'three.toml'}", "--scenarios=1"]
    answer(capsys, *flags, f"--solvers={run}", "--stochastic", f"--out={tmp_path / 'out'}")
    with (tmp_path / "out/tiny/scenario-0/actions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["order"] for row in rows if row["month"] != "total"} == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "cannot play here, .* it lacks weights of ind, weights of edu"),
        (
            'base = "tiny-9"\n[[agents]]\nname = "council"\nstart_money = 9\n'
            'types = [{ name = "A", cost = 1, revenue = 1, opex = 0 }]',
            r"features are not those .*: weights of council must be float32 of shape",
        ),
    ],
)
def test_a_run_that_does_not_fit_the_scenario_is_refused(
    run: Path, tmp_path: Path, document: str, message: str
):
    (tmp_path / "other.toml").write_text(document)
    with pytest.raises(BadInput, match=message):
        verb.main(["city-growth", f"--solvers=npv,{run}", f"--scenario={tmp_path / 'other.toml'}"])


class Slow:
    """Slow at first, and in a world that nobody looked at on its behalf."""

    label, groups = "slow", 1

    def __init__(self) -> None:
        self.begun = self.steps = 0

    def begin(self, keys: Tensor) -> None:
        self.begun, self.steps = self.begun + 1, 0

    def step(self, world: Any, *, deterministic: bool = True) -> Step:
        if self.begun == 1:
            time.sleep(2.0)
        assert not world._sets
        self.steps += 1
        return HeuristicPolicy(heuristics("city-growth")["npv"], label="").step(world)


def test_time_counts_from_the_second_step_of_a_policy_and_with_its_own_looks():
    asked = contest("city-growth", ["npv"], scenarios=2, scenario="tiny-9")
    slow = Slow()
    found = compare(replace(asked, policies=(*asked.policies, slow)))
    npv, played = found.solvers
    assert (slow.begun, slow.steps) == (2, 4)
    assert played.seconds < 2.0
    assert played.decisions == npv.decisions == 2 * 4
    assert played.metrics["return"].tolist() == npv.metrics["return"].tolist()


def test_the_table_says_what_the_json_says(capsys: pytest.CaptureFixture[str]):
    assert verb.main([*CITY, "--solvers=skip,npv"]) == 0
    text = capsys.readouterr().out
    assert "city-growth tiny-9: 3 scenarios" in text
    for heading in ("return", "minus skip", "buildings_council_C", "ms per decision", "looked_at"):
        assert heading in text


def test_out_gets_json_and_every_turn_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "report"
    found = answer(capsys, *CITY, "--solvers=greedy,npv", f"--out={out}", "--record=2")
    assert json.loads((out / "compare.json").read_text()) == found
    folders = sorted(path.parent.relative_to(out) for path in out.rglob("actions.csv"))
    assert [str(folder) for folder in folders] == [
        "greedy/scenario-0",
        "greedy/scenario-1",
        "npv/scenario-0",
        "npv/scenario-1",
    ]
    for index in range(2):
        with (out / f"npv/scenario-{index}/actions.csv").open() as file:
            rows = list(csv.DictReader(file))
        wanted = ("agent", "type", "slots", "x", "y", "angle", "cost", "income", "prestige",
                  "score", "balance_before", "balance_after")  # fmt: skip
        assert set(wanted) <= set(rows[0])
        assert rows[-1]["month"] == "total"
        by_scenario = found["solvers"][1]["by_scenario"]
        assert float(rows[-1]["balance_after"]) == by_scenario["final_balance_council"][index]
        assert float(rows[-1]["npv"]) == by_scenario["return"][index]


def test_pictures_of_every_month_and_a_replay(tmp_path: Path):
    pytest.importorskip("matplotlib").use("Agg")
    flags = [*CITY, "--solvers=npv", f"--out={tmp_path}", "--pictures"]
    assert verb.main(flags) == 0
    names = sorted(path.name for path in (tmp_path / "npv" / "scenario-0").iterdir())
    pictures = [f"step-{t:03d}.png" for t in range(5)]  # before each of four months, and after
    assert names == sorted([*pictures, "replay.gif", "actions.csv", "pool.csv", "sequences.csv"])


def test_a_report_replaces_the_one_before_and_leaves_other_files_alone(tmp_path: Path):
    """Pictures of other cities beside today's numbers would be taken for theirs."""
    pytest.importorskip("matplotlib").use("Agg")
    flags = [*CITY, "--solvers=npv", f"--out={tmp_path}"]
    assert verb.main([*flags, "--record=2", "--pictures"]) == 0
    (tmp_path / "npv/scenario-0/notes.csv").write_text("mine")
    assert verb.main([*flags, "--record=1"]) == 0
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    tables = [f"npv/scenario-0/{name}.csv" for name in ("actions", "pool", "sequences")]
    assert left == sorted(["compare.json", "npv/scenario-0/notes.csv", *tables])
    assert not (tmp_path / "npv/scenario-1").exists()


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path: Path):
    flags = [*CITY, "--solvers=npv", f"--out={tmp_path}"]
    assert verb.main([*flags, "--record=2"]) == 0
    second = tmp_path / "npv/scenario-1/actions.csv"
    before = second.read_bytes()
    (tmp_path / "npv/scenario-0/pool.csv").unlink()
    (tmp_path / "npv/scenario-0/pool.csv").mkdir()  # in the way of the first scenario's table
    with pytest.raises(CannotWrite, match=r"pool\.csv"):
        verb.main([*flags, "--record=1"])
    assert second.read_bytes() == before


def test_a_world_without_a_report_of_its_own_is_compared_by_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["uav-mec", "--solvers=greedy,random", "--scenario=demo", "--scenarios=2"]
    found = answer(capsys, *flags, f"--out={tmp_path / 'new'}")
    greedy, random = found["solvers"]
    assert (
        greedy["metrics"]["weighted_energy"]["mean"] < random["metrics"]["weighted_energy"]["mean"]
    )
    assert {"reward/mu", "reward/uav"} <= set(greedy["metrics"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["compare.json"]
    assert verb.main(flags) == 0
    assert "weighted_energy" in capsys.readouterr().out


def test_rewards_are_what_the_metrics_say(capsys: pytest.CaptureFixture[str]):
    found = answer(capsys, *CITY, "--solvers=npv")["solvers"][0]["by_scenario"]
    scale = preset("city-growth", scenario="tiny-9").world.reward.scale
    assert np.allclose(np.array(found["reward/council"]) * scale, found["return"], rtol=1e-5)


def test_a_scenario_may_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """TOML and JSON that say the same are the same scenario, and not the one they start from."""
    (tmp_path / "one.toml").write_text('base = "tiny-9"\nbuilds = 2\n')
    (tmp_path / "two.json").write_text('{"base": "tiny-9", "builds": 2}')
    flags = ["city-growth", "--scenarios=1", "--solvers=npv"]
    one, two, base = (
        answer(capsys, *flags, f"--scenario={scenario}")
        for scenario in (tmp_path / "one.toml", tmp_path / "two.json", "tiny-9")
    )
    assert [one["scenario"], two["scenario"]] == ["one", "two"]
    returns = [found["solvers"][0]["by_scenario"]["return"] for found in (one, two, base)]
    assert returns[0] == returns[1] != returns[2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "buildz = 2", r"a\.toml: there is no setting 'buildz'; did you mean 'builds'"),
        ("a.toml", "builds = ", r"a\.toml: Invalid value"),
        ("a.json", "{", r"a\.json: Expecting property name"),
        ("a.json", "[1]", r"a\.json: the scenario must be a table, got \[1\]"),
        ("a.json", None, r"the scenario .*a\.json cannot be read: .*No such file"),
    ],
)
def test_a_file_with_a_mistake_is_answered_in_a_sentence(
    name: str, text: str | None, message: str, tmp_path: Path
):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(BadInput, match=message):
        verb.main(["city-growth", "--solvers=npv", f"--scenario={tmp_path / name}"])


def test_a_scenario_in_which_nobody_decides_is_refused(tmp_path: Path):
    text = dump_scenario(scenarios("city-growth")["tiny-9"])
    late = text.replace("active_from = 0, bank", "active_from = 99, bank")
    assert late != text
    (tmp_path / "late.toml").write_text(late)
    with pytest.raises(BadInput, match="in scenario late nobody ever decides"):
        verb.main(["city-growth", "--solvers=npv", f"--scenario={tmp_path / 'late.toml'}"])


def test_a_world_that_reads_no_files_says_so(tmp_path: Path):
    (tmp_path / "a.toml").write_text("")
    with pytest.raises(BadInput, match=r"uav-mec reads no scenario from a file, got .*a\.toml"):
        verb.main(["uav-mec", "--solvers=greedy", f"--scenario={tmp_path / 'a.toml'}"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*CITY, "--solvers=gredy"], "no solver of city-growth .* did you mean 'greedy'"),
        ([*CITY, "--solvers=,"], "solvers must name at least one heuristic or run folder"),
        ([*CITY, "--solvers=npv", "--baseline=greedy"], "no solver compared called 'greedy'"),
        ([*CITY, "--solvers=npv", f"--seed={2**70}"], r"--seed must lie within 2\^53 of 0"),
        ([*CITY[:2], "--solvers=npv", "--scenarios=0"], "--scenarios must be at least 1, got 0"),
        ([*CITY, "--solvers=npv", "--pictures"], "--pictures needs a folder"),
        ([*CITY, "--solvers=npv", "--record=4"], r"between 0 and --scenarios \(3\), got 4"),
        ([*CITY, "--solvers=npv", "--record=2"], "--record needs a folder to write into"),
        (
            [*CITY, "--solvers=npv", "--record=0", "--pictures", "--out=x"],
            "--pictures needs a scenario to draw, got --record 0",
        ),
        (["city-growht", "--solvers=npv"], "did you mean 'city-growth'"),
        (["city-growth", "--solvers=npv", "--scenario=tiny"], "no scenario of city-growth"),
        (["city-growth", "--solvers=tests"], "is not a run"),
        (["city-growth", "--solvers=exhaustive", "--scenarios=1"], "use beam, or a smaller city"),
    ],
)
def test_what_cannot_be_compared_is_answered_in_a_sentence(flags: list[str], message: str):
    with pytest.raises(BadInput, match=message):
        verb.main(flags)


def test_a_run_of_another_world_is_refused(tmp_path: Path):
    config = tiny.config(updates=1)
    ls.train(config.world, learner=config.learner, total_steps=12, root=tmp_path, name="other")
    with pytest.raises(BadInput, match="is a run of uav-mec, not of city-growth"):
        verb.main(["city-growth", f"--solvers={tmp_path / 'other'}"])


def test_the_default_seed_is_that_of_evaluation():
    flags = verb.CompareFlags(world="city-growth", solvers="npv")
    assert flags.seed == EVALUATION_SEED


def test_out_must_not_be_a_file(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--out must be a folder"):
        verb.main([*CITY, "--solvers=npv", f"--out={tmp_path / 'file'}"])
    with pytest.raises(BadInput, match=r"--out .*file/in cannot be made: Not a directory"):
        verb.main([*CITY, "--solvers=npv", f"--out={tmp_path / 'file' / 'in'}"])


@pytest.mark.parametrize(
    ("blocked", "is_folder"),
    [("compare.json", True), ("npv", False), ("npv/scenario-0", False)],
)
def test_what_stands_in_the_way_of_a_report_is_named_before_anything_is_played(
    blocked: str, is_folder: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / blocked
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if is_folder else path.write_text("mine")
    with pytest.raises(BadInput, match=rf"^{re.escape(str(path))} is in the way of the report"):
        verb.main([*CITY, "--solvers=npv", f"--out={tmp_path}"])
    assert capsys.readouterr().out == ""
    assert path.exists()


def test_a_report_that_cannot_be_written_is_told_in_a_sentence_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    blocked = tmp_path / "npv/scenario-0/pool.csv"
    blocked.mkdir(parents=True)
    with pytest.raises(CannotWrite, match=r"pool\.csv could not be written"):
        verb.main([*CITY, "--solvers=npv", f"--out={tmp_path}"])
    assert "ms per decision" in capsys.readouterr().out


def test_pictures_need_their_extra_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "matplotlib.animation", None)
    with pytest.raises(MissingExtra, match=r"lockstep-rl\[study\]"):
        verb.main([*CITY, "--solvers=npv", f"--out={tmp_path / 'new'}", "--pictures"])
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "new").exists()


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = re.findall(r"^lockstep (compare|demo-fault) ?(.*)$", PAGE.read_text(), flags=re.M)
    assert len(lines) >= 7
    monkeypatch.chdir(tmp_path)
    small = 0
    for name, rest in lines:
        module = {"compare": verb, "demo-fault": demo_fault}[name]
        words = rest.split()
        with pytest.raises(SystemExit, match="0"):
            module.main(["--help"])
        help_text = capsys.readouterr().out
        assert all(word in help_text for word in words if word.startswith("--")), rest
        if "tiny" in rest or "--updates" in rest:
            small += 1
            assert module.main(words) == 0
    assert small >= 4
    assert (tmp_path / "report/look-ahead/scenario-0/actions.csv").exists()


def test_the_page_names_every_solver_and_every_column():
    text = PAGE.read_text()
    assert [name for name in heuristics("city-growth") if f"| `{name}` |" not in text] == []
    world = RecordedCity(scenarios("city-growth")["tiny-9"], lanes=1)
    world.reset(lane_keys([0], lanes=1))
    world.act("council", heuristics("city-growth")["npv"](world, "council"))
    for rows in world.turns().values():
        assert [column for column in rows[0] if f"`{column}`" not in text] == []
