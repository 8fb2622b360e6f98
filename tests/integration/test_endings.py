"""How a run ends: what it leaves behind, what it says, and who may not get in its way."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.errors import LockstepError
from lockstep.run import loop, vitals
from lockstep.run.doctor import hints
from lockstep.run.heartbeat import Beat, Heartbeat
from lockstep.run.loop import Progress
from lockstep.run.pulse import View
from lockstep.run.rundir import read_json
from lockstep.run.trainer import Trainer
from tests import tiny


def test_a_report_that_cannot_be_written_does_not_take_the_place_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(self: Trainer) -> object:
        (tmp_path / "run" / "crash").touch()  # a file where the reports would go
        raise ZeroDivisionError("the real error")

    monkeypatch.setattr(Trainer, "learn", broken)
    with pytest.raises(ZeroDivisionError, match="the real error"):
        loop.train(tiny.config(), tmp_path / "run")
    assert "failed, and its report could not be written: FileExistsError" in caplog.text
    assert read_json(tmp_path / "run" / "heartbeat.json")["phase"] == "failed"


def test_memory_that_the_ladder_makes_do_without_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    learn = Trainer.learn
    phases: list[str | None] = []

    def scarce_once(self: Trainer) -> object:
        if self.config.accumulate == 1 and self.updates == 2:
            raise MemoryError("so many bytes")
        return learn(self)

    class Witness(Heartbeat):
        def beat(self, view: View, *, phase: str | None = None, alert: str | None = None) -> Beat:
            phases.append(phase)
            return super().beat(view, phase=phase, alert=alert)

    monkeypatch.setattr(Trainer, "learn", scarce_once)
    monkeypatch.setattr(vitals, "Heartbeat", Witness)
    config = tiny.config(updates=4, checkpoint_every=1, auto_memory=True)
    run = loop.train(config, tmp_path / "run")
    assert run.finished
    assert run.config.accumulate > 1
    assert not (run.folder / "crash").exists()
    assert [phase for phase in phases if phase] == ["start", "finished"]


def test_memory_that_no_rung_can_spare_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def scarce(self: Trainer) -> object:
        raise MemoryError("so many bytes")

    monkeypatch.setattr(Trainer, "learn", scarce)
    config = tiny.config(updates=4, auto_memory=True, deterministic=True)
    with pytest.raises(LockstepError, match="memory ran out"):
        loop.train(config, tmp_path / "run")
    assert (tmp_path / "run" / "crash" / "1.json").is_file()
    assert read_json(tmp_path / "run" / "heartbeat.json")["phase"] == "failed"


def test_what_the_doctor_says_reaches_whoever_watches_also_at_the_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    collect = Trainer.collect

    def broken(self: Trainer) -> dict[str, object]:
        return dict(collect(self)) | {"train/value_loss": torch.full((2,), float("nan"))}

    def learned(self: Trainer) -> dict[str, object]:
        return {key: x for key, x in learn(self).items() if key != "train/value_loss"}

    learn = Trainer.learn
    monkeypatch.setattr(Trainer, "collect", broken)
    monkeypatch.setattr(Trainer, "learn", learned)
    config = tiny.config(updates=3, checkpoint_every=100)
    config = replace(config, ops=replace(config.ops, hints_every=3))
    told: list[tuple[int, str]] = []

    def watch(progress: Progress) -> None:
        told.extend((progress.update, finding.id) for finding in progress.findings)

    run = loop.train(config, tmp_path / "run", on_update=watch)
    assert told == [(3, "G16")]
    assert [f["id"] for f in read_json(run.dir.findings)] == ["G16"]


def test_a_doctor_that_fails_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(*words: object, **named: object) -> None:
        raise ZeroDivisionError("a rule")

    monkeypatch.setattr(hints, "examine", broken)
    config = tiny.config(updates=3)
    config = replace(config, ops=replace(config.ops, hints_every=1))
    assert loop.train(config, tmp_path / "run").finished
    assert "the doctor failed and the run goes on without its hints" in caplog.text
