import json
from dataclasses import replace

import pytest

from lockstep.errors import BadInput, UnknownName
from lockstep.learners.config import LEARNERS, PPOConfig, RandomizedConfig
from lockstep.run.config import TrainConfig, pack, parse_seeds, preset
from lockstep.worlds import registry
from tests import tiny


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    ("world", "scenario"), [(w, s) for w in registry.names() for s in registry.scenarios(w)]
)
def test_what_is_written_loads_back_equal(world: str, scenario: str, learner: str):
    config = replace(preset(world, scenario=scenario, learner=learner), seeds=(3, 7, 9))
    text = json.dumps(config.to_json())
    assert TrainConfig.from_json(json.loads(text)) == config
    assert TrainConfig.from_json(json.loads(text)).hash == config.hash


def test_settings_by_role_survive_the_round_trip():
    config = tiny.config()
    assert isinstance(config.learner, PPOConfig)
    config = replace(config, learner=replace(config.learner, gae_lambda={"mu": 0.9, "uav": 0.8}))
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_unknown_and_missing_settings_are_refused():
    data = tiny.config().to_json()
    with pytest.raises(ValueError, match="unknown settings: sedes"):
        TrainConfig.from_json(data | {"sedes": [1]})
    with pytest.raises(ValueError, match="lacks the settings: threads"):
        TrainConfig.from_json({k: v for k, v in data.items() if k != "threads"})
    settings = {**data["learner"]["settings"], "clip": 0.1}
    with pytest.raises(ValueError, match=r"config\.learner has unknown settings: clip"):
        TrainConfig.from_json(data | {"learner": {"kind": "ppo", "settings": settings}})
    with pytest.raises(UnknownName, match="no kind of learner called 'pop'"):
        TrainConfig.from_json(data | {"learner": {"kind": "pop", "settings": settings}})


def test_a_setting_of_the_wrong_type_is_named():
    data = tiny.config().to_json()
    with pytest.raises(ValueError, match=r"config\.total_steps must be of type int, got 'many'"):
        TrainConfig.from_json(data | {"total_steps": "many"})
    with pytest.raises(ValueError, match=r"config\.device must be one of auto, cpu, cuda, got tpu"):
        TrainConfig.from_json(data | {"device": "tpu"})


def test_updates_follow_from_steps_and_fewer_than_one_is_refused():
    config = tiny.config(updates=3)
    assert config.updates == 3
    assert replace(config, total_steps=config.total_steps + 11).updates == 3
    message = r"total_steps \(5\) must be at least one update of lanes \* steps = 2 \* 6 = 12"
    with pytest.raises(ValueError, match=message):
        replace(config, total_steps=5)


def test_the_hash_covers_what_decides_results_and_nothing_else():
    config = tiny.config()
    for same in ({"device": "cuda"}, {"threads": 2}, {"checkpoint_every": 3}, {"compile": "on"}):
        assert replace(config, **same).hash == config.hash
    for other in ({"seeds": (0, 2)}, {"total_steps": 1200}):
        assert replace(config, **other).hash != config.hash
    assert isinstance(config.learner, PPOConfig)
    changed = replace(config.learner, clip_ratio=0.1)
    assert replace(config, learner=changed).hash != config.hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lessons": -1}, "lessons must be 0 or more updates, got -1"),
        ({"lessons": 3}, r"teacher \(''\) and lessons \(3\) need each other"),
        ({"teacher": "greedy"}, r"teacher \('greedy'\) and lessons \(0\) need each other"),
        (
            {
                "teacher": "greedy",
                "lessons": 3,
                "learner": RandomizedConfig(lanes=2, steps=6),
            },
            "lessons must be 0 for a learner of kind randomized, which cannot imitate, got 3",
        ),
    ],
)
def test_lessons_that_nobody_gives_or_takes_are_refused(changes, message: str):
    with pytest.raises(ValueError, match=message):
        replace(tiny.config(), **changes)


def test_lessons_decide_results_and_trials_with_others_are_no_pack():
    plain, taught = tiny.config(), tiny.config(teacher="greedy", lessons=2)
    assert taught.hash != plain.hash
    assert TrainConfig.from_json(taught.to_json()) == taught
    with pytest.raises(BadInput, match="teacher must be the same in a pack"):
        pack([plain.member(0), taught.member(1)])


def test_a_trial_is_the_same_in_any_pack():
    alone, pack = tiny.config(seeds=(1,)), tiny.config(seeds=(0, 1))
    assert alone.trial_hash(0) == pack.trial_hash(1) == alone.hash
    assert pack.trial_hash(0) != pack.trial_hash(1)


def test_seeds_are_a_count_or_a_list():
    assert parse_seeds("5") == (0, 1, 2, 3, 4)
    assert parse_seeds("2", first=7) == (7, 8)
    assert parse_seeds("3,7,9") == (3, 7, 9)
    assert parse_seeds("3,") == (3,)
    with pytest.raises(BadInput, match="a number or a list such as 3,7,9, got 'five'"):
        parse_seeds("five")
    with pytest.raises(BadInput, match="at least 1, got 0"):
        parse_seeds("0")


@pytest.mark.parametrize(
    ("seeds", "message"),
    [((), "at least one"), ((1, 1), "must differ"), ((-1,), "0 or more")],
)
def test_seeds_that_cannot_be_are_refused(seeds: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        tiny.config(seeds=seeds)


def test_the_reference_scenario_brings_the_reference_learner():
    config = preset("uav-mec", scenario="reference", learner="ab-mappo")
    assert isinstance(config.learner, PPOConfig)
    assert config.learner.actor == "mlp"
    assert config.learner.reward_norm == "running"
    assert preset("uav-mec", scenario="paper").learner == PPOConfig()
    assert preset("uav-mec", scenario="reference", learner="randomized").algorithm == "randomized"


SETTINGS = {"paper": {"lanes": 3, "set_context": "pooled"}, "demo": {"set_contxt": "pooled"}}


def test_a_world_says_which_learner_and_which_of_its_settings_suit(monkeypatch):
    entry = replace(
        registry.WORLDS["uav-mec"],
        learner="g-mappo",
        learner_settings="tests.unit.run.test_config:SETTINGS",
    )
    monkeypatch.setitem(registry.WORLDS, "uav-mec", entry)
    config = preset("uav-mec")
    assert config.algorithm == "g-mappo"
    assert config.learner == replace(LEARNERS["g-mappo"], lanes=3, set_context="pooled")
    assert preset("uav-mec", scenario="reference").learner == LEARNERS["g-mappo"]
    chance = preset("uav-mec", learner="randomized").learner
    assert chance == replace(LEARNERS["randomized"], lanes=3)
    message = "asked for by uav-mec, scenario demo.*did you mean 'set_context'"
    with pytest.raises(UnknownName, match=message):
        preset("uav-mec", scenario="demo")


@pytest.mark.parametrize("world", registry.names())
def test_every_world_names_a_learner_and_settings_that_there_are(world: str):
    for scenario in registry.scenarios(world):
        assert preset(world, scenario=scenario).algorithm == registry.learner(world)


def test_unknown_names_get_suggestions():
    with pytest.raises(UnknownName, match="no world called 'uav-mek'; did you mean 'uav-mec'"):
        preset("uav-mek")
    with pytest.raises(UnknownName, match="did you mean 'paper'"):
        preset("uav-mec", scenario="papre")
    with pytest.raises(UnknownName, match="did you mean 'ab-mappo'"):
        preset("uav-mec", learner="ab-mapo")
