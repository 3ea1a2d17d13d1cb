"""What the first rank of a node takes that has no advice kept: Python, and working out the placement from the files of a made-up machine.

The machine is that of benchmarks/machine/doctor_time.py, its files laid out in a temporary folder. Several PYTHONs, each with a version of
Railweave installed, take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))

from doctor_time import full_size

from railweave.bench.taken import TakenTime

PROGRAM = """
import gc
import os
import sys
from railweave.launch import start
getattr(start, "_hasten", gc.disable)()
from railweave.advise import live

class Files(live._Files):
    def __init__(self):
        super().__init__(sys.argv[1])

live._Files, live._DRIVER = Files, type(live._DRIVER)(f"{sys.argv[1]}{live._DRIVER}")
assert live.placement_text("bandwidth").count("uuid GPU-") == 8
os.execvp("true", ["true"])
"""
NOTHING = "import os; os.execvp('true', ['true'])"


def main() -> None:
    """Prints milliseconds: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("starts", nargs="?", type=int, default=20, help="Of each kind.")
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="By default the one that runs this.")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    starts, pythons = options.starts, options.pythons or [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "machine"
        full_size(Path(folder)).lay_out(root)
        commands = {
            (name, python): [python, "-c", program, str(root)]
            for python in pythons
            for name, program in (("python", NOTHING), ("first start", PROGRAM))
        }
        times: dict[tuple[str, str], list[float]] = {key: [] for key in commands}
        with TakenTime() as span:
            for start in range(starts + 1):
                for key, command in commands.items():
                    begin = time.perf_counter()
                    subprocess.run(command, check=True)
                    if start:
                        times[key].append(1e3 * (time.perf_counter() - begin))
    for (name, python), taken in times.items():
        print(f"{name:<12} {statistics.median(taken):6.1f} ({min(taken):.1f} to {max(taken):.1f}) ms  {python}")
    print(f"load {os.getloadavg()[0]:.1f}, {span.stolen:.0%} of the wanted CPU time stolen, {starts} starts each, in turn")


if __name__ == "__main__":
    main()
