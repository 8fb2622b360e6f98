"""The doctor beside a training: in the recorder's thread, never in its way, the same resumed."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.run.doctor import Finding, Hints, hints as hints_module
from lockstep.run.rundir import RunDir
from lockstep.run.sinks import Record, Recorder
from tests import tiny
from tests.unit.run.doctor.test_hints import metrics

SEEDS = tuple(range(10))  # more than one look examines
CONFIG = tiny.config(seeds=SEEDS)


def record(update: int) -> Record:
    """Clips too much from the start; the score and the critic stand still; later, one breaks."""
    seen = metrics(update, len(SEEDS), clip_fraction=0.6)
    seen["world/cost"] = [2.0 + 0.01 * (update * 7 % 5)] * len(SEEDS)
    seen["train/agent/approx_kl"] = [1e-5 * (1 + 0.1 * (update % 3))] * len(SEEDS)
    if update == 260:
        seen["train/value_loss"] = [float("nan")] * len(SEEDS)
    return Record(
        update=update,
        step=12 * update,
        seeds=SEEDS,
        metrics=seen,
        perf={"perf/update_s": 1.0} if update % 2 else {"perf/update_s": 1.0, "perf/env_s": 0.5},
    )


def asked() -> Hints:
    return Hints(every=50, seeds=SEEDS, score="world/cost")


def feed(recorder: Recorder, updates: Sequence[int]) -> tuple[list[Finding], int]:
    """What was handed out, and the length of metrics.jsonl."""
    for update in updates:
        recorder.put(record(update))
    length = recorder.sync()
    return list(recorder.findings()), length


def said(folder: Path) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = json.loads((folder / "findings.json").read_text())
    return found


def test_findings_are_handed_out_once_and_all_of_them_stand_in_the_file(tmp_path: Path):
    with Recorder(RunDir(tmp_path), CONFIG, hints=asked()) as recorder:
        first, _ = feed(recorder, range(1, 51))
        assert [(f.id, f.update) for f in first] == [("G8", 50)]
        again, _ = feed(recorder, range(51, 60))
        assert again == []
        later, _ = feed(recorder, range(60, 301))
    expected = [("G9", 100), ("G8", 250), ("G16", 300), ("G9", 300)]
    assert sorted((f.id, f.update) for f in later) == sorted(expected)
    assert said(tmp_path) == [finding.to_json() for finding in (*first, *later)]


@pytest.mark.parametrize("stop", [1, 7, 50, 130, 205, 250, 290])
def test_a_resumed_training_is_told_what_a_straight_one_is(tmp_path: Path, stop: int):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for folder in (straight, killed):
        folder.mkdir()
    with Recorder(RunDir(straight), CONFIG, hints=asked()) as recorder:
        feed(recorder, range(1, 461))
    with Recorder(RunDir(killed), CONFIG, hints=asked()) as recorder:
        _, length = feed(recorder, range(1, stop + 1))
        feed(recorder, range(stop + 1, stop + 120))  # lost by the kill
    with Recorder(
        RunDir(killed), CONFIG, offset=length, update=stop, step=12 * stop, hints=asked()
    ) as recorder:
        told, _ = feed(recorder, range(stop + 1, 461))
    assert said(killed) == said(straight)
    assert [f.to_json() for f in told] == [f for f in said(straight) if f["update"] > stop]


def test_a_run_that_begins_again_forgets_what_was_said_of_it(tmp_path: Path):
    for _ in range(2):
        with Recorder(RunDir(tmp_path), CONFIG, hints=asked()) as recorder:
            feed(recorder, range(1, 51))
    assert [finding["update"] for finding in said(tmp_path)] == [50]


def test_a_first_look_that_finds_nothing_says_so_in_the_file(tmp_path: Path):
    with Recorder(RunDir(tmp_path), CONFIG, hints=Hints(every=5, seeds=SEEDS)) as recorder:
        feed(recorder, range(1, 5))
        assert not (tmp_path / "findings.json").exists()
        feed(recorder, [5])
        assert said(tmp_path) == []


def test_a_look_keeps_the_training_thread_waiting_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    examine = hints_module.examine

    def slow(*words: object, **named: object) -> object:
        time.sleep(0.5)
        return examine(*words, **named)

    monkeypatch.setattr(hints_module, "examine", slow)
    with Recorder(RunDir(tmp_path), CONFIG, hints=asked()) as recorder:
        start = time.perf_counter()
        for update in range(1, 60):
            recorder.put(record(update))
            assert recorder.findings() == ()
        assert time.perf_counter() - start < 0.4
        recorder.sync()
        assert [f.id for f in recorder.findings()] == ["G8"]


def test_a_rule_that_fails_ends_the_hints_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*words: object, **named: object) -> None:
        raise ZeroDivisionError("a rule")

    monkeypatch.setattr(hints_module, "examine", broken)
    with Recorder(RunDir(tmp_path), CONFIG, hints=asked()) as recorder:
        told, _ = feed(recorder, range(1, 151))
    assert told == []
    assert caplog.messages == [
        "the doctor failed and the run goes on without its hints: ZeroDivisionError('a rule')"
    ]
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 150 * len(SEEDS)


@pytest.mark.parametrize("content", [b"\x00\x00", b'{"id": "G8"}', b'[{"id": "G8"}]'])
def test_a_damaged_file_of_findings_is_begun_anew(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
):
    run = RunDir(tmp_path)
    with Recorder(run, CONFIG, hints=asked()) as recorder:
        _, length = feed(recorder, range(1, 61))
    run.findings.write_bytes(content)
    with Recorder(run, CONFIG, offset=length, update=60, step=720, hints=asked()) as recorder:
        told, _ = feed(recorder, range(61, 101))
    assert ("G8", 100) in [(f.id, f.update) for f in told]
    (message,) = caplog.messages
    assert message.startswith("findings.json cannot be read and is begun anew: ")
    assert said(tmp_path) == [f.to_json() for f in told]


def test_a_finding_that_is_written_reads_back_as_it_was(tmp_path: Path):
    with Recorder(RunDir(tmp_path), CONFIG, hints=asked()) as recorder:
        told, _ = feed(recorder, range(1, 51))
    assert list(Finding.all_from(json.loads((tmp_path / "findings.json").read_text()))) == told
    assert replace(told[0], update=None).to_json()["update"] is None
