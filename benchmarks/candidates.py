"""Scoring candidate sets padded or as a list of the rows that exist: forward and backward, CPU.

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/candidates.py --sets 256 --width 256

Before any timing, log-probs must agree to 1e-5 and gradients, sums over all rows, to 1e-4; A and B
alternate within one process.
"""

import argparse
import json
import platform
import statistics
import time

import torch
from torch import Tensor

from lockstep.core.actions import Rows
from lockstep.nets.layers import seeded
from lockstep.nets.rows import RowScorer, Scoring

FEATURES, CONTEXT = 24, 128
COUNTS = ((8, 50), (8, 128), (8, 250), (230, 250))


def scorer(set_context: str, *, ragged: bool) -> RowScorer:
    """The scorer of a candidate part, with the same first weights whichever way it works."""
    rows = Rows(over="site", extra=("stop",), context=True)
    how = Scoring(set_context=set_context, ragged=ragged)
    return seeded(lambda: RowScorer(rows, FEATURES, 1, CONTEXT, how), 0)


def once(module: RowScorer, rows: Tensor, context: Tensor, exists: Tensor) -> tuple[Tensor, ...]:
    """Log-probs over the sets and gradients of their squares."""
    score = module(rows, context, exists).squeeze(-2).masked_fill(~exists, -torch.inf)
    log_p = torch.log_softmax(score, dim=-1).masked_fill(~exists, 0.0)
    return log_p.detach(), *torch.autograd.grad(
        log_p.square().sum(dim=-1).mean(), list(module.parameters())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, args.sets, 1, args.width, FEATURES, generator=generator)
    context = torch.randn(1, args.sets, 1, CONTEXT, generator=generator)
    table = []
    for set_context in ("none", "pooled"):
        for low, high in COUNTS:
            count = torch.randint(low, high + 1, (1, args.sets, 1, 1), generator=generator)
            exists = torch.arange(args.width) < count
            modules = {name: scorer(set_context, ragged=name == "ragged") for name in times()}
            seen = [once(module, rows, context, exists) for module in modules.values()]
            gaps = [
                float((a - b).abs().max() / (1 + a.abs().max())) for a, b in zip(*seen, strict=True)
            ]
            assert gaps[0] < 1e-5, gaps
            assert max(gaps) < 1e-4, gaps
            spent = times()
            for _ in range(args.repeats):
                for name, module in modules.items():
                    started = time.process_time()
                    once(module, rows, context, exists)
                    spent[name].append(1e3 * (time.process_time() - started))
            line = {
                "set_context": set_context,
                "K": f"{low}..{high}",
                "padding": round(1 - float(exists.float().mean()), 3),
                "gap": gaps[0],
            }
            line |= {f"{name}_ms": round(statistics.median(ms), 1) for name, ms in spent.items()}
            line |= {f"{name}_spread_ms": round(max(ms) - min(ms), 1) for name, ms in spent.items()}
            table.append(line)
    print(json.dumps({"torch": torch.__version__, "cpu": platform.processor(), "rows": table}))
    return 0


def times() -> dict[str, list[float]]:
    return {"padded": [], "ragged": []}


if __name__ == "__main__":
    raise SystemExit(main())
