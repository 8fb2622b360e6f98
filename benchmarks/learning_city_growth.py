"""Learning on the city world: tiny maps against the best plan, cities never seen against solvers.

    python benchmarks/learning_city_growth.py --only taught --seconds 3600
    python benchmarks/learning_city_growth.py --cuda --jobs 16 --seconds 430

Without --cuda everything trains on the CPU, each seed in a process of its own; --quick only shows
that every job runs; --show FILE prints the table of a file. Runs of other jobs stay in the file.

Jobs that are *taught* imitate a solver that plays futures in copies of the city (`look-ahead`), and
see no reward but through the critic; the others learn from rewards alone.

There are three sets of cities. Policies train on those of the scenario. Now and then they play 32
others, whose mean return decides which weights of each seed are kept. What the table tells is how
the kept weights play 20 further ones, which nothing was ever chosen by; each is played once, always
with the most likely decisions, and differences to a solver are taken city by city. What is trained
on 60 slots, and kept for how it plays 60, also plays 200. On a tiny map the last weights play.

Step sizes stay for the first half of the training and then fall to a twentieth. Agents trained with
`shared=1` are paid as a team; the return they play for is the same sum. Every process writes what
it knows after each check and ends by itself in time, so that a run cut short keeps its numbers.
The exit code is 1 if a member falls short of 2 % from the best plan of a tiny map, or is not above
chance and the greedy solver by three standard errors on cities.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lockstep.core.streams import lane_keys
from lockstep.learners.ppo import PPO
from lockstep.run.config import TrainConfig, preset
from lockstep.run.policy import HeuristicPolicy, LearnedPolicy, Policy
from lockstep.run.trainer import Trainer
from lockstep.worlds import registry
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.heuristics import HEURISTICS
from lockstep.worlds.city_growth.world import with_maps

UNSEEN_SEED, UNSEEN = 700_000, 20  # settings were chosen on the cities of seed 90,000
VALIDATION_SEED, VALIDATION = 800_000, 32
CHECKS = 12
HELD, LEAST_RATE = 0.5, 0.05
SOLVERS = ("npv", "greedy", "random")
BEST = {"tiny-4": 14_034.0, "tiny-9": 5_698.0}
"""Returns of the best plans, found by playing them all (a test does so)."""
WITHIN = 0.98
"""Share of the best plan that a tiny map asks for."""
RESULTS = Path(__file__).parent / "results" / "learning_city_growth.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One scenario to train, and where its policy plays."""

    scenario: str
    plays: tuple[str, ...]
    shared: float = 0.0
    """Part of the reward that all agents share while training."""
    gpu: bool = False
    """Whether --cuda takes it to the GPU, where all seeds train in one pack."""
    lanes: int = 0
    """Lanes there, if not the scenario's."""
    updates: int = 0
    """Most updates, if not as many as the time allows."""
    teacher: str = ""
    """The solver that decides in all of them and is imitated, if it is taught."""

    @property
    def name(self) -> str:
        """Scenario, and what was changed."""
        if self.teacher:
            return f"{self.scenario} taught by {self.teacher}"
        return f"{self.scenario} shared={self.shared:g}" if self.shared else self.scenario

    @property
    def tiny(self) -> bool:
        """Whether its best plan is known."""
        return self.scenario in BEST


JOBS = (
    Job(scenario="default", plays=("default",), teacher="look-ahead", updates=16),
    Job(scenario="village", plays=("village", "default"), teacher="look-ahead", updates=16),
    Job(scenario="default", plays=("default",), shared=1.0, gpu=True, lanes=96),
    Job(scenario="village", plays=("village", "default")),
    Job(scenario="tiny-9", plays=("tiny-9",), updates=200),
    Job(scenario="tiny-4", plays=("tiny-4",), updates=200),
)
"""The longest first."""


def config_of(job: Job, seeds: tuple[int, ...], *, cuda: bool) -> TrainConfig:
    """The scenario with the learner settings that suit it, and the job's changes."""
    config = preset("city-growth", scenario=job.scenario)
    world, learner = config.world, config.learner
    world = replace(world, reward=replace(world.reward, shared=job.shared))
    if cuda and job.gpu:
        learner = replace(learner, lanes=job.lanes or learner.lanes)
    device = "cuda" if cuda and job.gpu else "cpu"
    taught = {"teacher": job.teacher, "lessons": job.updates} if job.teacher else {}
    return replace(config, world=world, learner=learner, seeds=seeds, device=device, **taught)


