"""What must hold on an accelerator: same draws, same world, same learning, eager or as a graph."""

from dataclasses import replace

import pytest
import torch

from lockstep.collect.synchronous import Collector
from lockstep.core.actions import Observation
from lockstep.core.programs import compiled
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners.config import PPOConfig
from lockstep.learners.ppo import PPO
from lockstep.run.config import preset
from lockstep.run.equality import compare
from lockstep.run.trainer import Trainer
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.heuristics import HEURISTICS
from lockstep.worlds.uav_mec.world import UavMec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def trained(device, *, graphs=False, updates=5, seeds=(0, 1), config=None, lessons=0):
    config = config or PPOConfig(hidden=32)
    world = UavMec(SCENARIOS["demo"], lanes=len(seeds) * config.lanes, device=device)
    keys = lane_keys(seeds, lanes=config.lanes, device=device)
    world.reset(keys)
    learner = PPO(config, world.spec, seeds=seeds, device=device, graphs=graphs)
    collector = Collector(world, learner, Streams(keys), graphs=graphs)
    rollout, stats = learner.rollout(), []
    for update in range(updates):
        collector.collect(rollout, script=HEURISTICS["greedy"] if update < lessons else None)
        stats.append(learner.update(rollout).scalars)
    return learner, rollout, stats


def test_draws_agree_with_the_cpu():
    for name, args in {"uniform": (5,), "normal": (5,), "integers": (7, 5)}.items():
        cpu, cuda = (
            getattr(Streams(lane_keys([3], lanes=9, device=d)).draw("x"), name)(*args)
            for d in ("cpu", "cuda")
        )
        torch.testing.assert_close(cpu, cuda.cpu(), rtol=1e-5, atol=1e-6)


def test_beta_draws_agree_with_the_cpu_in_all_but_a_rounding():
    alpha = torch.linspace(1.01, 30, 4000).expand(9, 4000)
    cpu = Streams(lane_keys([3], lanes=9)).draw("x").beta(alpha, alpha.flip(-1))
    draw = Streams(lane_keys([3], lanes=9, device="cuda")).draw("x")
    cuda = draw.beta(alpha.cuda(), alpha.flip(-1).cuda()).cpu()
    assert ((cpu - cuda).abs() > 1e-4).double().mean() < 1e-4


def test_the_world_agrees_with_the_cpu():
    ends = []
    for device in ("cpu", "cuda"):
        world = UavMec(SCENARIOS["paper"], lanes=4, device=device)
        world.reset(lane_keys([0], lanes=4, device=device))
        streams = Streams(lane_keys([1], lanes=4, device=device))
        for _ in range(20):
            for role in ("mu", "uav"):
                world.observe(role)
                draw = streams.draw(role)
                parts = world.spec.role(role)
                world.act(
                    role, {n: draw.uniform(parts.agents, p.n) for n, p in parts.action.items()}
                )
            step = world.advance()
            streams.tick()
        ends.append((step.reward["mu"].cpu(), world.state("mu")["state"].cpu()))
    for cpu, cuda in zip(*ends, strict=True):
        torch.testing.assert_close(cpu, cuda, rtol=2e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("changes", [{}, {"relative_coordinates": True}])
def test_the_compiled_world_shows_what_the_plain_one_shows(changes):
    config = replace(SCENARIOS["paper"], **changes)
    plain, fast = (UavMec(config, lanes=40, device="cuda", compile=c) for c in (False, True))
    keys = lane_keys([0], lanes=40, device="cuda")
    for world in (plain, fast):
        world.reset(keys)
    streams = Streams(keys)
    for _ in range(8):
        actions = {}
        for role in ("mu", "uav"):
            draw, parts = streams.draw(role), plain.spec.role(role)
            actions[role] = {n: draw.uniform(parts.agents, p.n) for n, p in parts.action.items()}
            seen = [world.observe(role) for world in (plain, fast)]
            for a, b in zip(seen[0].tensors().values(), seen[1].tensors().values(), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            for world in (plain, fast):
                world.act(role, actions[role])
        for world in (plain, fast):
            world.advance()
        fast.load_state_dict(plain.state_dict())
        streams.tick()


def test_one_update_agrees_with_the_cpu():
    cpu, cuda = (trained(device, updates=1)[2][0] for device in ("cpu", "cuda"))
    for name in ("train/value_loss", "train/mu/entropy", "train/mu/explained_variance"):
        torch.testing.assert_close(cpu[name], cuda[name], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(hidden=32),
        PPOConfig(hidden=32, minibatches=5),
        PPOConfig(hidden=32, precision="bf16"),
    ],
)
def test_graphs_replay_what_eager_calls_compute(config):
    eager, _, plain = trained("cuda", config=config)
    graph, _, replayed = trained("cuda", graphs=True, config=config)
    loose = config.precision == "bf16"
    for name, p in eager.packs.items():
        torch.testing.assert_close(
            p.weights, graph.packs[name].weights, rtol=1e-3, atol=2e-2 if loose else 2e-4
        )
    assert replayed[-1]["audit/mu/log_prob_gap"].max() < (1.0 if loose else 3e-4)
    assert len(plain) == len(replayed)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("compile_", ["off", "on"])
def test_the_fast_paths_compute_what_the_plain_one_computes(compile_, members):
    base = preset("uav-mec", scenario="demo")
    learner = PPOConfig(hidden=32, lanes=2, steps=4)
    fast = replace(base, learner=learner, seeds=tuple(range(members)), device="cuda")
    trainer = Trainer(replace(fast, compile=compile_))
    for _ in range(3):  # by then everything has been recorded
        trainer.update()
    found = compare(trainer)  # raises where they differ
    assert found.holds
    assert trainer.updates == 3 + len(found.gaps)


def test_lessons_are_no_part_of_a_graph_and_what_follows_is():
    config = PPOConfig(hidden=32)
    eager, _, plain = trained("cuda", config=config, updates=6, lessons=2)
    graph, _, replayed = trained("cuda", graphs=True, config=config, updates=6, lessons=2)
    for name, p in eager.packs.items():
        torch.testing.assert_close(p.weights, graph.packs[name].weights, rtol=1e-3, atol=2e-4)
    for stats in (plain, replayed):
        taught = ["train/mu/imitation_loss" in update for update in stats]
        assert taught == [True, True, False, False, False, False]


def test_a_pack_of_one_trains_with_fused_attention():
    _, _, stats = trained("cuda", seeds=(0,), graphs=True)
    assert torch.isfinite(stats[-1]["train/value_loss"]).all()


def test_equal_rows_have_equal_fingerprints_on_both_devices_and_compiled():
    world = UavMec(SCENARIOS["demo"], lanes=3)
    world.reset(lane_keys([0], lanes=3))
    for role in world.spec.roles:
        obs = world.observe(role.name)
        there = obs.map(lambda x: x.cuda())
        expected = obs.fingerprint()
        assert torch.equal(there.fingerprint().cpu(), expected)
        assert torch.equal(compiled(Observation.fingerprint)(there).cpu(), expected)
