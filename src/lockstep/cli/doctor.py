"""`lockstep doctor`: read a run or a foreign log and say what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lockstep.cli.flags import parse, print_json

if TYPE_CHECKING:
    from lockstep.run.doctor import Report

DESCRIPTION = """\
Read a run folder, or a log that SB3, CleanRL or anybody else wrote (a CSV, lines of JSON, a folder
of TensorBoard events), and say what is wrong: evidence, likely cause, the knob to turn. The exit
code is 1 if a finding says that the training is broken, 2 if there is nothing to read.

examples:
  lockstep doctor runs/uav-mec-ab-mappo-1
  lockstep doctor logs/progress.csv --fail-on warn
  lockstep doctor runs/CartPole-v1__ppo__1 --json"""


@dataclass(frozen=True, kw_only=True)
class DoctorFlags:
    """The flags of the verb."""

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
    """Folder of a run, or a log."""
    fail_on: Literal["warn", "fail"] = "fail"
    """Gravity of a finding from which on the exit code is 1."""
    json: bool = False
    """Print everything as JSON, and nothing else, on standard output."""


def main(argv: Sequence[str]) -> int:
    """Examines and prints."""
    flags = parse(DoctorFlags, argv, verb="doctor", description=DESCRIPTION)
    from lockstep.run.doctor import examine, read_log

    report = examine(read_log(flags.path))
    if flags.json:
        print_json(report.to_json())
    else:
        _show(report)
    worst = report.worst()
    return int(worst == "fail" or (worst == "warn" and flags.fail_on == "warn"))


def _show(report: "Report") -> None:
    for finding in sorted(report.findings, key=lambda finding: finding.severity != "fail"):
        where = f" ({finding.where})" if finding.where else ""
        since = "" if finding.first_update is None else f", from update {finding.first_update}"
        print(f"{finding.severity} {finding.id} {finding.name}{where}{since}")
        print(f"  evidence  {finding.evidence}")
        print(f"  cause     {finding.cause}")
        print(f"  knob      {finding.knob}")
    if report.unknown:
        print(f"columns that no rule knows: {', '.join(report.unknown)}")
    if not report.findings:
        print(f"{report.source}: nothing found")
    elif report.worst() == "warn":
        print(f"{report.source}: warnings only")
    print(f"{len(report.checked)} rules checked, {_left_out(report)}")


def _left_out(report: "Report") -> str:
    """How many rules could not be applied, and why."""
    reasons = list(report.not_applicable.values())
    short = sum(reason.endswith(" updates") for reason in reasons)  # else "needs <column>"
    why = [f"{short} for want of updates"] if short else []
    why += [f"{len(reasons) - short} for want of columns"] if len(reasons) > short else []
    return f"{len(reasons)} not applicable" + (
        f" ({', '.join(why)}; --json says which)" if why else ""
    )
