#!/usr/bin/env python3
"""Holds the shim against released NCCLs: headers, exported functions, and the libraries themselves (which need no GPU for that).

    tests/cpp/nccl/check_releases.py SHIM [--update] [--wheels DIRECTORY] [RELEASE ...]

Downloads the nvidia-nccl-cu12 wheels of the releases (0.2-0.4 GB each) into DIRECTORY. --update writes src/nccl/forwarding.cpp and
tests/cpp/nccl/exports/ from them instead of comparing.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FORWARDING = ROOT / "src/nccl/forwarding.cpp"
EXPORTS = ROOT / "tests/cpp/nccl/exports"
# The last of each minor release, from the oldest that the shim supports on.
RELEASES = [
    "2.20.5",
    "2.21.5",
    "2.22.3",
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.5",
    "2.27.7",
    "2.28.9",
    "2.29.7",
    "2.30.7",
    "2.31.2",
    "2.32.3",
]
# Where the hub's address lies in a unique id: src/nccl/unique_id.cpp.
TRAILER = 128 - 56


def overlooked() -> list[str]:
    """What RELEASES lacks of what PyPI has, for either CUDA."""
    last: dict[str, int] = {}
    for package in ("nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", package], check=True, capture_output=True, text=True
        ).stdout
        for minor, patch in re.findall(r"(?<![\d.])(\d+\.\d+)\.(\d+)(?![\d.])", listed):
            last[minor] = max(last.get(minor, 0), int(patch))
    oldest = _number(RELEASES[0])
    found = {f"{minor}.{patch}" for minor, patch in last.items()} - set(RELEASES)
    return [f"NCCL {release} is on PyPI, and not among RELEASES" for release in sorted(found, key=_number) if _number(release) > oldest]


def _number(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def fetch(release: str, wheels: Path) -> Path:
    """The directory nvidia/nccl of a release."""
    directory = wheels / release
    if not (directory / "nvidia/nccl/lib/libnccl.so.2").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(directory), f"nvidia-nccl-cu12=={release}"], check=True
        )
        for wheel in directory.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.startswith("nvidia/nccl/include/") or name == "nvidia/nccl/lib/libnccl.so.2":
                        archive.extract(name, directory)
            wheel.unlink()
    return directory / "nvidia/nccl"


def exported(library: Path) -> str:
    """Public functions of a library, a line each; those named Internal are NCCL's own."""
    lines = subprocess.run(["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True).stdout.splitlines()
    names = {line.split()[2] for line in lines if line.split()[1] in ("T", "W")}
    return "".join(f"{name}\n" for name in sorted(names) if re.match(r"p?nccl[A-Z]", name) and not name.endswith("Internal"))


def generated(releases: list[Path]) -> str:
    """What forwarding.cpp should be."""
    newest_first = [str(release / "include") for release in reversed(releases)]
    text = subprocess.run(
        [sys.executable, str(ROOT / "src/nccl/generate_forwarding.py"), *newest_first], check=True, capture_output=True, text=True
    ).stdout
    return subprocess.run(
        ["clang-format", f"--assume-filename={FORWARDING}"], input=text, check=True, capture_output=True, text=True
    ).stdout


def compare(path: Path, text: str, update: bool) -> list[str]:
    """What differs; with `update` the file is written."""
    if update:
        path.write_text(text)
    return (
        []
        if path.is_file() and path.read_text() == text
        else [f"{path.relative_to(ROOT)} differs: run with --update and look at the difference"]
    )


def ask_library(shim: Path) -> str:
    """In a process of its own, whose real NCCL is RAILWEAVE_NCCL_LIBRARY: version, unique id, functions that are not there."""
    library = ctypes.CDLL(str(shim))
    library.ncclGetLastError.restype = ctypes.c_char_p
    version = ctypes.c_int()
    identity = (ctypes.c_char * 128)()
    if library.ncclGetVersion(ctypes.byref(version)) != 0 or library.ncclGetUniqueId(identity) != 0:
        return "version or unique id: " + library.ncclGetLastError(None).decode()
    raw = bytes(identity)
    if raw[TRAILER : TRAILER + 4] != b"DRW2" or any(raw[48:TRAILER]):
        return f"no room for the hub in the unique id {raw.hex()}"
    if version.value < 22900:
        result = library.ncclCommSuspend(None, 0)
        text = library.ncclGetLastError(None).decode()
        if result != 5 or "ncclCommSuspend is not in this NCCL" not in text:
            return f"a function that is missing gave {result}, {text!r}; expected 5 (ncclInvalidUsage) and a text"
    return ""


def main() -> int:
    """Checks all releases; says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shim", type=Path)
    parser.add_argument("releases", nargs="*", default=RELEASES)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build/nccl-wheels")
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        print(ask_library(arguments.shim), end="")
        return 0
    releases = [fetch(release, arguments.wheels) for release in arguments.releases]
    wrong = overlooked() if arguments.releases is RELEASES else []
    wrong += compare(FORWARDING, generated(releases), arguments.update)
    for name, release in zip(arguments.releases, releases, strict=True):
        library = release / "lib/libnccl.so.2"
        wrong += compare(EXPORTS / f"{name}.txt", exported(library), arguments.update)
        environment = {**os.environ, "RAILWEAVE_NCCL_LIBRARY": str(library), "RAILWEAVE_LOG": "off"}
        answer = subprocess.run(
            [sys.executable, __file__, str(arguments.shim), "--ask"], env=environment, capture_output=True, text=True, timeout=120
        )
        if answer.returncode != 0 or answer.stdout:
            wrong.append(f"NCCL {name}: {answer.stdout or answer.stderr}")
    print("\n".join(wrong) if wrong else f"NCCL {', '.join(arguments.releases)}: headers, functions and libraries as the shim has them")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
