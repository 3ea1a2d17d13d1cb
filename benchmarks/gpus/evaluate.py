"""The evaluation on GPUs: correctness, exchanges and layers, in sections of at most 8 minutes that need not run at one time.

    python benchmarks/gpus/evaluate.py OUT [--gpus N] [--nccl FILE] [--limit SECONDS] [SECTION ...]
    python benchmarks/gpus/evaluate.py OUT --tables        # OUT/results.md from what is there

What OUT has already is not run again.

Run by the Python that has PyTorch and Railweave. Each section leaves OUT/SECTION.json, and OUT/SECTION.html where there is something to
see. With --limit no section begins that is not expected to end in time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import subprocess
import sys
import time
from pathlib import Path

from railweave.bench.gpus.compare import rows_of
from railweave.bench.gpus.result import Run, ratio
from railweave.bench.gpus.table import markdown, tables
from railweave.matrix import load
from railweave.nccl import library

_ROOT = Path(__file__).parents[2]
_SECTION_LIMIT_S = 480

_SIZES = (("4MiB", "256KiB"), ("16MiB", "1MiB"), ("64MiB", "4MiB"), ("256MiB", "16MiB"))
_SMALL_HOT = (("1KiB", "64"), ("16KiB", "1KiB"), ("64KiB", "4KiB"), ("256KiB", "16KiB"), ("1MiB", "64KiB"), ("2MiB", "128KiB"))
_SMALL = ("16", "1KiB", "4KiB", "16KiB", "64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the evaluation; seconds as it took 2 GPUs."""

    name: str
    title: str
    seconds: int
    matrices: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


_LARGE = ("16MiB", "64MiB", "256MiB")

SECTIONS = (
    Section("check", "Correctness", 150),
    Section("hot", "A hot pair with 1/16 of it between all others", 40, tuple(f"hot-pair:{size}:{rest}" for size, rest in _SIZES)),
    Section("pair", "One pair alone", 45, tuple(f"hot-pair:{size}" for size in ("4MiB", *_LARGE, "1GiB"))),
    Section("balanced", "Balanced", 40, tuple(f"balanced:{size}" for size, _ in _SIZES)),
    Section("both-ways", "A pair both ways", 40, tuple(f"bidir-pair:{size}" for size in _LARGE)),
    Section("fans", "Incast, outcast", 60, tuple(f"{name}:{size}" for name in ("incast", "outcast") for size in _LARGE)),
    Section(
        "skewed", "Zipf, rotating hotspot", 60, (*(f"zipf:{size}:1.0" for size in _LARGE), *(f"rotating-hotspot:{size}" for size in _LARGE))
    ),
    Section("gates", "What gates send", 50, (*(f"moe:8192:4096:64:8:{s}" for s in ("0.6", "1.0", "1.2")), "trace:noaux:5:5:8192")),
    Section("small-pair", "Small messages, one pair", 60, tuple(f"hot-pair:{size}" for size in _SMALL)),
    Section("small-hot", "Small messages, a hot pair with 1/16 back", 60, tuple(f"hot-pair:{size}:{rest}" for size, rest in _SMALL_HOT)),
    Section("small-balanced", "Small messages, balanced", 60, tuple(f"balanced:{size}" for size in _SMALL)),
    Section(
        "tuned",
        "NCCL with more channels for messages",
        45,
        ("hot-pair:64MiB:4MiB", "balanced:64MiB", "balanced:1MiB"),
        ("--systems", "nccl,nccl-tuned,railweave"),
    ),
    Section("moe", "A mixture-of-experts layer", 150),
    Section("beside", "Other work beside exchanges", 60),
    # Needs root; ranks of two nodes, which share no GPU.
    Section(
        "rails",
        "Two nodes on four rails of 8 Gbit/s",
        240,
        arguments=("--rails", "4", "--rate", "8gbit", "--systems", "nccl,nccl-tuned,railweave"),
    ),
)


@functools.cache
def _owners(gpus: int) -> dict[str, str]:
    """The section that measures each matrix: on few GPUs many patterns are the same, and the first one has them."""
    found: dict[bytes, tuple[str, str]] = {}
    for each in SECTIONS:
        for name in () if each.name == "tuned" else each.matrices:
            found.setdefault(rows_of(load(name, gpus)).tobytes(), (name, each.name))
    return dict(found.values())


def _matrices(section: Section, gpus: int) -> list[str]:
    """Those of a section that no section before has."""
    if section.name == "tuned":
        return list(section.matrices)
    return [name for name in section.matrices if _owners(gpus).get(name) == section.name]


