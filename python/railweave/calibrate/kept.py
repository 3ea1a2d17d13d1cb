"""Where this machine's calibration lies: beside the placements that `railweave run` keeps. The device library takes its settings from it.

The first line says what it depends on, the second, in JSON, which settings follow; the rest is the calibration, as a file has it. Who reads
the first two is the library itself (src/engine/kept_calibration.cpp), so whether a calibration holds is decided there alone.
"""

from __future__ import annotations

import json
from pathlib import Path

from railweave import _native
from railweave.calibrate.document import Calibration, CalibrationError, parse
from railweave.calibrate.effect import settings
from railweave.device import library
from railweave.launch import cache

_NONE = "no calibration is kept on this machine; `railweave calibrate` makes one"
_OF_ANOTHER_BUILD = " does not hold here (another build of Railweave)"
"""As src/engine/kept_calibration.cpp says it."""


def keep(calibration: Calibration) -> str | None:
    """Writes it for the programs to come, and says where; None where it cannot be written to a folder that only this user writes."""
    head = (_native.calibration_fingerprint(library()), json.dumps(settings(calibration)))
    return cache.keep_text("calibration", "\n".join((*head, calibration.text())))


def kept() -> Calibration:
    """The one that holds. Raises CalibrationError where there is none, or it is damaged."""
    found = _native.find_calibration(library(), cache.FOR_ALL)
    path = found["path"]
    if not path:
        raise CalibrationError(found["problem"] or _NONE)
    return _read(path)


def kept_for_another_build() -> tuple[Calibration, str]:
    """The one that holds but for the device library, which it names and this machine has none of; and its file. Raises CalibrationError
    where there is none, or it is damaged."""
    problem = _native.find_calibration("", cache.FOR_ALL)["problem"]
    path, only_the_build, _ = problem.partition(_OF_ANOTHER_BUILD)  # the last thing that is compared: all else is as it was
    if not only_the_build:
        raise CalibrationError(problem or _NONE)
    return _read(path), path


def _read(path: str) -> Calibration:
    try:
        return parse(Path(path).read_text(encoding="utf-8").split("\n", 2)[2], path)
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise CalibrationError(f"{path}: cannot be read: {error}; `railweave calibrate` makes another") from None
