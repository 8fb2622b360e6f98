import json
from pathlib import Path

import pytest

import lockstep
from lockstep.cli import main
from lockstep.run.config import TrainConfig
from lockstep.worlds import registry

TINY = {
    "uav-mec": ["--scenario=demo", "--world.n-users=4", "--world.n-uavs=2", "--world.n-slots=3"],
    "city-growth": ["--scenario=tiny-4"],
}
LEARNER = [
    "--learner.lanes=2",
    "--learner.steps=2",
    "--learner.minibatches=1",
    "--learner.epochs=1",
]
QUICK = ["--seconds=.01", "--device=cpu"]


@pytest.mark.parametrize("world", registry.names())
def test_every_world_has_a_ledger(world: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", world, *TINY.get(world, []), *LEARNER, *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "device: cpu" in shown
    for row in ("world only", "+ acting", "+ learning"):
        assert f"│ {row}" in shown
    assert "operator calls" in shown
    assert "the plain path itself was timed" in shown
    assert "load average before:" in shown


def test_the_ledger_goes_to_a_file_with_machine_versions_and_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "ledger.json"
    flags = [*TINY["uav-mec"], *LEARNER, *QUICK, "--seeds=3,5", "--world-lanes=3"]
    assert main(["bench", "uav-mec", *flags, f"--json={path}"]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    data = json.loads(path.read_text())
    assert data["machine"].keys() >= {"device", "cores", "load_average_before", "threads"}
    assert data["versions"].keys() >= {"torch", "python", "lockstep-rl"}
    assert data["versions"]["lockstep-rl"] == lockstep.__version__
    assert len(data["code_version"]) == 64
    assert data["command"]
    config = TrainConfig.from_json(data["config"])
    assert config.seeds == (3, 5)
    assert config.learner.lanes == 2
    assert [row["lanes"] for row in data["rows"]] == [3, 4, 4]
    assert all(len(row["repeats"]) >= 3 for row in data["rows"])
    assert data["update"]["launches"] is None
    assert data["update"]["operators"] > 0


def test_the_ledger_alone_goes_to_standard_output(capsys: pytest.CaptureFixture[str]):
    flags = [*TINY["uav-mec"], "--learner=randomized", "--learner.lanes=2", "--learner.steps=2"]
    assert main(["bench", "uav-mec", *flags, *QUICK, "--json=-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["path"] == "plain"
    assert "world only" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["no-such-world"], "there is no world called 'no-such-world'"),
        (["uav-mec", "--seconds=0"], "--seconds must be positive, got 0"),
        (["uav-mec", "--world-lanes=0"], "--world-lanes must be at least 1, got 0"),
        (["uav-mec", "--json=no/such/x.json"], "--json must lie in a folder that exists, got no/s"),
        (["uav-mec", "--seeds=0"], "seeds must be at least 1, got 0"),
        (["uav-mec", "--device=cuda"], "device is cuda, but no GPU is available here"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", *flags]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"lockstep bench: {message}")
    assert said.count("\n") == 1
