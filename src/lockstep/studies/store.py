"""Where a study keeps its results: a folder for each trial, as if it had been trained alone.

```
ROOT/study.json                name, grid, digest of the trials, version
ROOT/trials/<id>/curve.json    metrics over updates
ROOT/trials/<id>/summary.json  settings, code version, tail means; written last
ROOT/runs/<pack>/              ordinary run folders
ROOT/too-large/<pack>/         runs that did not fit into memory; their trials are in smaller packs
ROOT/logs/<launch>/<pack>.log  what the processes of a launch said
```
"""

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep import __version__
from lockstep.errors import BadInput, known
from lockstep.run import lock
from lockstep.run.config import TrainConfig
from lockstep.run.jsonable import Json, finite
from lockstep.run.lines import by_member, read_lines
from lockstep.run.rundir import write_atomic, write_json
from lockstep.studies.study import Study
from lockstep.studies.trials import trial_id

if TYPE_CHECKING:
    from lockstep.run.record import Run
else:  # reading results imports no torch, so nothing here may name the types that need it
    Run = Any

log = logging.getLogger(__name__)

SUMMARY, CURVES = "summary.json", "curve.json"
FORMAT = 1
"""Version of the layout and of the files of a trial."""

Curve: TypeAlias = list[float | int | None]
"""A metric over the updates; None where it had no number."""

DIGITS = 8
"""Of each number of a curve; what they are made of has seven, and more would double the files."""

_KEPT = ("/reward_mean", "/return_mean")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of one trial."""

    id: str
    """Its name, by which it is found."""
    config: TrainConfig
    """Its settings, as if it had been asked for alone."""
    code_version: str
    """Digest of the sources it was trained with."""
    tail: dict[str, float | int | None]
    """Mean of each metric over the last updates; None where it had no number."""
    tail_updates: int
    """How many updates that are."""
    updates: int
    """Updates made."""
    pack: str
    """Name of the run it was trained in."""
    member: int
    """Its position there."""
    members: int
    """How many were trained there side by side."""
    seconds: float | None
    """Time of that whole run; None if it did not say."""

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config.seeds[0]

    def to_json(self) -> Json:
        """What is written; `from_json` gives back an equal one."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"format": FORMAT, "seed": self.seed} | fields | {"config": self.config.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> "Summary":
        """The summary that `to_json` wrote; ValueError says what is wrong with it."""
        if not isinstance(data, dict):
            raise ValueError("it is not a table")
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is {data.get('format')}, and this version reads {FORMAT}")
        missing = sorted(set(cls.__dataclass_fields__) - set(data))
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        try:
            config = TrainConfig.from_json(data["config"])
        except BadInput as error:  # a world or learner that is not there
            raise ValueError(str(error)) from error
        return cls(**fields | {"config": config})


class CorruptTrial(BadInput):
    """The files of a trial are damaged, or are those of another trial."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} cannot be used: {why}; remove its folder and train it again")
        self.why = f"{file.name}: {why}"


def runs_in(root: Path) -> Path:
    """The folder of a study's runs."""
    return root / "runs"


def trials_in(root: Path) -> Path:
    """The folder of a study's results."""
    return root / "trials"


def too_large_in(root: Path) -> Path:
    """The folder of runs that did not fit into memory and were divided."""
    return root / "too-large"


def logs_in(root: Path) -> Path:
    """The folder of a study's logs, with a folder for each launch."""
    return root / "logs"


