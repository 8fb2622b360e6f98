"""Speed of packs on `uav-mec`: members, agents, samples and paths, collection included.

    python -m benchmarks.packs_uav_mec --json packs.json
    python -m benchmarks.packs_uav_mec --rows compiled,agents --minutes 9 --json packs.json
    python -m benchmarks.packs_uav_mec --rows plain --device cpu --json packs.json
    python -m benchmarks.packs_uav_mec --list

A path is `eager` (nothing but tensor operations), `kernels` (with those written for a GPU),
`graphs` (kernels, replayed as CUDA graphs) or `compiled` (graphs of compiled programs). Each row is
a process of its own with a time limit; rows that the file has already are not made again. First
comes, several at once, what is not timed: compiling for the rows to come, the equality of each
path with the eager one (one update from equal state, in fp32), and whether the fast path learns
the same. A timed row says whether its path was found equal, the gate's how far it was apart.

What a new shape costs is in the rows called `prepare` (nothing in the compiler's cache, several at
once), and what it costs again is `preparation_s` of the timed row.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.one_by_one import Book, Job, made, side_by_side, write_row
from benchmarks.packs_rows import Case, chosen, groups
from lockstep.core import fused
from lockstep.core.programs import Captured
from lockstep.core.streams import lane_keys
from lockstep.errors import LockstepError
from lockstep.run import manifest, memory
from lockstep.run.equality import TOLERANCE, compare, widest
from lockstep.run.launches import calls_of
from lockstep.run.tape import Tape
from lockstep.run.trainer import Trainer, arithmetic, resolve
from lockstep.worlds import registry

MODULE = "benchmarks.packs_uav_mec"
LIMIT_S = {"pack": 150.0, "world": 120.0, "gate": 300.0, "learning": 330.0, "prepare": 300.0}
ON_CPU = 15  # times as long a row may take there
WARM_UPS = 4  # kernel choice, recording of graphs; reported apart
PLAYS = 5  # of a tape; the median counts
TAPE_BYTES = 2**30
LAST = 10  # updates whose mean is a member's final energy


def pack(case: Case, device: str) -> Iterator[dict[str, Any]]:
    """Medians over updates after the warm-up, each half with the device settled at its ends."""
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    begun = time.perf_counter()
    trainer = Trainer(case.config(device))
    marks = []
    for update in range(WARM_UPS + case.updates):
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
    row = {
        "env_steps_per_s": rate,
        "agent_steps_per_s": rate * (case.users + case.uavs),
        "slowest": samples / each[-1],
        "fastest": samples / each[0],
        "collect_ms": 1e3 * statistics.median(collect for collect, _ in marks),
        "learn_ms": 1e3 * statistics.median(learn for _, learn in marks),
        "preparation_s": warm - WARM_UPS * statistics.median(each),
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }
    yield row
    calls = asdict(calls_of(trainer.update, torch.device(device)))
    busy = calls["busy_s"]
    share = None if busy is None else busy / statistics.median(each)
    yield row | {"update": calls, "gpu_busy_share": share}


def world(case: Case, device: str) -> Iterator[dict[str, Any]]:
    """The world alone, playing random decisions that were drawn beforehand.

    What is timed must first end where a world of tensor operations ends, to 1e-5.
    """
    plain, fast = (
        registry.build(
            case.config(device).world,
            lanes=case.lanes,
            device=device,
            compile=case.path == "compiled" and compile_,
        )
        for compile_ in (False, True)
    )
    keys = lane_keys([0], lanes=case.lanes, device=device)
    begun = time.perf_counter()
    tape = Tape(fast, keys)
    tape.record()
    while tape.steps < case.steps and tape.bytes * (tape.steps + 1) / tape.steps < TAPE_BYTES:
        tape.record()
    graphs = device == "cuda" and case.path in ("graphs", "compiled")
    play: Callable[[], None] = Captured(tape.play) if graphs else tape.play
    for _ in range(WARM_UPS):
        tape.rewind()
        play()
    preparation_s = time.perf_counter() - begun
    tape.rewind(plain)
    with fused.switched(on=False):
        tape.play(plain)
    gap, where = widest(plain.state_dict(), fast.state_dict())
    if not gap <= TOLERANCE:
        raise LockstepError(f"{case.name} is {gap:.1e} from the eager world, in {where}")
    del plain
    memory.release()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    rates = []
    for _ in range(PLAYS):
        tape.rewind()
        settle()
        start = time.perf_counter()
        play()
        settle()
        rates.append(case.lanes * tape.steps / (time.perf_counter() - start))
    yield {
        "lane_steps_per_s": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "steps_of_tape": tape.steps,
        "gap": gap,
        "preparation_s": preparation_s,
        "peak_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else None,
    }


def gate(case: Case, device: str) -> Iterator[dict[str, Any]]:
    """How far a fast path is from the eager one after an update from equal state."""
    trainer = Trainer(case.config(device))
    for _ in range(WARM_UPS):
        trainer.update()
    found = compare(trainer)
    yield {"gap": found.gaps[-1], "tries": len(found.gaps), "tolerance": found.tolerance}


def learning(case: Case, device: str) -> Iterator[dict[str, Any]]:
    """Energies of the training policy, member by member; told after each update."""
    trainer = Trainer(case.config(device))
    key = f"world/{trainer.world.spec.objective}"
    curve: list[list[float]] = []
    for _ in range(case.updates):
        curve.append(trainer.update()[key].tolist())
        yield {"made": len(curve), **interval(curve), "curve": curve}


def interval(curve: list[list[float]]) -> dict[str, float]:
    """Mean over members of their last updates, and its 95 % interval for five (Student's t)."""
    final = [statistics.fmean(of_member) for of_member in zip(*curve[-LAST:], strict=True)]
    mean = statistics.fmean(final)
    half = 2.776 * statistics.stdev(final) / len(final) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}


