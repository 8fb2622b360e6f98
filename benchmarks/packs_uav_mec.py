"""Speed of packs on `uav-mec`: members, agents, samples and paths, collection included.

    python benchmarks/packs_uav_mec.py --rows paths,graphs --gate kernels,graphs --json packs.json
    python benchmarks/packs_uav_mec.py --rows compiled --gate compiled --json compiled.json

A path is `eager` (nothing but tensor operations), `kernels` (with those written for a GPU),
`graphs` (kernels, replayed as CUDA graphs) or `compiled` (graphs of compiled programs). The paths
named by --gate are first compared with the eager one: one update from equal state, in fp32.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from lockstep.errors import LockstepError
from lockstep.run import manifest, memory
from lockstep.run.config import TrainConfig, preset
from lockstep.run.equality import compare
from lockstep.run.trainer import Trainer

Path_ = Literal["eager", "kernels", "graphs", "compiled"]
HOW: dict[str, dict[str, Any]] = {
    "eager": {"compile": "off", "graphs": False, "kernels": False},
    "kernels": {"compile": "off", "graphs": False},
    "graphs": {"compile": "off"},
    "compiled": {"compile": "on"},
}
WARM_UPS = 4  # compilation, kernel choice, recording of graphs; reported apart
UPDATES = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    path: Path_ = "graphs"
    members: int = 32
    users: int = 60
    uavs: int = 10
    lanes: int = 5
    steps: int = 60
    actor: Literal["scorer", "mlp"] = "scorer"
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"

    def config(self, device: str) -> TrainConfig:
        base = preset("uav-mec", scenario="paper", learner="ab-mappo")
        samples = self.lanes * self.steps
        return replace(
            base,
            device=device,
            seeds=tuple(range(self.members)),
            total_steps=1000 * samples,
            world=replace(base.world, n_users=self.users, n_uavs=self.uavs),
            learner=replace(
                base.learner,
                lanes=self.lanes,
                steps=self.steps,
                actor=self.actor,
                precision=self.precision,
            ),
            **HOW[self.path],
        )


def cases(rows: list[str]) -> Iterator[Case]:
    if "paths" in rows:
        for path in ("eager", "kernels", "graphs"):
            yield Case(path=path, members=8)
    if "graphs" in rows:
        for members in (1, 8, 32, 64):
            yield Case(members=members)
        yield Case(members=32, actor="mlp")
        yield Case(members=32, precision="tf32")
        yield Case(members=32, users=10, uavs=1)
        yield Case(members=32, users=100, uavs=10)
        yield Case(members=8, lanes=64, steps=64)
    if "compiled" in rows:
        yield Case(path="compiled", members=64)
        yield Case(path="compiled", members=64, actor="mlp")
        yield Case(path="compiled", members=1)


def measure(case: Case, device: str) -> dict[str, Any]:
    """Medians over updates after the warm-up, each half with the device settled at its ends."""
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    trainer = Trainer(case.config(device))
    marks = []
    for update in range(WARM_UPS + UPDATES):
        if update == WARM_UPS:
            warm = time.perf_counter() - begun
        settle()
        start = time.perf_counter()
        trainer.collect()
        settle()
        middle = time.perf_counter()
        trainer.learn()
        settle()
        marks.append((middle - start, time.perf_counter() - middle))
    marks = marks[WARM_UPS:]
    samples = case.members * case.lanes * case.steps
    each = sorted(collect + learn for collect, learn in marks)
    rate = samples / statistics.median(each)
    return {
        **asdict(case),
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * (case.users + case.uavs),
        "slowest": samples / each[-1],
        "fastest": samples / each[0],
        "collect_ms": 1e3 * statistics.median(collect for collect, _ in marks),
        "learn_ms": 1e3 * statistics.median(learn for _, learn in marks),
        "preparation_s": warm - WARM_UPS * statistics.median(each),
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def gate(paths: list[Path_], device: str) -> Iterator[dict[str, Any]]:
    """How far each fast path is from the eager one after an update from equal state, in fp32."""
    for path in paths:
        case = Case(path=path, members=2, precision="fp32")
        trainer = Trainer(case.config(device))
        for _ in range(WARM_UPS):
            trainer.update()
        try:
            found = compare(trainer)
        except LockstepError as error:
            yield {"path": path, "error": str(error)}
        else:
            yield {"path": path, "gap": min(found.gaps), "tolerance": found.tolerance}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", default="graphs", help="some of paths,graphs,compiled")
    parser.add_argument("--gate", default="", help="some of kernels,graphs,compiled")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    told: dict[str, Any] = {"gate": [], "rows": []}

    def keep(kind: str, row: dict[str, Any]) -> None:
        told[kind].append(row)
        if asked.json:
            asked.json.write_text(json.dumps(told, indent=1) + "\n")

    base = Case().config(asked.device)
    made = manifest.build(base, Trainer(replace(base, seeds=(0,))).world)
    told |= {"machine": made["machine"], "packages": made["packages"]}
    for row in gate(list(filter(None, asked.gate.split(","))), asked.device):
        print(row, flush=True)
        keep("gate", row)
    print("path      members    K   M  samples actor  precision   env-steps/s  agent-steps/s  "
          "collect ms  learn ms  preparation s  GB")  # fmt: skip
    for case in cases(asked.rows.split(",")):
        row = measure(case, asked.device)
        keep("rows", row)
        print(
            f"{case.path:9} {case.members:7} {case.users:4} {case.uavs:3} "
            f"{case.lanes * case.steps:8} {case.actor:6} {case.precision:9} "
            f"{row['env_steps_per_s']:13,.0f} {row['agent_steps_per_s']:14,.0f} "
            f"{row['collect_ms']:11.1f} {row['learn_ms']:9.1f} {row['preparation_s']:14.1f} "
            f"{row['peak_memory_gb'] or 0:3.1f}",
            flush=True,
        )
        memory.release()


if __name__ == "__main__":
    main()
