import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.errors import BadInput, LockstepError
from lockstep.run.bench import bench
from lockstep.run.config import TrainConfig, preset
from lockstep.run.equality import TOLERANCE, TRIES, compare, widest
from lockstep.run.launches import Event, calls_of, count, covered
from lockstep.run.ledger import (
    ACTING,
    LEARNING,
    WORLD,
    Calls,
    Equality,
    Ledger,
    Repeat,
    Row,
    Spread,
)
from lockstep.run.tape import Tape
from lockstep.run.timing import REPEATS, Clock, Timer, peak_bytes
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry
from tests import tiny
from tests.toys import Match, Pool, Turn, Waiting

CPU = torch.device("cpu")


def quiet(line: str) -> None:
    """Nobody listens."""


def row(name: str = WORLD, **changes: Any) -> Row:
    given = {
        "lanes": 4,
        "steps_per_call": 40,
        "agents": 2.5,
        "repeats": (
            Repeat(calls=2, wall_s=4.0, cpu_s=2.0),
            Repeat(calls=2, wall_s=1.0, cpu_s=1.0),
            Repeat(calls=2, wall_s=2.0, cpu_s=0.5),
        ),
        "preparation_s": 0.5,
        "peak_memory_bytes": 7,
    }
    return Row(name=name, **(given | changes))


def ledger(**changes: Any) -> Ledger:
    given = {
        "path": "plain",
        "rows": (row(WORLD), row(ACTING), row(LEARNING)),
        "calls": Calls(operators=9),
        "equality": None,
        "about": {"machine": {}},
    }
    return Ledger(**(given | changes))


def test_rates_are_steps_of_all_calls_over_the_time_of_a_repeat():
    found = row()
    assert found.env_steps_per_s == Spread(median=40.0, lowest=20.0, highest=80.0)
    assert found.env_steps_per_cpu_s == Spread(median=80.0, lowest=40.0, highest=160.0)
    assert found.seconds_per_call == Spread(median=1.0, lowest=0.5, highest=2.0)


def test_agent_steps_count_the_agents_that_decide():
    assert row().agent_steps_per_s == Spread(median=100.0, lowest=50.0, highest=200.0)


def test_a_repeat_too_short_for_the_processor_clock_still_has_a_rate():
    found = row(repeats=(Repeat(calls=1, wall_s=1.0, cpu_s=0.0),))
    assert math.isfinite(found.env_steps_per_cpu_s.median)


def test_the_busy_share_is_of_an_update_without_the_profiler():
    assert ledger().busy_share is None
    calls = Calls(operators=9, launches=3, graph_launches=1, kernels=5, busy_s=0.25)
    assert ledger(calls=calls).busy_share == 0.25  # the median update takes 1 s


def test_the_ledger_as_json_keeps_every_raw_repeat():
    equality = Equality(tolerance=1e-5, gaps=(1.0, 1e-7), where="learner")
    learning = row(LEARNING, repeats=(Repeat(calls=1, wall_s=1.0, cpu_s=1.0, gpu_percent=80.0),))
    data = ledger(rows=(row(), row(ACTING), learning), equality=equality).to_json()
    assert [r["name"] for r in data["rows"]] == [WORLD, ACTING, LEARNING]
    assert data["rows"][0]["repeats"][1] == {
        "calls": 2,
        "wall_s": 1.0,
        "cpu_s": 1.0,
        "gpu_percent": None,
    }
    assert data["rows"][0]["env_steps_per_s"]["median"] == 40.0
    assert data["equality"]["holds"] is True
    assert data["update"]["nvml_percent"] == 80.0
    assert data["update"]["operators"] == 9


def test_kernels_that_run_side_by_side_are_busy_once():
    assert covered([]) == 0.0
    assert covered([(0.0, 10.0), (2.0, 5.0), (8.0, 12.0), (20.0, 21.0)]) == 13.0


def test_operators_that_another_operator_calls_are_not_counted():
    events = [
        Event("aten::linear", False, 0.0, 9.0),
        Event("aten::addmm", False, 1.0, 8.0, inside=("aten::linear",)),
        Event("MulBackward0", False, 10.0, 12.0),
        Event("aten::mul", False, 10.0, 11.0, inside=("MulBackward0",)),
        Event("Torch-Compiled Region: 0/0", False, 20.0, 30.0),
        Event("aten::mm", False, 21.0, 22.0, inside=("call", "Torch-Compiled Region: 0/0")),
    ]
    assert count(events, gpu=False) == Calls(operators=3)


