"""`lockstep worlds`: list the worlds with their roles, spaces and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from lockstep.cli.flags import parse, print_json
from lockstep.errors import known
from lockstep.worlds import registry

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """\
List the worlds with their scenarios, roles, spaces and metrics.

examples:
  lockstep worlds
  lockstep worlds uav-mec --scenario demo
  lockstep worlds --json"""


@dataclass(frozen=True, kw_only=True)
class WorldsFlags:
    """The flags of the verb."""

    world: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")] = None
    """One world; by default all of them."""
    scenario: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Scenario whose shapes are shown; by default each world's first."""
    json: bool = False
    """Print everything as JSON."""


def main(argv: Sequence[str]) -> int:
    """Prints the table."""
    flags = parse(WorldsFlags, argv, verb="worlds", description=DESCRIPTION)
    names = registry.names()
    if flags.world is not None:
        names = [known("world", flags.world, names)]
    described = [_describe(name, flags.scenario) for name in names]
    if flags.json:
        print_json(described)
        return 0
    from rich.console import Console

    for world in described:
        _show(world, Console())
    return 0


def _describe(name: str, scenario: str | None) -> dict[str, Any]:
    scenarios = registry.scenarios(name)
    scenario = next(iter(scenarios)) if scenario is None else scenario
    config = scenarios[known(f"scenario of {name}", scenario, scenarios)]
    import torch

    spec = registry.build(config, lanes=1, device=torch.device("cpu"), compile=False).spec
    return {
        "name": name,
        "summary": registry.summary(name),
        "scenario": scenario,
        "scenarios": list(scenarios),
        "heuristics": list(registry.heuristics(name)),
        "horizon": spec.horizon,
        "objective": spec.objective,
        "roles": [
            {
                "name": role.name,
                "agents": role.agents,
                "observation": {n: list(f.shape) for n, f in role.features.items()},
                "entities": {n: list(f.shape) for n, f in role.entities.items()},
                "action": {n: f"{type(p).__name__}({p.n})" for n, p in role.action.items()},
                "discount": role.discount,
            }
            for role in spec.roles
        ],
        "better": spec.metric(spec.objective).better,
        "metrics": [
            {"name": m.name, "unit": m.unit, "over": m.over, "meaning": m.meaning}
            for m in spec.metrics
        ],
    }


def _show(world: dict[str, Any], console: "Console") -> None:
    from rich.table import Table

    console.print(f"[bold]{world['name']}[/]  {world['summary']}", highlight=False)
    console.print(f"  scenarios   {', '.join(world['scenarios'])} (shown: {world['scenario']})")
    console.print(f"  heuristics  {', '.join(world['heuristics'])}")
    aim = f"{world['objective']}, {world['better']} is better"
    console.print(f"  horizon     {world['horizon']} steps; objective {aim}")
    roles = Table(title="roles", title_justify="left")
    for heading in ("role", "agents", "observation", "entities", "action", "discount"):
        roles.add_column(heading)
    for role in world["roles"]:
        roles.add_row(
            role["name"],
            str(role["agents"]),
            _listed(role["observation"]),
            _listed(role["entities"]),
            _listed(role["action"]),
            str(role["discount"]),
        )
    metrics = Table(title="metrics", title_justify="left")
    for heading in ("metric", "unit", "over an episode", "meaning"):
        metrics.add_column(heading)
    for metric in world["metrics"]:
        metrics.add_row(*(metric[name] for name in ("name", "unit", "over", "meaning")))
    console.print(roles, metrics)


def _listed(table: dict[str, Any]) -> str:
    return "\n".join(f"{name} {value}" for name, value in table.items())
