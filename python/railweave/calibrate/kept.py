"""Where this machine's calibration lies: beside the placements that `railweave run` keeps, per user and boot."""

from __future__ import annotations

from railweave.calibrate.document import Calibration, parse
from railweave.calibrate.effect import settings
from railweave.launch import cache

_NAME = "calibration"


def keep(calibration: Calibration) -> str | None:
    """Writes it for the programs to come, and says where; None where there is no folder that only this user writes."""
    return cache.keep_text(_NAME, calibration.text())


def kept() -> Calibration | None:
    """None where nothing was measured since the machine booted as it is. Raises CalibrationError for a file that is damaged."""
    found = cache.kept_text(_NAME)
    return None if found is None else parse(*found)


def kept_settings() -> dict[str, str]:
    """RAILWEAVE_ variables that follow from what is kept; none where nothing is. Raises as `kept`."""
    calibration = kept()
    return {} if calibration is None else {f"RAILWEAVE_{name.upper()}": value for name, value in settings(calibration).items()}
