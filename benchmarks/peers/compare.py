"""Lockstep and a peer in turn on one task: the equality gate, then three rates of each.

    python -m benchmarks.peers.compare --compile both --minutes 8 --json peers_cpu.jsonl
    python -m benchmarks.peers.compare --device cuda --compile both --minutes 1

Needs the packages of benchmarks/peers/requirements.txt for the peers that are named.
"""

import argparse
import importlib
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.gate import Gate
from benchmarks.peers.ours import Ours
from benchmarks.peers.report import Record, made_with, table
from benchmarks.peers.task import POINTS, Side, Task
from benchmarks.peers.timing import paired_ratio, slope
from lockstep.run.launches import calls_of

PEERS = {
    "plain": "benchmarks.peers.plain:Plain",
    "sb3": "benchmarks.peers.side_sb3:StableBaselines",
    "skrl": "benchmarks.peers.side_skrl:Skrl",
    "torchrl": "benchmarks.peers.side_torchrl:TorchRL",
}
RATES = {"world": "step_world", "world + acting": "collect", "world + acting + learning": "train"}
WARM_UPS = 4  # compilation, kernel choice, recording of graphs; timed apart


def load(name: str) -> Callable[..., Side]:
    """The side called `name`; an absent library is answered with its install command."""
    module, _, attribute = PEERS[name].partition(":")
    try:
        found: Callable[..., Side] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is not installed, which {name} needs; run: "
            "pip install -r benchmarks/peers/requirements.txt, or leave it out of --peers"
        ) from error
    return found


class Race:
    """Lockstep, set up once, against one peer after the other."""

    def __init__(self, task: Task, args: argparse.Namespace, record: Record) -> None:
        self.task, self.args, self.record = task, args, record
        self.settle = torch.cuda.synchronize if args.device == "cuda" else lambda: None
        self.gate = Gate(task, device=args.device)
        compile_ = args.compile == "both"
        self.ours = Ours(
            task, device=args.device, compile=compile_, members=args.pack, audit=not args.no_audit
        )
        self._warm_up(self.ours)

    def against(self, name: str) -> dict[str, Any]:
        """Pairs of slopes of Lockstep and one peer, in turn A B and B A, for each rate."""
        make, device = load(name), self.args.device
        label = self.gate.check(make, self.record)
        compile_ = self.args.compile != "none"
        peer = make(self.task, self.gate.weights, device=device, compile=compile_)
        self._warm_up(peer)
        summary = {
            "peer": peer.name,
            "label": label,
            "pack": self.args.pack,
            "agents": self.task.agents,
            "rates": {rate: self._rate(rate, peer) for rate in RATES},
        }
        self.record.write("summary", **summary)
        return summary

    def _warm_up(self, side: Side) -> None:
        start = time.perf_counter()
        for _ in range(WARM_UPS):
            for method in RATES.values():
                getattr(side, method)()
        self.settle()
        wall_s = time.perf_counter() - start
        calls = asdict(calls_of(side.train, torch.device(self.args.device)))
        self.record.write("warm-up", side=side.name, wall_s=wall_s, update=calls)

    def _rate(self, rate: str, peer: Side) -> dict[str, Any]:
        """By clock: medians of both sides, and the paired ratio."""
        speed: dict[tuple[str, str], list[float]] = {}
        for pair in range(self.args.pairs):
            for side in (self.ours, peer) if pair % 2 == 0 else (peer, self.ours):
                call = getattr(side, RATES[rate])
                found = slope(call, seconds=self.args.seconds, settle=self.settle)
                members = self.args.pack if side is self.ours else 1
                steps = found.calls * self.task.batch * members
                about = {"peer": peer.name, "rate": rate, "pair": pair, "side": side.name}
                self.record.write("slope", **about, env_steps=steps, **asdict(found))
                for clock, seconds in (("wall", found.wall_s), ("cpu", found.cpu_s)):
                    speed.setdefault((side.name, clock), []).append(steps / seconds)
        summary = {}
        for clock in ("wall", "cpu"):
            ours, theirs = speed[self.ours.name, clock], speed[peer.name, clock]
            summary[clock] = {
                "lockstep_env_steps_per_s": statistics.median(ours),
                "peer_env_steps_per_s": statistics.median(theirs),
                "ratio": asdict(paired_ratio(ours, theirs)),
            }
        return summary


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--point", choices=POINTS, default="reference")
    parser.add_argument("--lanes", type=int, help="instead of the point's")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument(
        "--compile",
        choices=("none", "peers", "both"),
        default="none",
        help="the world; where it is Lockstep's, acting and loss too",
    )
    parser.add_argument("--pack", type=int, default=1, help="members that Lockstep trains at once")
    parser.add_argument("--no-audit", action="store_true", help="Lockstep without its audit")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all slopes together")
    parser.add_argument("--json", type=Path, default=Path("peers.jsonl"))
    args = parser.parse_args()
    args.peers = args.peers.split(",")
    for name in args.peers:
        if name not in PEERS:
            parser.error(f"--peers must name some of {', '.join(PEERS)}, got {name!r}")
    args.seconds = 60.0 * args.minutes / (len(args.peers) * len(RATES) * args.pairs * 2)
    return args


def main() -> None:
    args = arguments()
    task = POINTS[args.point]
    if args.lanes is not None:
        task = replace(task, lanes=args.lanes)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="You are trying to run PPO on the GPU")
    with args.json.open("w") as out:
        record = Record(out)
        record.write(
            "header",
            command=shlex.join(["python", "-m", "benchmarks.peers.compare", *sys.argv[1:]]),
            **made_with(args.device),
            task=asdict(task),
            seconds_per_slope=args.seconds,
        )
        race = Race(task, args, record)
        summaries = [found for name in args.peers if (found := held(race, name)) is not None]
    if summaries:
        print(table(summaries, "wall" if args.device == "cuda" else "cpu"))
    if len(summaries) < len(args.peers):
        raise SystemExit(1)


def held(race: Race, name: str) -> dict[str, Any] | None:
    """The summary of one peer, or None where it failed, which is no reason to lose the others."""
    try:
        return race.against(name)
    except (Exception, SystemExit) as failure:
        race.record.write("failure", peer=name, said=f"{type(failure).__name__}: {failure}")
        print(f"{name} was not measured: {failure}", file=sys.stderr, flush=True)
        return None


if __name__ == "__main__":
    main()
