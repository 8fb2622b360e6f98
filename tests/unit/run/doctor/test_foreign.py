"""Logs of SB3 and CleanRL, made by their own writers where those are here, are read and judged."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from lockstep.errors import BadInput
from lockstep.run.board import Board
from lockstep.run.doctor import examine, read_log
from lockstep.run.doctor.aliases import RETURN, aliases
from lockstep.run.doctor.foreign import from_rows
from lockstep.run.doctor.reading import from_lines
from lockstep.run.metrics import ALIASES as OUR_ALIASES
from lockstep.run.sinks import Record
from tests import tiny

SB3 = {
    "rollout/ep_len_mean": 180.0,
    "rollout/ep_rew_mean": 20.0,
    "time/fps": 900,
    "time/iterations": 1,
    "time/total_timesteps": 2048,
}
SB3_TRAIN = {
    "train/approx_kl": 0.01,
    "train/clip_fraction": 0.1,
    "train/clip_range": 0.2,
    "train/entropy_loss": -0.65,
    "train/explained_variance": 0.4,
    "train/learning_rate": 3e-4,
    "train/loss": 5.0,
    "train/n_updates": 10,
    "train/policy_gradient_loss": -0.01,
    "train/value_loss": 20.0,
}
CLEANRL = {
    "losses/approx_kl": 0.008,
    "losses/old_approx_kl": 0.007,
    "losses/clipfrac": 0.12,
    "losses/entropy": 0.6,
    "losses/explained_variance": 0.5,
    "losses/value_loss": 10.0,
    "losses/policy_loss": -0.01,
    "charts/learning_rate": 2.5e-4,
    "charts/SPS": 4000.0,
}


def progress_csv(path: Path, rows: int = 60, **columns: object) -> Path:
    """As SB3 writes it: the first row has no training yet and leaves those cells empty."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*SB3, *SB3_TRAIN])
        writer.writeheader()
        for row in range(rows):
            drawn = {k: v * (1 + 0.1 * math.sin(3.0 * row)) for k, v in SB3_TRAIN.items()}
            made = drawn | {"train/n_updates": 10 * row, "train/learning_rate": 3e-4}
            line = SB3 | {
                "time/iterations": row + 1,
                "time/total_timesteps": 2048 * (row + 1),
                "rollout/ep_rew_mean": 20 + 3.0 * row,
            }
            line |= made | columns if row else {}
            writer.writerow(line)
    return path


def cleanrl_events(folder: Path, updates: int = 60, **values: float) -> Path:
    """As CleanRL writes it: episodes whenever one ends, losses once an update."""
    with SummaryWriter(str(folder)) as writer:
        writer.add_text("hyperparameters", "|param|value|")
        for update in range(1, updates + 1):
            for episode in range(3):
                step = (update - 1) * 512 + 100 * (episode + 1)
                writer.add_scalar("charts/episodic_return", 3.0 * update + episode, step)
                writer.add_scalar("charts/episodic_length", 50.0, step)
            for tag, value in CLEANRL.items():
                wave = 1 + 0.1 * math.sin(3.0 * update)
                logged = values.get(tag, value if "learning_rate" in tag else value * wave)
                writer.add_scalar(tag, logged, update * 512)
    return folder


def test_a_healthy_progress_csv_of_sb3_raises_nothing(tmp_path: Path):
    log = read_log(progress_csv(tmp_path / "progress.csv"))
    assert examine(log).findings == ()
    assert log.unknown == (
        "time/iterations",
        "train/clip_range",
        "train/loss",
    )


def test_the_entropy_loss_of_sb3_is_the_entropy_with_a_minus(tmp_path: Path):
    log = read_log(progress_csv(tmp_path / "progress.csv"))
    assert np.nanmean(log.columns["train/policy/entropy"]) == pytest.approx(0.65, rel=0.05)


def test_updates_are_counted_from_the_first_row_that_was_trained(tmp_path: Path):
    log = read_log(progress_csv(tmp_path / "progress.csv", rows=5))
    assert log.update.tolist() == [1, 2, 3, 4]
    assert log.columns["step"][0].tolist() == [4096, 6144, 8192, 10240]


