import json
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from lockstep.cli import main
from tests import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    code = main(["train", "uav-mec", *tiny.flags(2), "--seeds=2", f"--root={root}", "--name=tiny"])
    assert code == 0
    return root / "tiny"


def test_train_writes_a_whole_run(run: Path):
    names = {file.name for file in run.iterdir()}
    assert names >= {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "perf.jsonl",
        "checkpoints",
        "summary.json",
    }
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(r["update"], r["member"], r["seed"]) for r in rows] == [
        (1, 0, 0),
        (1, 1, 1),
        (2, 0, 0),
        (2, 1, 1),
    ]
    assert list(rows[0])[:4] == ["update", "step", "member", "seed"]
    assert {key.partition("/")[0] for key in list(rows[0])[4:]} == {
        "world",
        "episode",
        "train",
        "audit",
    }


def test_train_again_gets_the_next_name_and_the_same_numbers(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["train", "uav-mec", *tiny.flags(2), "--seeds=0,1", f"--root={run.parent}"]
    assert main([*flags, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["run"] == str(run.parent / "uav-mec-ab-mappo-1")
    assert summary["config_hash"] == json.loads((run / "summary.json").read_text())["config_hash"]
    again = run.parent / "uav-mec-ab-mappo-1" / "metrics.jsonl"
    assert again.read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_train_shows_about_twenty_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ["train", "uav-mec", *tiny.flags(45), "--learner=randomized", f"--root={tmp_path}"]
    flags = [flag for flag in flags if not flag.startswith("--learner.hidden")]
    assert main(flags) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "  update " in line]
    assert 15 <= len(lines) <= 21
    assert "update 45/45" in lines[-1]


def test_evaluate_prints_a_table(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", str(run), "--episodes=3", "--against=random,greedy"]) == 0
    text = capsys.readouterr().out
    assert "weighted_energy" in text
    assert "greedy" in text


def test_evaluate_answers_programs(run: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["evaluate", str(run), "--episodes=3", "--member=1", "--stochastic", "--json"]
    assert main([*flags, "--against=random"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert [p["policy"] for p in found] == ["ab-mappo member 1 (seed 1)", "random"]
    assert np.shape(found[0]["episodes"]["weighted_energy"]) == (1, 3)


def test_render_draws_a_picture_and_an_animation(run: Path, tmp_path: Path):
    assert main(["render", str(run), f"--out={tmp_path}"]) == 0
    assert (tmp_path / "flight.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "flight.gif").read_bytes().startswith(b"GIF8")
    assert main(["render", str(run), "--formats=png", "--policy=greedy", "--episode=2"]) == 0
    assert (run / "flight-2.png").is_file()


def test_resume_leaves_a_finished_run(run: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["resume", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updates"] == 2


def test_worlds_lists_roles_spaces_and_metrics(capsys: pytest.CaptureFixture[str]):
    assert main(["worlds"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("uav-mec", "paper", "jain_fairness", "Unit(60)"))
    assert main(["worlds", "uav-mec", "--scenario=demo", "--json"]) == 0
    (world,) = json.loads(capsys.readouterr().out)
    assert [role["agents"] for role in world["roles"]] == [20, 4]


def test_demo_trains_compares_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--total-steps=600", "--seeds=2", "--episodes=2", f"--root={tmp_path}"]
    assert main(["demo", *flags]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("ab-mappo", "randomized", "greedy", "fairness"))
    names = {file.name for file in (tmp_path / "demo-1").iterdir()}
    assert names == {
        "ab-mappo",
        "randomized",
        "comparison.json",
        "curves.png",
        "flight.png",
        "flight.gif",
    }


def test_the_best_member_is_loaded_and_says_so(run: Path):
    opened = ls.Run.open(run)
    best = opened.summary["best_member"]
    policy = ls.load(opened)
    assert policy.member == best
    assert f"member {best} (seed {best}, best of 2 by world/" in repr(policy)
    assert ls.load(run, member=1 - best).member == 1 - best
    assert opened.curve("world/weighted_energy").shape == (2, 2)
    assert "finished" in repr(opened)


def test_a_scenario_may_be_a_file_and_the_run_keeps_its_settings(tmp_path: Path):
    file = tmp_path / "village.toml"
    file.write_text('base = "tiny-4"\nbuilds = 2\n')
    flags = ["--learner.lanes=2", "--learner.minibatches=1", "--learner.steps=4", "--total-steps=8"]
    where = [f"--scenario={file}", f"--root={tmp_path}", "--name=file"]
    assert main(["train", "city-growth", *where, *flags]) == 0
    kept = ls.Run.open(tmp_path / "file").config
    assert (kept.scenario, kept.world.builds, kept.world.horizon) == ("village", 2, 8)


def test_a_scenario_file_that_is_not_there_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["train", "city-growth", f"--scenario={tmp_path / 'none.toml'}"]) == 2
    assert "none.toml cannot be read" in capsys.readouterr().err
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert main(["train", "city-growth", f"--scenario={tmp_path / 'deep.json'}"]) == 2
    assert "deep.json is nested too deeply" in capsys.readouterr().err
