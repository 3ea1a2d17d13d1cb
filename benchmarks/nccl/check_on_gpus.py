"""The NCCL shim on real GPUs: PyTorch programs and random groups with it, every byte checked, and the same under NCCL alone.

    python benchmarks/nccl/check_on_gpus.py --shim .../librailweave_nccl.so [--ranks 2] [--groups 2000] [--json out.json] [SECTION ...]

Needs PyTorch with CUDA. Ranks that are more than the GPUs share them, each a host of its own to NCCL (under_mps.py, or by time slices).
Each section runs in processes of its own, once for each way of running PyTorch that changes
how communicators are made or memory is allocated. Status 1 when anything was wrong, or the shim left a communicator to NCCL.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).parent
_LIMIT_S = 100.0
_KILLS_ITS_LAST_RANK = ("death", "elastic")
_GROUP_S = 0.02  # a random group of eight ranks, several times as long as it takes


@dataclasses.dataclass(frozen=True)
class Way:
    """How ranks are started."""

    name: str
    sections: tuple[str, ...]
    shim: bool
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    log_has: tuple[str, ...] = ()  # what the shim has to say
    ranks: int = 2  # at least
    hidden: bool = False  # a rank sees its own GPU alone, as container runtimes and batch systems have it


_NOT_MAPPED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "RAILWEAVE_GPU_VIRTUAL_MEMORY": "0"}
_COUNTED = {"RAILWEAVE_METRICS": "counters"}  # in a run's own folder
_FOUR_BLOCKS = {"RAILWEAVE_GPU_BLOCKS": "4", "RAILWEAVE_GPU_LOW_LATENCY_BYTES": "64KiB"}
WAYS = (
    Way(
        "shim",
        ("collectives", "graphs", "ordering", "freed", "buffers", "lives", "random_groups", "host_cost", "memory", "contexts", "parts"),
        True,
    ),
    Way(
        "shim, expandable segments",
        ("collectives", "graphs", "freed", "buffers", "random_groups"),
        True,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Way(
        "shim, expandable segments, over slots",
        ("collectives",),
        True,
        {**_NOT_MAPPED, "RAILWEAVE_GPU_STAGING_BYTES": "0"},
    ),
    Way("shim, memory that cannot be mapped", ("collectives", "graphs", "random_groups"), True, _NOT_MAPPED, ("copied from there",)),
    Way("shim, non-blocking communicators", ("collectives",), True, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}),
    Way("shim, GPUs hidden from each other", ("collectives", "random_groups"), True, hidden=True),
    Way(
        "shim, expandable segments, GPUs hidden from each other",
        ("collectives", "freed"),
        True,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        hidden=True,
    ),
    Way(
        "shim, four blocks",
        ("random_groups",),
        True,
        {**_FOUR_BLOCKS, **_COUNTED, "RAILWEAVE_LOG": "debug"},
        ("its second half read by this rank",),
    ),
    Way("shim, four blocks, a rank dies", ("death",), True, _FOUR_BLOCKS, ("has died",)),
    Way("shim, checksums", ("collectives", "graphs", "random_groups"), True, {"RAILWEAVE_CHECKSUM": "1"}),
    Way(
        "shim that tells of stalls",
        ("stall",),
        True,
        {"RAILWEAVE_STALL_MS": "400"},
        (
            "stalled for 400 ms",
            "send of 8388608 bytes to rank",
            "grant: its receive has not begun",
            "an operation of a graph is under way, and it is not known which. What it waits for is among what was captured:",
        ),
    ),
    Way("shim, a rank dies", ("death",), True, {}, ("has died",)),
    Way("shim, ranks that come and die", ("elastic",), True, {}, ("has died",), ranks=4),
    Way("shim, a rank ends without destroying", ("goodbye",), True, {}, ("and that rank has left",)),
    Way("shim, an abort", ("aborted_receive",), True),
    Way("shim, wrong groups", ("wrong_groups",), True),
    Way("shim switched off", ("host_cost",), True, {"RAILWEAVE_SHIM": "off"}),
    Way("railweave.torch", ("torch_interface",), False),
    Way(
        "NCCL alone",
        ("collectives", "graphs", "ordering", "random_groups", "host_cost", "memory", "contexts", "parts", "wrong_groups"),
        False,
    ),
)


def _visible() -> list[str]:
    """The GPUs that this program may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [each for each in chosen.split(",") if each]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def _run(way: Way, section: str, options: argparse.Namespace, folder: Path) -> tuple[dict[str, object], str]:
    """What rank 0 printed, and what is wrong."""
    environment = {
        **os.environ,
        **way.environment,
        "OMP_NUM_THREADS": "4",
        "CHECK_GROUPS": str(options.groups),
        "CHECK_SEED": str(options.seed),
    }
    environment.setdefault("NCCL_DEBUG", "WARN")
    log = folder / f"{way.name}-{section}.log".replace(" ", "-").replace(",", "")
    if way.shim:
        level = way.environment.get("RAILWEAVE_LOG", "info")
        environment |= {"LD_PRELOAD": str(options.shim), "RAILWEAVE_LOG": level, "RAILWEAVE_LOG_FILE": str(log)}
        environment |= {"RAILWEAVE_NCCL_LIBRARY": str(options.nccl)} if options.nccl else {}
    with tempfile.TemporaryDirectory() as scratch:
        environment |= {name: str(Path(scratch) / value) for name, value in _COUNTED.items() if name in way.environment}
        command = [sys.executable, str(_HERE / "gpu_ranks.py"), section, str(Path(scratch) / "store")]
        outputs = [(Path(scratch) / f"rank{rank}").open("w+") for rank in range(options.ranks)]
        ranks = [
            subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **environment,
                    **({"CUDA_VISIBLE_DEVICES": _visible()[rank], "CHECK_HIDDEN": "1"} if way.hidden else {}),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(options.ranks),
                },
            )
            for rank, output in enumerate(outputs)
        ]
        limit = max(_LIMIT_S, options.groups * _GROUP_S) if section == "random_groups" else _LIMIT_S
        end = time.monotonic() + limit
        while time.monotonic() < end and any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in (ranks[:-1] if section in _KILLS_ITS_LAST_RANK else ranks)):
                time.sleep(2.0)  # the others say what they saw
                break
            time.sleep(0.05)
        statuses = [rank.poll() for rank in ranks]
        for rank in ranks:
            rank.kill()
            rank.wait()
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
            output.close()
    found = [json.loads(line) for line in texts[0].splitlines() if line.startswith('{"section"')]
    served, problem = _served(way, log)
    wanted = [0] * (options.ranks - 1) + [-signal.SIGKILL if section in _KILLS_ITS_LAST_RANK else 0]
    if statuses != wanted or not found:
        ends = "".join(f"\n  rank {rank}:\n    " + "\n    ".join(text.splitlines()[-25:]) for rank, text in enumerate(texts))
        problem = f"statuses {statuses} ({limit:.0f} s at most; None: still running){ends}"
    return {**(found[0] if found else {"section": section}), "way": way.name, "communicators_served": served, "right": not problem}, problem


