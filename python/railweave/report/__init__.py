"""Results as pages: one self-contained HTML file each, which opens anywhere, without a network."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path


def _kept(folder: Path) -> bool:
    """Whether matplotlib can keep something there; it makes the folder, too."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK, effective_ids=True)


def _give_matplotlib_a_folder() -> None:
    """It wants one for its list of fonts when it is imported, and complains at length where the user has no home (containers, nobody)."""
    if "MPLCONFIGDIR" in os.environ:
        return
    with contextlib.suppress(RuntimeError):  # no home at all
        home = Path.home()
        folders = (
            Path(os.environ.get(name) or home / below) for name, below in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache"))
        )
        if all(_kept(folder / "matplotlib") for folder in folders):
            return
    with contextlib.suppress(OSError):  # no temporary folder either: matplotlib says what it thinks of that
        folder = tempfile.mkdtemp(prefix="railweave-matplotlib-")
        os.environ["MPLCONFIGDIR"] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


_give_matplotlib_a_folder()
