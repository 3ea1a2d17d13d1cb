"""docs/settings.md has every variable that Railweave reads."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A name as a string of its own, as code that reads or sets a variable has it.
LITERAL = re.compile(r"""["'](RAILWEAVE_[A-Z0-9_]+)["']""")
SUFFIXES = {".py", ".cpp", ".hpp", ".h", ".cu", ".cuh", ".c", ".go"}
# What tests set for themselves, and what only looks like a variable.
OWN = re.compile(r"RAILWEAVE_(TESTNET_\w+|[A-Z0-9]+_H)")


def test_every_variable_that_code_names_is_on_the_page() -> None:
    folders = ("src", "python", "cni", "benchmarks", "examples")
    listing = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, check=True)
    files = [Path(name) for name in listing.stdout.decode().split("\0") if Path(name).suffix in SUFFIXES]
    found = {(name, str(file)) for file in files for name in LITERAL.findall((ROOT / file).read_text(encoding="utf-8"))}
    named = {each for each in found if not OWN.fullmatch(each[0])}
    assert {name for name, _ in named} >= {"RAILWEAVE_CUDA_LIBRARY", "RAILWEAVE_LAB_PYTHON", "RAILWEAVE_E2E_FULL"}
    page = (ROOT / "docs/settings.md").read_text()
    settings = {f"RAILWEAVE_{name.upper()}" for name in re.findall(r"^\| `([a-z_]+)`", page, re.M)}
    on_page = settings | set(re.findall(r"RAILWEAVE_[A-Z0-9_]+", page))
    assert sorted(each for each in named if each[0] not in on_page) == []
