"""What can be said of runs from their folders alone, without asking their processes; no torch."""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

import psutil

from lockstep.errors import BadInput, NotARun
from lockstep.run.config import TrainConfig
from lockstep.run.doctor.findings import Finding
from lockstep.run.glimpse import glimpse
from lockstep.run.heartbeat import FILE, Beat, Process
from lockstep.run.jsonable import Json
from lockstep.run.rundir import RunDir, walk

State: TypeAlias = Literal[
    "finished", "stopped", "failed", "running", "stalled", "dead", "starting", "unknown"
]
TROUBLED: frozenset[State] = frozenset(("stalled", "dead", "failed"))
"""States in which a run does not go on although nobody asked it to stop."""
GOING_ON: frozenset[State] = frozenset(("running", "starting", "stalled"))

STALE_S = 30.0
"""A heartbeat may be this old, or `STALE_BEATS` intervals if that is more."""
STALE_BEATS = 6
STARTING_S = 120.0
"""A young folder may lack its first heartbeat for as long."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A run as it can be seen from outside."""

    folder: Path
    state: State
    """What it is doing."""
    reason: str
    """Why this state is thought to be the true one."""
    phase: str | None = None
    """What it did when the heart last beat."""
    phase_s: float | None = None
    """For how long."""
    update: int = 0
    """Updates made."""
    updates: int | None = None
    """Updates to make; None if its configuration cannot be read."""
    step: int | None = None
    """Environment steps of a member."""
    steps_per_s: float | None = None
    """Environment steps of all members per second."""
    eta_s: float | None = None
    """Seconds to its end; None unless it is running."""
    heartbeat_s: float | None = None
    """Age of the last heartbeat; None without one, or if the clocks disagree."""
    checkpoint_step: int | None = None
    """Step of the last checkpoint that a heartbeat told of."""
    checkpoint_s: float | None = None
    """Its age."""
    objective: str | None = None
    """The metric that members are compared by."""
    value: float | None = None
    """Its mean over members, newest."""
    curve: tuple[float | None, ...] = ()
    """The same over the run, in a few points; None where no number is finite."""
    findings: tuple[Finding, ...] | None = None
    """What the doctor has said, the newest last; None if it has not looked."""
    alert: str | None = None
    """The last report of slow steps or of a hang, or a file of the run that cannot be read."""


def find(paths: Sequence[Path], *, root: Path) -> list[RunDir]:
    """The runs in `paths`, or without any all those under `root`; of a folder the newest first.

    A path may be a run or a folder that holds runs; under `root` such folders are opened as well.
    """
    if paths:
        found = [run for path in paths for run in _runs_at(path)]
        return list(dict.fromkeys(found))
    if not root.is_dir():
        raise BadInput(
            f"there is no folder {root} to look for runs in; name a run, or a folder with --root"
        )
    runs = _runs_in(root, depth=2)
    if not runs:
        raise BadInput(f"there are no runs in {root}; start one with `lockstep train`")
    return runs


def look(run: RunDir, *, now: datetime | None = None) -> Sight:
    """What can be said of a run; nothing is locked, and files may be absent or damaged."""
    now = datetime.now(UTC) if now is None else now
    beat, damage = _read_beat(run)
    state: State
    state, reason = ("unknown", damage) if damage else judge(run, beat, now=now)
    objective = _objective(run, beat)
    curve = glimpse(run.metrics, objective)
    findings, unread = _findings(run)
    sight = Sight(
        folder=run.folder,
        state=state,
        reason=reason,
        update=curve.update,
        updates=_updates(run, beat),
        objective=objective,
        value=curve.last,
        curve=curve.points,
        findings=findings,
        alert=unread,
    )
    if beat is None:
        return sight
    age = (now - beat.written).total_seconds()
    saved = beat.last_checkpoint
    return replace(
        sight,
        phase=beat.phase,
        phase_s=beat.phase_s,
        update=max(beat.update, curve.update),
        step=beat.step,
        steps_per_s=beat.steps_per_s,
        eta_s=max(0.0, beat.eta_s - max(0.0, age))
        if state == "running" and beat.eta_s is not None
        else None,
        heartbeat_s=age if age >= 0 else None,
        checkpoint_step=saved.step if saved else None,
        checkpoint_s=saved.seconds_ago + max(0.0, age) if saved else None,
        value=beat.value if curve.last is None else curve.last,
        alert=beat.alert or unread,
    )


