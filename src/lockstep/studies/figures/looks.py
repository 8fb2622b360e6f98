"""One look for each series, the same in every figure of a study."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from matplotlib import colormaps
from matplotlib.colors import to_hex

from lockstep.studies.study import Study

Dashes: TypeAlias = tuple[float, tuple[float, ...] | None]

# After Okabe and Ito, so that most eyes tell them apart; the fifth is that of Randomized.
_COLOURS = ("#0072b2", "#009e73", "#d55e00", "#9a5ba5", "#8c8c8c", "#e69f00", "#56b4e9", "#5c4b3b")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_SOLID: Dashes = (0.0, None)
_DOTTED: Dashes = (0.0, (1.0, 1.4))
_DOT_DASHED: Dashes = (0.0, (4.0, 1.2, 1.0, 1.2))
_LINES = (_SOLID, _DOTTED, _DOT_DASHED)

PAPER_DASHES: Dashes = (0.0, (4.0, 2.0))
PAPER_COLOUR = "#222222"

_NUMBERED = re.compile(r"(?P<key>[^=]*)=(?P<number>-?\d+(?:\.\d+)?)(?P<rest>.*)")


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a series is drawn."""

    colour: str
    marker: str
    line: Dashes
    hollow: bool
    """Whether its marks are."""


def looks(study: Study) -> dict[str, Look]:
    """The look of every series: learners by their order in the study, `K=60` by its number.

    Series of equal numbers, such as `B=30MHz with DT` and `B=30MHz w/o DT`, share a colour and
    differ in their lines.
    """
    names = list(dict.fromkeys(point.series for point in study.points()))
    plain = [name for name in names if not _NUMBERED.match(name)]
    found = {
        name: Look(
            colour=_COLOURS[i % len(_COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            line=_SOLID,
            hollow=False,
        )
        for i, name in enumerate(plain)
    }
    return found | _numbered(name for name in names if name not in found)


def _numbered(names: Iterable[str]) -> dict[str, Look]:
    parts = {name: match for name in names if (match := _NUMBERED.match(name))}
    found = {}
    for key in dict.fromkeys(part["key"] for part in parts.values()):
        own = {name: part for name, part in parts.items() if part["key"] == key}
        numbers = sorted({float(part["number"]) for part in own.values()})
        kinds = list(dict.fromkeys(part["rest"] for part in own.values()))
        for name, part in own.items():
            at, kind = numbers.index(float(part["number"])), kinds.index(part["rest"])
            found[name] = Look(
                colour=_shade(at, len(numbers)),
                marker=_MARKERS[at % len(_MARKERS)],
                line=_LINES[kind % len(_LINES)],
                hollow=kind > 0,
            )
    return found


def _shade(at: int, count: int) -> str:
    """A colour for the number at this place of `count`: the larger, the darker."""
    share = at / (count - 1) if count > 1 else 1.0
    return to_hex(colormaps["viridis"](0.72 - 0.72 * share))
