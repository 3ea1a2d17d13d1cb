"""benchmarks/lab_shaping.py, which measures the shapers' settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "lab_shaping.py"


def test_help_tells_and_measures_nothing() -> None:
    done = subprocess.run([sys.executable, str(_SCRIPT), "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: lab_shaping.py [-h]\n")
    assert "One connection on one rail" in done.stdout
    assert "host:" not in done.stdout
