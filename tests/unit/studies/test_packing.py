"""Which trials are trained side by side, and in which order."""

from dataclasses import replace

import pytest

from lockstep.errors import BadInput
from lockstep.learners.config import LEARNERS
from lockstep.studies.packing import DRAWN, MAX_REPLAYS, halves, make_pack, packs
from lockstep.studies.study import Trial, sweep
from tests.unit.studies.roots import tiny_config, tiny_study


def trials(*, values: tuple[float, ...] = (30.0, 50.0), seeds: tuple[int, ...] = (1, 2), **world):
    series = {"K=4": tiny_config(**world)}
    band = sweep("b", series, seeds=seeds, axis="world.bandwidth_mhz", values=values)
    return [trial for point in band for trial in point.trials]


def test_seeds_and_scenario_numbers_go_into_one_pack_as_they_would_be_alone():
    (pack,) = packs(trials())
    assert pack.config.seeds == (1, 2, 1, 2)
    assert pack.config.vary == {"world.bandwidth_mhz": (30.0, 30.0, 50.0, 50.0)}
    alone = [pack.config.member(i).hash for i in range(4)]
    assert alone == [trial.config.hash for trial in pack.trials]


def test_hyper_parameters_go_into_one_pack_too():
    rates = sweep(
        "r", {"K=4": tiny_config()}, seeds=(1,), axis="learner.lr_actor", values=(1e-4, 1e-3)
    )
    (pack,) = packs(trial for point in rates for trial in point.trials)
    assert pack.config.vary == {"learner.lr_actor": (1e-4, 1e-3)}


def test_shapes_learners_and_lengths_go_into_packs_of_their_own():
    plain, crowd, longer = trials(), trials(n_users=5), trials()
    longer = [replace(t, config=replace(t.config, total_steps=120)) for t in longer]
    other = [
        replace(t, config=replace(t.config, learner=replace(t.config.learner, critic="state")))
        for t in trials()
    ]
    made = packs([*plain, *crowd, *longer, *other])
    assert sorted(len(pack.trials) for pack in made) == [4, 4, 4, 4]


def test_trials_that_coincide_are_in_a_pack_once():
    study = tiny_study()
    made = packs(study.trials())
    names = [trial.hash for pack in made for trial in pack.trials]
    assert sorted(names) == sorted(study.distinct())


def test_packs_are_as_few_as_possible_and_of_nearly_equal_size():
    many = trials(values=tuple(float(x) for x in range(10, 21)), seeds=(1,))
    made = packs(many, max_members=4)
    assert sorted(len(pack.trials) for pack in made) == [3, 4, 4]


def test_the_costliest_pack_comes_first():
    made = packs([*trials(), *trials(n_users=8), *trials(seeds=(1,), n_users=6)])
    assert [pack.config.world.n_users for pack in made] == [8, 4, 6]
    assert [pack.cost for pack in made] == sorted((pack.cost for pack in made), reverse=True)


def trained_by(learner: str, of: list[Trial]) -> list[Trial]:
    other = replace(LEARNERS[learner], lanes=2, steps=6)
    return [
        Trial(config=replace(t.config, learner=other, algorithm=learner), series="M") for t in of
    ]


def test_what_a_learner_makes_of_a_step_is_part_of_the_cost():
    """Five epochs and the step itself; 256 rows of the replay for each step; the step alone."""
    drawn = 256 * DRAWN
    per_step = {}
    for learner in ("ab-mappo", "maddpg", "randomized"):
        (pack,) = packs(trained_by(learner, trials()))
        per_step[learner] = pack.cost / (pack.steps * (4 + 2))  # users and UAVs
    assert per_step == {"ab-mappo": 6.0, "maddpg": 1.0 + drawn, "randomized": 1.0}


def test_the_size_of_a_pack_is_that_of_all_its_worlds():
    (small,), (large,) = packs(trials(seeds=(1,))), packs(trials(n_users=8))
    assert (small.size, large.size) == (2 * (4 + 2), 4 * (8 + 2))


def test_learners_with_a_replay_have_small_packs():
    many = trained_by("maddpg", trials(seeds=tuple(range(6))))
    sizes = [len(pack.trials) for pack in packs(many)]
    assert sum(sizes) == 12
    assert max(sizes) <= MAX_REPLAYS


def test_the_name_of_a_pack_follows_from_its_trials():
    (one,) = packs(trials())
    (same,) = packs(trials())
    (other,) = packs(trials(seeds=(1, 3)))
    assert one.name == same.name != other.name
    assert one.name.startswith("uav-mec-ab-mappo-")


def test_a_pack_is_divided_into_halves_down_to_one():
    (pack,) = packs(trials(seeds=(1, 2, 3)))
    parts = halves(pack)
    assert [t.hash for part in parts for t in part.trials] == [t.hash for t in pack.trials]
    assert [len(part.trials) for part in parts] == [3, 3]
    single = make_pack(pack.trials[:1])
    with pytest.raises(BadInput, match=r"pack .* has one member and cannot be divided"):
        halves(single)


def test_a_pack_of_no_members_is_refused():
    with pytest.raises(BadInput, match="max_members must be at least 1, got 0"):
        packs(trials(), max_members=0)
