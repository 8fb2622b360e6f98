"""`lockstep doctor` on runs of ours, whole, tampered with and absent, and on foreign logs."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep import cli
from lockstep.errors import NotARun
from lockstep.run import loop
from lockstep.run.config import preset
from lockstep.run.doctor import RULES, examine, markdown_table, read_log
from lockstep.run.doctor.aliases import alias_table
from tests import tiny

DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"
Line = dict[str, float | None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "run"
    loop.train(tiny.config(updates=6, checkpoint_every=6), folder)
    return folder


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setitem(cli.VERBS, "doctor", "read a run or a log and say what is wrong")
    return lambda *words: cli.main(["doctor", *map(str, words)])


def tampered(run: Path, to: Path, change: Callable[[Line], object]) -> Path:
    """A copy of the run with each of its lines changed."""
    shutil.copytree(run, to)
    lines = [json.loads(line) for line in (to / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        change(line)
    (to / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


def test_a_run_that_learns_has_nothing_wrong_by_any_rule_that_can_look_and_exits_with_0(
    tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    """Long enough for every rule but D12, which needs 100 updates."""
    config = tiny.config(updates=1, checkpoint_every=100)
    learner = replace(config.learner, lanes=4, lr_actor=3e-3, lr_critic=1e-2)
    config = replace(config, learner=learner, total_steps=45 * learner.lanes * learner.steps)
    run = loop.train(config, tmp_path / "run").folder
    assert doctor(run, "--fail-on", "warn") == 0
    said = capsys.readouterr().out
    assert f"{run}: nothing found" in said
    assert re.search(
        r"^24 rules checked, 6 not applicable \(1 for want of updates, 5 for want of columns; "
        r"--json says which\)$",
        said,
        flags=re.M,
    )
    assert examine(read_log(run)).not_applicable == {
        "G10": "needs train/<role>/entropy_share",
        "D7": "needs train/<role>/forced_share",
        "D12": "needs 100 updates",
        "D13": "needs replay/fill",
        "D17": "needs res/gpu_percent",
        "D21": "needs train/n_updates",
    }


@pytest.mark.slow
def test_a_healthy_demo_run_has_nothing_wrong_in_any_of_its_stages(tmp_path: Path):
    """Also hints would have said nothing, at whatever update they had looked."""
    config = preset("uav-mec", scenario="demo", learner="ab-mappo")
    config = replace(config, device="cpu", total_steps=60 * 300)
    loop.train(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    for updates in range(10, 61, 10):
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:updates]))
        assert examine(read_log(tmp_path / "run")).findings == ()


def test_json_holds_findings_rules_checked_and_rules_not_applicable(
    run: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    assert doctor(run, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"] == []
    ids = {*report["checked"], *report["not_applicable"]}
    assert ids == {rule.id for rule in RULES}
    assert report["not_applicable"]["D13"] == "needs replay/fill"


def test_a_broken_run_exits_with_1_and_says_evidence_cause_and_knob(
    run: Path, tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    def skip(line: Line) -> None:
        if line["member"] == 1:
            line["train/minibatches"] = 0.0

    assert doctor(tampered(run, tmp_path / "run", skip)) == 1
    said = capsys.readouterr().out
    assert "fail G7 KL stops take the update away (member 1), from update 1" in said
    assert "  evidence  100% of 6 updates took fewer than half of their 5 minibatches" in said
    assert "  cause     the KL limit is hit at once" in said
    assert "  knob      audit the replay first" in said


def test_warnings_alone_exit_with_0_unless_asked_otherwise(
    run: Path, tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    def elsewhere(line: Line) -> None:
        line["train/mu/ratio_mean"] = 0.5

    folder = tampered(run, tmp_path / "run", elsewhere)
    assert doctor(folder) == 0
    said = capsys.readouterr().out
    assert "warn G12 ratio off 1 (role mu, members 0, 1)" in said
    assert f"{folder}: warnings only" in said
    assert doctor(folder, "--fail-on", "warn") == 1


def test_a_number_written_as_null_is_found(run: Path, tmp_path: Path):
    def null(line: Line) -> None:
        if line["update"] == 4:
            line["train/value_loss"] = None

    (finding,) = examine(read_log(tampered(run, tmp_path / "run", null))).findings
    assert (finding.id, finding.first_update, finding.members) == ("G16", 4, (0, 1))


def test_a_run_of_another_version_is_read_all_the_same(run: Path, tmp_path: Path):
    folder = tampered(run, tmp_path / "run", lambda line: None)
    config = json.loads((folder / "config.json").read_text())
    config["learner"]["settings"]["a_setting_of_tomorrow"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    assert examine(read_log(folder)).findings == ()


def test_the_metrics_file_of_a_run_stands_for_the_run(run: Path):
    by_file = read_log(run / "metrics.jsonl")
    assert by_file.facts == read_log(run).facts
    assert by_file.facts.minibatches == 5
    assert by_file.members == 2


def test_a_run_without_an_update_has_nothing_to_examine(
    run: Path, tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    folder = tampered(run, tmp_path / "run", lambda line: None)
    (folder / "metrics.jsonl").write_text("")
    assert doctor(folder) == 2
    assert "has no update yet; there is nothing to examine" in capsys.readouterr().err


def test_a_folder_with_somebody_elses_config_is_not_taken_for_a_run(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "progress.csv").write_text("approx_kl\n0.01\n")
    assert read_log(tmp_path).source.endswith("progress.csv")


def test_lines_that_name_no_update_are_refused(run: Path, tmp_path: Path):
    folder = tampered(run, tmp_path / "run", lambda line: line.pop("update"))
    with pytest.raises(NotARun, match=r"a line of metrics\.jsonl names no update"):
        read_log(folder)


def test_a_resumed_runs_clock_counts_each_update_once(run: Path, tmp_path: Path):
    folder = tampered(run, tmp_path / "run", lambda line: None)
    clock = (folder / "perf.jsonl").read_text()
    again = "".join(clock.splitlines(keepends=True)[-3:])
    (folder / "perf.jsonl").write_text(clock + again)
    assert len(read_log(folder).perf["perf/update_s"]) == 6


@pytest.mark.parametrize("words", [["nowhere"], ["nowhere", "--json"]])
def test_a_path_that_is_not_there_exits_with_2(
    words: list[str], doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    assert doctor(*words) == 2
    assert "lockstep doctor: there is no nowhere" in capsys.readouterr().err


def test_a_file_that_no_rule_knows_exits_with_2_in_one_sentence(
    tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "prices.csv").write_text("day,price\n1,2\n")
    assert doctor(tmp_path / "prices.csv") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no column that the doctor knows (its columns: day, price)" in line


def test_columns_that_no_rule_knows_are_listed(
    tmp_path: Path, doctor: Callable[..., int], capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "log.csv").write_text("approx_kl,colour\n0.01,3\n")
    assert doctor(tmp_path / "log.csv") == 0
    assert "columns that no rule knows: colour" in capsys.readouterr().out


def test_the_page_holds_the_tables_of_rules_and_of_names():
    assert markdown_table() in DOCS.read_text()
    assert alias_table() in DOCS.read_text()


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), flags=re.S)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "doctor.md", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out
    findings = [line for line in said.splitlines() if re.match(r"D\d", line)]
    assert len(findings) == 2
    assert all(line in DOCS.read_text() for line in findings)
    assert "temperature differs" in said
