"""The flags that the verbs of a study share, and the study that they name; imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.studies.catalogue import STUDIES, default_root, load
from lockstep.studies.study import Precision, Study


@dataclass(frozen=True, kw_only=True)
class StudyFlags:
    """Which study, and where it keeps its results."""

    study: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Name of a study, or a Python file that declares one."""
    grid: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Which grid of values, where the study has several; by default its first."""
    smoke: bool = False
    """The short version: minutes instead of hours, to see that everything works."""
    precision: Precision | None = None
    """Arithmetic of the networks, which is part of every trial; by default as the study has it."""
    root: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of the results; by default studies/<study>, followed by the grid, smoke and the
    precision where there are such, as in studies/uav-paper-reference-smoke."""

    def load(self) -> tuple[Study, Path]:
        """The study and its root."""
        study = load(self.study, grid=self.grid, smoke=self.smoke, precision=self.precision)
        return study, self.root or default_root(study)

    @property
    def source(self) -> str:
        """The file that declares the study; empty for one that comes with Lockstep."""
        return "" if self.study in STUDIES else str(Path(self.study).resolve())
