"""The page a figure is drawn on: size, fonts, footer, and files of equal bytes for equal input."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lockstep.studies.study import Figure, Study

COLUMN_IN, PAGE_IN = 3.5, 7.16
"""Width of one column of a paper, and of two."""
DPI = 200

COLOURS = 256
"""Of a PNG, which is a third as large then."""

_FOOT_IN = 0.27
_SMALL = 5.0
_GREY = "#777777"

_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so every machine draws the same
    "font.size": 7.0,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8.0,
    "axes.titlelocation": "left",
    "axes.titlepad": 4.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "pdf.fonttype": 42,  # fonts that can be searched and edited
}


@contextmanager
def style() -> Iterator[None]:
    """Our settings on top of matplotlib's own defaults, whatever the user's are."""
    ours = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    settings: Any = ours | _STYLE  # its own stubs list every name
    with matplotlib.rc_context(settings):
        yield


def page(width_in: float, height_in: float) -> Canvas:
    """An empty figure that needs no display, with room for a footer."""
    canvas = Canvas(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    foot = _FOOT_IN / height_in
    engine = canvas.get_layout_engine()
    assert engine is not None
    engine.set(rect=(0.0, foot, 1.0, 1.0 - foot))  # type: ignore[call-arg]  # of this engine
    return canvas


def footer(canvas: Canvas, study: Study, told: str) -> None:
    """Below the axes: what is shown, and from which study."""
    x, line = 0.03 / canvas.get_figwidth(), 0.1 / canvas.get_figheight()
    for text, y in ((told, 1.3 * line), (stamp(study), 0.3 * line)):
        canvas.text(x, y, text, fontsize=_SMALL, color=_GREY, ha="left", va="bottom")


def stamp(study: Study) -> str:
    """Name, version and digest of a study, as they stand on its figures."""
    how = "smoke" if study.smoke else ""
    parts = (study.name, study.grid, how, study.precision, study.hash[:12])
    return " · ".join(part for part in parts if part)


def files(canvas: Canvas, study: Study, figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    """Format to content; the study's whole digest is in the file's own fields as well."""
    title = f"{figure.name}: {figure.title}"
    about = f"study {study.name}, digest {study.hash}"
    write = {"png": _png, "pdf": _pdf}
    return {kind: write[kind](canvas, title, about) for kind in formats}


def _pdf(canvas: Canvas, title: str, about: str) -> bytes:
    buffer = io.BytesIO()
    fields = {"Title": title, "Subject": about, "CreationDate": None}
    canvas.savefig(buffer, format="pdf", metadata=fields)
    return buffer.getvalue()


def _png(canvas: Canvas, title: str, about: str) -> bytes:
    drawn, packed = io.BytesIO(), io.BytesIO()
    canvas.savefig(drawn, format="png", dpi=DPI)
    fields = PngInfo()
    fields.add_text("Title", title)
    fields.add_text("Description", about)
    with Image.open(drawn) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(packed, format="png", optimize=True, dpi=(DPI, DPI), pnginfo=fields)
    return packed.getvalue()