def test_launches_of_graphs_and_of_kernels_are_counted_with_the_work_they_cause():
    events = [
        Event("aten::mul", False, 0.0, 3.0),
        Event("cudaLaunchKernel", False, 1.0, 2.0, inside=("aten::mul",)),
        Event("cuLaunchKernelEx", False, 3.0, 4.0),
        Event("cudaGraphLaunch", False, 4.0, 5.0),
        Event("cudaMemcpyAsync", False, 5.0, 6.0),
        Event("cudaDeviceSynchronize", False, 6.0, 9.0),
        Event("a kernel", True, 5.0, 8.0),
        Event("a kernel of the graph", True, 7.0, 9.0),
    ]
    assert count(events, gpu=True) == Calls(
        operators=1, launches=3, graph_launches=1, kernels=2, busy_s=4e-6
    )


def test_the_operators_of_a_real_call_are_counted():
    x = torch.ones(3)

    def call() -> None:
        x.add(x).sum()

    assert calls_of(call, CPU).operators == 2


def test_a_clock_runs_only_inside():
    clock = Clock(CPU)
    for _ in range(2):
        time.sleep(0.05)
        with clock:
            time.sleep(0.01)
    assert 0.02 <= clock.wall_s < 0.1
    assert clock.cpu_s < clock.wall_s


def test_a_row_is_repeated_for_about_the_seconds_asked_for():
    asked: list[int] = []

    def region(calls: int, clock: Clock) -> None:
        asked.append(calls)
        with clock:
            time.sleep(0.002 * calls)

    repeats = Timer(CPU, seconds=0.1).repeats(region)
    assert len(repeats) == REPEATS
    assert asked[0] == 1
    assert set(asked[1:]) == {repeats[0].calls}
    assert 2 <= repeats[0].calls <= 10
    assert all(repeat.wall_s >= 0.002 * repeat.calls for repeat in repeats)


def test_a_row_that_takes_longer_than_asked_is_done_once_in_each_repeat():
    def region(calls: int, clock: Clock) -> None:
        with clock:
            time.sleep(0.01 * calls)

    assert [r.calls for r in Timer(CPU, seconds=1e-3).repeats(region)] == [1] * REPEATS


def test_the_peak_of_the_process_is_told_in_bytes():
    before = peak_bytes(CPU)
    held = torch.ones(2**26)  # 256 MiB
    assert peak_bytes(CPU) - before <= 2 * held.nbytes
    assert peak_bytes(CPU) > held.nbytes


@pytest.mark.parametrize("toy", [Match, Pool, Turn])
def test_a_tape_plays_the_same_history_again(toy: Callable[..., Any]):
    tape = Tape(toy(lanes=3, agents=2), lane_keys([5], lanes=3))
    start = tape.world.state_dict()
    for _ in range(7):  # past the end of an episode
        tape.record()
    end = tape.world.state_dict()
    assert widest(start, end)[0] > 0
    for _ in range(2):
        tape.rewind()
        assert widest(start, tape.world.state_dict())[0] == 0
        tape.play()
        assert widest(end, tape.world.state_dict())[0] == 0


def test_decisions_on_a_tape_are_legal_whenever_they_are_played():
    world = Pool(lanes=3)
    tape = Tape(world, lane_keys([5], lanes=3))
    for _ in range(7):
        tape.record()
    played = []

    def acting(role: str, action: dict[str, Tensor], plain: Any = world.act) -> None:
        legal = world.observe(role).legal["pick"]
        played.append(legal.gather(-1, action["pick"].unsqueeze(-1)).all())
        plain(role, action)

    world.act = acting  # type: ignore[method-assign]
    tape.rewind()
    tape.play()
    assert len(played) == 7
    assert all(played)


def test_a_tape_counts_the_agents_that_decide_and_its_own_size():
    always, sometimes = (
        Tape(toy(lanes=50, agents=4), lane_keys([0], lanes=50)) for toy in (Match, Waiting)
    )
    for tape in (always, sometimes):
        for _ in range(3):
            tape.record()
    assert always.agents == 4.0
    assert 0.8 < sometimes.agents < 2.4  # 0.4 * 4 on average
    assert always.bytes == 3 * 50 * 4 * 4  # one float for each decision
    assert always.steps == 3


def test_equal_states_are_not_apart_whatever_they_hold():
    state = {"a": {"b": torch.tensor([1.0, math.nan, math.inf])}, "n": 3, "flags": (True,)}
    assert widest(state, state)[0] == 0.0


def test_the_widest_gap_is_relative_and_named():
    one = {"big": torch.tensor([3e4, 4e4]), "small": {"x": torch.tensor([0.0, 1.0])}}
    other = {"big": torch.tensor([3e4, 4e4 + 1]), "small": {"x": torch.tensor([0.1, 1.0])}}
    gap, where = widest(one, other)
    assert where == "small/x"
    assert gap == pytest.approx(0.1 / 2)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_number_that_is_lost_is_infinitely_far_away(lost: float):
    assert widest({"x": torch.tensor([1.0])}, {"x": torch.tensor([lost])}) == (math.inf, "x")
    assert widest({"x": torch.tensor([lost])}, {"x": torch.tensor([1.0])}) == (math.inf, "x")


