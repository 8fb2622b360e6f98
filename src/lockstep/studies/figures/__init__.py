"""The figures of a study: drawn from results that may be shown, or refused.

Everything is read, checked and drawn before the first file is written, so a folder never holds half
of a study's figures. Equal results give equal bytes on one machine.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lockstep.errors import BadInput, known, needs_extra
from lockstep.run.rundir import write_atomic, writing
from lockstep.studies import paper
from lockstep.studies.aggregate import Results, are_left_out, gather
from lockstep.studies.figures.cache import choose_cache
from lockstep.studies.figures.spread import Spread
from lockstep.studies.store import is_there, making, write_study
from lockstep.studies.study import Figure, Study

log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["trained", "heuristic"]
FORMATS = ("png", "pdf")

FLIGHT_SEED = 20260225
"""Seed of the flights, unless another one is asked for."""

LISTED = 10
"""Trials left out that a message names, at most; `study status` names all."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """How figures are to be drawn."""

    allow_missing: bool = False
    """Leave out what has no result that may be shown, and say so."""
    overlay_paper: bool = False
    """Draw the paper's values as dashed lines."""
    spread: Spread = "std"
    """Mean with standard deviation, or interquartile mean with its bootstrap interval."""
    mode: Mode = "trained"
    """Who flies in a figure of flights."""
    seed: int = FLIGHT_SEED
    """Where users walk and UAVs start in a figure of flights."""


PLAIN = Request()


def draw(
    study: Study,
    root: Path,
    out: Path,
    asked: Request = PLAIN,
    *,
    only: Sequence[str] = (),
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Draws the figures `only`, or all, into the folder `out`; the files that were written.

    Unusable lists every trial that is missing, stale, damaged or of mixed code; nothing is written
    then. With `asked.allow_missing` these are left out, and so are figures that then have nothing.
    """
    for name in only:
        known(f"figure of {study.name}", name, [figure.name for figure in study.figures])
    for kind in formats:
        known("format of figures", kind, FORMATS)
    if not formats:
        raise BadInput(f"--formats must name one of {', '.join(FORMATS)} at least, got none")
    if not 0 <= asked.seed < 2**63:
        raise BadInput(f"--fig13-seed must be 0 or more and below 2^63, got {asked.seed}")
    for place in (out, *out.parents):
        if is_there(place) and not place.is_dir():
            raise BadInput(f"--out must be a folder, got {out}, of which {place} is a file")
    shown = [figure for figure in study.figures if not only or figure.name in only]
    read = any(paper.has_readings(study.name, figure.name) for figure in shown)
    if asked.overlay_paper and not read:
        names = ", ".join(figure.name for figure in shown)
        raise BadInput(
            f"--overlay-paper needs figures with values of the paper, got {names} of {study.name}; "
            f"there are such values for figures 3 to 12 of {paper.STUDY}"
        )
    load_matplotlib()
    pictures = _pictures(study, root, shown, asked, formats)
    if out.resolve().is_relative_to(root.resolve()):
        write_study(root, study)  # the script may fly before anything is trained
    with making(out), writing(out):
        out.mkdir(parents=True, exist_ok=True)
    made = []
    for name, content in pictures.items():
        write_atomic(out / name, content, durable=False)
        made.append(out / name)
    return made


def load_matplotlib() -> None:
    """Imports it, with a cache of its own; BadInput says how to install it where it is not."""
    choose_cache()
    with needs_extra("study"):
        import matplotlib  # noqa: F401


def _pictures(
    study: Study, root: Path, shown: Sequence[Figure], asked: Request, formats: Sequence[str]
) -> dict[str, bytes]:
    """File name to content, of all figures that can be drawn."""
    from lockstep.studies.figures.drawing import picture

    scripted = asked.mode == "heuristic"
    measured = [one.name for one in shown if not (scripted and one.kind == "flights")]
    results: Results | None = None
    if measured:
        results = gather(study, root, only=measured, allow_missing=asked.allow_missing)
        _tell_left_out(results)
    pictures: dict[str, bytes] = {}
    for figure in shown:
        if figure.kind == "flights":
            from lockstep.studies.figures.flying import flights_picture  # imports torch

            made = flights_picture(study, figure, root, results, asked, formats)
        else:
            assert results is not None
            made = picture(figure, results, asked, formats)
        if made is None:
            log.warning("%s is left out: no point of it has a result", figure.name)
            continue
        pictures |= {f"{figure.name}.{kind}": content for kind, content in made.items()}
    return pictures


def _tell_left_out(results: Results) -> None:
    if not results.left_out:
        return
    more = len(results.left_out) - LISTED
    lines = [*results.left_out[:LISTED], *([f"and {more} more"] if more > 0 else [])]
    log.warning("%s:\n  %s", are_left_out(len(results.left_out)), "\n  ".join(lines))
