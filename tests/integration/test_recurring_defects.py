"""Defects that training code keeps repeating; one long file, since it is one list."""

import io
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.core.actions import Observation
from lockstep.core.world import CriticInput, Step, Views
from lockstep.errors import NotARun
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.run import checkpoint, loop
from lockstep.run.checkpoint import FORMAT, Counters, state_digest
from lockstep.run.fitting import Misfit, fit
from lockstep.run.loop import Progress
from lockstep.run.record import Run
from lockstep.run.rundir import RunDir
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry
from lockstep.worlds.uav_mec.config import SCENARIOS
from tests import tiny
from tests.helpers import assemble
from tests.toys import Masked, Match

TINY_SCENE = replace(SCENARIOS["demo"], n_users=5, n_uavs=3, n_slots=4)


class Erratic(Match):
    """Lanes end at random, each at its own steps, by death, by a cut, or by both at once.

    What happened is kept by lane and step, so that a test can tell the story without the rollout.
    """

    def __init__(self, *, lanes: int, agents: int = 2) -> None:
        self.history: list[dict[str, Any]] = []
        super().__init__(lanes=lanes, agents=agents, horizon=100, truncates=True)

    def reset(self, keys: Tensor) -> None:
        self.history.clear()
        super().reset(keys)

    def advance(self) -> Step:
        before, reward = self.state("player"), self.reward()
        self.streams.tick()
        self.seen = self.draw_features()
        led_to = self.state("player")
        draw = self.streams.draw("ends")
        terminated, truncated = (draw.uniform() < 0.25 for _ in range(2))
        fresh = self.streams.draw("start").uniform(self.agents, self.n_features)
        self.seen = torch.where((terminated | truncated)[:, None, None], fresh, self.seen)
        self.history.append(
            {
                "before": before,
                "reward": reward,
                "led to": led_to,
                "terminated": terminated,
                "truncated": truncated,
            }
        )
        return Step(
            reward={"player": reward},
            terminated=terminated,
            truncated=truncated,
            elapsed=torch.ones(self.lanes),
            metrics={"regret": -reward.mean(dim=-1)},
            final=led_to,
        )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("critic", ["state", "attention"])
def test_truncation_keeps_its_bootstrap_and_nothing_leaks_from_the_next_episode(
    seed: int, critic: str
) -> None:
    """Defect: a time limit zeroes the bootstrap, or the next episode leaks into the advantage."""
    config = PPOConfig(hidden=8, lanes=3, steps=9, critic=critic, gae_lambda=0.7)
    learner, collector, rollout = assemble(Erratic, config, [seed, seed + 100], dtype=torch.float64)
    collector.collect(rollout)
    history = collector.world.history
    value = [learner.value(_kept(row["before"], rollout.critic))["player"] for row in history]
    after = [learner.value(_kept(row["led to"], rollout.critic))["player"] for row in history]
    gamma, lam = collector.world.spec.role("player").discount, 0.7

    got = learner._batch(rollout).roles["player"].target  # [P, T, N, A]
    for lane in range(6):
        for agent in range(2):
            for start in range(9):
                total, weight = float(value[start][lane, agent]), 1.0
                for row, v, v_after in list(zip(history, value, after, strict=True))[start:]:
                    died, cut = bool(row["terminated"][lane]), bool(row["truncated"][lane])
                    bootstrap = 0.0 if died else float(v_after[lane, agent])
                    delta = float(row["reward"][lane, agent]) + gamma * bootstrap
                    total += weight * (delta - float(v[lane, agent]))
                    weight *= gamma * lam
                    if died or cut:
                        break
                member, own = divmod(lane, 3)
                assert got[member, start, own, agent].item() == pytest.approx(total, abs=1e-6)


def _kept(state: CriticInput, kept: Views) -> Views:
    return {view: {name: state[name] for name in names} for view, names in kept.items()}


def test_the_patterns_tried_hold_every_kind_of_end() -> None:
    """Guards the test above: deaths, cuts, both at once, and each of them at the last row."""
    seen = set()
    for seed in range(6):
        _, collector, rollout = assemble(
            Erratic, PPOConfig(hidden=8, lanes=3, steps=9), [seed, seed + 100]
        )
        collector.collect(rollout)
        for t, row in enumerate(collector.world.history):
            ends = zip(row["terminated"].tolist(), row["truncated"].tolist(), strict=True)
            seen |= {(t == 8, *end) for end in ends}
    assert len(seen) == 8


