"""How far a study is: the state of every trial, from its folders alone; imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lockstep.errors import BadInput, NotARun
from lockstep.run.config import TrainConfig
from lockstep.run.rundir import RunDir, read_json
from lockstep.run.watching import GOING_ON, look
from lockstep.studies.store import Summary, runs_in, sound_and_damaged
from lockstep.studies.study import Study, Trial
from lockstep.studies.trials import trial_id

State: TypeAlias = Literal[
    "done", "running", "stopped", "failed", "stale", "missing", "duplicate", "corrupt"
]
STATES: tuple[State, ...] = (
    "done", "running", "stopped", "failed", "stale", "missing", "duplicate", "corrupt"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrialStatus:
    """What has become of one trial."""

    trial: Trial
    state: State
    """done: there is a result of these settings and this code; duplicate: and it was trained twice;
    running: a run that holds it goes on; stopped: such a run was asked to stop before its end;
    failed: it failed, or its process is gone; stale: there is a result of other code; corrupt: its
    files are damaged; missing: there is nothing."""
    detail: str = ""
    """What the state follows from."""
    summary: Summary | None = None
    """Its result, where there is one to be used."""

    @property
    def usable(self) -> bool:
        """Whether there is a result that may be used."""
        return self.summary is not None


@dataclass(frozen=True, kw_only=True)
class HeldRun:
    """A run of the study, and the trials that its members are."""

    name: str
    finished: bool
    going_on: bool
    stopped: bool
    """Whether it was asked to stop, and did."""
    reason: str
    """Why it is thought to stand so."""
    members: tuple[str, ...]
    """Names of its trials, of the code that it was last trained with."""


def status(study: Study, root: Path) -> list[TrialStatus]:
    """The state of every distinct trial, in the order in which the study asks for them."""
    sound, damaged = sound_and_damaged(root)
    results = {summary.id: summary for summary in sound}
    by_config = {summary.config.hash: summary for summary in sound}
    runs: dict[str, list[HeldRun]] = {}
    for run in held_runs(root):
        for id in run.members:
            runs.setdefault(id, []).append(run)
    found = []
    for id, trial in study.distinct().items():
        state: State
        if id in damaged:
            state, detail = "corrupt", damaged[id]
        elif id in results:
            state, detail = _done(results[id], runs.get(id, []))
        else:
            state, detail = _undone(trial, runs.get(id, []), by_config)
        found.append(TrialStatus(trial=trial, state=state, detail=detail, summary=results.get(id)))
    return found


def counts(found: list[TrialStatus]) -> dict[State, int]:
    """How many trials are in each state."""
    return {state: sum(one.state == state for one in found) for state in STATES}


def held_runs(root: Path) -> Iterator[HeldRun]:
    """The runs of a study in the order of their names; a folder that is no run is left out."""
    for config in sorted(runs_in(root).glob("*/config.json")):
        run = RunDir(config.parent)
        try:
            held = TrainConfig.from_json(read_json(run.config))
            code = str(read_json(run.manifest)["history"][-1]["code_version"])
        except (NotARun, BadInput, ValueError, KeyError, IndexError, TypeError):
            continue  # of another version, or damaged: no trial of this code can be in it
        members = tuple(trial_id(held.member(i), code) for i in range(held.members))
        if run.finished:
            going_on, stopped, reason = False, False, "it is finished"
        else:
            sight = look(run)
            going_on, stopped = sight.state in GOING_ON, sight.state == "stopped"
            at = f"update {sight.update} of {sight.updates}"
            reason = f"{sight.state} at {at}: {sight.reason}"
        yield HeldRun(
            name=run.folder.name,
            finished=run.finished,
            going_on=going_on,
            stopped=stopped,
            reason=reason,
            members=members,
        )


def _done(summary: Summary, runs: list[HeldRun]) -> tuple[State, str]:
    finished = [run.name for run in runs if run.finished]
    if len(finished) > 1:
        return "duplicate", f"{_listed(finished)} hold it; the result is that of {summary.pack}"
    return "done", f"in {summary.pack}"


def _undone(
    trial: Trial, runs: list[HeldRun], by_config: Mapping[str, Summary]
) -> tuple[State, str]:
    for run in runs:
        if run.going_on:
            return "running", f"in {run.name}, {run.reason}"
    for run in runs:
        if not run.finished:
            return "stopped" if run.stopped else "failed", f"in {run.name}, {run.reason}"
    if runs:
        return "missing", f"{runs[0].name} is finished and not yet filed"
    older = by_config.get(trial.config.hash)
    if older:
        return "stale", f"{older.pack} trained it with other code"
    return "missing", "nothing is there"


def _listed(names: list[str]) -> str:
    return " and ".join(names)
