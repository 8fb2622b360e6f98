import os
import sys
from pathlib import Path

import pytest

from lockstep.cli import main
from tests import tiny

CASES = {
    "a run to watch that is not there": (
        ["watch", "runs/nope"],
        "is not a run: there is no such folder",
    ),
    "a log that is not there": (
        ["doctor", "runs/nope"],
        "there is no runs/nope; the doctor reads a run folder or a log",
    ),
    "checkpoints to migrate that are not there": (["migrate", "runs/nope"], "runs/nope"),
    "a world that is not registered": (
        ["train", "uav-mek"],
        "there is no world called 'uav-mek'; did you mean 'uav-mec'?",
    ),
    "a scenario that is not there": (
        ["train", "uav-mec", "--scenario", "papre"],
        "there is no scenario of uav-mec called 'papre'; did you mean 'paper'?",
    ),
    "a learner that is not there": (
        ["train", "uav-mec", "--learner", "ab-mapo"],
        "there is no learner called 'ab-mapo'; did you mean 'ab-mappo'?",
    ),
    "too few steps": (
        ["train", "uav-mec", "--total-steps", "10"],
        "total_steps (10) must be at least one update",
    ),
    "no seeds": (["train", "uav-mec", "--seeds", "0"], "seeds must be at least 1, got 0"),
    "seeds that are no numbers": (
        ["train", "uav-mec", "--seeds", "a,b"],
        "seeds must be a number or a list such as 3,7,9, got 'a,b'",
    ),
    "a seed twice": (["train", "uav-mec", "--seeds", "3,3"], "seeds must differ"),
    "a name that is a path": (
        ["train", "uav-mec", "--name", "../x"],
        "a run's name must be a plain folder name, got '../x'",
    ),
    "a run that is not there": (["resume", "runs/nope"], "is not a run: there is no such folder"),
    "an evaluation of nothing": (["evaluate", "runs/nope"], "is not a run"),
    "a picture of nothing": (["render", "runs/nope"], "is not a run"),
    "no episodes": (["evaluate", "runs/nope", "--episodes", "0"], "--episodes must be at least 1"),
    "a world to list that is not there": (["worlds", "mars"], "there is no world called 'mars'"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence_and_touches_nothing(
    case: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    argv, message = CASES[case]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "uav-mec", "--learnr", "ab-mappo"], ("--learnr", "--learner")),
        (["train", "uav-mec", "--world.n-user", "3"], ("--world.n-user", "--world.n-users")),
        (["train", "uav-mec", "--learner.clip", ".1"], ("--learner.clip-ratio",)),
        (["train", "uav-mec", "--world.n-users", "0"], ("n_users", "got 0")),
        (["train", "uav-mec", "--learner.minibatches", "2"], ("minibatches (2)", "lanes (5)")),
        (["train", "uav-mec", "--device", "tpu"], ("--device", "cuda")),
        (["evaluate", "x", "--episode", "3"], ("--episodes",)),
    ],
)
def test_bad_flags_are_named_with_the_way_out(
    argv: list[str], words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(argv) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert all(word in error for word in words)
    assert list(here.iterdir()) == []


def test_a_run_folder_that_exists_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]):
    folder = here / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("x")
    assert main(["train", "uav-mec", *tiny.flags(1), "--name=mine"]) == 2
    assert "the run folder runs/mine exists already" in capsys.readouterr().err
    assert [f.name for f in folder.iterdir()] == ["precious"]


def test_an_existing_run_folder_also_stops_the_demo(here: Path):
    (here / "runs" / "mine").mkdir(parents=True)
    assert main(["demo", "--name=mine"]) == 2
    assert list((here / "runs" / "mine").iterdir()) == []


def test_a_missing_extra_is_answered_with_its_command(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo"]) == 2
    expected = "matplotlib is not installed; run: pip install 'lockstep-rl[study]'"
    assert expected in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_a_gpu_that_is_not_there_is_bad_input(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["train", "uav-mec", *tiny.flags(1)[:-1], "--device=cuda"]) == 2
    assert "no GPU is available here; use --device cpu" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_an_mp4_without_ffmpeg_is_answered_in_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["train", "uav-mec", *tiny.flags(1), "--name=r"]) == 0
    monkeypatch.setitem(os.environ, "PATH", "")
    before = sorted((here / "runs" / "r").rglob("*"))
    assert main(["render", "runs/r", "--formats=mp4"]) == 2
    assert "an mp4 needs the program ffmpeg" in capsys.readouterr().err
    assert main(["render", "runs/r", "--formats=bmp"]) == 2
    assert main(["evaluate", "runs/r", "--member=9"]) == 2
    assert main(["evaluate", "runs/r", "--against=gredy"]) == 2
    assert sorted((here / "runs" / "r").rglob("*")) == before


def test_a_damaged_config_is_named(here: Path, capsys: pytest.CaptureFixture[str]):
    folder = here / "runs" / "r"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"seeds": 3')
    assert main(["resume", "runs/r"]) == 2
    assert "config.json is damaged" in capsys.readouterr().err
    (folder / "config.json").write_text("{}")
    assert main(["evaluate", "runs/r"]) == 2
    assert "config.world must hold 'name' and 'settings'" in capsys.readouterr().err


def test_a_verb_without_its_world_asks_for_one(capsys):
    assert main(["train"]) == 2
    assert "Traceback" not in capsys.readouterr().err
