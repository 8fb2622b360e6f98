"""The replay against a plain list of everything that was ever pushed."""

import pytest
import torch
from torch import Tensor

from lockstep.core.actions import Observation
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.replay import Past, Replay, unique_share
from tests.toys import Match

MEMBERS, LANES, ROWS, STEPS = 2, 3, 5, 4


def replay(*, truncates: bool = False, rows: int = ROWS) -> Replay:
    spec = Match(truncates=truncates).spec
    return Replay(spec, members=MEMBERS, lanes=LANES, rows=rows)


def numbered(first: int, steps: int = STEPS, *, final: bool = False) -> Past:
    """Rows from `first` on; each number says its row, its lane and its member."""
    row = torch.arange(first, first + steps, dtype=torch.float32).view(1, -1, 1)
    lane = torch.arange(LANES, dtype=torch.float32).view(1, 1, -1)
    member = torch.arange(MEMBERS, dtype=torch.float32).view(-1, 1, 1)
    name = 10_000 * member + 10 * row + lane  # [P, T, N]

    def wide(offset: float) -> Tensor:
        return (name + offset).unsqueeze(-1).expand(*name.shape, 2).clone()

    never = torch.zeros(name.shape, dtype=torch.bool)
    acts = torch.ones(*name.shape, 1, dtype=torch.bool)
    return Past(
        obs={"player": Observation(features={"obs": wide(0.25).unsqueeze(-2)}, acts=acts)},
        action={"player": (name + 0.5).view(*name.shape, 1, 1)},
        state=wide(0.0),
        reward=name.unsqueeze(-1),
        elapsed=torch.ones_like(name),
        terminated=never,
        truncated=never.clone(),
        final={"state": wide(0.75)} if final else {},
    )


def places(kept: Replay) -> Tensor:
    return torch.arange(int(kept.drawable) * LANES).expand(MEMBERS, -1)


@pytest.mark.parametrize("pushes", range(1, 8))
def test_the_ring_holds_the_newest_rows_and_what_each_led_to(pushes: int) -> None:
    kept = replay()
    for push in range(pushes):
        kept.push(numbered(push * STEPS))
    written = pushes * STEPS
    rows = list(range(written))[-ROWS - 1 : -1]  # the newest of all waits for its successor
    assert int(kept.drawable) == len(rows)
    found = kept.read(places(kept))
    for member in range(MEMBERS):
        names = [10_000.0 * member + 10 * row + lane for row in rows for lane in range(LANES)]
        assert found.past.reward[member].flatten().tolist() == names
        assert found.past.state[member, :, 0].tolist() == names
        assert found.past.action["player"][member, :, 0, 0].tolist() == [x + 0.5 for x in names]
        assert found.next_state[member, :, 0].tolist() == [x + 10 for x in names]
        seen = found.next_obs["player"].features["obs"][member, :, 0, 0]
        assert seen.tolist() == [x + 10.25 for x in names]


def test_nothing_can_be_drawn_before_a_row_has_a_successor() -> None:
    kept = replay()
    assert int(kept.drawable) == 0
    kept.push(numbered(0, steps=1))
    assert int(kept.drawable) == 0
    kept.push(numbered(1, steps=1))
    assert int(kept.drawable) == 1


def test_a_row_that_was_cut_off_leads_to_its_state_before_the_reset() -> None:
    kept = replay(truncates=True)
    past = numbered(0, final=True)
    past.truncated[0, 1, 2] = True
    kept.push(past)
    found = kept.read(places(kept))
    at = 1 * LANES + 2  # row 1, lane 2
    assert found.next_state[0, at].tolist() == [12.75, 12.75]
    assert found.next_obs["player"].features["obs"][0, at].flatten().tolist() == [12.25, 12.25]
    others = [place for place in range(3 * LANES) if place != at]
    assert torch.equal(found.next_state[0, others, 0], found.past.reward[0, others, 0] + 10)
    other = found.past.reward[1, :, 0]  # another member's
    assert torch.equal(found.next_state[1, :, 0], other + 10)


def test_every_transition_is_drawn_about_equally_often_and_no_other() -> None:
    kept = replay()
    for push in range(3):
        kept.push(numbered(push * STEPS))
    streams = Streams(lane_keys([1, 2], lanes=1))
    n = 30_000
    place = kept.draw(streams.draw("replay"), n)
    assert place.shape == (MEMBERS, n)
    count = torch.stack([row.bincount(minlength=ROWS * LANES) for row in place])
    assert count.shape == (MEMBERS, ROWS * LANES)
    expected = n / (ROWS * LANES)
    assert ((count - expected).abs() < 5 * expected**0.5).all()
    assert not torch.equal(place[0], place[1])


def test_draws_are_those_of_the_stream_and_repeat_with_it() -> None:
    kept = replay()
    kept.push(numbered(0))
    streams = Streams(lane_keys([1, 2], lanes=1))
    first = kept.draw(streams.draw("replay"), 50)
    assert torch.equal(first, kept.draw(streams.draw("replay"), 50))
    streams.tick()
    assert not torch.equal(first, kept.draw(streams.draw("replay"), 50))


@pytest.mark.parametrize("pushes", [0, 1, 2, 5])
def test_a_saved_replay_is_as_large_as_what_it_holds_and_goes_on_alike(pushes: int) -> None:
    kept, other = replay(), replay()
    for push in range(pushes):
        kept.push(numbered(push * STEPS))
    other.push(numbered(500))  # what it held before must not matter
    state = kept.state()
    assert {x.shape[1] for x in state["rows"].values()} == {min(pushes * STEPS, ROWS + 1)}
    other.load_state_dict(state)
    for _ in range(2):
        kept.push(numbered(300))
        other.push(numbered(300))
        one, two = kept.read(places(kept)), other.read(places(other))
        assert all(torch.equal(x, two.past.tensors()[n]) for n, x in one.past.tensors().items())
        assert torch.equal(one.next_state, two.next_state)


def test_rows_of_another_size_are_refused() -> None:
    kept = replay()
    for push in range(3):
        kept.push(numbered(push * STEPS))
    with pytest.raises(ValueError, match="the replay's obs/player/features/obs must be"):
        replay(rows=ROWS + 2).load_state_dict(kept.state())


def test_the_share_of_places_that_differ() -> None:
    place = torch.tensor([[3, 1, 3, 3], [0, 1, 2, 3]])
    assert unique_share(place).tolist() == [0.5, 1.0]
