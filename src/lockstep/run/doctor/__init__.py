"""The doctor: reads a training's numbers and says what is wrong, why, and which knob to turn."""

from lockstep.run.doctor.attendant import Attendant
from lockstep.run.doctor.findings import Finding, Report, Rule
from lockstep.run.doctor.hints import Hints
from lockstep.run.doctor.log import Facts, Log
from lockstep.run.doctor.reading import facts_of, read_log
from lockstep.run.doctor.rules import RULES, examine, markdown_table
from lockstep.run.doctor.transition_audit import TransitionAudit, audit_transitions
from lockstep.run.doctor.transitions import Batch, Transitions, fingerprints

__all__ = [
    "RULES",
    "Attendant",
    "Batch",
    "Facts",
    "Finding",
    "Hints",
    "Log",
    "Report",
    "Rule",
    "TransitionAudit",
    "Transitions",
    "audit_transitions",
    "examine",
    "facts_of",
    "fingerprints",
    "markdown_table",
    "read_log",
]