def _served(way: Way, log: Path) -> tuple[int, str]:
    """How many communicators' ranks were served; and what is wrong: one that was not though it could be, or a text that is missing."""
    if not way.shim or way.environment.get("RAILWEAVE_SHIM") == "off":
        return 0, ""
    lines = log.read_text().splitlines() if log.exists() else []
    refused = [line for line in lines if "left to NCCL" in line and "it has one rank" not in line]
    served = sum(": served:" in line for line in lines)
    if refused:
        return served, "left to NCCL:\n  " + "\n  ".join(refused)
    if missing := [text for text in way.log_has if not any(text in line for line in lines)]:
        return served, f"the log does not say '{missing[0]}':\n  " + "\n  ".join(lines)
    return served, "" if served else "the shim served no communicator"


def main() -> int:
    """Runs the sections and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shim", type=Path, required=True)
    parser.add_argument("--nccl", type=Path, help="the NCCL behind the shim, where it is not PyTorch's")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--groups", type=int, default=2000, help="of random_groups")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="a folder for what the shim says")
    parser.add_argument(
        "--ways", action="append", choices=[way.name for way in WAYS], help="of running PyTorch; repeatable, by default all"
    )
    parser.add_argument("--without", action="append", choices=[way.name for way in WAYS], default=[], help="a way to leave out; repeatable")
    parser.add_argument("sections", nargs="*", help="by default all")
    options = parser.parse_intermixed_args()
    results, status = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for way in WAYS:
            for section in way.sections:
                if (options.sections and section not in options.sections) or (options.ways and way.name not in options.ways):
                    continue
                if way.name in options.without:
                    continue
                if way.hidden and options.ranks > len(_visible()):
                    print(f"not run: {way.name}, {section}: needs a GPU for each rank", flush=True)
                    continue
                if options.ranks < way.ranks:
                    print(f"not run: {way.name}, {section}: needs {way.ranks} ranks", flush=True)
                    continue
                result, problem = _run(way, section, options, folder)
                results.append(result)
                print(json.dumps(result), flush=True)
                if problem:
                    status = 1
                    print(f"WRONG: {way.name}, {section}: {problem}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