def test_the_folder_of_sb3_is_read_by_its_csv_or_its_json(tmp_path: Path):
    progress_csv(tmp_path / "progress.csv")
    assert read_log(tmp_path).source.endswith("progress.csv")
    lines = tmp_path / "json"
    lines.mkdir()
    rows = [{"train/approx_kl": 0.01, "train/entropy_loss": -1.0, "note": "a"}] * 3
    (lines / "progress.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_log(lines).columns["train/policy/entropy"].tolist() == [[1.0, 1.0, 1.0]]


def test_faults_in_a_csv_of_sb3_are_found(tmp_path: Path):
    broken = {
        "train/entropy_loss": -1.6094,
        "train/approx_kl": 5.27,
        "train/clip_fraction": 0.99,
        "train/n_updates": 10,
    }
    found = {
        f.id: f
        for f in examine(read_log(progress_csv(tmp_path / "progress.csv", **broken))).findings
    }
    assert found["D2"].values["k"] == 5
    assert found["D4"].values["K"] == pytest.approx(42, abs=0.2)
    assert "D21" in found
    assert found["D2"].role == "policy"


def test_a_number_that_broke_is_told_from_one_that_was_not_written(tmp_path: Path):
    path = progress_csv(tmp_path / "progress.csv", **{"train/value_loss": "nan"})
    (finding,) = (f for f in examine(read_log(path)).findings if f.id == "G16")
    assert "train/value_loss is not a finite number at update 1 and 59 times" in finding.evidence
    assert examine(read_log(progress_csv(tmp_path / "progress.csv"))).findings == ()


def test_events_of_cleanrl_are_read_and_raise_nothing(tmp_path: Path):
    log = read_log(cleanrl_events(tmp_path / "CartPole-v1__ppo__1"))
    assert len(log.update) == 60
    returns = log.columns["episode/policy/return_mean"][0]
    assert returns[:2].tolist() == [4.0, 7.0]  # the mean of the three that ended before it
    assert log.columns["train/policy/k1"][0].mean() == pytest.approx(0.007, rel=0.05)
    assert log.perf["perf/steps_per_s"].mean() == pytest.approx(4000, rel=0.05)
    assert log.columns["step"][0, :2].tolist() == [512, 1024]
    assert examine(log).findings == ()


def test_events_are_found_below_a_folder_and_by_their_own_name(tmp_path: Path):
    cleanrl_events(tmp_path / "runs" / "one", updates=3)
    assert len(read_log(tmp_path).update) == 3
    (file,) = (tmp_path / "runs" / "one").iterdir()
    assert len(read_log(file).update) == 3


def test_two_runs_in_one_folder_are_refused_by_name(tmp_path: Path):
    cleanrl_events(tmp_path / "one", updates=2)
    cleanrl_events(tmp_path / "two", updates=2)
    with pytest.raises(BadInput, match=r"holds 2 logs; name one of them: .*one, .*two"):
        read_log(tmp_path)


def test_faults_in_events_are_found(tmp_path: Path):
    folder = cleanrl_events(
        tmp_path,
        **{
            "losses/entropy": math.log(5),
            "losses/approx_kl": 4.92,
            "losses/old_approx_kl": -math.log(8),
            "losses/clipfrac": 1.0,
        },
    )
    found = {f.id: f for f in examine(read_log(folder)).findings}
    assert found["D4"].values["K"] == pytest.approx(40, abs=0.1)
    assert "from the signed KL" in found["D4"].evidence


def test_a_plain_table_with_bare_names_will_do(tmp_path: Path):
    path = tmp_path / "log.csv"
    path.write_text("iteration,approx_kl,clipfrac,entropy\n" + "1,0.01,0.1,0.5\n" * 3)
    log = read_log(path)
    assert set(log.columns) == {
        f"train/policy/{k}" for k in ("approx_kl", "clip_fraction", "entropy")
    }
    assert log.unknown == ("iteration",)


def test_keys_of_ours_in_a_table_are_read_as_they_are():
    log = from_rows("table", [{"train/mu/approx_kl": 0.01, "train/uav/approx_kl": 0.02, "x": 1.0}])
    assert log.roles == ("mu", "uav")
    assert log.unknown == ("x",)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "time,price\n1,2\n",
            r"no column that the doctor knows \(its columns: time, price\)",
        ),
        ("a.csv", "", r"no column that the doctor knows \(its columns: none\)"),
        ("a.jsonl", '{"entropy": 1}\n{"entr\n{}\n', r"line 2 of .* is no JSON"),
        ("a.jsonl", "[1]\n", r"line 1 of .* must be a JSON object, got \[1\]"),
        ("a.txt", "hello", r"must be a run folder, a \.csv, a \.jsonl, or TensorBoard events"),
        ("a.csv", "\udcff", r"cannot be read as CSV"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, name: str, text: str, message: str
):
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=message):
        read_log(tmp_path / name)


