"""The table of all rules, and the examination that applies them to a log."""

from collections.abc import Iterable, Sequence

from lockstep.run.doctor import choice_rules, critic_rules, progress_rules, step_rules
from lockstep.run.doctor.findings import Evidence, Finding, Report, Rule
from lockstep.run.doctor.log import ROLE, Log, View


def _place(rule: Rule) -> tuple[int, int]:
    return -ord(rule.id[0]), int(rule.id[1:])


_TABLES = (step_rules, choice_rules, critic_rules, progress_rules)
RULES: tuple[Rule, ...] = tuple(
    sorted((rule for table in _TABLES for rule in table.RULES), key=_place)
)
"""The gates of the audit's table that a log can show, then the doctor's own."""


def examine(
    log: Log, *, rules: Sequence[Rule] = RULES, members: Iterable[int] | None = None
) -> Report:
    """What the rules find; `members` limits it to some positions in the pack."""
    chosen = list(range(log.members) if members is None else members)
    findings: list[Finding] = []
    not_applicable: dict[str, str] = {}
    for rule in rules:
        views = _views(rule, log, chosen)
        ready = [view for view in views if _rows(rule, view) >= rule.least]
        if not views:
            not_applicable[rule.id] = f"needs {', '.join(_absent(rule, log))}"
        elif not ready:
            after = f" after the first {rule.skip}" if rule.skip else ""
            not_applicable[rule.id] = f"needs {rule.least} updates{after}"
        findings += _findings(rule, ready)
    return Report(
        source=log.source,
        findings=tuple(findings),
        checked=tuple(rule.id for rule in rules if rule.id not in not_applicable),
        not_applicable=not_applicable,
        unknown=log.unknown,
    )


def markdown_table() -> str:
    """The table of the documentation."""
    rows = [
        f"| {r.id} | {r.name} | {r.severity} | {', '.join(f'`{k}`' for k in r.needs)} | "
        f"{r.condition} | {r.cause} | {r.knob} |"
        for r in RULES
    ]
    head = "| id | finding | severity | looks at | speaks when | likely cause | knob |"
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def _findings(rule: Rule, views: Sequence[View]) -> list[Finding]:
    """One finding for each role, naming all the members it is about."""
    seen: dict[str | None, list[tuple[int, Evidence]]] = {}
    for view in views:
        evidence = rule.check(view)
        if evidence is not None:
            seen.setdefault(view.role, []).append((view.member, evidence))
    return [
        Finding(
            id=rule.id,
            name=rule.name,
            severity=rule.severity,
            role=role,
            members=() if _of_the_run(rule) else tuple(member for member, _ in hits),
            evidence=hits[0][1].text,
            first_update=min((e.first for _, e in hits if e.first is not None), default=None),
            values=hits[0][1].values,
            cause=rule.cause,
            knob=rule.knob,
        )
        for role, hits in seen.items()
    ]


def _views(rule: Rule, log: Log, members: Sequence[int]) -> list[View]:
    """Every role and member for which the log has what the rule needs."""
    roles: Sequence[str | None] = log.roles if any(ROLE in key for key in rule.needs) else [None]
    if _of_the_run(rule):
        members = [0]
    views = [
        View(log=log, role=role, member=member, skip=rule.skip)
        for role in roles
        for member in members
    ]
    return [view for view in views if all(view.has(key) for key in rule.needs)]


def _rows(rule: Rule, view: View) -> int:
    """How many updates the rule can look at."""
    if _of_the_run(rule):
        return len(view.perf(*rule.needs)[0])
    return len(view.rows(*[key for key in rule.needs if not key.endswith("*")])[0])


def _absent(rule: Rule, log: Log) -> list[str]:
    return [key for key in rule.needs if ROLE in key or not log.has(key)] or ["members"]


def _of_the_run(rule: Rule) -> bool:
    """Whether it looks at the clock and the machine, which all members share."""
    return all(key.startswith(("perf/", "res/")) for key in rule.needs)
