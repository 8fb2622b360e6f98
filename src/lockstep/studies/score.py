"""The scorecard of `uav-paper`: how far its results show what the paper's figures show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lockstep.errors import BadInput
from lockstep.run.jsonable import Json, finite
from lockstep.studies import paper
from lockstep.studies.aggregate import are_left_out, gather
from lockstep.studies.checks import BySeed, Check, Checks, Measured, known, orders, trends
from lockstep.studies.claims import Claim, claims
from lockstep.studies.paper import Place
from lockstep.studies.stats import LEVEL, spearman
from lockstep.studies.study import Study

FORMAT = 1
"""Version of the layout of the scorecard."""

Rows = list[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One value of the paper beside ours."""

    series: str
    at: float | str
    """Value of x, or landmark of a curve."""
    paper: float
    ours: float

    @property
    def error(self) -> float:
        """Relative to the paper's value."""
        return (self.ours - self.paper) / abs(self.paper)

    def to_json(self) -> Json:
        """Everything."""
        told = {"series": self.series, "at": self.at, "paper": self.paper, "ours": self.ours}
        return told | {"relative_error": self.error}


@dataclass(frozen=True, kw_only=True)
class PanelScore:
    """One metric in one panel of a figure against the paper's values."""

    place: Place
    orders: Checks
    """One for each two series at each mark."""
    trends: Checks
    """One for each series, or for each turn of its curve."""
    readings: list[Reading]
    asked: int
    """Readings that the study asks for."""

    @property
    def ranks(self) -> dict[str, float]:
        """Rank correlation of each series with the paper's, given three values at least."""
        rows: dict[str, list[Reading]] = {}
        for reading in self.readings:
            rows.setdefault(reading.series, []).append(reading)
        return {
            name: spearman([r.ours for r in row], [r.paper for r in row])
            for name, row in rows.items()
            if len(row) > 2
        }

    @property
    def error(self) -> float:
        """Median size of the relative errors; NaN without readings."""
        return float(np.median([abs(r.error) for r in self.readings])) if self.readings else np.nan

    def to_json(self) -> Json:
        """Everything."""
        return {
            "figure": self.place[0],
            "metric": self.place[1],
            "panel": self.place[2],
            "orders": _tally_json(self.orders),
            "trends": _tally_json(self.trends),
            "rank_correlation": finite(self.ranks),
            "median_relative_error": finite(self.error),
            "points": [reading.to_json() for reading in self.readings],
            "points_asked": self.asked,
        }


@dataclass(frozen=True, kw_only=True)
class Scorecard:
    """What `study score` says."""

    study: Study
    panels: list[PanelScore]
    claims: list[Claim]
    left_out: tuple[str, ...]
    """Trials without a result that may be used, and why."""

    @property
    def orders(self) -> Checks:
        """Those of all figures."""
        return [check for panel in self.panels for check in panel.orders]

    @property
    def trends(self) -> Checks:
        """Those of all figures."""
        return [check for panel in self.panels for check in panel.trends]

    def to_json(self) -> Json:
        """Everything, for programs."""
        return {
            "format": FORMAT,
            "study": self.study.name,
            "grid": self.study.grid,
            "smoke": self.study.smoke,
            "precision": self.study.precision,
            "hash": self.study.hash,
            "level": LEVEL,
            "orders": _counts_json(self.orders),
            "trends": _counts_json(self.trends),
            "figures": [panel.to_json() for panel in self.panels],
            "claims": [claim.to_json() for claim in self.claims],
            "left_out": list(self.left_out),
        }

    def figures_table(self) -> Rows:
        """A heading, a row for each panel, and one for all of them."""
        heading = ("figure", "metric", "orders", "trends", "rank", "error", "points")
        whole = ("all", "", _tally(self.orders), _tally(self.trends), "", "", "")
        return [heading, *(_panel_row(panel) for panel in self.panels), whole]

    def claims_table(self) -> Rows:
        """A heading, and a row for each claim."""
        heading = ("claim", "verdict", "hold", "not separated", "fail", "left out")
        return [heading, *(_claim_row(claim) for claim in self.claims)]

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        told = [
            "Differences are paired by seed; one is separated if Student's test tells it from "
            f"nothing at the {LEVEL:.0%} level. error: median size of the relative errors; rank: "
            "mean rank correlation of the series."
        ]
        if self.left_out:
            told.append(
                f"{are_left_out(len(self.left_out))}, so nothing is said of what needs results "
                "that are not there."
            )
        if all(len(point.trials) == 1 for point in self.study.points()):
            told.append("With one seed nothing can be separated.")
        return told