MAKERS: dict[str, Callable[[Case, str], Iterator[dict[str, Any]]]] = {
    "pack": pack,
    "world": world,
    "gate": gate,
    "learning": learning,
}


def prepare(case: Case, device: str) -> None:
    """Compiles what the row needs, into the compiler's cache."""
    config = case.config(device)
    if case.kind == "world":
        built = registry.build(config.world, lanes=case.lanes, device=device, compile=True)
        Tape(built, lane_keys([0], lanes=case.lanes, device=device)).record()
    else:
        Trainer(replace(config, graphs=False)).update()


def one(case: Case, args: argparse.Namespace) -> None:
    """The process of one row."""
    begun = time.perf_counter()
    with arithmetic(resolve(case.config(args.device))):
        if args.prepare:
            prepare(case, args.device)
            seconds = time.perf_counter() - begun
            write_row(args.into, {"compiled_in_s": seconds, "at_once": args.at_once})
            return
        for row in MAKERS[case.kind](case, args.device):
            write_row(args.into, {"device": args.device, **asdict(case), **row})


def shown(row: dict[str, Any]) -> str:
    """A row in one line."""
    if "error" in row:
        return f"{row['row']}: {row['error'].strip().splitlines()[-1][:160]}"
    kept = {k: row[k] for k in row if k in _SHOWN and row[k] is not None}
    numbers = ", ".join(f"{k} {v:,.0f}" if v >= 1000 else f"{k} {v:.4g}" for k, v in kept.items())
    return f"{row['row']}: {numbers}"


