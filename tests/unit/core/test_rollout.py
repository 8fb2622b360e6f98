import pytest
import torch

from lockstep.core.actions import Observation
from lockstep.core.rollout import allocate
from lockstep.learners.batch import members_first
from tests.toys import Masked, Match


def test_a_write_past_the_end_names_overflow_and_reset():
    rollout = allocate(Match().spec, steps=2, lanes=4)
    rollout.next_row()
    rollout.next_row()
    assert rollout.full
    with pytest.raises(IndexError, match=r"overflow.*reset"):
        rollout.next_row()
    rollout.reset()
    assert rollout.next_row() == 0


def test_everything_a_decision_depends_on_is_stored():
    rollout = allocate(Masked(lanes=4, agents=3).spec, steps=2, lanes=4)
    rows = rollout.roles["player"]
    assert rows.obs.legal["pick"].shape == (2, 4, 3, 4)
    assert rows.action["pick"].shape == (2, 4, 3)
    assert rollout.final == {}
    assert not hasattr(rollout, "done")


def test_a_world_that_truncates_gets_room_for_final_states():
    rollout = allocate(Match(truncates=True).spec, steps=2, lanes=4)
    assert rollout.final["all"]["state"].shape == rollout.critic["all"]["state"].shape


def test_a_single_members_rows_are_read_as_views_of_the_storage():
    stored = torch.randn(3, 4, 2)
    assert members_first(1)(stored).data_ptr() == stored.data_ptr()


def test_members_first_keeps_each_members_lanes_together():
    stored = torch.arange(6).view(1, 6)
    assert members_first(2)(stored).tolist() == [[[0, 1, 2]], [[3, 4, 5]]]


def test_an_observation_that_lacks_what_the_spec_declares_is_refused():
    rows = allocate(Masked(lanes=4).spec, steps=1, lanes=4).roles["player"]
    seen = Masked(lanes=4).observe("player")
    lacking = Observation(features=seen.features, acts=seen.acts)
    with pytest.raises(ValueError, match=r"lacks legal/pick, which the spec declares") as refusal:
        rows.obs.write(lacking, 0)
    assert "\n" not in str(refusal.value)


def test_a_mask_that_no_part_declares_is_refused_rather_than_dropped():
    rows = allocate(Match(lanes=4).spec, steps=1, lanes=4).roles["player"]
    seen = Match(lanes=4).observe("player")
    legal = {"number": torch.ones(4, 1, 3, dtype=torch.bool)}
    surplus = Observation(features=seen.features, acts=seen.acts, legal=legal)
    with pytest.raises(ValueError, match=r"has legal/number, .* spec does not declare.*masked"):
        rows.obs.write(surplus, 0)
    rows.obs.write(seen, 0)


def test_no_two_sets_of_choices_share_a_fingerprint():
    masks = (torch.arange(1024).unsqueeze(-1) >> torch.arange(10)) & 1 > 0  # [1024, 10]
    seen = Observation(
        features={"obs": torch.ones(1024, 1, 3)},
        acts=torch.ones(1024, 1, dtype=torch.bool),
        legal={"pick": masks.unsqueeze(1)},
    )
    assert len(seen.fingerprint().unique()) == 1024


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.int64]
)
def test_numbers_that_change_places_change_the_fingerprint(dtype: torch.dtype):
    acts = torch.ones(2, 1, dtype=torch.bool)
    for n in (2, 3, 8, 9, 17):
        row = (torch.arange(n) % 2).to(dtype)
        swapped = row.clone()
        swapped[:2] = row[:2].flip(0)
        pair = torch.stack((row, swapped)).unsqueeze(1)
        one, other = Observation(features={"obs": pair}, acts=acts).fingerprint().flatten()
        assert one != other


def test_a_fingerprint_does_not_depend_on_where_and_how_numbers_are_stored():
    x = torch.randn(4, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    acts = torch.ones(4, 3, dtype=torch.bool)
    plain = Observation(features={"obs": x}, acts=acts).fingerprint()
    strided = x.movedim(0, -1).contiguous().movedim(-1, 0)
    shifted = torch.cat((torch.zeros(1), x.flatten()))[1:].view_as(x)  # no word begins where x does
    even = x[..., :6]
    for other in (strided, shifted):
        assert torch.equal(Observation(features={"obs": other}, acts=acts).fingerprint(), plain)
    moved = torch.cat((torch.zeros(1), even.flatten()))[1:].view(even.shape)
    assert torch.equal(
        Observation(features={"obs": moved}, acts=acts).fingerprint(),
        Observation(features={"obs": even}, acts=acts).fingerprint(),
    )


def test_an_unchanged_observation_keeps_its_fingerprint_and_a_changed_one_does_not():
    obs = Masked(lanes=4, agents=3).observe("player")
    before = obs.fingerprint()
    assert torch.equal(before, obs.map(torch.clone).fingerprint())
    obs.features["obs"][1, 2, 0] += 1e-6
    changed = before != obs.fingerprint()
    assert changed.nonzero().tolist() == [[1, 2]]
