"""Members of one pack that differ in numbers of the learner and of the world."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lockstep as ls
from lockstep.cli import main
from lockstep.core.streams import lane_keys
from lockstep.errors import BadInput, UnknownName
from lockstep.run import loop
from lockstep.run.config import TrainConfig, crossed, pack, pack_key, parse_grid, variable
from lockstep.run.members import extract
from lockstep.run.record import Run
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry as worlds
from tests import tiny


def differing(setting: str, values: tuple[float, float], **world: object) -> list[TrainConfig]:
    base = tiny.config(updates=3, seeds=(4,))
    base = replace(
        base,
        learner=replace(base.learner, epochs=3, minibatches=2, value_clip=0.5),
        world=replace(base.world, assoc_head="categorical", **world),
    )
    part, name = setting.split(".")
    return [
        replace(base, **{part: replace(getattr(base, part), **{name: value})}) for value in values
    ]


@pytest.mark.parametrize("name", tiny.config().world.settable)
def test_a_lane_with_its_own_scenario_number_is_the_lane_of_a_world_with_that_number(name: str):
    base = replace(tiny.config().world, deviation=0.1)
    other = getattr(base, name) * 1.25
    mixed = worlds.build(base, lanes=2)
    mixed.set(name, torch.tensor([getattr(base, name), other]))
    alone = worlds.build(replace(base, **{name: other}), lanes=1)
    keys = lane_keys([7], lanes=1)
    mixed.reset(keys.repeat(2))
    alone.reset(keys)
    for _ in range(base.n_slots):
        for role in ("mu", "uav"):
            seen = mixed.observe(role).features["obs"]
            assert torch.equal(seen[1:], alone.observe(role).features["obs"])
            parts = {r.name: r.action for r in mixed.spec.roles}[role]
            action = {
                part: torch.full((2, seen.shape[1], size.n), 0.6) for part, size in parts.items()
            }
            mixed.act(role, action)
            alone.act(role, {part: x[1:] for part, x in action.items()})
        ours, theirs = mixed.advance(), alone.advance()
        for role, reward in theirs.reward.items():
            assert torch.equal(ours.reward[role][1:], reward)
        for metric, value in theirs.metrics.items():
            assert torch.equal(ours.metrics[metric][1:], value), metric


def test_members_of_different_scenarios_collect_what_they_collect_alone():
    trials = differing("world.bandwidth_mhz", (5.0, 80.0))
    together = Trainer(pack(trials))
    found = together.collect()["world/weighted_energy_mu_avg"]
    assert found[0] > found[1] + 0.01  # the number matters
    for member, trial in enumerate(trials):
        alone = Trainer(trial)
        alone.collect()
        lanes = slice(member * trial.learner.lanes, (member + 1) * trial.learner.lanes)
        for role, rows in alone.rollout.roles.items():
            ours = together.rollout.roles[role].reward[:, lanes]
            torch.testing.assert_close(ours, rows.reward, rtol=1e-5, atol=1e-6)


def test_a_pack_remembers_each_trial():
    trials = [
        *differing("world.bandwidth_mhz", (5.0, 80.0)),
        *differing("learner.clip_ratio", (0.3, 0.4)),
    ]
    packed = pack(trials)
    assert [packed.member(i).hash for i in range(4)] == [trial.hash for trial in trials]
    assert [packed.trial_hash(i) for i in range(4)] == [trial.hash for trial in trials]
    assert set(packed.vary) == {"world.bandwidth_mhz", "learner.clip_ratio"}
    assert TrainConfig.from_json(packed.to_json()) == packed
    assert len({pack_key(trial) for trial in trials}) == 1


def test_trials_that_need_other_programs_cannot_share_a_pack():
    one, other = differing("learner.hidden", (16, 32))
    assert pack_key(one) != pack_key(other)
    with pytest.raises(BadInput, match=r"learner\.hidden must be the same .*, got 16 and 32"):
        pack([one, other])
    clipped, free = differing("learner.kl_stop_update", (0.1, None))  # type: ignore[arg-type]
    assert pack_key(clipped) != pack_key(free)
    with pytest.raises(BadInput, match="a pack is made of single members, got one of 2"):
        pack([one, tiny.config()])


def test_a_grid_is_crossed_with_the_seeds():
    config = crossed(
        tiny.config(seeds=(3, 5)),
        parse_grid(["learner.lr-actor=1e-4,3e-4", "world.deviation=0,.1"]),
    )
    assert config.seeds == (3, 5) * 4
    assert config.vary["learner.lr_actor"] == (1e-4,) * 4 + (3e-4,) * 4
    assert config.vary["world.deviation"] == (0.0, 0.0, 0.1, 0.1) * 2
    assert config.member_name(7) == "seed-5 lr_actor=0.0003 deviation=0.1"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"vary": {"learner.clip_ratio": (0.1,)}}, "one number for each of the 2 members, got 1"),
        ({"vary": {"learner.clip_ratio": (0.1, -1.0)}}, "clip_ratio must be positive, got -1.0"),
        ({"vary": {"world.deviation": (0.1, 2.0)}}, "deviation must lie in 0..1, got 2.0"),
        (
            {"vary": {"world.deviation": (0.1, 0.1)}, "seeds": (1, 1)},
            "seeds must differ from each other unless members differ in what they vary, got 1, 1",
        ),
    ],
)
def test_numbers_that_make_no_sense_are_refused(settings: dict[str, object], text: str):
    with pytest.raises(ValueError, match=text):
        replace(tiny.config(), **settings)


def test_a_setting_that_cannot_vary_is_answered_with_those_that_can():
    with pytest.raises(UnknownName, match=r"learner\.lr_actor"):
        crossed(tiny.config(), {"learner.lr_acter": (1.0, 2.0)})
    assert "learner.hidden" not in variable(tiny.config())
    with pytest.raises(BadInput, match=r"grid must be settings with numbers .* got 'x=a'"):
        parse_grid(["x=a"])


def test_a_run_of_a_grid_is_trained_taken_apart_and_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    grid = ["--grid", "world.bandwidth_mhz=5,80", "learner.lr_actor=1e-3,1e-2"]
    folder = tmp_path / "grid"
    code = main(["train", "uav-mec", *tiny.flags(4), *grid, f"--root={tmp_path}", "--name=grid"])
    assert code == 0
    run = Run.open(folder)
    assert run.config.members == 4
    assert run.summary["members"][3]["varied"] == {
        "world.bandwidth_mhz": 80.0,
        "learner.lr_actor": 1e-2,
    }
    assert main(["evaluate", str(folder), "--episodes=2"]) == 0
    assert main(["evaluate", str(folder), "--episodes=2", "--member=3", "--against=greedy"]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--against=greedy"]) == 2
    said = capsys.readouterr().err
    assert "--against needs --member" in said
    assert "they vary bandwidth_mhz" in said

    cut = loop.train(replace(run.config, total_steps=24, checkpoint_every=1), tmp_path / "two")
    alone = extract(Run.open(cut.folder), 3, tmp_path / "alone")
    assert alone.config == cut.config.member(3)
    assert alone.config.world.bandwidth_mhz == 80.0


def test_the_notebook_way_takes_a_grid_too():
    trainer = ls.trainer(
        tiny.config().world,
        learner=tiny.config().learner,
        seeds=2,
        grid={"learner.entropy_weight": [0.0, 0.1]},
        device="cpu",
        total_steps=12,
    )
    assert trainer.config.members == 4
    assert all(math.isfinite(x) for x in trainer.update()["train/value_loss"].tolist())


def test_a_setting_is_given_once_in_a_grid_and_with_a_number():
    with pytest.raises(BadInput, match=r"grid must name a setting once, got learner\.lr_actor"):
        parse_grid(["learner.lr_actor=1e-4", "learner.lr-actor=3e-4,1e-3"])
    with pytest.raises(BadInput, match=r"grid must give learner\.lr_actor at least one number"):
        crossed(tiny.config(), {"learner.lr_actor": ()})


def test_members_of_different_worlds_have_no_best_one(tmp_path: Path):
    config = crossed(tiny.config(updates=1), {"world.bandwidth_mhz": (30.0, 70.0)})
    run = loop.train(config, tmp_path / "run")
    with pytest.raises(BadInput, match="they vary bandwidth_mhz; name one with --member"):
        ls.load(run)
    assert ls.load(run, member=1).label