@contextmanager
def making(place: Path) -> Iterator[None]:
    """Turns what the system has against a file or folder into bad input that names it."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"{place} cannot be made: {error.strerror}") from error


def is_there(place: Path) -> bool:
    """Whether there is a file or folder of that name; BadInput if there cannot be one."""
    with making(place):
        return place.exists()


def write_study(root: Path, study: Study) -> None:
    """Writes in `root` which study it belongs to; BadInput if it belongs to another, or to none.

    A study may grow and its code may change: what decides is its name, its grid, whether it is the
    short version, and its arithmetic.
    """
    told = _told(study)
    if is_there(root):
        check_study(root, study)
    with making(root):
        root.mkdir(parents=True, exist_ok=True)
    write_json(root / "study.json", told)


def check_study(root: Path, study: Study) -> None:
    """Refuses a root in which another study keeps its results."""
    if is_there(root) and not root.is_dir():
        raise BadInput(f"the root of a study must be a folder, got the file {root}")
    if not root.is_dir():
        raise BadInput(
            f"there is no study in {root}; train it first: `lockstep study run` with the same "
            "study, --grid, --smoke, --precision and --root"
        )
    if not (root / "study.json").is_file():
        if any(entry.name != lock.NAME for entry in root.iterdir()):
            raise BadInput(f"{root} holds something else and no study; give a --root of its own")
        return
    held, told = _held_study(root / "study.json"), _told(study)
    for what in ("name", "grid", "smoke", "precision"):
        was = held.get(what, "")  # an older root says nothing of precision
        if was != told[what]:
            raise BadInput(
                f"{root} holds a study of {what} {was!r}, and {told[what]!r} was asked "
                "for; give each study a --root of its own"
            )


def check_metrics(study: Study) -> None:
    """Refuses figures of metrics that their trials will not have; imports torch.

    One trial for each figure and world is asked.
    """
    from lockstep.run.metrics import describe
    from lockstep.worlds import registry

    for figure in study.figures:
        worlds = {trial.config.world.name: trial.config.world for trial in figure.trials()}
        for world in worlds.values():
            keys = [row.key for row in describe(registry.build(world, lanes=1).spec)]
            for metric in figure.metrics:
                known(f"metric of figure {figure.name}", metric, filter(_is_kept, keys))


def _held_study(file: Path) -> dict[str, Json]:
    """What a root says of its study."""
    try:
        held = json.loads(file.read_bytes())
    except ValueError as error:  # neither JSON nor text
        raise BadInput(
            f"{file} is damaged ({error}); restore it, or move trials beside it to a new --root"
        ) from error
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        found = held.get("format") if isinstance(held, dict) else None
        raise BadInput(f"{file} has the format {found}, and this version reads {FORMAT}")
    return held


def _told(study: Study) -> dict[str, Json]:
    return {
        "format": FORMAT,
        "name": study.name,
        "grid": study.grid,
        "smoke": study.smoke,
        "precision": study.precision,
        "hash": study.hash,
        "trials": len(study.distinct()),
        "lockstep": __version__,
    }


def file_pack(root: Path, pack: str, run: Run) -> list[str]:
    """Splits a finished run into its trials and files each as if trained alone; their names.

    What is filed already stays as it is: equal settings and code give equal results up to rounding.
    A run that was trained by two versions of the code is refused, since it is no trial of either.
    """
    told = run.summary
    codes = list(dict.fromkeys(event["code_version"] for event in run.manifest["history"]))
    if len(codes) != 1:
        raise BadInput(
            f"{run.folder} was trained by {len(codes)} versions of the code, so it is a trial of "
            "neither; remove its folder and train it again"
        )
    curves = _curves(run)
    seconds = _seconds(run)
    names = []
    for member in range(run.config.members):
        config = run.config.member(member)
        own = {name: curve[member] for name, curve in curves.items()}
        summary = Summary(
            id=trial_id(config, codes[0]),
            config=config,
            code_version=codes[0],
            tail={name: mean_of_tail(curve, told["tail_updates"]) for name, curve in own.items()},
            tail_updates=told["tail_updates"],
            updates=told["updates"],
            pack=pack,
            member=member,
            members=run.config.members,
            seconds=seconds,
        )
        _file(root, summary, own)
        names.append(summary.id)
    return names


def read_trial(root: Path, id: str) -> Summary | None:
    """The result of a trial; None if it is not there, CorruptTrial if it cannot be trusted."""
    file = trials_in(root) / id / SUMMARY
    if not file.is_file():
        return None
    try:
        summary = Summary.from_json(_content(file))
        own = trial_id(summary.config, summary.code_version)
    except (ValueError, TypeError) as error:
        raise CorruptTrial(file, str(error)) from error
    if (summary.id, own) != (id, id):
        raise CorruptTrial(file, f"its settings and code are those of trial {own[:12]}")
    return summary


def read_curves(root: Path, summary: Summary) -> dict[str, Curve]:
    """The metrics of a trial over its updates; CorruptTrial if they cannot be trusted."""
    file = trials_in(root) / summary.id / CURVES
    data = _content(file)
    curves = data.get("curves") if isinstance(data, dict) and data.get("id") == summary.id else None
    if not isinstance(curves, dict):
        raise CorruptTrial(file, f"it does not hold the curves of trial {summary.id[:12]}")
    for name, curve in curves.items():
        if not isinstance(curve, list) or len(curve) != summary.updates:
            found = len(curve) if isinstance(curve, list) else "none"
            raise CorruptTrial(file, f"{name} has {found} of {summary.updates} updates")
    return curves


def _content(file: Path) -> Json:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise CorruptTrial(file, "there is no such file") from error
    except ValueError as error:  # neither JSON nor text
        raise CorruptTrial(file, f"it is damaged ({error})") from error


def filed(root: Path) -> Iterator[str]:
    """The names of the trials that have a summary, in order, whatever it says."""
    for folder in sorted(trials_in(root).glob(f"*/{SUMMARY}")):
        yield folder.parent.name


def results(root: Path) -> list[Summary]:
    """The results in a root by their summaries, which is quick; damaged ones count as not there."""
    found, _ = _read(root, curves=False)
    return found


def sound_and_damaged(root: Path) -> tuple[list[Summary], dict[str, str]]:
    """The results in a root that can be trusted, curves included, and what is wrong with others."""
    return _read(root, curves=True)


def _read(root: Path, *, curves: bool) -> tuple[list[Summary], dict[str, str]]:
    sound, damaged = [], {}
    for id in filed(root):
        try:
            summary = read_trial(root, id)
            if summary is None:
                continue
            if curves:
                read_curves(root, summary)
        except CorruptTrial as error:
            damaged[id] = error.why
        else:
            sound.append(summary)
    return sound, damaged


def _file(root: Path, summary: Summary, curves: dict[str, Curve]) -> None:
    """Writes the files of one trial, its summary last; what is there and sound is left alone."""
    folder = trials_in(root) / summary.id
    try:
        if (held := read_trial(root, summary.id)) is not None:
            read_curves(root, held)
            return
    except CorruptTrial:
        log.warning("%s is damaged and written anew", folder)
    folder.mkdir(parents=True, exist_ok=True)
    short = {name: [_short(x) for x in curve] for name, curve in curves.items()}
    told = {"format": FORMAT, "id": summary.id, "curves": finite(short)}
    write_atomic(folder / CURVES, json.dumps(told, allow_nan=False).encode() + b"\n")
    write_json(folder / SUMMARY, summary.to_json())


def _short(x: float | int | None) -> float | int | None:
    return float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x


def _curves(run: Run) -> dict[str, list[Curve]]:
    """The metrics of figures, for each member over the updates."""
    table = run.metrics
    return {name: by_member(table, name).tolist() for name in table if _is_kept(name)}


def _is_kept(metric: str) -> bool:
    return metric.startswith("world/") or metric.endswith(_KEPT)


def mean_of_tail(curve: Curve, updates: int) -> float | None:
    """The mean over the last updates; None where no number is among them."""
    last = curve[-updates:] if updates else []
    told = [x for x in last if x is not None and math.isfinite(x)]
    return math.fsum(told) / len(told) if told else None


def _seconds(run: Run) -> float | None:
    """Wall time of a run's updates, those before it was last resumed included."""
    rows = read_lines(run.dir.perf) if run.dir.perf.is_file() else []
    return math.fsum(row.get("perf/update_s") or 0.0 for row in rows) if rows else None
