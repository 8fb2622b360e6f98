"""AB, B, AG and G side by side on the UAV world: levels, fairness and paired differences.

    python benchmarks/learning_uav_mec.py --device cuda --seeds 8 --json learning.json

Every learner is one pack. Numbers are the mean over a member's last 20 updates (stochastic policy),
then mean and standard deviation over members; a deterministic evaluation of 20 periods is apart.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from lockstep.collect.synchronous import Collector
from lockstep.core.streams import Streams, lane_keys
from lockstep.learners import registry
from lockstep.learners.config import PPOConfig, RandomizedConfig
from lockstep.worlds.uav_mec.config import SCENARIOS, UavMecConfig
from lockstep.worlds.uav_mec.heuristics import HEURISTICS
from lockstep.worlds.uav_mec.world import UavMec

SHOWN = (
    "weighted_energy_mu_avg",
    "mu_energy_avg",
    "uav_energy_avg",
    "jain_fairness",
    "delay_violation_rate",
    "mu_reward",
    "uav_reward",
    "relay_share",
    "local_share",
    "nearest_share",
)
TAIL, EVALUATION_SEED, PERIODS = 20, 1_000_003, 20

PROFILES = {
    "paper": (SCENARIOS["paper"], {}),
    "Z": (
        replace(SCENARIOS["paper"], relative_coordinates=True),
        {"gae_lambda": {"mu": 0.0, "uav": 0.95}},
    ),
}
LEARNERS = {
    "AB": {},
    "B": {"critic": "state"},
    "AG clipped": {"unit_head": "gaussian_clip"},
    "AG sigmoid": {"unit_head": "gaussian_sigmoid"},
    "G clipped": {"unit_head": "gaussian_clip", "critic": "state"},
    "AB printed MLP actor": {"actor": "mlp"},
}


def train(world_config: UavMecConfig, config, seeds, updates, device, *, compile_world=True):
    """One pack; metric curves `[updates, P, names]`, the learner and seconds."""
    fast = device == "cuda"
    world = UavMec(
        world_config, lanes=len(seeds) * config.lanes, device=device, compile=fast and compile_world
    )
    keys = lane_keys(seeds, lanes=config.lanes, device=device)
    world.reset(keys)
    learner = registry.build(
        config, world.spec, seeds=seeds, device=device, compile=fast, graphs=fast
    )
    collector = Collector(world, learner, Streams(keys), graphs=fast)
    rollout, curve, start = learner.rollout(), [], time.perf_counter()
    for _ in range(updates):
        collector.collect(rollout)
        learner.update(rollout)
        mean = [rollout.metrics[n].unflatten(1, (len(seeds), -1)).mean(dim=(0, 2)) for n in SHOWN]
        curve.append(torch.stack(mean, dim=-1))
    return torch.stack(curve).cpu(), learner, time.perf_counter() - start


def evaluate(world_config, learner, seeds, device):
    """Mean action, PERIODS periods a member from fixed seeds: `[P, names]`."""
    world = UavMec(world_config, lanes=len(seeds) * PERIODS, device=device)
    keys = lane_keys([EVALUATION_SEED] * len(seeds), lanes=PERIODS, device=device)
    world.reset(keys)
    streams, total = Streams(keys), 0.0
    starts = torch.zeros(world.lanes, dtype=torch.bool, device=device)
    for _ in range(world.spec.horizon):
        for phase in world.spec.phases:
            for role in phase:
                memory = torch.zeros(world.lanes, world.spec.role(role).agents, 0, device=device)
                decision = learner.act(
                    role, world.observe(role), memory, starts, streams, deterministic=True
                )
                world.act(role, decision.action)
        step = world.advance()
        streams.tick()
        total = total + torch.stack([step.metrics[name] for name in SHOWN], dim=-1)
    return (total / world.spec.horizon).unflatten(0, (len(seeds), -1)).mean(dim=1).cpu()


def heuristic(world_config, name, device):
    """PERIODS periods of a heuristic: `[names]`."""
    world = UavMec(world_config, lanes=PERIODS, device=device)
    world.reset(lane_keys([EVALUATION_SEED], lanes=PERIODS, device=device))
    total = 0.0
    for _ in range(world.spec.horizon):
        for role in world.spec.roles:
            world.act(role.name, HEURISTICS[name](world, role.name))
        step = world.advance()
        total = total + torch.stack([step.metrics[n] for n in SHOWN], dim=-1)
    return (total / world.spec.horizon).mean(dim=0).cpu()


def show(row) -> None:
    """One line of the table."""
    mean = {n: torch.tensor(row["tail"][n]).mean() for n in SHOWN}
    spread = torch.tensor(row["tail"][SHOWN[0]]).std()
    fixed = torch.tensor(row["deterministic"][SHOWN[0]]).mean()
    print(
        f"{row['profile']:6} {row['learner']:21} w {mean[SHOWN[0]]:.4f} +- {spread:.4f} J  "
        f"jain {mean['jain_fairness']:.3f}  mu {mean['mu_energy_avg']:.4f} J  "
        f"uav {mean['uav_energy_avg']:.1f} J  near {mean['nearest_share']:.2f}  "
        f"relay {mean['relay_share']:.2f}  local {mean['local_share']:.2f}  "
        f"deterministic {fixed:.4f} J  {row['steps_per_s']:.0f} env-steps/s",
        flush=True,
    )


def compare(rows) -> None:
    """Each learner's weighted energy minus AB's, member by member."""
    base = [torch.tensor(row["tail"][SHOWN[0]]) for row in rows if row["learner"] == "AB"]
    for row in rows if base else []:
        gap = torch.tensor(row["tail"][SHOWN[0]]) - base[0]
        error = gap.std() / len(gap) ** 0.5
        print(
            f"{row['profile']:6} {row['learner']} - AB: {gap.mean():+.4f} +- {error:.4f} J (s.e.)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=266)
    parser.add_argument("--profiles", default=",".join(PROFILES))
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32"])
    parser.add_argument("--eager-world", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("learning_uav_mec.json"))
    args = parser.parse_args()
    if args.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    seeds, results, baselines = list(range(args.seeds)), [], []
    for profile in args.profiles.split(","):
        world_config, changes = PROFILES[profile]
        configs = {
            name: replace(PPOConfig(precision=args.precision), **changes, **LEARNERS[name])
            for name in args.learners.split(",")
        }
        for name, config in {**configs, "Randomized": RandomizedConfig()}.items():
            updates = args.updates if isinstance(config, PPOConfig) else TAIL
            curve, learner, seconds = train(
                world_config,
                config,
                seeds,
                updates,
                args.device,
                compile_world=not args.eager_world,
            )
            tail = curve[-TAIL:].mean(dim=0)  # [P, names]
            with torch.compiler.set_stance("force_eager"):  # other shapes, used once
                fixed = evaluate(world_config, learner, seeds, args.device)
            results.append(
                {
                    "profile": profile,
                    "learner": name,
                    "seeds": seeds,
                    "updates": updates,
                    "steps_per_s": len(seeds) * updates * config.lanes * config.steps / seconds,
                    "tail": {n: tail[:, i].tolist() for i, n in enumerate(SHOWN)},
                    "deterministic": {n: fixed[:, i].tolist() for i, n in enumerate(SHOWN)},
                    "curve": {n: curve[:, :, i].mean(dim=1).tolist() for i, n in enumerate(SHOWN)},
                }
            )
            show(results[-1])
            args.json.write_text(json.dumps({"learners": results, "heuristics": baselines}))
        for name in ("greedy", "nearest_equal", "all_local"):
            mean = dict(
                zip(SHOWN, heuristic(world_config, name, args.device).tolist(), strict=True)
            )
            baselines.append({"profile": profile, "heuristic": name, "mean": mean})
            print(
                f"{profile:6} {name:21} w {mean[SHOWN[0]]:.4f} J  jain {mean['jain_fairness']:.3f}"
            )
        compare([row for row in results if row["profile"] == profile])
    args.json.write_text(json.dumps({"learners": results, "heuristics": baselines}))


if __name__ == "__main__":
    main()