_SHOWN = (
    *("env_steps_per_s", "lane_steps_per_s", "agent_steps_per_s", "collect_ms", "learn_ms"),
    *("preparation_s", "compiled_in_s", "peak_memory_gb", "gpu_busy_share", "gap", "equal"),
    *("mean", "low", "high", "made"),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rows", default=",".join(groups()), help=f"some of {','.join(groups())}")
    parser.add_argument("--minutes", type=float, default=60.0, help="no row is begun afterwards")
    parser.add_argument("--at-once", type=int, default=8, help="processes that prepare")
    parser.add_argument("--json", type=Path, default=Path("packs.json"))
    parser.add_argument("--quick", action="store_true", help="tiny rows, to see that all works")
    parser.add_argument("--list", action="store_true", help="print the rows and make none")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.rows = args.rows.split(",")
    for name in args.rows:
        if name not in groups():
            parser.error(f"--rows must name some of {', '.join(groups())}, got {name!r}")
    return args


def main() -> None:
    args = arguments()
    cases = {case.name: case for case in chosen(args.rows, quick=args.quick)}
    if args.one is not None:
        one(cases[args.one], args)
        return
    if args.list:
        print("\n".join(cases))
        return
    deadline = time.monotonic() + 60 * args.minutes
    book = Book(args.json, about(args))
    flags = ("--device", args.device, *(("--quick",) if args.quick else ()))
    missing = [case for case in cases.values() if not book.has(case.name)]

    def job(case: Case, *, preparing: bool = False) -> Job:
        limit_s = LIMIT_S["prepare" if preparing else case.kind]
        limit_s *= 1 if args.device == "cuda" else ON_CPU
        extra = ("--prepare", "--at-once", str(args.at_once)) if preparing else ()
        return Job(name=case.name, limit_s=limit_s, until=deadline, flags=(*flags, *extra))

    def keep(done: Job, row: dict[str, Any]) -> None:
        name = f"prepare {done.name}" if "--prepare" in done.flags else done.name
        book.put(name, row)
        print(shown(book.rows[name]), flush=True)

    untimed = [case for kind in ("gate", "learning") for case in missing if case.kind == kind]
    timed = [case for case in missing if case not in untimed]
    compiling = [case for case in timed if case.path == "compiled"]
    first = [*(job(c) for c in untimed), *(job(c, preparing=True) for c in compiling)]
    side_by_side(first, MODULE, at_once=args.at_once, heard=keep)
    for case in timed:
        if time.monotonic() > deadline:
            print(f"out of time before {case.name}", flush=True)
            break
        keep(job(case), made(job(case), MODULE) | equality(case, book))
    print(overlap([row for row in book.rows.values() if "curve" in row]))
    print(f"{len(book.rows)} rows in {args.json}")


def equality(case: Case, book: Book) -> dict[str, Any]:
    """What the gates found of a training row's path; other kinds look for themselves."""
    if case.kind != "pack" or case.path == "eager":
        return {}
    gates = [
        row
        for row in book.rows.values()
        if row.get("kind") == "gate"
        and row["path"] == case.path
        and (row["members"] == 1) == (case.members == 1)
    ]
    return {"equal": bool(gates) and all(row["gap"] <= row["tolerance"] for row in gates)}


def overlap(rows: list[dict[str, Any]]) -> str:
    """Whether all that learned may have learned the same, after as many updates as all made."""
    if len(rows) < 2:
        return "learning was not compared"
    made = min(len(row["curve"]) for row in rows)
    intervals = [interval(row["curve"][:made]) for row in rows]
    agrees = max(x["low"] for x in intervals) <= min(x["high"] for x in intervals)
    found = "overlap" if agrees else "DO NOT overlap"
    of_each = "; ".join(f"{x['low']:.4f} to {x['high']:.4f}" for x in intervals)
    return f"intervals of the energy after {made} updates {found}: {of_each}"


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Machine, packages and command."""
    config = Case(members=1).small().config(args.device)
    device = torch.device(args.device)
    found = manifest.build(config, registry.build(config.world, lanes=1, device=device))
    command = ["python", "-m", MODULE, *sys.argv[1:]]
    return {"machine": found["machine"], "packages": found["packages"], "command": command}


if __name__ == "__main__":
    main()