class Arena:
    """Cities of a scenario that no training draws, each played once by whoever comes."""

    def __init__(self, scenario: str, *, seed: int, cities: int) -> None:
        config = SCENARIOS[scenario]
        if scenario not in BEST:
            config = with_maps(config, map_seed=seed, n_maps=cities)
        self.scenario, self.config = scenario, config
        self.keys = self._one_of_each(lane_keys([seed], lanes=40 * cities))
        self.spec = registry.build(config, lanes=1).spec
        self._player: PPO | None = None

    def _one_of_each(self, many: torch.Tensor) -> torch.Tensor:
        """A stream for every city, a tiny map and its mirror too: the first that draws it."""
        world = registry.build(self.config, lanes=len(many))
        world.reset(many)
        drawn = world.state_dict()["state"]["map"].tolist()
        return many[[drawn.index(city) for city in range(max(drawn) + 1)]]

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

    def solver(self, name: str) -> list[float]:
        """Returns of a solver without learning."""
        return self.play(HeuristicPolicy(HEURISTICS[name], label=name))[0]

    def learned(self, learner: PPO, weights: dict[str, torch.Tensor]) -> list[list[float]]:
        """Returns of a learner's members with these weights, also where sets are wider."""
        if self._player is None:
            self._player = PPO(learner.config, self.spec, seeds=learner.seeds)
        with torch.no_grad():
            for name, pack in self._player.packs.items():
                pack.weights.copy_(weights[name])
        return self.play(LearnedPolicy(self._player))


