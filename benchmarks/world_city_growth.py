"""Decisions of the city world per CPU second, the choice itself excluded.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/world_city_growth.py --lanes 1 256

A decision is one turn of one agent: its share of state + observe + act of all roles and of advance.
Picks are uniform among the legal ones; drawing them is not counted. Before any timing, a lane alone
must play bit for bit as it does among the others.
"""

import argparse
import json
import os
import platform
import statistics
import time

import torch
from torch import Tensor

from lockstep.core.actions import Observation
from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.world import CityGrowth

REPEATS = 5


def uniform(seen: Observation, k: int, generator: torch.Generator) -> Tensor:
    """Up to `k` legal picks `[L, 1, k]`, conflicts included: the world drops them."""
    legal = seen.legal["build"][:, 0].float()
    chosen = torch.multinomial(legal, k, replacement=True, generator=generator)
    return chosen.unsqueeze(1)


def episode(world: CityGrowth, generator: torch.Generator) -> tuple[float, int, list[Tensor]]:
    """Seconds inside the world, decisions made, and the rewards, of one episode in every lane."""
    on_cpu = world.device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    spent, decisions, rewards = 0.0, 0, []

    def timed(call):  # type: ignore[no-untyped-def]
        nonlocal spent
        if not on_cpu:
            torch.cuda.synchronize()
        started = clock()
        result = call()
        if not on_cpu:
            torch.cuda.synchronize()
        spent += clock() - started
        return result

    for _ in range(world.config.horizon):
        for phase in world.spec.phases:
            for role in phase:
                timed(lambda role=role: world.state(role))
            for role in phase:
                seen = timed(lambda role=role: world.observe(role))
                decisions += int(seen.acts.sum())
                picks = uniform(seen, world.config.picks, generator)
                timed(lambda role=role, picks=picks: world.act(role, {"build": picks}))
        step = timed(world.advance)
        rewards += [*step.reward.values()]
    return spent, decisions, rewards


def agrees(scenario: str, device: str) -> bool:
    """Whether lane 5 of 8 plays alone as it does among the others, given the same picks."""
    config, keys = SCENARIOS[scenario], lane_keys([0], lanes=8, device=device)
    crowd, alone = (
        CityGrowth(config, lanes=8, device=device),
        CityGrowth(config, lanes=1, device=device),
    )
    crowd.reset(keys)
    alone.reset(keys[5:6])
    generator = torch.Generator(device).manual_seed(0)
    for _ in range(config.horizon):
        for phase in crowd.spec.phases:
            for role in phase:
                picks = uniform(crowd.observe(role), config.picks, generator)
                crowd.act(role, {"build": picks})
                alone.act(role, {"build": picks[5:6]})
        one, two = crowd.advance(), alone.advance()
        if any(not torch.equal(one.reward[name][5], two.reward[name][0]) for name in one.reward):
            return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    if not agrees(args.scenario, args.device):
        raise SystemExit("a lane among others does not play as it does alone")

    results = []
    for lanes in args.lanes:
        world = CityGrowth(SCENARIOS[args.scenario], lanes=lanes, device=args.device)
        world.reset(lane_keys([0], lanes=lanes, device=args.device))
        generator = torch.Generator(args.device).manual_seed(0)
        episode(world, generator)
        timings = [episode(world, generator)[:2] for _ in range(REPEATS)]
        rates = [decisions / spent for spent, decisions in timings]
        results.append(
            {
                "benchmark": "world_city_growth",
                "scenario": args.scenario,
                "lanes": lanes,
                "device": args.device,
                "repeats": REPEATS,
                "torch": torch.__version__,
                "machine": platform.processor() or platform.machine(),
                "load": [round(x, 2) for x in os.getloadavg()],
                "decisions_per_s": {
                    "median": round(statistics.median(rates)),
                    "min": round(min(rates)),
                    "max": round(max(rates)),
                },
                "ms_per_decision": round(1000.0 / statistics.median(rates), 4),
            }
        )
    if args.json:
        print(json.dumps(results))
        return 0
    unit = "decisions per CPU second" if args.device == "cpu" else "decisions per second"
    print(f"{args.scenario}, {args.device}: {unit} (load {os.getloadavg()[0]:.1f})")
    for result in results:
        rate = result["decisions_per_s"]
        print(
            f"{result['lanes']:6d} lanes  median {rate['median']:9,d}   "
            f"{rate['min']:,d} .. {rate['max']:,d}   {result['ms_per_decision']} ms each"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
