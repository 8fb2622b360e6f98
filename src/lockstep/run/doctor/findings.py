"""What the doctor says: rules, evidence, findings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from lockstep.run.doctor.log import View
from lockstep.run.jsonable import Json, decode, encode

Severity = Literal["warn", "fail"]
WARM_UP = 20
"""Updates before which rules about health do not look."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a rule saw."""

    text: str
    """One sentence with the numbers."""
    first: int | None = None
    """The first update at which it was seen."""
    values: dict[str, float] = field(default_factory=dict)
    """The numbers of the sentence by name."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of what the doctor knows."""

    id: str
    """G7 to G16 are gates of the audit's table, D1 and on the doctor's own."""
    name: str
    """What it is called, in a few words."""
    severity: Severity
    """`fail`: the training is broken; `warn`: worth a look."""
    needs: tuple[str, ...]
    """Metric keys it looks at; without one of them it does not apply."""
    also: tuple[str, ...] = ()
    """Keys that it reads where they are there."""
    condition: str
    """When it speaks, with its numbers."""
    cause: str
    """What is usually behind it."""
    knob: str
    """What to turn or where to look."""
    check: Callable[[View], Evidence | None]
    """From columns to evidence, or None."""
    skip: int = 0
    """Updates at the beginning that it leaves out."""
    least: int = 1
    """Updates it needs after those."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that spoke, where, and why."""

    id: str
    name: str
    severity: Severity
    role: str | None
    """The role it is about; None where it is about the whole training."""
    members: tuple[int, ...]
    """Positions in the pack of the members it is about; none where it is about all."""
    evidence: str
    """The numbers, of the first of these members."""
    first_update: int | None
    """The first update at which it was seen."""
    values: dict[str, float]
    cause: str
    knob: str
    update: int | None = None
    """The update after which it was said during training; None where a whole log was examined."""

    def to_json(self) -> Json:
        """The finding as a table of plain values, and as a sentence."""
        return encode(self) | {"message": str(self)}

    @classmethod
    def all_from(cls, data: Json) -> "tuple[Finding, ...]":
        """The findings of a list that `to_json` wrote; ValueError says what does not fit."""
        if not isinstance(data, list):
            raise ValueError(f"findings must be a list, got {data!r:.40}")
        return tuple(decode(cls, _without_message(item), "finding") for item in data)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.id} {self.name}{where}: {self.evidence}; {self.knob}"

    @property
    def where(self) -> str:
        """Role and members in words; empty where it is about the whole training."""
        words = [] if self.role is None else [f"role {self.role}"]
        if self.members:
            listed = ", ".join(map(str, self.members))
            words.append(f"member{'s' if len(self.members) > 1 else ''} {listed}")
        return ", ".join(words)


def _without_message(data: Json) -> Json:
    if not isinstance(data, dict):
        return data
    return {name: value for name, value in data.items() if name != "message"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that an examination found."""

    source: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    """Ids of the rules that could be applied."""
    not_applicable: dict[str, str]
    """Ids of the others, with the reason."""
    unknown: tuple[str, ...] = ()
    """Columns that no rule knows."""

    def worst(self) -> Severity | None:
        """The gravest severity among the findings."""
        found = {finding.severity for finding in self.findings}
        return "fail" if "fail" in found else "warn" if found else None

    def to_json(self) -> Json:
        """Everything, as plain values."""
        return encode(self)