class Test:
    """What the table tells: play on cities that nothing is chosen by, beside the solvers."""

    def __init__(self, scenario: str) -> None:
        self.arena = Arena(scenario, seed=UNSEEN_SEED, cities=UNSEEN)
        names = () if scenario in BEST else SOLVERS
        self.rivals = {name: self.arena.solver(name) for name in names}

    def verdict(self, learner: PPO, weights: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
        """For every member its mean return, and how far it is from the rivals'."""
        return [self._of_member(returns) for returns in self.arena.learned(learner, weights)]

    def _of_member(self, returns: list[float]) -> dict[str, Any]:
        mean = statistics.fmean(returns)
        found: dict[str, Any] = {"return": round(mean, 1)}
        if self.arena.scenario in BEST:
            return found | {"of_best": round(mean / BEST[self.arena.scenario], 4)}
        for name, theirs in self.rivals.items():
            gap = [mine - other for mine, other in zip(returns, theirs, strict=True)]
            error = statistics.stdev(gap) / len(gap) ** 0.5
            found[name] = {"gap": round(statistics.fmean(gap), 1), "error": round(error, 1)}
        return found


class Keeper:
    """The weights of every member that have played the validation cities best so far."""

    def __init__(self, learner: PPO, scenario: str) -> None:
        self._learner = learner
        self._arena: Arena | None = None
        if scenario not in BEST:
            self._arena = Arena(scenario, seed=VALIDATION_SEED, cities=VALIDATION)
        self.best = [float("-inf")] * learner.members
        self.since = [0] * learner.members
        self.weights = self._now()

    def _now(self) -> dict[str, torch.Tensor]:
        return {
            name: pack.weights.detach().cpu().clone() for name, pack in self._learner.packs.items()
        }

    def look(self, updates: int) -> list[float]:
        """Plays, keeps what is better, and tells the members' mean returns."""
        now = self._now()
        if self._arena is None:  # the map to play is the map to learn: the last weights count
            self.weights, self.since = now, [updates] * len(self.since)
            return []
        means = [statistics.fmean(r) for r in self._arena.learned(self._learner, now)]
        for member, mean in enumerate(means):
            if mean > self.best[member]:
                self.best[member], self.since[member] = mean, updates
                for name, kept in self.weights.items():
                    kept[member] = now[name][member]
        return [round(mean, 1) for mean in means]


class Rates:
    """Adam's step sizes: as they are for the first half of the time, then falling."""

    def __init__(self, learner: PPO) -> None:
        self._full = {name: (adam.lr, adam.lr.clone()) for name, adam in learner.optimizers.items()}

    def set(self, share: float) -> None:
        """Sets them for the update that begins when `share` of the time is over."""
        fall = LEAST_RATE ** max(0.0, (min(share, 1.0) - HELD) / (1.0 - HELD))
        for rate, full in self._full.values():
            rate.copy_(full * fall)


def train(job: Job, seeds: tuple[int, ...], *, cuda: bool, until: float, out: Path) -> None:
    """Trains until shortly before the time `until`, plays now and then, and writes each time."""
    torch.set_num_threads(1)
    began = time.time()
    trainer = Trainer(config_of(job, seeds, cuda=cuda))
    learner = trainer.learner
    assert isinstance(learner, PPO)
    tests = [Test(name) for name in job.plays]
    keeper, rates = Keeper(learner, job.scenario), Rates(learner)
    checks, looking, over = list[dict[str, Any]](), 5.0, False
    while not over:
        share = (time.time() - began) / (until - began)
        share = trainer.updates / job.updates if job.updates else share
        if not job.tiny:
            rates.set(share)
        started = time.time()
        trainer.update()
        now = time.time()
        over = now + 2 * (now - started) + 1.5 * looking + 2 > until  # no time for another round
        over = over or trainer.updates == job.updates
        if not over and (job.tiny or share < (len(checks) + 1) / CHECKS):
            continue
        validation = keeper.look(trainer.updates)
        plays = {t.arena.scenario: t.verdict(learner, keeper.weights) for t in tests}
        looking = max(looking, time.time() - now)
        checks.append(
            {
                "updates": trainer.updates,
                "minutes": round((time.time() - began) / 60, 2),
                "validation": validation,
                "plays": plays,
            }
        )
        _write(out, _record(job, trainer, keeper, checks, tests))


def _record(
    job: Job, trainer: Trainer, keeper: Keeper, checks: list[dict[str, Any]], tests: list[Test]
) -> dict[str, Any]:
    learner = trainer.config.learner
    kept = checks[-1]["plays"]
    return {
        "job": job.name,
        "seeds": list(trainer.config.seeds),
        "device": trainer.config.device,
        "lanes": learner.lanes,
        "updates": trainer.updates,
        "kept": keeper.since,
        "machine": machine(),
        "env_steps": trainer.updates * learner.lanes * learner.steps,
        "minutes": checks[-1]["minutes"],
        "plays": kept,
        "curve": [
            {
                "updates": check["updates"],
                "minutes": check["minutes"],
                "validation": check["validation"],
                "return": {
                    name: [member["return"] for member in members]
                    for name, members in check["plays"].items()
                },
            }
            for check in checks
        ],
        "solvers": {
            test.arena.scenario: {name: statistics.fmean(r) for name, r in test.rivals.items()}
            for test in tests
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
        seeds = tuple(range(args.seeds))
        if args.only not in job.name:
            continue
        if job.gpu and args.cuda:
            runs.append((i, seeds))
        else:
            runs += [(i, (seed,)) for seed in seeds]
    return runs


def run_all(args: argparse.Namespace, until: float) -> list[dict[str, Any]]:
    """Every planned run in a process of its own, a few at a time; what they have written."""
    waiting, running = plan(args), list[tuple[subprocess.Popen[bytes], str]]()
    parts, failed, found = list[Path](), list[str](), list[dict[str, Any]]()
    planned = {JOBS[i].name for i, _ in waiting}
    before = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    others = [run for run in before if run["job"] not in planned]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting and len(running) < args.jobs:
                i, seeds = waiting.pop(0)
                listed = ",".join(map(str, seeds))
                parts.append(Path(scratch) / f"{i}-{listed}.json")
                words = [sys.executable, __file__, "--job", str(i), "--seed-list", listed,
                         "--until", str(until), "--out", str(parts[-1])]  # fmt: skip
                words += ["--cuda"] if args.cuda else []
                running.append((subprocess.Popen(words, env=env), f"{JOBS[i].name} {listed}"))
            time.sleep(0.5)
            for one in [one for one in running if one[0].poll() is not None]:
                running.remove(one)
                if one[0].returncode:
                    failed.append(f"{one[1]} ended with {one[0].returncode}")
            written = [json.loads(part.read_text()) for part in parts if part.exists()]
            if written != found:
                found = written
                _write(args.out, {"runs": [*found, *others], "failed": failed})
        _write(args.out, {"runs": [*found, *others], "failed": failed})
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
            ", ".join(
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


def shortfalls(runs: list[dict[str, Any]]) -> list[str]:
    """The members that do not play as asked: tiny maps to 2 %, cities above chance and greedy."""
    found = []
    for run in runs:
        for scenario, members in run["plays"].items():
            for seed, member in zip(run["seeds"], members, strict=True):
                who = f"{run['job']}, seed {seed}, on {scenario}"
                if member.get("of_best", 1.0) < WITHIN:
                    found.append(f"{who}: {member['of_best']:.3f} of the best, asked {WITHIN}")
                found += [
                    f"{who}: not above {rival} by three standard errors"
                    for rival in ("random", "greedy")
                    if rival in member and member[rival]["gap"] <= 3 * member[rival]["error"]
                ]
    return found


def tell(runs: list[dict[str, Any]]) -> None:
    """Prints the table; ends with 1 if a member falls short."""
    print(table(runs))
    short = shortfalls(runs)
    if short:
        sys.exit("\n".join(short))


def main() -> None:
    until = time.time()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=430.0, help="for everything together")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="the jobs whose names hold this word")
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", type=Path, help="print the table of this file, and train nothing")
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seed-list", default="0", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.show:
        tell(json.loads(args.show.read_text())["runs"])
        return
    if args.job is not None:
        seeds = tuple(int(seed) for seed in args.seed_list.split(","))
        train(JOBS[args.job], seeds, cuda=args.cuda, until=args.until, out=args.out)
        return
    if args.quick:
        args.seconds, args.seeds = 60.0, 1
    tell(run_all(args, until + args.seconds))


if __name__ == "__main__":
    main()
