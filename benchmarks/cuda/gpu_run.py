"""Everything that a machine with GPUs is needed for, in one call that builds nothing: bytes, then the tables of docs/cuda-measured.md.

    python3 benchmarks/cuda/gpu_run.py --exchange build/cuda/benchmarks/cuda/gpu_exchange --nccl .../libnccl.so.2 \\
        --railweave build/cuda/src/cuda/librailweave_cuda.so [--railweave other/librailweave_cuda.so ...] \\
        [--shim .../librailweave_nccl.so] [--calibrate FILE] [--sanitizer compute-sanitizer] [--seconds 400] [--keep FOLDER]

Needs Python and the built files; --shim needs PyTorch too. Each step has a time limit of its own and none begins that would not end in
time, the most telling ones first. Of several builds the first gets every step, the others what they are compared by: their tables
stand below each other, each against NCCL in its own run. With --mps ranks share GPUs: nothing is compared, as NCCL takes each for a host
of its own then, and steps in which a rank dies run without, as MPS would end the others, and so does memcheck. Status 1 when bytes were
wrong or a step failed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_CHECK_ON_GPUS = Path(__file__).parents[1] / "nccl" / "check_on_gpus.py"
_UNDER_MPS = Path(__file__).parents[1] / "gpus" / "under_mps.py"
_ROW = re.compile(
    r"^(?P<pattern>\S.*?) +(?P<bytes>\d+)  nccl +(?P<nccl_us>[\d.]+) us \[.*?\] +(?P<nccl_rate>[\d.]+) GB/s"
    r"  railweave +(?P<us>[\d.]+) us \[ *(?P<least>[\d.]+) +(?P<most>[\d.]+)\] +(?P<rate>[\d.]+) GB/s  ratio (?P<ratio>[\d.]+)"
)
_SMALL = "16,1024,8192,65536,131072,262144,524288"
_MIDDLE = "1048576,2097152,4194304,16777216"
_SOME = "1024,65536,262144,1048576,2097152,16777216,67108864"
_DIRECT = "lie in the GPU's memory (GPUDirect)"
_NO_ERRORS = "ERROR SUMMARY: 0 errors"
_LARGE = "4194304,16777216,67108864,268435456"


@dataclasses.dataclass(frozen=True)
class Step:
    """A program to run, with the seconds that four H200 are expected to take and may take."""

    name: str
    command: tuple[str, ...]
    expected_s: float
    limit_s: float
    rates: bool = False  # rows in GB/s of the busiest rank instead of microseconds
    says: str = ""  # or the step has failed

    def under_mps(self) -> tuple[str, ...]:
        """The command there."""
        alone = {"--death", "death", "memcheck"} & set(self.command)
        return self.command if alone else (sys.executable, str(_UNDER_MPS), *self.command)


def _steps(options: argparse.Namespace) -> list[Step]:
    first, *others = (str(path.resolve()) for path in options.railweave)
    exchange = (str(options.exchange.resolve()), "--ranks", str(options.ranks))
    measure = (*exchange, "--nccl", str(options.nccl.resolve()), "--rounds", "3", "--railweave")
    key = ("--patterns", "hot,balanced", "--sizes")
    steps = [Step("bytes of 300 random operations, 6 of 5,000 messages", (*exchange, "--railweave", first, "--check", "300"), 20, 60)]
    for path in others:
        steps.append(Step(f"bytes of 100 random operations, {path}", (*exchange, "--railweave", path, "--check", "100"), 10, 40))
    for path in (first, *others):
        steps.append(Step(f"graph replays, {path}", (*measure, path, "--graph", *key, _MIDDLE), 25, 60))
        steps.append(Step(f"queued calls, {path}", (*measure, path, *key, _LARGE), 40, 90, rates=True))
    nodes = ("--nodes", "2", "--check", "100")
    steps.append(Step("bytes of 100 random operations over two nodes", (*exchange, "--railweave", first, *nodes), 20, 60))
    direct = ("env", "RAILWEAVE_GPU_DIRECT=3", *exchange, "--railweave", first, *nodes)
    steps.append(Step("the same with the NICs' slots on the GPUs (UCX with CUDA)", direct, 20, 60, says=_DIRECT))
    steps.append(Step("a rank dies, two nodes", (*exchange, "--railweave", first, "--nodes", "2", "--death"), 20, 60))
    virtual = (*exchange, "--virtual", "--railweave", first)
    steps.append(Step("bytes of 300 random operations in virtual memory", (*virtual, "--check", "300"), 20, 60))
    steps.append(Step("a rank dies", (*exchange, "--railweave", first, "--death"), 6, 30))
    # With few blocks destinations read the ends of large messages.
    few = ("env", "RAILWEAVE_GPU_BLOCKS=4", "RAILWEAVE_GPU_LOW_LATENCY_BYTES=1MiB")
    large = ("--railweave", first, "--check", "60", "--large")
    steps.append(Step("bytes of 60 large operations, four blocks", (*few, *exchange, *large), 15, 60))
    steps.append(Step("a rank dies, four blocks", (*few, *exchange, "--railweave", first, "--death"), 6, 30))
    steps.append(Step("100 lives", (*exchange, "--railweave", first, "--lives", "100"), 25, 120))
    steps.append(Step("100 lives with virtual memory", (*virtual, "--lives", "100"), 25, 120))
    if options.sanitizer:
        # By itself it ends as the program does, whatever it found. Not in virtual memory: what a rank has mapped of another's it takes for
        # out of bounds, though it says itself that it lies inside that allocation.
        memcheck = (options.sanitizer, "--tool", "memcheck", "--print-limit", "20", "--error-exitcode", "9", *exchange, "--threads")
        random = ("--check", "20")
        for what, before, more, expected_s in (
            ("20 random operations", (), random, 60),
            ("6 large operations, four blocks", few, ("--check", "6", "--large"), 40),
            ("20 random operations over two nodes", (), (*random, "--nodes", "2"), 60),
            ("20 random operations with checksums", ("env", "RAILWEAVE_CHECKSUM=1"), random, 60),
        ):
            command = (*before, *memcheck, *more, "--railweave", first)
            steps.append(Step(f"memcheck of {what}", command, expected_s, 150, says=_NO_ERRORS))
    steps.append(Step("queued calls, virtual memory", (*virtual, *measure[len(exchange) : -1], *key, _LARGE), 40, 90, rates=True))
    if options.shim:
        shim = (sys.executable, str(_CHECK_ON_GPUS), "--shim", str(options.shim.resolve()), "--ranks", str(options.ranks))
        steps.append(Step("a rank dies under the shim", (*shim, "death"), 25, 110))
        steps.append(Step("PyTorch's collectives and random groups", (*shim, "--groups", "500", "collectives", "random_groups"), 90, 300))
    rest = ("--patterns", "pair,both,incast,outcast", "--sizes")
    steps += [
        Step("graph replays, small", (*measure, first, "--graph", "--sizes", _SMALL), 30, 70),
        Step(
            "graph replays, odd places",
            (*measure, first, "--graph", "--offset", "4", "--patterns", "pair,balanced", "--sizes", _SOME),
            15,
            60,
        ),
        Step("graph replays, other patterns", (*measure, first, "--graph", *rest, _MIDDLE), 30, 70),
        Step("queued calls, other patterns", (*measure, first, *rest, _LARGE), 50, 120, rates=True),
    ]
    if options.calibrate:
        library = f"RAILWEAVE_CUDA_LIBRARY={first}"
        calibrate = ("env", library, sys.executable, "-m", "railweave", "calibrate", "--output", str(options.calibrate.resolve()))
        steps.append(Step("calibration", calibrate, 30, 90))
    return steps


def _run(command: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    """Status, None where the limit ended it, and what it said. Nothing that it started is left running."""
    # Ctrl-C between the fork and the `try` below would leave a process that nobody knows: it is heard once there is one to end.
    early: list[int] = []
    heard = signal.signal(signal.SIGINT, lambda number, _: early.append(number))
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    except OSError as error:
        signal.signal(signal.SIGINT, heard)
        return 127, str(error)
    try:
        signal.signal(signal.SIGINT, heard)
        for number in early:
            signal.raise_signal(number)
        text, _ = process.communicate(timeout=limit_s)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return None, text
    finally:  # also where somebody ends this program
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _size(count: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def markdown(text: str, rates: bool) -> str:
    """A table with a row for each size and a column for each pattern, of what gpu_exchange printed."""
    rows: dict[int, dict[str, str]] = {}
    for found in filter(None, map(_ROW.match, text.splitlines())):
        pair = (found["nccl_rate"], found["rate"], "GB/s") if rates else (found["nccl_us"], found["us"], "us")
        ratio = float(found["ratio"])
        shown = f"{ratio:.2f}×" if ratio >= 0.98 else f"**{ratio:.2f}×**"
        rows.setdefault(int(found["bytes"]), {})[found["pattern"]] = f"{float(pair[0]):.1f} / {float(pair[1]):.1f} {pair[2]}, {shown}"
    patterns = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not patterns:
        return ""
    lines = [f"| bytes | {' | '.join(patterns)} |", "|" + "---|" * (len(patterns) + 1)]
    lines += [f"| {_size(count)} | {' | '.join(row.get(name, '') for name in patterns)} |" for count, row in rows.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the steps that fit into the time and prints what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchange", type=Path, required=True, help="the program gpu_exchange")
    parser.add_argument("--railweave", type=Path, action="append", required=True, help="librailweave_cuda.so; again for a build to compare")
    parser.add_argument("--nccl", type=Path, required=True)
    parser.add_argument("--shim", type=Path)
    parser.add_argument("--ranks", type=int, default=4, help="up to 8; more than the GPUs share them, by time slices without --mps")
    parser.add_argument("--mps", action="store_true", help="ranks share GPUs under a service of their own")
    parser.add_argument("--calibrate", type=Path, metavar="FILE", help="where `railweave calibrate` writes; needs the Python package")
    parser.add_argument("--sanitizer", help="compute-sanitizer")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--keep", type=Path, help="a folder for what each step printed")
    options = parser.parse_args()
    end, status = time.monotonic() + options.seconds, 0
    for number, step in enumerate(step for step in _steps(options) if not (options.mps and "--nccl" in step.command)):
        command = step.under_mps() if options.mps else step.command
        left = end - time.monotonic()
        if left < step.expected_s:
            print(f"## {step.name}: not begun, {left:.0f} s left and {step.expected_s:.0f} s expected\n", flush=True)
            continue
        begin = time.monotonic()
        ended, text = _run(command, min(step.limit_s, left))
        if ended == 0 and step.says not in text:
            ended, text = 1, f"{text}\nnothing said: {step.says}"
        print(f"## {step.name}: {'ended by its limit' if ended is None else f'status {ended}'}, {time.monotonic() - begin:.0f} s\n")
        print(markdown(text, step.rates) or text[-3000:], flush=True)
        if ended != 0:
            status = 1
            print(text[-3000:], flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{number:02}.txt").write_text(f"{' '.join(command)}\n{text}")
    return status


if __name__ == "__main__":
    sys.exit(main())