def score(study: Study, root: Path, *, allow_missing: bool = False) -> Scorecard:
    """Compares the results in `root` with the paper's values.

    Unusable lists what is missing, stale or damaged; with `allow_missing` these trials are left
    out, and the card says so.
    """
    names = [f.name for f in study.figures if paper.has_readings(study.name, f.name)]
    if not names:
        raise BadInput(
            f"a score compares with the paper's figures, which are those of {paper.STUDY}; got "
            f"{study.name}"
        )
    results = gather(study, root, only=names, allow_missing=allow_missing)
    measured = Measured(results)
    return Scorecard(
        study=study,
        panels=[_panel(measured, place) for place in (*paper.CURVES, *paper.MARKS)],
        claims=claims(measured),
        left_out=results.left_out,
    )


def _panel(measured: Measured, place: Place) -> PanelScore:
    if place in paper.CURVES:
        curves = paper.CURVES[place]
        asked: list[tuple[str, float | str, float, BySeed | None]] = [
            (name, at, value, measured.landmark(place, name, at))
            for name, row in curves.items()
            if measured.has(place, name)
            for at, value in row.items()
        ]
    else:
        marks = paper.MARKS[place]
        asked = [
            (name, x, marks[name][x], measured.at(place, name, x))
            for name in marks
            for x in measured.axis(place, name)
        ]
    return PanelScore(
        place=place,
        orders=orders(measured, place),
        trends=trends(measured, place),
        readings=[
            Reading(series=name, at=at, paper=value, ours=float(np.mean(list(ours.values()))))
            for name, at, value, ours in asked
            if ours is not None
        ],
        asked=len(asked),
    )


def _panel_row(panel: PanelScore) -> tuple[str, ...]:
    figure, metric, part = panel.place
    ranks = [rank for rank in panel.ranks.values() if not np.isnan(rank)]
    return (
        " ".join(filter(None, (figure, part))),
        metric.removeprefix("world/"),
        _tally(panel.orders),
        _tally(panel.trends),
        f"{np.mean(ranks):.2f}" if ranks else "",
        f"{panel.error:.0%}" if panel.readings else "",
        f"{len(panel.readings)} of {panel.asked}",
    )


def _claim_row(claim: Claim) -> tuple[str, ...]:
    text = claim.text if claim.strong else f"(weak) {claim.text}"
    counts = (claim.count(what) for what in ("holds", "not separated", "fails"))
    return text, claim.verdict, *(str(n) for n in counts), str(claim.left_out)


def _tally(checks: Checks) -> str:
    """As `48 of 60 (9 not separated)`."""
    there = known(checks)
    if not there:
        return ""
    held, open_ = _count(there, "holds"), _count(there, "not separated")
    return f"{held} of {len(there)}" + (f" ({open_} not separated)" if open_ else "")


def _tally_json(checks: Checks) -> Json:
    return _counts_json(checks) | {"checks": [check.to_json() for check in known(checks)]}


def _counts_json(checks: Checks) -> dict[str, Json]:
    there = known(checks)
    held = _count(there, "holds")
    return {
        "holds": held,
        "not_separated": _count(there, "not separated"),
        "fails": _count(there, "fails"),
        "left_out": len(checks) - len(there),
        "share": held / len(there) if there else None,
    }


def _count(checks: Sequence[Check], outcome: str) -> int:
    return sum(check.outcome == outcome for check in checks)
