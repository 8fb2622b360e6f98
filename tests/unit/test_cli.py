import subprocess
import sys
import time

import pytest

from lockstep import cli
from lockstep.cli import main
from lockstep.cli.flags import named_value
from lockstep.errors import AuditFailure


def test_help_answers_in_half_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "lockstep", "--help"], check=True, capture_output=True
        )
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_lists_every_verb_with_examples(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb} " in text for verb in cli.VERBS)
    assert "examples:" in text


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help_with_examples(verb: str, capsys: pytest.CaptureFixture[str]):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"lockstep {verb}" in text
    assert "examples:" in text


def test_an_unknown_verb_gets_a_suggestion(capsys: pytest.CaptureFixture[str]):
    assert main(["trian"]) == 2
    message = "lockstep: there is no command 'trian'; did you mean 'train'?\n"
    assert capsys.readouterr().err == message


def test_no_verb_at_all_shows_the_help_and_is_bad_input(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "usage: lockstep" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lockstep 0.")


def test_a_run_that_fails_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def fail(argv: list[str]) -> int:
        raise AuditFailure("row 3 differs")

    monkeypatch.setattr("lockstep.cli.worlds.main", fail)
    assert main(["worlds"]) == 1
    assert capsys.readouterr().err == "lockstep worlds: row 3 differs\n"


def test_a_flag_is_found_before_the_rest_is_parsed():
    assert named_value(["uav-mec", "--scenario", "demo"], "--scenario") == "demo"
    assert named_value(["--scenario=demo", "x"], "--scenario") == "demo"
    assert named_value(["--scenario"], "--scenario") is None
    assert named_value(["x"], "--scenario") is None
