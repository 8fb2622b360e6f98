"""Products of layers on a CPU: those of `lockstep.nets.products` beside those of torch.

    OMP_NUM_THREADS=1 python benchmarks/products.py

Forward and backward of one layer, one thread, both in turn within one process; before any timing
outputs and gradients must agree to 1e-5 of their size.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from lockstep.core import fused
from lockstep.nets.products import linear

RESULTS = Path(__file__).parent / "results" / "products.json"
SHAPES = ((18_000, 128, 128), (18_000, 46, 128), (300, 1_000, 128), (512, 190, 128))
"""Rows, numbers in and numbers out: users of a rollout twice, critic input, a minibatch."""


def once(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, *, ours: bool) -> list[Tensor]:
    with fused.switched(on=ours):
        y = linear(x, weight, bias)
        return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad)]


def measure(rows: int, n_in: int, n_out: int, *, repeats: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias, grad = (
        torch.randn(shape, generator=generator)
        for shape in ((rows, n_in), (n_out, n_in), (n_out,), (rows, n_out))
    )
    for leaf in (x, weight, bias):
        leaf.requires_grad_()
    both = [once(x, weight, bias, grad, ours=ours) for ours in (True, False)]
    gaps = [float((a - b).norm() / b.norm()) for a, b in zip(*both, strict=True)]
    if max(gaps) > 1e-5:
        raise SystemExit(f"{rows} x {n_in} x {n_out}: the two differ by {max(gaps):.1e}")
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(repeats):
        for ours in seconds:
            start = time.process_time()
            once(x, weight, bias, grad, ours=ours)
            seconds[ours].append(time.process_time() - start)
    flops = 6 * rows * n_in * n_out  # forward, and backward to input and weight
    return {
        "shape": [rows, n_in, n_out],
        "gap": max(gaps),
        "ours_gflops": [round(flops / s / 1e9, 1) for s in quartiles(seconds[True])],
        "torch_gflops": [round(flops / s / 1e9, 1) for s in quartiles(seconds[False])],
    }


def quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Median, and the slower and the faster quartile."""
    faster, median, slower = statistics.quantiles(seconds, n=4)
    return median, slower, faster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(*shape, repeats=args.repeats) for shape in SHAPES]
    for row in rows:
        print(row)
    name = getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", platform.processor())
    machine = {"cpu": name, "torch": torch.__version__, "threads": 1}
    args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