def _command(section: Section, gpus: int, out: Path, other_nccl: Path | None) -> list[str]:
    if section.name == "check":
        script = str(_ROOT / "benchmarks/nccl/check_on_gpus.py")
        return [
            sys.executable,
            script,
            "--shim",
            str(library()),
            "--gpus",
            str(gpus),
            "--groups",
            "3000",
            "--json",
            str(out / "check.json"),
        ]
    command = section.name if section.name in ("moe", "beside") else "alltoallv"
    files = ["--json", str(out / f"{section.name}.json")]
    if command != "beside":
        files += ["--report", str(out / f"{section.name}.html")]
    place = ["--lab", f"2x{gpus // 2}", "--gpus"] if section.name == "rails" else ["--gpus", str(gpus)]
    rival = ["--nccl", str(other_nccl)] if other_nccl and command != "moe" else []
    matrices = [word for name in _matrices(section, gpus) for word in ("--matrix", name)]
    return [sys.executable, "-m", "railweave", "bench", command, *place, *section.arguments, *rival, *matrices, *files]


def _run(section: Section, gpus: int, out: Path, other_nccl: Path | None) -> bool:
    print(f"== {section.name}: {section.title}", flush=True)
    begin = time.monotonic()
    try:
        status = subprocess.run(_command(section, gpus, out, other_nccl), timeout=_SECTION_LIMIT_S).returncode
    except subprocess.TimeoutExpired:
        status = -1
    print(f"== {section.name}: {'done' if status == 0 else f'STATUS {status}'} after {time.monotonic() - begin:.0f} s", flush=True)
    return status == 0


def _text(section: Section, gpus: int, out: Path) -> str:
    path = out / f"{section.name}.json"
    if not path.exists():
        doubles = section.matrices and not _matrices(section, gpus)
        return f"### {section.title}\n\nNot run{f': {gpus} GPUs make them the same as those above' if doubles else ''}.\n\n"
    if section.name == "check":
        rows = [
            [str(each["way"]), str(each["section"]), "right" if each["right"] else "WRONG", _facts(each)]
            for each in json.loads(path.read_text())
        ]
        return f"### {section.title}\n\n" + markdown(["how", "what", "bytes", "seen"], rows) + "\n"
    run = Run.load(path)
    text = f"### {section.title}\n\n{run.date}, `{run.command}`, {run.gpus} × {run.machine['gpu']}, driver {run.versions['driver']}, "
    text += f"PyTorch {run.versions['torch']}, NCCL {run.versions['nccl (nccl)']}; " + ", ".join(
        f"{k} {v}" for k, v in run.settings.items()
    )
    text += ".\n\n" + "".join(markdown(head, rows) + "\n" for _, head, rows in tables(run))
    return text + "".join(f"- wrong: {problem}\n" for problem in run.problems())


def _facts(result: dict[str, object]) -> str:
    hidden = {"way", "section", "right", "section_seconds"}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result.items() if name not in hidden)


def _summary(out: Path) -> str:
    """Gains of all exchanges from 4 MiB on: their geometric mean, and the lowest end of an interval."""
    gains = []
    for section in SECTIONS:
        path = out / f"{section.name}.json"
        if section.name in ("check", "moe", "tuned", "beside", "rails") or section.name.startswith("small") or not path.exists():
            continue
        run = Run.load(path)
        gains += [ratio(run.find(m, "nccl").seconds, run.find(m, "railweave").seconds) for m in run.matrices()]
    if not gains:
        return ""
    mean = 1.0
    for gain in gains:
        mean *= gain.value ** (1.0 / len(gains))
    least = min(gain.low for gain in gains)
    return f"{len(gains)} exchanges of 4 MiB and more: geometric mean {mean:.2f}× NCCL, lowest interval from {least:.2f}×.\n\n"


def main() -> int:
    """Runs what is missing, then writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all sections together")
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2 of a newer release: one more rival in every exchange")
    parser.add_argument("--tables", action="store_true", help="only write OUT/results.md")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(section.name for section in SECTIONS))
    options = parser.parse_intermixed_args()
    if unknown := set(options.sections) - {section.name for section in SECTIONS}:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    end, good = time.monotonic() + options.limit, True
    for section in SECTIONS:
        wanted = not options.tables and (not options.sections or section.name in options.sections)
        empty = section.matrices and not _matrices(section, options.gpus)
        if wanted and not empty and not (options.out / f"{section.name}.json").exists():
            if time.monotonic() + section.seconds > end:
                print(f"== {section.name}: left for later", flush=True)
                continue
            good = _run(section, options.gpus, options.out, options.nccl) and good
    text = _summary(options.out) + "".join(_text(section, options.gpus, options.out) for section in SECTIONS)
    (options.out / "results.md").write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