class Counts(Erratic):
    """The critic sees the number of steps taken, which a reset does not set back to where it was.

    At a reset the counter jumps by 1000, so a value of the reset state betrays itself.
    """

    def reset(self, keys: Tensor) -> None:
        self.count = torch.zeros(self.lanes)
        super().reset(keys)

    def state(self, role: str) -> CriticInput:
        return {"player": self.seen.clone(), "state": self.count.view(-1, 1).repeat(1, 4)}

    def reward(self) -> Tensor:
        self.count += 1  # the step is taken here: what follows sees where it led
        return torch.zeros(self.lanes, self.agents)

    def advance(self) -> Step:
        step = super().advance()
        self.count += 1000 * (step.terminated | step.truncated)
        return step


def test_the_bootstrap_is_of_the_state_after_the_step() -> None:
    """Defect: the bootstrap is the value of the state before the step that was cut."""
    config = PPOConfig(hidden=8, lanes=4, steps=9, critic="state", gae_lambda=0.0)
    learner, collector, rollout = assemble(Counts, config, [0], dtype=torch.float64)
    learner._values = lambda state: {"player": state["all"]["state"][..., :2].double()}
    collector.collect(rollout)
    target = learner._batch(rollout).roles["player"].target[0]  # [T, N, A]
    gamma = collector.world.spec.role("player").discount
    count = rollout.critic["all"]["state"][..., 0]  # [T, N] when the row was decided
    expected = torch.where(rollout.terminated, 0.0, gamma * (count + 1.0)).double()
    assert (rollout.truncated & ~rollout.terminated).any()
    assert (rollout.truncated & ~rollout.terminated)[:-1].any()
    torch.testing.assert_close(target, expected.unsqueeze(-1).expand_as(target))


@pytest.fixture
def remembering() -> tuple[PPO, Any, Tensor]:
    """A recurrent pack, its second rollout (so that memory comes in) and where episodes begin."""
    config = PPOConfig(hidden=8, lanes=4, steps=8, memory="gru")
    learner, collector, rollout = assemble(Erratic, config, [1, 2], dtype=torch.float64)
    with torch.no_grad():  # heads start near zero, where no memory could be seen
        learner.policies["player"].weights.mul_(3.0)
    collector.collect(rollout)
    collector.collect(rollout)
    ended = [row["terminated"] | row["truncated"] for row in collector.world.history]
    return learner, rollout, torch.stack(ended[7:15])  # [T, L]


def test_hidden_state_is_reset_by_its_own_lane_at_its_own_step(remembering: Any) -> None:
    """Defect: hidden state is reset by another agent's, another lane's or another step's end."""
    learner, rollout, starts = remembering
    rows = rollout.roles["player"]
    assert 4 < int(starts.sum()) < starts.numel() - 4
    assert rollout.memory["player"].abs().max() > 0.01
    replayed, _ = learner._replay(learner._batch(rollout))
    for lane in range(8):
        begins = sorted({0, *starts[:, lane].nonzero().flatten().tolist()})
        for agent in range(2):
            for first, end in zip(begins, [*begins[1:], 8], strict=True):
                # One agent, one lane, one episode: nothing there that could be mixed up.
                fresh = bool(starts[first, lane])
                before = rollout.memory["player"][lane, agent]
                memory = torch.zeros_like(before) if fresh else before
                log_prob = _by_itself(learner, rows, slice(first, end), lane, agent, memory)
                for whole in (rows.log_prob, replayed.log_prob["player"]):
                    torch.testing.assert_close(log_prob, whole[first:end, lane, agent])


def _by_itself(
    learner: PPO, rows: Any, steps: slice, lane: int, agent: int, memory: Tensor
) -> Tensor:
    """Log-probs of a stretch of one agent's decisions, by its member and without any reset."""
    member = lane // (rows.log_prob.shape[1] // learner.members)

    def alone(x: Tensor) -> Tensor:  # every member gets the same rows; one of them is asked
        one = x[steps, lane, agent].unsqueeze(1).unsqueeze(1)  # [T, 1, 1, ...]
        return one.expand(learner.members, *one.shape)

    obs = rows.obs.map(alone)
    start = memory.view(1, 1, 1, -1).expand(learner.members, -1, -1, -1)
    never = torch.zeros(obs.acts.shape[:3], dtype=torch.bool)
    with torch.no_grad():
        params, _ = learner._parameters("player", obs, start, never)
        action = {name: alone(x) for name, x in rows.action.items()}
        log_prob = learner._joint("player", params, obs).log_prob(action)
    return log_prob[member, :, 0, 0]