def test_counters_that_differ_are_apart():
    assert widest({"n": 3}, {"n": 4}) == (0.25, "n")


@dataclass(frozen=True, kw_only=True)
class CrookedConfig:
    name: ClassVar[str] = "crooked"

    wrong_from: int = 0
    """First step whose rewards are wrong in what is called the compiled version."""
    wrong_to: int = 10**9
    """Last of them, plus one."""
    greedy: bool = False
    """Ask for more memory than there is."""


class Crooked(Match):
    def __init__(
        self, config: CrookedConfig, *, lanes: int, device: Any = "cpu", compile: bool = False
    ) -> None:
        if config.greedy:
            raise MemoryError("no room for the toy")
        super().__init__(lanes=lanes, agents=2, device=str(device))
        self.config, self.compile, self.advanced = config, compile, 0

    def reward(self) -> Tensor:
        wrong = self.compile and self.config.wrong_from <= self.advanced < self.config.wrong_to
        self.advanced += 1
        return super().reward() * (1.001 if wrong else 1.0)


SCENARIOS = {
    "straight": CrookedConfig(wrong_to=0),
    "crooked": CrookedConfig(),
    "once": CrookedConfig(wrong_from=4, wrong_to=8),
    "greedy": CrookedConfig(greedy=True),
}
HEURISTICS: dict[str, Any] = {}


@pytest.fixture
def crooked(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], TrainConfig]:
    """Settings of a world whose compiled version is wrong, which needs no compiler."""
    entry = registry.Entry(
        config=f"{__name__}:CrookedConfig",
        world=f"{__name__}:Crooked",
        scenarios=f"{__name__}:SCENARIOS",
        heuristics=f"{__name__}:HEURISTICS",
        summary="Rewards go wrong where the world is compiled.",
        learner="randomized",
    )
    monkeypatch.setattr(registry, "WORLDS", registry.WORLDS | {"crooked": entry})
    monkeypatch.setattr("lockstep.run.trainer._can_compile", lambda device: True)

    def config(scenario: str) -> TrainConfig:
        base = preset("crooked", scenario=scenario)
        learner = replace(base.learner, lanes=2, steps=4)
        return replace(base, learner=learner, device="cpu", compile="on")

    return config


def test_a_path_that_computes_something_else_is_refused_before_it_is_timed(
    crooked: Callable[[str], TrainConfig],
):
    said: list[str] = []
    refusal = re.escape(
        "this path and the plain one must agree to 1e-05 after one update from equal state, but "
        "in 3 tries of 3 they do not (last gap "
    )
    with pytest.raises(LockstepError, match=refusal) as error:
        bench(crooked("crooked"), seconds=0.01, say=said.append)
    assert "so nothing was timed; use --compile off, and on a GPU --no-graphs" in str(error.value)
    assert "\n" not in str(error.value)
    assert not any(line.startswith(ACTING) for line in said)


def test_a_path_that_agrees_is_timed_and_the_gap_is_kept(
    crooked: Callable[[str], TrainConfig],
):
    found = bench(crooked("straight"), seconds=0.01, say=quiet)
    assert found.path == "compiled"
    assert found.equality == Equality(
        tolerance=TOLERANCE, gaps=(0.0,), where=found.equality.where if found.equality else ""
    )


def test_a_single_disagreement_is_looked_at_again(crooked: Callable[[str], TrainConfig]):
    trainer = Trainer(crooked("once"))
    trainer.update()
    found = compare(trainer)
    assert len(found.gaps) == 2 < TRIES
    assert found.gaps[0] > TOLERANCE >= found.gaps[1]
    assert found.holds


def test_memory_that_runs_out_is_said_with_a_way_out(crooked: Callable[[str], TrainConfig]):
    message = re.escape(
        "memory ran out (no room for the toy); use fewer --seeds, --learner.lanes or --world-lanes"
    )
    with pytest.raises(LockstepError, match=message):
        bench(crooked("greedy"), seconds=0.01, say=quiet)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seconds": 0.0}, "seconds must be positive, got 0"),
        ({"world_lanes": 0}, "world_lanes must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(given: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        bench(tiny.config(), say=quiet, **given)


def test_each_row_counts_its_own_lanes_and_agents(crooked: Callable[[str], TrainConfig]):
    config = replace(crooked("straight"), compile="off", seeds=(0, 1, 2))
    found = bench(config, seconds=0.01, world_lanes=8, say=quiet)
    world, acting, learning = found.rows
    assert (world.lanes, acting.lanes, learning.lanes) == (8, 6, 6)
    assert world.steps_per_call == 8 * 4
    assert acting.steps_per_call == learning.steps_per_call == 3 * 2 * 4
    assert {r.agents for r in found.rows} == {2.0}
    assert found.calls.operators > 100
    assert found.calls.launches is None
    assert found.busy_share is None
    assert all(len(r.repeats) == REPEATS for r in found.rows)
