"""A folder in which matplotlib may keep its list of fonts."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

VARIABLE = "MPLCONFIGDIR"


def choose_cache(candidates: Iterable[Path] | None = None) -> Path | None:
    """Names the first folder that can be written to matplotlib, unless the user has named one.

    Where none can be written nothing is named: matplotlib then makes one for this process alone.
    It must be called before matplotlib is imported, which looks only then.
    """
    if os.environ.get(VARIABLE) or "matplotlib" in sys.modules:
        return None
    for folder in _candidates() if candidates is None else candidates:
        if _writable(folder):
            os.environ[VARIABLE] = str(folder)
            return folder
    return None


def _candidates() -> Iterable[Path]:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # a user without a home
        home = None
    if home is not None:
        yield home / "lockstep" / "matplotlib"
    yield Path(tempfile.gettempdir()) / f"lockstep-matplotlib-{os.getuid()}"


def _writable(folder: Path) -> bool:
    """Whether a file can be made there; a right to write alone says too little."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError:
        return False
    return True