def test_permuting_lanes_and_agents_permutes_what_a_recurrent_policy_does(
    remembering: Any,
) -> None:
    """Defect: memory is laid out lane by lane and reset agent by agent, or the other way."""
    learner, rollout, _ = remembering
    batch = learner._batch(rollout)
    with torch.no_grad():
        plain, _ = learner._rebuild("player", batch.roles["player"], batch)
        lanes = torch.tensor([[2, 0, 3, 1], [1, 3, 0, 2]])
        moved = batch.lanes(lanes)
        swapped = _swap_agents(moved.roles["player"])
        got, _ = learner._rebuild("player", swapped, moved)
    expected = torch.stack([plain[p][:, lanes[p]].flip(-1) for p in range(2)])
    torch.testing.assert_close(got, expected)
    assert not torch.allclose(plain, expected)


def _swap_agents(role: Any) -> Any:
    def flip(x: Tensor) -> Tensor:
        return x.flip(3)  # [P, T, N, A, ...]

    return replace(
        role,
        obs=role.obs.map(flip),
        action={name: flip(x) for name, x in role.action.items()},
        memory=role.memory.flip(2),
    )


class Watched(Masked):
    """Keeps the masks under which decisions were made."""

    def __init__(self, **settings: Any) -> None:
        self.shown: list[Tensor] = []
        super().__init__(**settings)

    def observe(self, role: str) -> Observation:
        observation = super().observe(role)
        self.shown.append(observation.legal["pick"].clone())
        return observation


def test_the_mask_of_the_update_is_the_mask_of_the_sample() -> None:
    """Defect: the mask differs between sampling and update, or is taken after the reset."""
    config = PPOConfig(hidden=8, lanes=6, steps=10)
    learner, collector, rollout = assemble(
        lambda lanes: Watched(lanes=lanes, agents=2, horizon=3), config, [0]
    )
    collector.collect(rollout)
    rows = rollout.roles["player"]
    assert torch.equal(rows.obs.legal["pick"], torch.stack(collector.world.shown))
    batch = learner._batch(rollout)
    replayed, _ = learner._replay(batch)
    torch.testing.assert_close(
        replayed.log_prob["player"], rows.log_prob, rtol=0, atol=2e-5
    )  # as the audit demands
    late = rows.obs.legal["pick"].roll(-1, dims=0)  # the mask after the step
    rows.obs.legal["pick"].copy_(late)
    wrong, _ = learner._replay(learner._batch(rollout))
    assert ((wrong.log_prob["player"] - rows.log_prob).abs() > 2e-5).double().mean() > 0.3


@pytest.mark.parametrize("head", ["beta", "gaussian_clip", "gaussian_sigmoid"])
@pytest.mark.parametrize("assoc", ["beta_argmax", "categorical"])
def test_the_log_prob_of_a_joint_action_is_that_of_each_sample_by_itself(
    head: str, assoc: str
) -> None:
    """Defect: log-probs of joint actions are right for one sample and wrong for a batch."""
    config = PPOConfig(hidden=8, lanes=2, steps=2, unit_head=head)
    scene = replace(TINY_SCENE, assoc_head=assoc)
    learner, collector, rollout = assemble(
        partial(registry.build, scene), config, [0], dtype=torch.float64
    )
    collector.collect(rollout)
    for name, rows in rollout.roles.items():
        assert rows.log_prob.shape == rows.obs.acts.shape == (2, 2, rows.log_prob.shape[2])
        for t in range(2):
            for lane in range(2):
                for agent in range(rows.log_prob.shape[2]):
                    single = _sample(learner, name, rows, (t, lane, agent))
                    assert rows.log_prob[t, lane, agent].item() == pytest.approx(single, abs=1e-4)


def _sample(learner: PPO, name: str, rows: Any, at: tuple[int, int, int]) -> float:
    """Sum over the numbers of one agent's action, each asked of the reference library alone."""
    obs = rows.obs.map(lambda x: x[at].view(1, 1, 1, 1, *x.shape[3:]))
    memory, starts = torch.zeros(1, 1, 1, 0), torch.ones(1, 1, 1, dtype=torch.bool)
    with torch.no_grad():
        params, _ = learner._parameters(name, obs, memory, starts)
        parts = learner._joint(name, params, obs).parts
    total = 0.0
    for part, law in parts.items():
        chosen = rows.action[part][at]
        if chosen.ndim == 0:
            probabilities = law.log_p.flatten().exp()
            total += float(torch.distributions.Categorical(probabilities).log_prob(chosen))
            continue
        for i, x in enumerate(chosen):
            total += float(_reference(law, i).log_prob(x.double()))
    return total


