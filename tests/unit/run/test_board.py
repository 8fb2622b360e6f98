import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.errors import MissingExtra
from lockstep.run.board import MOST_MEMBERS, Board, tags
from lockstep.run.sinks import Record
from tests import tiny

METRICS = {
    "world/cost": 1.0,
    "train/uav/policy_loss": 2.0,
    "train/uav/entropy": 3.0,
    "train/value_loss": 4.0,
    "train/uav/approx_kl": 5.0,
    "train/uav/clip_fraction": 6.0,
    "train/uav/explained_variance": 7.0,
    "train/uav/std": 8.0,
    "train/lr_actor": 9.0,
    "episode/uav/return_mean": 10.0,
    "episode/length_mean": 11.0,
}
TAGS = {
    "world/cost": 1.0,
    "train/policy_gradient_loss": 2.0,
    "losses/policy_loss": 2.0,
    "train/entropy_loss": -3.0,
    "losses/entropy": 3.0,
    "train/value_loss": 8.0,
    "losses/value_loss": 4.0,
    "train/approx_kl": 5.0,
    "losses/approx_kl": 5.0,
    "train/clip_fraction": 6.0,
    "losses/clipfrac": 6.0,
    "train/explained_variance": 7.0,
    "losses/explained_variance": 7.0,
    "train/std": 8.0,
    "train/learning_rate": 9.0,
    "charts/learning_rate": 9.0,
    "rollout/ep_rew_mean": 10.0,
    "charts/episodic_return": 10.0,
    "rollout/ep_len_mean": 11.0,
    "charts/episodic_length": 11.0,
    "time/total_timesteps": 60.0,
    "train/n_updates": 5.0,
}
PERF_TAGS = {"time/fps": 120.0, "charts/SPS": 120.0, "perf/update_s": 0.5}


def record(update: int, seeds: tuple[int, ...], metrics: dict[str, list[float]]) -> Record:
    return Record(
        update=update,
        step=12 * update,
        seeds=seeds,
        metrics=metrics,
        perf={"perf/update_s": 0.5, "perf/steps_per_s": 120.0},
    )


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def scalars(folder: Path) -> dict[str, float]:
    events = read(folder)
    return {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}


def steps(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_one_member_is_written_under_the_tags_of_both_libraries(tmp_path: Path):
    board = Board(tmp_path, tiny.config(seeds=(3,)))
    board.write(record(5, (3,), {key: [x] for key, x in METRICS.items()}))
    board.close()
    clip = {"train/clip_range": pytest.approx(0.2)}
    assert scalars(tmp_path / "seed-3") == TAGS | PERF_TAGS | clip
    assert [event.step for event in read(tmp_path / "seed-3").Scalars("time/fps")] == [60]
    assert [folder.name for folder in tmp_path.iterdir()] == ["seed-3"]


def test_a_pack_has_a_folder_for_each_seed_and_one_for_the_mean(tmp_path: Path):
    board = Board(tmp_path, tiny.config(seeds=(3, 7)))
    board.write(record(1, (3, 7), {"world/cost": [1.0, 4.0], "train/uav/entropy": [0.5, 1.5]}))
    board.close()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["mean", "seed-3", "seed-7"]
    assert scalars(tmp_path / "seed-7")["world/cost"] == 4.0
    assert "time/fps" not in scalars(tmp_path / "seed-7")
    mean = scalars(tmp_path / "mean")
    assert (mean["world/cost"], mean["losses/entropy"], mean["time/fps"]) == (2.5, 1.0, 120.0)


def test_of_a_large_pack_only_the_mean_is_written(tmp_path: Path):
    seeds = tuple(range(MOST_MEMBERS + 1))
    board = Board(tmp_path, tiny.config(seeds=seeds))
    board.write(record(1, seeds, {"world/cost": [float(seed) for seed in seeds]}))
    board.close()
    assert [folder.name for folder in tmp_path.iterdir()] == ["mean"]
    assert scalars(tmp_path / "mean")["world/cost"] == 8.0


def test_what_is_not_finite_is_left_out_and_so_is_its_mean(tmp_path: Path):
    board = Board(tmp_path, tiny.config(seeds=(0, 1)))
    board.write(record(1, (0, 1), {"x": [float("nan"), 1.0], "y": [float("inf"), 1.0]}))
    board.close()
    assert {"x", "y"} & set(scalars(tmp_path / "seed-0")) == set()
    assert {"x", "y"} & set(scalars(tmp_path / "mean")) == set()
    assert scalars(tmp_path / "seed-1")["x"] == 1.0


def test_several_roles_share_a_tag_by_their_mean_and_keep_their_keys():
    keys = ("train/uav/entropy", "train/user/entropy", "train/uav/std")
    found = {tag.name: tag for tag in tags(keys)}
    assert found["train/entropy_loss"][1:] == ((0, 1), -1.0)
    assert found["train/uav/entropy"].sources == (0,)
    assert found["train/user/entropy"].sources == (1,)
    assert found["train/std"].sources == (2,)
    assert "train/uav/std" not in found


def test_the_start_is_marked_with_what_was_asked(tmp_path: Path):
    config = tiny.config(seeds=(3,))
    Board(tmp_path, config).close()
    (event,) = read(tmp_path / "seed-3").Tensors("meta/started")
    text = event.tensor_proto.string_val[0].decode()
    assert "| learner | ab-mappo |" in text
    assert config.hash in text
    assert '"n_users": 4' in text


def test_a_resumed_run_has_no_step_twice_even_after_a_kill_in_a_record(tmp_path: Path):
    config = tiny.config(seeds=(3,))
    board = Board(tmp_path, config)
    for update in (1, 2, 3, 4):
        board.write(record(update, (3,), {"x": [float(update)]}))
    board.close()
    (file,) = (tmp_path / "seed-3").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    board = Board(tmp_path, config, step=24)  # the checkpoint after update 2
    for update in (3, 4, 5):
        board.write(record(update, (3,), {"x": [10.0 * update]}))
    board.sync()
    board.close()
    wanted = [(12, 1.0), (24, 2.0), (36, 30.0), (48, 40.0), (60, 50.0)]
    assert steps(tmp_path / "seed-3", "x") == wanted
    assert len(read(tmp_path / "seed-3").Tensors("meta/started")) == 1


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path):
    config = tiny.config(seeds=(3,))
    for factor in (1.0, 10.0):
        board = Board(tmp_path, config)
        board.write(record(1, (3,), {"x": [factor]}))
        board.close()
    assert steps(tmp_path / "seed-3", "x") == [(12, 10.0)]


def test_a_learner_without_a_clip_range_writes_none(tmp_path: Path):
    from lockstep.learners.config import LEARNERS

    config = replace(tiny.config(seeds=(3,)), learner=LEARNERS["randomized"], total_steps=10**4)
    board = Board(tmp_path, config)
    board.write(record(1, (3,), {}))
    board.close()
    assert "train/clip_range" not in scalars(tmp_path / "seed-3")


def test_without_tensorboard_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(MissingExtra, match=r"tensorboard is not installed; run: pip .*\[board\]'"):
        Board(tmp_path, tiny.config())
