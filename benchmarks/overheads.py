"""What recording and watching a run cost, on the CPU demo: uav-mec demo, AB-MAPPO, four seeds.

    python benchmarks/overheads.py

Runs are taken in turn in one process, in rounds: `bare` (updates alone; nothing is written), `off`
(metrics are written, nothing watches), `on` (as by default: heartbeat, resources, slow steps,
hints) and `all` (TensorBoard and Parquet as well). A share is the median over the rounds of what a
run takes beyond its neighbour of that round. `accounted` is the same seen from inside: the CPU time
of all threads but the training one, and the time between two updates, over the time of an update;
it is far less noisy, and leaves out only the ticks of the pulse. CPU time counts every thread and
is disturbed least by other processes; wall time is what a user waits. Before any number is printed
the runs are compared: the files must be equal byte by byte, and hold the numbers of the bare run.

Then the audit, by updates with and without it in turn; the pause of a checkpoint; and what handing
over one record takes of the training thread.
"""

import argparse
import itertools
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from lockstep.cli.demo import QUICK, SCENARIO, WORLD
from lockstep.run import loop
from lockstep.run.config import Operations, TrainConfig, preset
from lockstep.run.lines import Encoder, read_lines
from lockstep.run.loop import Progress
from lockstep.run.manifest import code_version
from lockstep.run.rundir import RunDir
from lockstep.run.sinks import Record, Recorder
from lockstep.run.trainer import Trainer, arithmetic

OFF = Operations(heartbeat_every=0, resources_every=0, hang_after=0, slow_step=0, hints_every=0)
CASES = {"off": OFF, "on": Operations(), "all": Operations(board=True, parquet=True)}


@dataclass
class Watch:
    """Clocks at the ends of updates; the first update, which warms up, is not counted."""

    cpu: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)

    def __call__(self, progress: Progress | None = None) -> None:
        self.cpu.append(time.process_time())
        self.own.append(time.thread_time())
        self.wall.append(time.perf_counter())
        self.inside.append(progress.seconds if progress else 0.0)

    def per_update(self) -> dict[str, float]:
        """Medians over updates; `beside_s` is the mean CPU time of all other threads."""
        n, cpu, own = len(self.cpu) - 1, self.cpu, self.own
        return {
            "cpu_s": statistics.median(steps(cpu)),
            "wall_s": statistics.median(steps(self.wall)),
            "beside_s": (cpu[-1] - cpu[0] - (own[-1] - own[0])) / n,
            "outside_s": statistics.median(self.outside()),
        }

    def outside(self) -> list[float]:
        """Seconds between two updates, in which the loop writes and saves."""
        return [gap - x for gap, x in zip(steps(self.wall), self.inside[1:], strict=True)]


def steps(clock: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(clock)]


def demo(updates: int) -> TrainConfig:
    base = preset(WORLD, scenario=SCENARIO, learner="ab-mappo")
    return replace(
        base,
        learner=replace(base.learner, **QUICK),
        seeds=tuple(range(4)),
        total_steps=updates * base.steps_per_update,
        checkpoint_every=updates + 1,  # only at the end, after the last update is timed
        device="cpu",
    )


def bare(config: TrainConfig, folder: Path) -> Watch:
    """Updates with their numbers brought to the host; they are kept in memory."""
    watch, found = Watch(), []
    with arithmetic(config):
        trainer = Trainer(config)
        for _ in range(config.updates):
            metrics = trainer.update()
            rows = torch.stack([x.detach().double() for x in metrics.values()]).tolist()
            found.append(dict(zip(metrics, rows, strict=True)))
            watch()
    folder.mkdir()
    encoder = Encoder()
    with (folder / "bare.jsonl").open("w") as file:
        for metrics in found:
            for row in zip(*metrics.values(), strict=True):
                file.write(encoder.line(tuple(metrics), row))
    return watch


def looped(config: TrainConfig, folder: Path) -> Watch:
    watch = Watch()
    loop.train(config, folder, on_update=watch)
    return watch


def check_equal(folder: Path) -> None:
    """Every case of a round wrote the same bytes, which hold the numbers of the bare run."""
    files = {name: (folder / name / "metrics.jsonl").read_bytes() for name in CASES}
    if len(set(files.values())) != 1:
        raise SystemExit("the cases wrote different metrics; their times cannot be compared")
    bare_rows, rows = (
        read_lines(folder / "bare" / "bare.jsonl"),
        read_lines(folder / "on" / "metrics.jsonl"),
    )
    for wanted, row in zip(bare_rows, rows, strict=True):
        differing = sorted(key for key in wanted if wanted[key] != row.get(key, "absent"))
        if differing:
            raise SystemExit(f"bare run and file differ in {', '.join(differing)}")


