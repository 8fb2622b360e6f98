import pytest
import torch
from torch import Tensor

from lockstep.collect.synchronous import Collector
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig, RandomizedConfig
from lockstep.learners.randomized import Randomized
from tests.helpers import assemble
from tests.toys import Match


class Counting(Match):
    """The critic sees how many steps the lane has taken in all, resets included."""

    def reset(self, keys: Tensor) -> None:
        self.taken = torch.zeros(self.lanes)
        super().reset(keys)

    def advance(self):
        self.taken += 1
        return super().advance()

    def state(self, role: str):
        return {"player": self.seen.clone(), "state": self.taken.view(-1, 1).expand(-1, 2).clone()}


class ReadsCounter(Randomized):
    """Its value is the step counter that the critic input carries."""

    def rollout(self):
        from lockstep.core.rollout import allocate

        lanes = self.members * self.config.lanes
        return allocate(self.spec, steps=self.config.steps, lanes=lanes, critic=("state",))

    def value(self, state):
        return {"player": state["all"]["state"][..., :1]}


@pytest.mark.parametrize("truncates", [False, True])
def test_the_bootstrap_is_the_value_of_the_final_observation_not_of_the_reset_one(truncates):
    def final_is_marked(world):
        plain = world.advance

        def advance():
            step = plain()
            marked = {name: torch.full_like(x, 1000.0) for name, x in step.final.items()}
            return type(step)(**{**vars(step), "final": marked})

        world.advance = advance

    world = Counting(lanes=3, horizon=4, truncates=truncates)
    final_is_marked(world)
    learner = ReadsCounter(RandomizedConfig(lanes=3, steps=6), world.spec, seeds=[0])
    rollout = learner.rollout()
    Collector(world, learner, Streams(lane_keys([0], lanes=3))).collect(rollout)
    rows = rollout.roles["player"]
    assert rows.value[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    at_the_end = 1000.0 if truncates else 4.0
    assert rows.next_value[:, 0, 0].tolist() == [1, 2, 3, at_the_end, 5, 6]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, truncates, False, False]


def test_rows_hold_what_was_acted_on_even_if_the_world_reuses_its_tensors():
    class Reusing(Match):
        def observe(self, role):
            plain = super().observe(role)
            return type(plain)(features={"obs": self.seen}, acts=plain.acts)

        def advance(self):
            before = self.seen
            step = super().advance()
            self.seen = before.copy_(self.seen)
            return step

    _, collector, rollout = assemble(Reusing, PPOConfig(hidden=8, lanes=3, steps=5), [0])
    collector.collect(rollout)
    rows = rollout.roles["player"]
    assert torch.equal(rows.obs.fingerprint(), rows.fingerprint)
    assert not torch.equal(rows.obs.features["obs"][0], rows.obs.features["obs"][1])


def test_starts_mark_the_first_row_of_every_episode():
    _, collector, rollout = assemble(
        lambda lanes: Match(lanes=lanes, horizon=3), PPOConfig(hidden=8, lanes=2, steps=7), [0]
    )
    collector.collect(rollout)
    assert rollout.starts[:, 0].tolist() == [True, False, False, True, False, False, True]


def test_a_collector_continues_bit_equally_from_its_state():
    config = PPOConfig(hidden=8, lanes=3, steps=5, memory="gru")
    learner, collector, rollout = assemble(Match, config, [0, 1])
    collector.collect(rollout)
    saved = collector.state_dict()
    collector.collect(rollout)
    expected = rollout.roles["player"].log_prob.clone()
    _, other, again = assemble(Match, config, [0, 1])
    other.learner = learner
    other.load_state_dict(saved)
    other.collect(again)
    assert torch.equal(again.roles["player"].log_prob, expected)


def test_whoever_listens_hears_world_and_learner_take_turns():
    config = PPOConfig(hidden=8, lanes=2, steps=3)
    _, collector, rollout = assemble(Match, config, [0])
    heard = []
    collector.collect(rollout, heard.append)
    assert heard == ["env", *["act", "env", "step"] * 3, "value"]


def test_listening_changes_nothing_that_is_collected():
    config = PPOConfig(hidden=8, lanes=2, steps=3)
    stored = []
    for tell in (None, lambda what: None):
        _, collector, rollout = assemble(Match, config, [0])
        collector.collect(rollout, tell)
        stored.append(rollout.roles["player"])
    assert torch.equal(stored[0].log_prob, stored[1].log_prob)
    assert torch.equal(stored[0].value, stored[1].value)