def test_a_writer_at_work_leaves_a_last_line_that_is_not_counted(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"entropy": 1.0}\n{"entropy": 1.1}\n{"entr')
    assert read_log(tmp_path / "a.jsonl").columns["train/policy/entropy"].tolist() == [[1.0, 1.1]]


def test_nothing_at_a_path_and_nothing_in_a_folder_are_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"there is no .*gone"):
        read_log(tmp_path / "gone")
    with pytest.raises(BadInput, match=r"holds no log: no config\.json .* no progress"):
        read_log(tmp_path)


def test_no_foreign_name_stands_for_two_things():
    names = [name for alias in aliases() for name in alias.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("roles", [("uav",), ("uav", "user")])
def test_our_own_events_read_back_as_our_numbers(tmp_path: Path, roles: tuple[str, ...]):
    """Although they stand there under the tags of others, with their signs and factors."""
    keys = [alias.key for alias in OUR_ALIASES if alias.key.startswith(("train/", "episode/"))]
    keys += ["train/<role>/ratio_mean", "train/minibatches", "world/cost"]
    lines: list[dict[str, float | int | None]] = []
    board = Board(tmp_path, tiny.config(seeds=(3,)))
    for update in (1, 2, 3):
        names = dict.fromkeys(key.replace("<role>", role) for key in keys for role in roles)
        numbers = {name: [0.1 * place + update] for place, name in enumerate(names, start=1)}
        board.write(Record(update=update, step=12 * update, seeds=(3,), metrics=numbers, perf={}))
        own: dict[str, float | int | None] = {name: x for name, (x,) in numbers.items()}
        lines.append(own | {"update": update, "step": 12 * update})
    board.close()
    log = read_log(tmp_path)
    straight = from_lines("lines", lines, [], score=None, facts=log.facts)
    assert log.roles == roles
    wanted = {k: x for k, x in straight.columns.items() if k.startswith(("train/", "world/"))}
    read = {key: column for key, column in log.columns.items() if key in wanted}
    assert set(wanted) - set(read) <= {f"train/{role}/policy_loss" for role in roles}
    for key, column in read.items():
        np.testing.assert_allclose(column, wanted[key], rtol=1e-6, err_msg=key)
    assert log.columns["step"].tolist() == straight.columns["step"].tolist()
    assert log.columns["train/n_updates"].tolist() == straight.columns["update"].tolist()
    returns = [straight.columns[f"episode/{role}/return_mean"] for role in roles]
    np.testing.assert_allclose(log.columns[RETURN], np.mean(returns, axis=0), rtol=1e-6)


def test_the_value_loss_of_sb3_is_twice_ours_and_that_of_cleanrl_is_ours(tmp_path: Path):
    log = read_log(progress_csv(tmp_path / "progress.csv"))
    assert np.nanmean(log.columns["train/value_loss"]) == pytest.approx(10.0, rel=0.05)
    log = read_log(cleanrl_events(tmp_path / "events", updates=3))
    assert log.columns["train/value_loss"].mean() == pytest.approx(10.0, rel=0.1)
    log = from_rows("ours", [{"train/value_loss": 10.0, "train/mu/approx_kl": 0.01}])
    assert log.columns["train/value_loss"].tolist() == [[10.0]]


def test_every_name_that_we_write_for_others_is_read():
    known = {name for alias in aliases() for name in alias.names}
    written = {name for alias in OUR_ALIASES for name in (alias.sb3, alias.cleanrl) if name}
    assert written <= known
