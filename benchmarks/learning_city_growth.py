"""Learning on the city world: tiny maps against the best plan, cities never seen against solvers.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/learning_city_growth.py --jobs 14 --minutes 7

With --cuda the default scenario is also trained on the GPU, with more lanes and all seeds in one
pack; --quick only shows that every job runs.

A job is one scenario with the settings it is trained with by default; each process has one thread.
Policies play deterministically. Unseen cities are 20 that no training draws, each played once, and
differences to a solver are taken city by city. What is trained on 60 slots also plays 200.
Agents trained with `shared=1` are paid as a team; the return they play for is the same sum.
Every process writes what it knows after each check, so that a run cut short keeps its numbers.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lockstep.core.streams import lane_keys
from lockstep.core.world import World
from lockstep.learners.ppo import PPO
from lockstep.run.config import TrainConfig, preset
from lockstep.run.policy import HeuristicPolicy, LearnedPolicy, Policy
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.world import with_maps

UNSEEN_SEED, CITIES = 700_000, 20  # settings were chosen on the cities of seed 90,000
CHECKS = 8
SOLVERS = ("npv", "greedy", "random")
BEST = {"tiny-4": 14_034.0, "tiny-9": 5_698.0}
"""Returns of the best plans, found by playing them all (a test does so)."""
RESULTS = Path(__file__).parent / "results" / "learning_city_growth.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One scenario to train, and where its policy plays."""

    scenario: str
    plays: tuple[str, ...]
    shared: float = 0.0
    """Part of the reward that all agents share while training."""
    device: str = "cpu"
    """On a GPU all seeds train in one pack, on the CPU each in a process of its own."""
    lanes: int = 0
    """Lanes, if not the scenario's."""
    updates: int = 0
    """Most updates, if not as many as the time allows."""
    seeds: int = 5
    """Seeds to train; --seeds may ask for fewer."""

    @property
    def name(self) -> str:
        """Scenario, and what was changed."""
        changes = [f"shared={self.shared:g}"] if self.shared else []
        changes += [f"lanes={self.lanes}"] if self.lanes else []
        return " ".join([self.scenario, *changes])


JOBS = (
    Job(scenario="default", plays=("default",), shared=1.0, device="cuda", lanes=256),
    Job(scenario="default", plays=("default",), device="cuda", lanes=256),
    Job(scenario="village", plays=("village", "default")),
    Job(scenario="default", plays=("default",), seeds=3),
    Job(scenario="default", plays=("default",), shared=1.0, seeds=3),
    Job(scenario="small", plays=("small",), shared=1.0, seeds=1),
    Job(scenario="tiny-4", plays=("tiny-4",), updates=200),
    Job(scenario="tiny-9", plays=("tiny-9",), updates=200),
)
"""The longest first. Jobs for a GPU run with --cuda only."""


def config_of(job: Job, seeds: tuple[int, ...]) -> TrainConfig:
    """The scenario with the learner settings that suit it, and the job's changes."""
    config = preset("city-growth", scenario=job.scenario)
    world, learner = config.world, config.learner
    world = replace(world, reward=replace(world.reward, shared=job.shared))
    learner = replace(learner, lanes=job.lanes or learner.lanes)
    return replace(config, world=world, learner=learner, seeds=seeds, device=job.device)


class Arena:
    """The cities of a scenario that no training draws, each played once by whoever comes."""

    def __init__(self, scenario: str) -> None:
        config = SCENARIOS[scenario]
        if scenario not in BEST:
            config = with_maps(config, map_seed=UNSEEN_SEED, n_maps=CITIES)
        self.scenario, self.config = scenario, config
        self.keys = self._one_of_each()
        self.rivals = {} if scenario in BEST else {name: self._solver(name) for name in SOLVERS}

    def _one_of_each(self) -> torch.Tensor:
        """A stream for every city, a tiny map and its mirror too: the first that draws it."""
        many = lane_keys([UNSEEN_SEED], lanes=40 * CITIES)
        world = registry.build(self.config, lanes=len(many))
        world.reset(many)
        drawn = world.state_dict()["state"]["map"].tolist()
        return many[[drawn.index(city) for city in range(max(drawn) + 1)]]

    def _solver(self, name: str) -> list[float]:
        return self.play(HeuristicPolicy(HEURISTICS[name], label=name))[0]

    def play(self, policy: Policy) -> list[list[float]]:
        """Returns of every member's deterministic play, city by city."""
        keys = self.keys.repeat(policy.groups)
        world = registry.build(self.config, lanes=len(keys))
        world.reset(keys)
        policy.begin(keys)
        total = torch.zeros(len(keys), dtype=torch.float64)
        for _ in range(world.spec.horizon):
            step = policy.step(world, deterministic=True)
            total += torch.cat(list(step.reward.values()), dim=1).double().sum(dim=1)
        return (total * self.config.reward.scale).view(policy.groups, -1).tolist()

    def verdict(self, policy: LearnedPolicy) -> list[dict[str, Any]]:
        """For every member its returns, and how far they are from the rivals'."""
        return [self._of_member(returns) for returns in self.play(policy)]

    def _of_member(self, returns: list[float]) -> dict[str, Any]:
        mean = statistics.fmean(returns)
        found: dict[str, Any] = {"return": round(mean, 1)}
        if self.scenario in BEST:
            return found | {"of_best": round(mean / BEST[self.scenario], 4)}
        for name, theirs in self.rivals.items():
            gap = [mine - other for mine, other in zip(returns, theirs, strict=True)]
            error = statistics.stdev(gap) / len(gap) ** 0.5
            found[name] = {"gap": round(statistics.fmean(gap), 1), "error": round(error, 1)}
        return found


