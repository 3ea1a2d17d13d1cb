"""Calibrations: what a machine's GPUs were measured to do, and what follows for settings and fabrics (docs/calibrate.md)."""

from railweave.calibrate.document import BlockRate, Calibration, CalibrationError, Gpu, PairRate, SizeTime, parse, read
from railweave.calibrate.effect import link_state, settings

__all__ = ["BlockRate", "Calibration", "CalibrationError", "Gpu", "PairRate", "SizeTime", "link_state", "parse", "read", "settings"]