def _reference(law: Any, i: int) -> torch.distributions.Distribution:
    kind = type(law).__name__
    if kind == "Beta":
        return torch.distributions.Beta(law.alpha.flatten()[i], law.beta.flatten()[i])
    normal = torch.distributions.Normal(law.mean.flatten()[i], law.log_std.flatten()[i].exp())
    if kind == "ClippedGaussian":
        return normal
    return torch.distributions.TransformedDistribution(
        normal, [torch.distributions.SigmoidTransform()]
    )


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("leading", [False, True])
def test_permuting_lanes_and_agents_permutes_the_values_alike(members: int, leading: bool) -> None:
    """Defect: the critic's axes are in the wrong order."""
    config = PPOConfig(hidden=8, lanes=4, steps=3)
    learner, collector, rollout = assemble(
        partial(registry.build, TINY_SCENE), config, range(members), dtype=torch.float64
    )
    collector.collect(rollout)
    seen = rollout.critic["all"]
    state = seen if leading else {name: x[0] for name, x in seen.items()}
    lane_axis = 1 if leading else 0
    order = torch.tensor([2, 0, 3, 1])
    lanes = torch.cat([order + 4 * member for member in range(members)])
    agents = {"mu": torch.tensor([4, 0, 3, 1, 2]), "uav": torch.tensor([1, 2, 0])}
    plain = learner.value({"all": state})
    moved = learner.value(
        {
            "all": {
                name: x.index_select(lane_axis, lanes).index_select(lane_axis + 1, agents[name])
                for name, x in state.items()
            }
        }
    )
    for name, value in plain.items():
        expected = value.index_select(lane_axis, lanes).index_select(-1, agents[name])
        torch.testing.assert_close(moved[name], expected)
        assert not torch.allclose(value, expected)
    for t in range(3 if leading else 0):
        for name, value in learner.value({"all": {k: x[t] for k, x in state.items()}}).items():
            torch.testing.assert_close(value, plain[name][t])


def _trainer() -> Trainer:
    """Everything that carries over is on, and episodes end in the middle of a rollout."""
    config = tiny.config(updates=8)
    learner = replace(config.learner, memory="gru", minibatches=2, reward_norm="running")
    return Trainer(replace(config, learner=learner, world=replace(config.world, n_slots=10)))


def _save(trainer: Trainer, folder: Path) -> None:
    counters = Counters(
        format=FORMAT,
        update=trainer.updates,
        step=trainer.updates * tiny.STEPS_PER_UPDATE,
        metrics_bytes=0,
        best_step=None,
        best_value=None,
    )
    folder.mkdir()
    checkpoint.save(folder, counters, trainer.state_dict(), keep=1)


def test_a_checkpoint_holds_everything_that_decides_the_future(tmp_path: Path) -> None:
    """Defect: a checkpoint drops the optimiser, a random stream or the state of the world."""
    straight = _trainer()
    for _ in range(2):
        straight.update()
    _save(straight, tmp_path / "half")
    for _ in range(2):
        straight.update()

    other = _trainer()
    counters, state = checkpoint.load(tmp_path / "half", 2 * tiny.STEPS_PER_UPDATE)
    other.load_state_dict(state, updates=counters.update)
    for _ in range(2):
        other.update()
    assert state_digest(other.state_dict()) == state_digest(straight.state_dict())


@pytest.mark.parametrize(
    "part",
    [
        "learner/weights",
        "learner/optimizers",
        "learner/rewards",
        "learner/streams",
        "collector/world/state",
        "collector/world/streams",
        "collector/streams",
        "collector/memory",
        "collector/starts",
    ],
)
def test_each_part_of_a_checkpoint_decides_something(tmp_path: Path, part: str) -> None:
    """Guards the test above: with one part left as it was at the start, the end is another."""
    straight, other = _trainer(), _trainer()
    for _ in range(2):
        straight.update()
    buffer = io.BytesIO()
    torch.save(straight.state_dict(), buffer)
    straight.update()
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    *way, last = part.split("/")
    _inside(state, way)[last] = _inside(other.state_dict(), way)[last]
    other.load_state_dict(state, updates=2)
    other.config = replace(
        other.config, learner=replace(other.config.learner, audit=False)
    )  # the audit would name some of these; here the numbers must tell
    other.learner.config = other.config.learner
    other.update()
    assert state_digest(other.state_dict()["learner"]) != state_digest(
        straight.state_dict()["learner"]
    )