def judge(run: RunDir, beat: Beat | None, *, now: datetime) -> tuple[State, str]:
    """The state of a run and the reason, from its last heartbeat and the processes of this host.

    On another host only the age of the heartbeat speaks. A heartbeat from the future means that a
    clock was set back or that two differ: then its age says nothing.
    """
    if run.finished:
        return "finished", "it has a summary"
    if beat is None:
        return _without_heartbeat(run, now)
    if beat.phase in ("stopped", "failed"):
        return ("stopped" if beat.phase == "stopped" else "failed"), f"it said so at {beat.time}"
    age = (now - beat.written).total_seconds()
    limit = max(STALE_S, STALE_BEATS * beat.interval)
    told = f"the last heartbeat is {span(age)} old"
    if age < 0:
        told = f"the last heartbeat is {span(-age)} in the future, so a clock was set or differs"
    fate = _fate(beat.process)
    if fate in ("gone", "another"):
        pid = beat.process.pid
        how = "is gone" if fate == "gone" else "is another one by now"
        return "dead", f"process {pid} {how}; {told}"
    if fate == "suspended":
        return "stalled", f"process {beat.process.pid} is suspended; {told}"
    if age > limit:
        return "stalled", f"{told}, more than {span(limit)}"
    if fate == "hidden" and -age > limit:
        return "unknown", f"{told}, and its process cannot be seen from here"
    if beat.hang_after and beat.idle_s > beat.hang_after:
        return "stalled", f"nothing has moved for {span(beat.idle_s)} in phase {beat.phase}"
    return ("starting" if beat.phase == "start" else "running"), told


def _without_heartbeat(run: RunDir, now: datetime) -> tuple[State, str]:
    config = _config(run)
    if config is not None and not config.ops.heartbeat_every:
        return "unknown", "its heartbeats are switched off (ops.heartbeat_every is 0)"
    age = now.timestamp() - _changed(run.config)
    if 0 <= age < STARTING_S and not run.metrics.exists():
        return "starting", f"its folder was made {span(age)} ago"
    return "unknown", f"it has no {FILE}: it ended while starting, or an older version made it"


def _fate(process: Process) -> Literal["alive", "suspended", "gone", "another", "hidden"]:
    """What has become of a process, as far as it can be seen from this host."""
    if process.host != platform.node():
        return "hidden"
    try:
        there = Process.number(process.pid)
        status = psutil.Process(process.pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.AccessDenied:
        return "hidden"
    if not process.same(there):
        return "another"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return "gone"
    return "suspended" if status == psutil.STATUS_STOPPED else "alive"


def span(seconds: float) -> str:
    """A time in the unit that suits it."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s"


def _runs_in(folder: Path, *, depth: int) -> list[RunDir]:
    found = walk(folder, depth=depth, links=True)
    runs = [RunDir(inner) for inner, names in found if "config.json" in names]
    return sorted(runs, key=_last_sign, reverse=True)


def _runs_at(path: Path) -> list[RunDir]:
    if not path.is_dir():
        raise NotARun(path, "there is no such folder")
    runs = _runs_in(path, depth=1)
    if not runs:
        raise NotARun(path, "it has no config.json, and no folder in it has one")
    return runs


def _last_sign(run: RunDir) -> float:
    return max(map(_changed, (run.folder / FILE, run.metrics, run.config)))


def _changed(path: Path) -> float:
    """When a file was last written, in seconds since 1970; 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read_beat(run: RunDir) -> tuple[Beat | None, str]:
    """The last heartbeat if there is one, and what is wrong with it."""
    try:
        data = _json(run.folder / FILE)
        return (None if data is None else Beat.from_json(data)), ""
    except (ValueError, OSError) as error:
        return None, f"its {FILE} cannot be read: {error}"


def _json(path: Path) -> Json | None:
    """The content of a JSON file; None if it is not there, ValueError if it is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def _config(run: RunDir) -> TrainConfig | None:
    """The run's configuration; None if this version cannot read it."""
    try:
        return TrainConfig.from_json(_json(run.config))
    except (ValueError, OSError, BadInput):
        return None


def _updates(run: RunDir, beat: Beat | None) -> int | None:
    if beat is not None:
        return beat.updates
    config = _config(run)
    return None if config is None else config.updates


def _objective(run: RunDir, beat: Beat | None) -> str | None:
    """The metric's key in metrics.jsonl, from the heartbeat or the manifest."""
    name = beat.objective if beat is not None else None
    if name is None:
        try:
            manifest = _json(run.manifest)
        except (ValueError, OSError):
            return None
        name = manifest.get("objective") if isinstance(manifest, dict) else None
    return f"world/{name.removeprefix('world/')}" if isinstance(name, str) else None


def _findings(run: RunDir) -> tuple[tuple[Finding, ...] | None, str | None]:
    """What the doctor left in findings.json, and what is wrong with that."""
    try:
        data = _json(run.findings)
        return (None if data is None else Finding.all_from(data)), None
    except (ValueError, OSError) as error:
        return None, f"findings.json cannot be read: {error}"
