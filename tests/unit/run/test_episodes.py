import io
import math
from dataclasses import replace

import pytest
import torch

from lockstep.core.rollout import Rollout, allocate
from lockstep.core.world import Metric, WorldSpec
from lockstep.run.episodes import WINDOW, Episodes
from tests.toys import Match

MEMBERS, LANES = 2, 3
OVER = {"last": lambda xs: xs[-1], "max": max, "min": min, "sum": sum}


def spec() -> WorldSpec:
    plain = Match(agents=2).spec
    (player,) = plain.roles
    other = replace(player, name="other", agents=1)
    metrics = tuple(
        Metric(name=over, unit="1", meaning=over, better="lower", over=over) for over in OVER
    )
    return replace(
        plain,
        roles=(player, other),
        phases=(("player", "other"),),
        metrics=(*plain.metrics, *metrics),
    )


def rollout(steps: int, seed: int, *, share: float = 0.3) -> Rollout:
    generator = torch.Generator().manual_seed(seed)
    rows = allocate(spec(), steps=steps, lanes=MEMBERS * LANES, critic=())
    for role in rows.roles.values():
        role.reward.copy_(torch.randn(role.reward.shape, generator=generator))
    for metric in rows.metrics.values():
        metric.copy_(torch.randn(metric.shape, generator=generator))
    ends = torch.rand(rows.terminated.shape, generator=generator) < share
    cut = torch.rand(rows.terminated.shape, generator=generator) < 0.5
    rows.terminated.copy_(ends & cut)
    rows.truncated.copy_(ends & ~cut)
    return rows


class Slow:
    """The same in plain Python."""

    def __init__(self) -> None:
        self.running = [{"player": 0.0, "other": 0.0, "length": 0} for _ in range(MEMBERS * LANES)]
        self.finished: list[list[dict[str, float]]] = [[] for _ in range(MEMBERS)]

    def add(self, rows: Rollout) -> None:
        for t in range(rows.steps):
            for lane, now in enumerate(self.running):
                for role in ("player", "other"):
                    now[role] += rows.roles[role].reward[t, lane].double().mean().item()
                now["length"] += 1
                if rows.terminated[t, lane] or rows.truncated[t, lane]:
                    self.finished[lane // LANES].append(dict(now))
                    now.update(player=0.0, other=0.0, length=0)

    def expect(self, found: dict[str, torch.Tensor]) -> None:
        for member, done in enumerate(self.finished):
            last = done[-WINDOW:]
            assert found["episode/finished"][member] == len(done)
            mean_length = sum(e["length"] for e in last) / len(last)
            assert found["episode/length_mean"][member].item() == pytest.approx(mean_length)
            for role in ("player", "other"):
                got = torch.tensor([e[role] for e in last], dtype=torch.float64)
                key = f"episode/{role}/return"
                assert found[f"{key}_mean"][member].item() == pytest.approx(got.mean().item())
                for q in (10, 50, 90, 99):
                    expected = got.quantile(q / 100).item()
                    assert found[f"{key}_p{q}"][member].item() == pytest.approx(expected), q


@pytest.mark.parametrize("share", [0.05, 0.3, 0.95])
def test_windows_are_those_of_a_step_by_step_count(share: float) -> None:
    fast, slow = Episodes(spec(), members=MEMBERS, lanes=LANES), Slow()
    for seed, steps in enumerate((60, 7, 1, 13, 60)):
        rows = rollout(steps, seed, share=share)
        found = fast.add(rows)
        slow.add(rows)
    slow.expect(found)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.95])
@pytest.mark.parametrize("over", OVER)
def test_metrics_of_episodes_are_those_of_a_step_by_step_count(over: str, share: float) -> None:
    episodes = Episodes(spec(), members=MEMBERS, lanes=LANES)
    running: list[list[float]] = [[] for _ in range(MEMBERS * LANES)]
    for seed, steps in enumerate((60, 7, 1, 13, 60)):
        rows = rollout(steps, seed, share=share)
        found = episodes.add(rows)
        ended: list[list[float]] = [[] for _ in range(MEMBERS)]
        for t in range(steps):
            for lane, so_far in enumerate(running):
                so_far.append(rows.metrics[over][t, lane].item())
                if rows.terminated[t, lane] or rows.truncated[t, lane]:
                    ended[lane // LANES].append(OVER[over](so_far))
                    so_far.clear()
        expected = [sum(x) / len(x) if x else math.nan for x in ended]
        assert found[f"world/{over}"].tolist() == pytest.approx(expected, nan_ok=True)
        assert "world/regret" not in found


def test_a_rollout_with_more_ends_than_the_window_keeps_the_newest() -> None:
    fast, slow = Episodes(spec(), members=MEMBERS, lanes=LANES), Slow()
    rows = rollout(90, 0, share=0.9)
    slow.add(rows)
    assert min(len(done) for done in slow.finished) > 2 * WINDOW
    slow.expect(fast.add(rows))


def test_before_any_episode_has_ended_the_keys_are_there_and_hold_no_number() -> None:
    episodes = Episodes(spec(), members=MEMBERS, lanes=LANES)
    found = episodes.add(rollout(5, 0, share=0.0))
    assert found["episode/finished"].tolist() == [0, 0]
    numbers = {key: value for key, value in found.items() if key != "episode/finished"}
    assert all(math.isnan(x) for value in numbers.values() for x in value.tolist())
    later = episodes.add(rollout(5, 1, share=1.0))
    assert list(found) == list(later)
    assert all(torch.isfinite(value).all() for value in later.values())


def test_one_member_without_an_end_does_not_spoil_the_other() -> None:
    rows = rollout(5, 0, share=1.0)
    rows.terminated[:, :LANES] = rows.truncated[:, :LANES] = False
    found = Episodes(spec(), members=MEMBERS, lanes=LANES).add(rows)
    assert found["episode/finished"].tolist() == [0, 5 * LANES]
    assert torch.isfinite(found["episode/player/return_p99"]).tolist() == [False, True]


def test_episodes_go_on_bit_equally_from_where_they_were_saved() -> None:
    straight = Episodes(spec(), members=MEMBERS, lanes=LANES)
    straight.add(rollout(20, 0))
    buffer = io.BytesIO()
    torch.save(straight.state_dict(), buffer)
    buffer.seek(0)
    resumed = Episodes(spec(), members=MEMBERS, lanes=LANES)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    one, other = straight.add(rollout(20, 1)), resumed.add(rollout(20, 1))
    assert all(torch.equal(x, other[name]) for name, x in one.items())


def test_the_saved_state_leads_with_lanes_or_members() -> None:
    state = Episodes(spec(), members=MEMBERS, lanes=LANES).state_dict()
    assert all(len(x) == MEMBERS * LANES for x in state["running"].values())
    assert all(len(x) == MEMBERS for x in (*state["window"].values(), state["finished"]))