def _inside(state: Any, way: list[str]) -> Any:
    for name in way:
        state = state[name]
    return state


class Killed(BaseException):
    """Stands for a process that ends without another word."""


@pytest.fixture
def half(tmp_path: Path) -> RunDir:
    """A run that was killed after its first checkpoint."""

    def stop(progress: Progress) -> None:
        if progress.update == 2:
            raise Killed

    config = tiny.config(updates=4, checkpoint_every=1)
    learner = replace(config.learner, memory="gru", reward_norm="running")
    with pytest.raises(Killed):
        loop.train(replace(config, learner=learner), tmp_path / "half", on_update=stop)
    return RunDir(tmp_path / "half")


def _files(run: RunDir) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in run.folder.rglob("*") if file.is_file()}


def _paths(state: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The way to every part of a nested state, branches included."""
    return [
        way
        for name, value in state.items()
        for way in (
            (name,),
            *((name, *rest) for rest in (_paths(value) if isinstance(value, Mapping) else [])),
        )
    ]


def _without(run: RunDir, way: tuple[str, ...]) -> None:
    """Rewrites the latest checkpoint, hash and all, without one part."""
    step = checkpoint.pointed(run.checkpoints, "latest")
    assert step is not None
    counters, state = checkpoint.load(run.checkpoints, step)
    del _inside(state, list(way[:-1]))[way[-1]]
    owner = Run.open(run.folder).config.hash
    checkpoint.save(run.checkpoints, counters, state, keep=9, owner=owner)


def _refused(run: RunDir) -> str | None:
    """What resuming says if it is refused with everything left as it was."""
    before = _files(run)
    try:
        loop.resume(run.folder, on_update=_at_once)
    except NotARun as refusal:
        assert _files(run) == before
        return str(refusal)
    except Killed:
        return None
    raise AssertionError("resumed to the end")


def _at_once(progress: Progress) -> None:
    raise Killed


@pytest.mark.parametrize(
    "part", ["learner", "collector", "learner/weights", "learner/version", "collector/starts"]
)
def test_a_run_that_cannot_restore_a_part_is_refused_and_left_alone(
    half: RunDir, part: str
) -> None:
    """Defect: a continued run silently starts from scratch."""
    way = tuple(part.split("/"))
    _without(half, way)
    said = _refused(half)
    assert said is not None
    assert way[-1] in said


def test_every_single_part_of_a_checkpoint_is_demanded(half: RunDir) -> None:
    """Defect: a continued run silently starts from scratch, in one of its many parts."""
    step = checkpoint.pointed(half.checkpoints, "latest")
    assert step is not None
    trainer = Trainer(Run.open(half.folder).config)
    _, whole = checkpoint.load(half.checkpoints, step)
    unnoticed = []
    for way in _paths(whole):
        _, state = checkpoint.load(half.checkpoints, step)
        del _inside(state, list(way[:-1]))[way[-1]]
        try:
            fit(state, trainer.state_dict())
        except Misfit as misfit:
            if misfit.missing == ("/".join(way),):
                continue
        unnoticed.append("/".join(way))
    assert unnoticed == []


def test_a_run_that_lost_its_pointer_goes_on_from_its_newest_whole_checkpoint(
    half: RunDir,
) -> None:
    """Defect: a continued run silently starts from scratch when its pointer is lost."""
    step = checkpoint.pointed(half.checkpoints, "latest")
    (half.checkpoints / "latest").unlink()
    assert checkpoint.newest(half.checkpoints) == step
    updates: list[int] = []
    loop.resume(half.folder, on_update=lambda progress: updates.append(progress.update))
    assert updates[0] == 3


@pytest.mark.parametrize(
    "lost",
    [
        "stamp",
        "tensors",
    ],
)
def test_a_run_whose_checkpoint_is_lost_is_refused_and_left_alone(half: RunDir, lost: str) -> None:
    """Defect: a continued run silently starts from scratch when it cannot find its checkpoint."""
    step = checkpoint.pointed(half.checkpoints, "latest")
    name = {"stamp": f"{step}.json", "tensors": f"{step}.pt"}[lost]
    (half.checkpoints / name).unlink()
    assert _refused(half) is not None
