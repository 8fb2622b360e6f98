"""`lockstep demo-fault`: the failure that Lockstep rules out, beside the right replay."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.cli.flags import parse, print_json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from lockstep.run.fault_demo import Demonstration

DESCRIPTION = """\
Show what happens when an update replays decisions over another choice set than the one they were
sampled from: 8 to 50 candidates when acting, K = 5 when learning. The first table is taken before
any gradient step, where a right replay shows ratio 1 and KL 0; the second is what is learned.

examples:
  lockstep demo-fault
  lockstep demo-fault --updates 30
  lockstep demo-fault --markdown"""

_REPLAY = ("replay", "valid", "ratio", "KL", "clip", "max dlogp", "entropy", "usual checks",
           "audit finds", "Lockstep's learner")  # fmt: skip
_LEARNED = ("replay", "score", "first ratio", "first KL", "last KL", "steps taken")


@dataclass(frozen=True, kw_only=True)
class DemoFaultFlags:
    """The flags of the verb."""

    decisions: int = 4096
    """Decisions that are sampled and replayed."""
    updates: int = 100
    """Updates of 512 decisions that each variant learns."""
    markdown: bool = False
    """Print the tables in Markdown."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Demonstrates and prints two tables."""
    flags = parse(DemoFaultFlags, argv, verb="demo-fault", description=DESCRIPTION)
    if flags.decisions < 100:
        raise BadInput(f"--decisions must be at least 100, got {flags.decisions}")
    if flags.updates < 1:
        raise BadInput(f"--updates must be at least 1, got {flags.updates}")
    if flags.json and flags.markdown:
        raise BadInput("--json and --markdown exclude each other; leave one out")
    from lockstep.cli.report import console_for
    from lockstep.run.fault_demo import demonstrate

    quiet = flags.json or flags.markdown
    console = console_for(as_json=quiet)
    found = demonstrate(
        decisions=flags.decisions,
        updates=flags.updates,
        on_part=lambda what: console.print(what, highlight=False),
    )
    if flags.json:
        print_json(found.to_json())
    elif flags.markdown:
        print(markdown(found))
    else:
        for table in _tables(found):
            console.print(table)
    return 0


def replay_rows(found: "Demonstration", head: str) -> list[tuple[str, ...]]:
    """The first table's cells for one head."""
    return [
        (
            row.replay,
            f"{row.valid_share:.2f}",
            f"{row.ratio_mean:.3f} ± {row.ratio_sd:.3f}",
            f"{row.k3:.2g}",
            f"{row.clip_fraction:.2f}",
            f"{row.max_gap:.2g}",
            f"{row.entropy:.2f}",
            "pass" if not row.slo else f"fail: {', '.join(row.slo)}",
            row.audit,
            row.engine,
        )
        for row in found.replays
        if row.head == head
    ]


def learned_rows(found: "Demonstration") -> list[tuple[str, ...]]:
    """The second table's cells."""
    return [
        (
            row.name,
            f"{row.score:.2f}",
            f"{row.first_ratio:.2f}",
            f"{row.first_k3:.2f}",
            f"{row.last_k3:.2f}",
            f"{row.used:.0%}",
        )
        for row in found.learned
    ]


def markdown(found: "Demonstration") -> str:
    """Both tables for a page."""
    parts = []
    for head in _heads(found):
        parts += [
            _replay_title(found, head),
            "",
            _as_markdown(_REPLAY, replay_rows(found, head)),
            "",
        ]
    parts += [_learned_title(found), "", _as_markdown(_LEARNED, learned_rows(found))]
    return "\n".join(parts)


def _heads(found: "Demonstration") -> list[str]:
    return list(dict.fromkeys(row.head for row in found.replays))


def _replay_title(found: "Demonstration", head: str) -> str:
    return (
        f"Replay before any gradient step: {found.decisions} decisions among 8 to 50 candidates, "
        f"{head} head"
    )


def _learned_title(found: "Demonstration") -> str:
    return (
        f"Learning for {found.updates} updates of 512 decisions (score 0 for a uniform choice, 1 "
        "for the best)"
    )


def _tables(found: "Demonstration") -> "list[Table]":
    from rich.table import Table

    def made(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
        table = Table(title=title, title_justify="left")
        for i, heading in enumerate(headings):
            table.add_column(heading, justify="right" if 0 < i < 7 else "left")
        for row in rows:
            table.add_row(*row)
        return table

    replays = [
        made(_replay_title(found, head), _REPLAY, replay_rows(found, head))
        for head in _heads(found)
    ]
    return [*replays, made(_learned_title(found), _LEARNED, learned_rows(found))]


def _as_markdown(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
