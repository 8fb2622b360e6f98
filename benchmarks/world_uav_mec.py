"""Steps of the UAV world per CPU second, acting excluded, eager and compiled.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/world_uav_mec.py --lanes 256 --scenario paper

A lane-step is advance + observe(mu) + observe(uav) + state. Before any timing, both versions play
the same actions and must agree to 1e-5 (relative to 1 + |value|).
"""

import argparse
import json
import platform
import statistics
import time

import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.heuristics import random_actions
from lockstep.worlds.uav_mec.world import UavMec

REPEATS = 5


def slot(world: UavMec, actions: dict[str, dict[str, Tensor]]) -> list[Tensor]:
    """One step as a collector would make it; all tensors that came out."""
    critic = world.state("mu")
    users = world.observe("mu")
    world.act("mu", actions["mu"])
    uavs = world.observe("uav")
    world.act("uav", actions["uav"])
    step = world.advance()
    return [
        *critic.values(),
        *users.tensors().values(),
        *uavs.tensors().values(),
        *(reward / world.config.reward_scale for reward in step.reward.values()),
        *step.metrics.values(),
    ]


def difference(eager: UavMec, compiled: UavMec, actions: dict[str, dict[str, Tensor]]) -> float:
    """The largest difference in any slot of two periods, relative to 1 + |value|.

    Both start each slot from the same state: positions of 1000 m in float32 gather rounding.
    """
    worst = 0.0
    for _ in range(2 * eager.config.n_slots):
        compiled.load_state_dict(eager.state_dict())
        for a, b in zip(slot(eager, actions), slot(compiled, actions), strict=True):
            gap = (a.float() - b.float()).abs() / (1.0 + a.float().abs())
            worst = max(worst, float(gap.max()))
    return worst


def rate(world: UavMec, actions: dict[str, dict[str, Tensor]], steps: int) -> float:
    """Lane-steps per second: of process CPU time, or of wall time on an accelerator."""
    on_cpu = world.device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    started = clock()
    for _ in range(steps):
        slot(world, actions)
    if not on_cpu:
        torch.cuda.synchronize()
    return steps * world.lanes / (clock() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, default=256)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="paper")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)

    keys = lane_keys([0], lanes=args.lanes, device=args.device)
    worlds = {
        name: UavMec(
            SCENARIOS[args.scenario], lanes=args.lanes, device=args.device, compile=name != "eager"
        )
        for name in ("eager", "compiled")
    }
    for world in worlds.values():
        world.reset(keys)
    actions = random_actions(worlds["eager"])
    started = time.perf_counter()
    slot(worlds["compiled"], actions)
    compile_s = time.perf_counter() - started
    worlds["compiled"].reset(keys)
    gap = difference(worlds["eager"], worlds["compiled"], actions)
    if gap > 1e-5:
        raise SystemExit(f"eager and compiled differ by {gap:.1e}, more than 1e-5")

    rates: dict[str, list[float]] = {name: [] for name in worlds}
    for _ in range(REPEATS):
        for name, world in worlds.items():
            rates[name].append(rate(world, actions, args.steps))
    result = {
        "benchmark": "world_uav_mec",
        "scenario": args.scenario,
        "lanes": args.lanes,
        "device": args.device,
        "steps": args.steps,
        "repeats": REPEATS,
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "compile_s": round(compile_s, 1),
        "largest_difference": gap,
        "lane_steps_per_s": {
            name: {
                "median": round(statistics.median(r)),
                "min": round(min(r)),
                "max": round(max(r)),
            }
            for name, r in rates.items()
        },
    }
    if args.json:
        print(json.dumps(result))
        return 0
    unit = "lane-steps per CPU second" if args.device == "cpu" else "lane-steps per second"
    print(f"{args.scenario}, {args.lanes} lanes, {args.device}: {unit}")
    print(f"eager and compiled agree to {gap:.1e}; compiling took {compile_s:.0f} s")
    for name, r in rates.items():
        print(f"{name:9s} median {statistics.median(r):9,.0f}   {min(r):9,.0f} .. {max(r):,.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
