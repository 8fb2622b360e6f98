"""Whatever a path holds, as a log: a run of ours, a foreign file, a TensorBoard folder."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lockstep.errors import BadInput, NotARun
from lockstep.run.doctor.foreign import read_csv, read_events, read_jsonl
from lockstep.run.doctor.log import Facts, Log, score_start
from lockstep.run.jsonable import Json
from lockstep.run.lines import read_lines
from lockstep.run.rundir import RunDir, read_json

EVENTS = "events.out.tfevents.*"
TABLES = {"progress.csv": read_csv, "progress.json": read_jsonl}
"""Files that SB3 leaves in a folder."""


def read_log(path: Path) -> Log:
    """The log at `path`; BadInput says what the doctor can read."""
    if path.is_dir():
        return read_folder(path)
    if not path.exists():
        raise BadInput(f"there is no {path}; the doctor reads a run folder or a log")
    if path.name.startswith("events.out.tfevents"):
        return read_events(path)
    if path.suffix == ".csv":
        return read_csv(path)
    if path.suffix in (".jsonl", ".json", ".ndjson"):
        ours = path.name == "metrics.jsonl" and (path.parent / "config.json").is_file()
        return read_run(path.parent) if ours else read_jsonl(path)
    raise BadInput(
        f"{path} is no log that the doctor reads: it must be a run folder, a .csv, a .jsonl, or "
        "TensorBoard events"
    )


def read_folder(folder: Path) -> Log:
    """A run of ours, a table that SB3 wrote, or TensorBoard events somewhere below."""
    run = RunDir(folder)
    if run.config.is_file() and (run.manifest.is_file() or run.metrics.is_file()):
        return read_run(folder)
    for name, reader in TABLES.items():
        if (folder / name).is_file():
            return reader(folder / name)
    holders = sorted({file.parent for file in folder.rglob(EVENTS)})
    if not holders:
        raise BadInput(
            f"{folder} holds no log: no config.json and metrics.jsonl of a run, no "
            f"{', no '.join(TABLES)}, and no TensorBoard events"
        )
    if len(holders) > 1:
        shown = ", ".join(str(holder) for holder in holders[:4])
        raise BadInput(f"{folder} holds {len(holders)} logs; name one of them: {shown}")
    return read_events(holders[0])


def read_run(folder: Path) -> Log:
    """A run of ours, finished or not, also one that another version wrote."""
    run = RunDir(folder)
    lines = read_lines(run.metrics) if run.metrics.exists() else []
    if not lines:
        raise BadInput(f"{folder} has no update yet; there is nothing to examine")
    if any("update" not in line for line in lines):
        raise NotARun(folder, "a line of metrics.jsonl names no update")
    clock = read_lines(run.perf) if run.perf.exists() else []
    objective = read_json(run.manifest).get("objective") if run.manifest.exists() else None
    score = None if objective is None else f"world/{objective}"
    return from_lines(str(folder), lines, clock, score=score, facts=facts_of(read_json(run.config)))


def from_lines(
    source: str,
    lines: Sequence[dict[str, float | int | None]],
    clock: Sequence[dict[str, float | int | None]],
    *,
    score: str | None,
    facts: Facts,
) -> Log:
    """Lines of metrics, one for each update and member, and of the clock, one for each update."""
    updates = sorted({int(line["update"] or 0) for line in lines})
    place = {update: at for at, update in enumerate(updates)}
    members = 1 + max(int(line.get("member") or 0) for line in lines)
    keys = dict.fromkeys(key for line in lines for key in line)
    columns = {key: np.full((members, len(updates)), np.nan) for key in keys}
    broken = {key: np.zeros((members, len(updates)), dtype=np.bool_) for key in keys}
    for line in lines:
        member, at = int(line.get("member") or 0), place[int(line["update"] or 0)]
        for key, value in line.items():
            number = np.nan if value is None else float(value)
            columns[key][member, at] = number
            broken[key][member, at] = not np.isfinite(number)
    # A resumed run measures again what it does again; the later line counts.
    latest = {int(line["update"] or 0): line for line in clock}
    times = dict.fromkeys(key for line in latest.values() for key in line if key != "update")
    return Log(
        source=source,
        update=np.array(updates, dtype=np.float64),
        columns={key: np.where(np.isfinite(x), x, np.nan) for key, x in columns.items()},
        broken={key: flags for key, flags in broken.items() if flags.any()},
        perf={key: np.array([_float(line.get(key)) for line in latest.values()]) for key in times},
        score=score if score in columns else None,
        score_start=score_start(columns, score),
        facts=facts,
    )


def facts_of(config: Json) -> Facts:
    """What a configuration, as `config.json` holds it, says about the numbers it leads to.

    It is read as it lies, for a doctor must not refuse a run because a setting has been added.
    """
    learner = config.get("learner", {}).get("settings", {})
    samples = learner.get("lanes", 0) * learner.get("steps", 0)
    planned = learner.get("epochs", 0) * learner.get("minibatches", 0)
    device = config.get("device", "auto")
    return Facts(
        updates=config.get("total_steps", 0) // samples if samples else None,
        minibatches=planned or None,
        device=None if device == "auto" else device,
        rewards_scaled=learner.get("reward_norm") == "running",
    )


def _float(value: float | int | None) -> float:
    return float("nan") if value is None else float(value)
