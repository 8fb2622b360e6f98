"""Training speed of one AB-MAPPO member on the `reference` scenario, one CPU thread.

    python benchmarks/training_uav_mec.py

K = 60 users, M = 10 UAVs, 300 samples an update (5 lanes x 60 slots), 5 epochs, hidden 128, MLP
actor, attention critic. Process CPU time, which neighbours on the machine disturb least. Also: what
the audit costs, by updates with and without it taken in turn; and with `--threads 1,2,4` the same
update with so many threads each, by the clock: `steps_per_s`.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from lockstep.run.config import preset
from lockstep.run.trainer import Trainer, arithmetic


def measure(trainer: Trainer) -> tuple[float, float]:
    """CPU seconds of one collection and one update."""
    start = time.process_time()
    trainer.collect()
    middle = time.process_time()
    trainer.learn()
    return middle - start, time.process_time() - middle


def rates(
    scenario: str, *, compile: bool, updates: int, threads: int = 1, **learner
) -> dict[str, float]:
    config = preset("uav-mec", scenario=scenario)
    config = replace(
        config,
        compile="on" if compile else "off",
        device="cpu",
        threads=threads,
        learner=replace(config.learner, **learner),
    )
    with arithmetic(config):
        trainer = Trainer(config)
        start = time.perf_counter()
        measure(trainer)
        first = time.perf_counter() - start
        start = time.perf_counter()
        measured = [measure(trainer) for _ in range(updates)]
        wall = time.perf_counter() - start
    rate = [config.steps_per_update / (collect + learn) for collect, learn in measured]
    return {
        "steps_per_cpu_s": statistics.median(rate),
        "lowest": min(rate),
        "highest": max(rate),
        "steps_per_s": updates * config.steps_per_update / wall,
        "collect_s": statistics.median(collect for collect, _ in measured),
        "update_s": statistics.median(learn for _, learn in measured),
        "first_update_s": first,
    }


def audit_share(scenario: str, *, updates: int, **learner) -> dict[str, float]:
    """Share of an update that the audit takes: updates with and without it, in turn."""
    config = preset("uav-mec", scenario=scenario)
    config = replace(config, device="cpu", learner=replace(config.learner, **learner))
    with arithmetic(config):
        pair = {
            on: Trainer(replace(config, learner=replace(config.learner, audit=on)))
            for on in (True, False)
        }
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(updates + 1):
            for on, trainer in pair.items():
                seconds[on].append(measure(trainer)[1])
    with_audit, without = (statistics.median(seconds[on][1:]) for on in (True, False))
    return {"with_s": with_audit, "without_s": without, "share": with_audit / without - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path("training_uav_mec.json"))
    parser.add_argument("--threads", default="", help="counts to try, such as 1,2,4")
    args = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    cases = {
        "reference, eager": ("reference", False, {}),
        "reference, compiled": ("reference", True, {}),
        "reference, compiled, bf16": ("reference", True, {"precision": "bf16"}),
        "paper, eager": ("paper", False, {}),
        "paper, compiled": ("paper", True, {}),
    }
    for name, (scenario, compile_, learner) in cases.items():
        results[name] = rates(scenario, compile=compile_, updates=args.updates, **learner)
        print(f"{name:28}", {k: round(v, 3) for k, v in results[name].items()}, flush=True)
    for count in map(int, filter(None, args.threads.split(","))):
        name = f"reference, eager, threads {count}"
        results[name] = rates("reference", compile=False, updates=args.updates, threads=count)
        print(f"{name:28}", {k: round(v, 3) for k, v in results[name].items()}, flush=True)
    audits = {"audit, 1 minibatch": {}, "audit, 5 minibatches": {"minibatches": 5}}
    for name, learner in audits.items():
        results[name] = audit_share("reference", updates=args.updates, **learner)
        print(f"{name:28}", {k: round(v, 3) for k, v in results[name].items()}, flush=True)
    machine = {"torch": torch.__version__, "machine": platform.machine(), "threads": 1}
    args.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1))


if __name__ == "__main__":
    main()
