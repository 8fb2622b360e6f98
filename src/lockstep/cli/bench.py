"""`lockstep bench`: how fast a world, acting in it and learning in it are."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lockstep.cli.flags import bad_settings, named_value, parse, print_json
from lockstep.errors import BadInput
from lockstep.run.config import TrainConfig, parse_seeds, preset
from lockstep.worlds import registry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from lockstep.run.ledger import Ledger, Spread

DESCRIPTION = """\
Print the speed ledger of a world: the world alone, with acting, with learning; what an update asks
of the device, and what was spent before the first one. Before anything is timed a compiled or
captured path is compared with the plain one, after one update from equal state; if they differ
nothing is printed and the exit code is 1.

examples:
  lockstep bench uav-mec --scenario demo
  lockstep bench uav-mec --scenario paper --seeds 32 --device cuda --compile on --world-lanes 8192
  lockstep bench city-growth --learner.lanes 16 --seconds 2 --json ledger.json

A world's own settings and the learner's are flags as in `lockstep train`. With --json - the ledger
goes to standard output, and everything else to standard error."""

_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class BenchFlags:
    """The flags of the verb."""

    world_name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]
    """The world to measure; `lockstep worlds` lists them."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")] = None
    """Scenario that the world's settings start from, by name or from a TOML or JSON file where the
    world reads one; by default the world's first."""
    learner: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Learner that the learner's settings start from; by default the world's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run; auto takes the GPU if there is one, and says what it took."""
    seeds: Annotated[str, tyro.conf.arg(metavar="COUNT|LIST")] = "1"
    """Members that train side by side: a number of seeds, or a list such as 3,7,9."""
    seconds: float = 5.0
    """About how long each row is measured; a row takes at least six calls, however long."""
    compile: Literal["auto", "on", "off"] = "off"
    """Compile the world, acting, losses and optimizers; auto does so where a compiler is found."""
    graphs: bool = True
    """On a GPU, replay collection and updates as CUDA graphs where the world allows it."""
    kernels: bool = True
    """Take over from torch where it is faster: on a GPU draws, Beta densities and, in bf16,
    self-attention and scores of entity rows by kernels of their own, on a CPU of AMD large products
    by oneDNN."""
    deterministic: bool = False
    """Allow only deterministic kernels."""
    threads: int = 1
    """CPU threads of the arithmetic."""
    accumulate: int = 1
    """Parts in which a minibatch is learned from, to save memory."""
    world_lanes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Lanes of the world when it runs alone; by default as many as training has."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE|-")] = None
    """Also write the ledger with every raw repeat to this file; - prints it instead."""


def main(argv: Sequence[str]) -> int:
    """Measures and prints the ledger."""
    flags = parse(_flags_type(argv), argv, verb="bench", description=DESCRIPTION)
    with bad_settings():
        config = _to_config(flags)
    _check(flags)
    # The profiler's library announces each of its starts on standard error, unless told before.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    from lockstep.cli.report import console_for, device_line
    from lockstep.run.bench import bench
    from lockstep.run.rundir import write_json
    from lockstep.run.trainer import resolve

    console = console_for(as_json=flags.json == "-")
    console.print(device_line(asked=config, taken=resolve(config)), soft_wrap=True)
    ledger = bench(
        config,
        seconds=flags.seconds,
        world_lanes=flags.world_lanes,
        say=lambda line: console.print(line, soft_wrap=True, highlight=False),
    )
    if flags.json == "-":
        print_json(ledger.to_json())
        return 0
    show(ledger, config, console)
    if flags.json is not None:
        write_json(Path(flags.json), ledger.to_json())
        console.print(f"wrote {flags.json}", soft_wrap=True, highlight=False)
    return 0


def _flags_type(argv: Sequence[str]) -> type[Any]:
    """The flags, with the settings of the world and learner that `argv` names as defaults."""
    names = registry.names()
    plain = [arg for arg in argv[:1] if not arg.startswith("-")]
    world = next((arg for arg in argv if arg in names), plain[0] if plain else names[0])
    scenario, learner = named_value(argv, "--scenario"), named_value(argv, "--learner")
    base = preset(world, scenario=scenario, learner=learner)
    settings: list[tuple[str, Any, Any]] = [
        (f"{name}_config", Annotated[type(start), tyro.conf.arg(name=name)], field(default=start))
        for name, start in (("world", base.world), ("learner", base.learner))
    ]
    return dataclasses.make_dataclass(
        "BenchFlags", settings, bases=(BenchFlags,), frozen=True, kw_only=True
    )


def _to_config(flags: Any) -> TrainConfig:
    """The configuration behind the flags; ValueError where settings contradict."""
    base = preset(flags.world_name, scenario=flags.scenario, learner=flags.learner)
    learner = flags.learner_config
    how = ("device", "compile", "graphs", "kernels", "deterministic", "threads", "accumulate")
    return replace(
        base,
        world=flags.world_config,
        learner=learner,
        seeds=parse_seeds(flags.seeds),
        total_steps=max(base.total_steps, learner.lanes * learner.steps),
        **{name: getattr(flags, name) for name in how},
    )


def _check(flags: Any) -> None:
    """What can be refused before minutes are spent on measuring."""
    if not flags.seconds > 0:
        raise BadInput(f"--seconds must be positive, got {flags.seconds:g}")
    if flags.world_lanes is not None and flags.world_lanes < 1:
        raise BadInput(f"--world-lanes must be at least 1, got {flags.world_lanes}")
    if flags.json not in (None, "-") and not Path(flags.json).absolute().parent.is_dir():
        raise BadInput(f"--json must lie in a folder that exists, got {flags.json}")


def show(ledger: "Ledger", config: TrainConfig, console: "Console") -> None:
    """The table, and what belongs to the whole."""
    console.print(table_of(ledger, config))
    for line in facts_of(ledger):
        console.print(line, soft_wrap=True, highlight=False)


def table_of(ledger: "Ledger", config: TrainConfig) -> "Table":
    """Rows of the ledger; each does what the row above does, and more."""
    from rich.table import Table

    machine = ledger.about["machine"]
    members = f"{config.members} member{'s' if config.members > 1 else ''}"
    table = Table(
        title=f"{config.world.name} {config.scenario}, {config.algorithm}, {members}: "
        f"{ledger.path} path on {machine['device']}",
        caption="median (lowest to highest) of the repeats; an env-step is one lane's step, an "
        "agent-step one agent's decision",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("row", no_wrap=True)
    on_cpu = machine["device"] == "cpu"
    for heading in (
        "lanes",
        "env-steps/s",
        "agent-steps/s",
        "env-steps per CPU s" if on_cpu else "CPU s per s",
        "ms per call",
        "compile, capture s",
        "peak MB",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in ledger.rows:
        busy = sum(r.cpu_s for r in row.repeats) / sum(r.wall_s for r in row.repeats)
        table.add_row(
            row.name,
            str(row.lanes),
            _spread(row.env_steps_per_s),
            _spread(row.agent_steps_per_s),
            _spread(row.env_steps_per_cpu_s) if on_cpu else f"{busy:.2f}",
            f"{row.seconds_per_call.median * 1e3:,.2f}",
            f"{row.preparation_s:.1f}",
            f"{row.peak_memory_bytes / _MB:,.0f}",
        )
    return table


def facts_of(ledger: "Ledger") -> list[str]:
    """What stands below the table, a line each."""
    calls, machine, equality = ledger.calls, ledger.about["machine"], ledger.equality
    lines = [f"one update: {calls.operators:,} operator calls"]
    if calls.launches is not None:
        lines[0] += (
            f", {calls.launches:,} launches ({calls.graph_launches:,} of graphs), "
            f"{calls.kernels:,} kernels"
        )
    if ledger.busy_share is not None:
        seen = "" if ledger.gpu_percent is None else f"; NVML saw {ledger.gpu_percent:.0f} %"
        lines.append(f"GPU at work {ledger.busy_share:.0%} of an update{seen}")
    if equality is None:
        lines.append("the plain path itself was timed, so there was nothing to compare it with")
    else:
        lines.append(
            f"compared with the plain path in {equality.precision}: {equality.gaps[-1]:.1e} apart "
            f"after one update from equal state (at most {equality.tolerance:g})"
        )
    load = ", ".join(f"{x:.2f}" for x in machine["load_average_before"])
    lines.append(f"load average before: {load}, on {machine['cores']} cores")
    return lines


def _spread(rate: "Spread") -> str:
    return f"{rate.median:,.0f} ({rate.lowest:,.0f} to {rate.highest:,.0f})"