def player(learner: PPO, world: World) -> LearnedPolicy:
    """The learner's weights in a world that may have wider candidate sets."""
    own = PPO(learner.config, world.spec, seeds=learner.seeds)
    for name, pack in own.packs.items():
        with torch.no_grad():
            pack.weights.copy_(learner.packs[name].weights)
    return LearnedPolicy(own)


def train(job: Job, seeds: tuple[int, ...], minutes: float, out: Path) -> None:
    """Trains for that long, plays now and then, and writes each time."""
    torch.set_num_threads(1)
    arenas = [Arena(name) for name in job.plays]
    worlds = [registry.build(arena.config, lanes=1) for arena in arenas]
    trainer = Trainer(config_of(job, seeds))
    began, checks, played, over = time.perf_counter(), list[dict[str, Any]](), 0.0, False
    while not over:
        trainer.update()
        spent = (time.perf_counter() - began - played) / 60
        over = spent >= minutes or trainer.updates == job.updates
        if not over and spent < minutes * (len(checks) + 1) / CHECKS:
            continue
        now = time.perf_counter()
        verdicts = {
            arena.scenario: arena.verdict(player(trainer.learner, world))
            for arena, world in zip(arenas, worlds, strict=True)
        }
        played += time.perf_counter() - now
        checks.append({"updates": trainer.updates, "minutes": spent, "plays": verdicts})
        _write(out, _record(job, seeds, trainer, checks, arenas))


def _record(
    job: Job,
    seeds: tuple[int, ...],
    trainer: Trainer,
    checks: list[dict[str, Any]],
    arenas: list[Arena],
) -> dict[str, Any]:
    learner = trainer.config.learner
    return {
        "job": job.name,
        "seeds": list(seeds),
        "device": job.device,
        "updates": trainer.updates,
        "env_steps": trainer.updates * learner.lanes * learner.steps,
        "minutes": round(checks[-1]["minutes"], 2),
        "plays": checks[-1]["plays"],
        "curve": [
            {
                "updates": check["updates"],
                "return": {
                    name: [member["return"] for member in members]
                    for name, members in check["plays"].items()
                },
            }
            for check in checks
        ],
        "solvers": {
            arena.scenario: {name: statistics.fmean(r) for name, r in arena.rivals.items()}
            for arena in arenas
        },
    }


def _write(path: Path, data: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(data, indent=1) + "\n")
    fresh.replace(path)


def plan(args: argparse.Namespace) -> list[tuple[int, tuple[int, ...]]]:
    """What to run: job number and seeds."""
    runs: list[tuple[int, tuple[int, ...]]] = []
    for i, job in enumerate(JOBS):
        seeds = tuple(range(min(args.seeds, job.seeds)))
        if job.device == "cuda" and args.cuda:
            runs.append((i, seeds))
        elif job.device == "cpu" and args.only in ("", job.scenario):
            runs += [(i, (seed,)) for seed in seeds]
    return runs


def run_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every planned run in a process of its own, a few at a time; what they have written."""
    waiting, running = plan(args), list[tuple[subprocess.Popen[bytes], Path, Any]]()
    parts, failed = list[Path](), list[str]()
    scratch = args.out.with_suffix(".parts")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < args.jobs:
            i, seeds = waiting.pop(0)
            listed = ",".join(map(str, seeds))
            label = f"{JOBS[i].name} {JOBS[i].device} {listed}".replace(" ", "-")
            part = scratch / f"{label}.json"
            part.unlink(missing_ok=True)
            words = [sys.executable, __file__, "--job", str(i), "--seed-list", listed,
                     "--minutes", str(args.minutes), "--out", str(part)]  # fmt: skip
            running.append((subprocess.Popen(words, env=env), part, label))
            parts.append(part)
        time.sleep(0.5)
        for one in [one for one in running if one[0].poll() is not None]:
            running.remove(one)
            if one[0].returncode:
                failed.append(f"{one[2]} ended with {one[0].returncode}")
        found = [json.loads(part.read_text()) for part in parts if part.exists()]
        _write(args.out, {"machine": machine(), "runs": found, "failed": failed})
    for line in failed:
        print(line, file=sys.stderr)
    return found


def machine() -> dict[str, Any]:
    """Where it ran."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "gpu": gpu,
            "torch": torch.__version__}  # fmt: skip


def table(runs: list[dict[str, Any]]) -> str:
    """Markdown: one line for each scenario played by what each job trained, over its seeds."""
    lines = [
        "| trained on | plays | seeds | env steps | return | of best | - npv | - greedy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((run["job"], name) for run in runs for name in run["plays"]))
    for job, name in keys:
        mine = [run for run in runs if run["job"] == job and name in run["plays"]]
        members = [member for run in mine for member in run["plays"][name]]
        steps = statistics.fmean(run["env_steps"] for run in mine)
        returns = " ".join(f"{member['return']:,.0f}" for member in members)
        shares = [f"{member['of_best']:.3f}" for member in members if "of_best" in member]
        gaps = [
            " ".join(
                f"{member[rival]['gap']:+,.0f} ± {member[rival]['error']:,.0f}"
                for member in members
                if rival in member
            )
            for rival in ("npv", "greedy")
        ]
        lines.append(
            f"| {job} | {name} | {len(members)} | {steps:,.0f} | {returns} | {' '.join(shares)} | "
            f"{gaps[0]} | {gaps[1]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=7.0, help="training of a job, at most")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="one scenario's jobs")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed-list", default="0", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job is not None:
        seeds = tuple(int(seed) for seed in args.seed_list.split(","))
        train(JOBS[args.job], seeds, args.minutes, args.out)
        return
    if args.quick:
        args.minutes, args.seeds = 0.05, 1
    print(table(run_all(args)))


if __name__ == "__main__":
    main()
