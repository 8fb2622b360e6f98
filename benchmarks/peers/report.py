"""What a comparison writes down: JSON lines as they are known, and a table at the end."""

import hashlib
import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any, TextIO

import torch

import lockstep

PACKAGES = ("torch", "numpy", "stable-baselines3", "skrl", "torchrl", "tensordict", "gymnasium")


class Record:
    """JSON lines, each written out at once."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def write(self, kind: str, **values: Any) -> None:
        self.out.write(json.dumps({"kind": kind, **values}) + "\n")
        self.out.flush()


def made_with(device: str) -> dict[str, Any]:
    """Packages, machine and code."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {
        "versions": {package: _version(package) for package in PACKAGES}
        | {"python": platform.python_version()},
        "machine": {"device": name, "threads": torch.get_num_threads()},
        "code": _code_hash(),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _code_hash() -> str:
    """Digest of Lockstep's sources and of these scripts."""
    digest = hashlib.sha256()
    for root in (Path(lockstep.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def table(summaries: list[dict[str, Any]], clock: str) -> str:
    """The summaries as rows of Markdown, by wall or by CPU time."""
    lines = [
        "| peer | rate | Lockstep, env-steps/s | peer, env-steps/s | ratio (95 %) |",
        "|---|---|---|---|---|",
    ]
    for summary in summaries:
        for rate, by_clock in summary["rates"].items():
            row = by_clock[clock]
            ratio = row["ratio"]
            lines.append(
                f"| {summary['peer']} | {rate} | {row['lockstep_env_steps_per_s']:,.0f} "
                f"| {row['peer_env_steps_per_s']:,.0f} "
                f"| {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) |"
            )
    agents = summaries[0]["agents"]
    return "\n".join([*lines, "", f"By {clock} time; one env-step is {agents} agent-steps."])