def recording(rounds: int, updates: int, root: Path) -> dict[str, object]:
    config = demo(updates)
    cases: dict[str, Callable[[Path], Watch]] = {"bare": lambda at: bare(config, at)}
    for name, ops in CASES.items():
        with_ops = replace(config, ops=ops)
        cases[name] = lambda at, settings=with_ops: looped(settings, at)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for turn in range(rounds):
        folder = root / str(turn)
        folder.mkdir()
        # Every other round backwards, so that a machine that slows down favours nobody.
        for name in list(cases)[:: 1 if turn % 2 == 0 else -1]:
            times[name].append(cases[name](folder / name).per_update())
        check_equal(folder)
    pairs = {
        "metrics": ("off", "bare"),
        "heartbeat, resources": ("on", "off"),
        "metrics, heartbeat, resources": ("on", "bare"),
        "with TensorBoard and Parquet": ("all", "bare"),
    }
    return {
        "update": {name: spread([t["wall_s"] for t in found]) for name, found in times.items()},
        "shares": {
            what: {
                clock: spread(
                    [a[clock] / b[clock] - 1 for a, b in zip(times[more], times[less], strict=True)]
                )
                for clock in ("cpu_s", "wall_s")
            }
            for what, (more, less) in pairs.items()
        },
        "accounted": {
            name: spread([(t["beside_s"] + t["outside_s"]) / t["wall_s"] for t in times[name]])
            for name in CASES
        },
    }


def audit(updates: int) -> dict[str, object]:
    """Share of learning, and of a whole update, that the audit takes."""
    config = demo(updates)
    pair = {on: replace(config.learner, audit=on) for on in (True, False)}
    learn: dict[bool, list[float]] = {True: [], False: []}
    whole: dict[bool, list[float]] = {True: [], False: []}
    with arithmetic(config):
        trainers = {on: Trainer(replace(config, learner=pair[on])) for on in pair}
        for update in range(updates + 1):
            found = {}
            for on in (True, False) if update % 2 else (False, True):
                start = time.process_time()
                trainers[on].collect()
                middle = time.process_time()
                found[on] = trainers[on].learn()
                learn[on].append(time.process_time() - middle)
                whole[on].append(time.process_time() - start)
            check_audit(found[True], found[False])
    shares = {}
    for what, seconds in (("of learning", learn), ("of an update", whole)):
        ratios = [a / b - 1 for a, b in zip(seconds[True], seconds[False], strict=True)]
        shares[what] = spread(ratios[1:])
    return shares


def check_audit(audited: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    for key, value in plain.items():
        if not torch.equal(value.nan_to_num(), audited[key].nan_to_num()):
            raise SystemExit(f"with and without the audit {key} differs; times mean nothing")


def checkpoints(updates: int, root: Path) -> dict[str, object]:
    """Milliseconds between two updates, with a checkpoint after each and without."""
    config = replace(demo(updates), ops=OFF)
    pauses = looped(replace(config, checkpoint_every=1), root / "saving").outside()
    without = looped(config, root / "not-saving").outside()
    return {
        "pause_ms": spread([1e3 * x for x in pauses]) | {"count": len(pauses)},
        "without_ms": spread([1e3 * x for x in without]),
        "bytes": max(f.stat().st_size for f in (root / "saving/checkpoints").glob("*.pt")),
    }


def handing_over(members: int, keys: int, root: Path, *, records: int = 300) -> dict[str, object]:
    """Microseconds of `put`, and of the thread that writes, for one record."""
    seeds = tuple(range(members))
    config = replace(demo(1), seeds=seeds)
    metrics = {f"train/uav/metric_{i}": [random.gauss(0, 1) for _ in seeds] for i in range(keys)}
    put = []
    root.mkdir()
    cpu = time.process_time()
    with Recorder(RunDir(root), config) as recorder:
        for update in range(1, records + 1):
            item = Record(update=update, step=update, seeds=seeds, metrics=metrics, perf={})
            start = time.perf_counter()
            recorder.put(item)
            put.append(1e6 * (time.perf_counter() - start))
            time.sleep(0.005)
    return {
        "put_us": spread(put) | {"p99": statistics.quantiles(put, n=100)[-1]},
        "write_cpu_us": 1e6 * (time.process_time() - cpu) / records,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=8)
    here = Path(__file__).parent / "results" / "overheads.json"
    parser.add_argument("--json", type=Path, default=here)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        results = {
            "recording": recording(args.rounds, args.updates, root),
            "audit": audit(2 * args.updates),
            "checkpoint": checkpoints(2 * args.updates, root),
            "record of 4 members, 60 keys": handing_over(4, 60, root / "small"),
            "record of 64 members, 60 keys": handing_over(64, 60, root / "large"),
        }
    print(json.dumps(results, indent=1))
    both = "metrics, heartbeat, resources"
    reached = [
        (both, results["recording"]["shares"][both]["cpu_s"], 0.02),
        (f"{both}, accounted", results["recording"]["accounted"]["on"], 0.02),
        ("audit", results["audit"]["of learning"], 0.10),
    ]
    for what, share, limit in reached:
        verdict = "within" if share["median"] <= limit else "BEYOND"
        print(
            f"{what}: {share['median']:.2%} ({share['lowest']:.2%} to {share['highest']:.2%}), "
            f"{verdict} {limit:.0%}"
        )
    machine = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "code_version": code_version(demo(1).world),
    }
    settings = {"rounds": args.rounds, "updates": args.updates}
    report = {"machine": machine, "settings": settings, "results": results}
    args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
