"""What `railweave run` adds to the start of a rank: starts of `true` with and without it, in turn, binding and variables included."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from railweave.lab import syscalls
from railweave.launch import cache
from railweave.launch.errors import NoAdviceError
from railweave.launch.placement import HEAD, cpu_text

GPUS = 8


def placement(workload: str) -> str:
    """Advice as a node with 8 GPUs keeps it, for this machine's CPUs."""
    cpus = cpu_text(os.sched_getaffinity(0))
    lines = [HEAD]
    for gpu in range(GPUS):
        lines += ["gpu", f"name gpu{gpu}", f"bus_id 0000:{gpu:02x}:00.0", f"cpus {cpus}", "memory 0"]
        lines += [f"env UCX_NET_DEVICES=mlx5_{gpu}:1", "env OMPI_MCA_pml=ucx"]
    return "\n".join(lines) + "\n"


def keep_apart(folder: str) -> None:
    """What root keeps is for all users, and this placement is no machine's: this process and what it starts see another folder there."""
    Path(cache.FOR_ALL).mkdir(mode=0o755, exist_ok=True)
    own = Path(folder) / "for-all"
    own.mkdir(mode=0o755)
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount(str(own), cache.FOR_ALL, "", syscalls.MS_BIND)
    except OSError as error:
        sys.exit(f"start_time: {error}; as root it needs the capability SYS_ADMIN: run it as another user")


def main() -> None:
    """Prints milliseconds: median, 90th percentile, least."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("starts", nargs="?", type=int, default=60, help="Of each command.")
    parser.add_argument("railweave", nargs="?", default=str(Path(sys.executable).parent / "railweave"), help="The command line to start.")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled
    starts, railweave = options.starts, options.railweave
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        if os.geteuid() == 0:
            keep_apart(folder)
        try:
            cache.placements("bandwidth", placement)
        except NoAdviceError as error:  # root has looked here before, and what is kept for all users comes first
            sys.exit(f"start_time: {cache.FOR_ALL} says of this machine: {error}; remove it to measure here")
        environment = {**os.environ, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": str(GPUS)}
        commands = {
            "true": ["true"],
            "python -c exec": [sys.executable, "-c", "import os; os.execvp('true', ['true'])"],
            "railweave run -- true": [railweave, "run", "--", "true"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(starts):
            for name, command in commands.items():
                begin = time.perf_counter()
                subprocess.run(command, env=environment, check=True)
                times[name].append(1e3 * (time.perf_counter() - begin))
    for name, values in times.items():
        ordered = sorted(values)
        print(f"{name:<24} {statistics.median(ordered):6.1f} {ordered[int(0.9 * len(ordered))]:6.1f} {ordered[0]:6.1f} ms")
    print(f"load {os.getloadavg()[0]:.1f}, {starts} starts each")


if __name__ == "__main__":
    main()
