#!/usr/bin/env python3
"""Do the tests of the kernels' roles see what they are there for? Each mutant is the roles with one mistake, which tests have to catch.

    mutants.py BUILD [NAME ...]    BUILD: with gpu_protocol_test and gpu_rails_test, whose commands compile and link the mutants

Prints what caught each: a test that failed, or that a run hung or crashed. Exits with 1 where one survives, has no place in the sources
any more, or where tests fail without any. Not a part of `make test`: a mutant takes up to a minute.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ("src/cuda", "tests/cpp/cuda")
# Threads meet by chance: only a mutant that so many runs miss has survived.
RUNS = 3
# Of a run of a test's, which takes a quarter of that at most: what takes longer hangs.
LIMIT_S = 60


@dataclass(frozen=True)
class Mutant:
    """A mistake: texts of a file and what stands there instead, and the tests that are compiled with it."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    test: str


def roles(name: str, *edits: tuple[str, str], test: str = "roles_test") -> Mutant:
    return Mutant(name, "src/cuda/roles.hpp", edits, test)


COPY_TO_BUFFER = "block_.copy(work.base + offset, m.data + offset, bytes);"
ANNOUNCE_PUSHED = "block_.leader([&] { block_.announce(&m.remote->placed[share(work.message).number % kGrants], pushed); });"
COPY_TO_SLOT = "block_.copy(m.remote->slots[work.slot], m.data + work.offset, work.bytes);"
ANNOUNCE_SLOT = "block_.release(&m.remote->filled[work.slot], work.turn);\n    });"
COPY_FROM_SLOT = "block_.copy(m.data + work.offset, m.local->slots[work.slot], work.bytes);"
FREE_SLOT = "block_.vacate(&m.remote->freed[work.slot], work.turn);"
COPY_FROM_INDIRECT = "block_.copy(m.data + offset, slot_at(m, path, block_.relaxed(&m.local->indirect[path].from), piece), bytes);"
FREE_INDIRECT = "block_.leader([&] { block_.vacate(&m.remote->indirect[path].freed[slot_of(m, path, piece)], piece); });"
COPY_TO_INDIRECT = "block_.copy(slot_at(m, piece.path, slots, piece.number), m.data + piece.offset, piece.bytes);"
ANNOUNCE_INDIRECT = "block_.leader([&] { announce(m, own.number, piece); });"
FETCH = "block_.copy(m.data + offset, from + offset, bytes);"
COUNT_FETCHED = "block_.add_between(&m.remote->fetched, fetched);"
READ_PACKET = "moved = warp_.read(m.local->packets[slot], packet_flag(number), data, bytes, taken);"
STORE_CREDIT = "warp_.store(&m.remote->credits[slot], credit_of(number));"
COPY_FOR_RAIL = (
    "block_.copy(reinterpret_cast<std::byte*>(errand.copy.to), reinterpret_cast<const std::byte*>(errand.copy.from), errand.copy.bytes);"
)
SAY_MADE = "block_.leader([&] { block_.release(&messages_[errand.message].rail.port->made[errand.number % kRailCopies], errand.number); });"
STAGE = "if (m.ordinal != kNotStaged) block_.copy(port.sent + m.ordinal, m.data, static_cast<std::uint32_t>(m.bytes));"
WRITE_LINE = "for (std::uint32_t w = 0; w < Line::kWords; ++w) atomic(&to.lines[k].words[w]).store(words[w], std::memory_order_relaxed);"
FLAG_LINE = "release(&to.lines[k].flag, flag);"

MUTANTS = (
    roles(
        "push: bytes announced before they are copied",
        (COPY_TO_BUFFER, f"const std::uint64_t early = bytes;{ANNOUNCE_PUSHED.replace('pushed', 'early')}{COPY_TO_BUFFER}"),
        (f"{ANNOUNCE_PUSHED}\n  }}", "}"),
    ),
    roles("push: a slot announced before it is filled", (COPY_TO_SLOT, ""), (ANNOUNCE_SLOT, ANNOUNCE_SLOT + COPY_TO_SLOT)),
    roles("pull: a slot freed before it is read", (COPY_FROM_SLOT, FREE_SLOT + COPY_FROM_SLOT), (f"  {FREE_SLOT}\n", "\n")),
    roles(
        "pull: two blocks take the same slot",
        (
            "block_.swap_if(&m.local->pulled[work.slot], filled - 1, filled) && accept",
            "(block_.store(&m.local->pulled[work.slot], filled), true) && accept",
        ),
    ),
    roles(
        "grant: in the place of a message that is not over",
        ("return place_is_free(static_cast<std::uint32_t>(m.grant_after)) ?", "return true ?"),
    ),
    roles(
        "grant: before its place counts from zero again",
        ("    block_.store(&m.local->placed[share(i).number % kGrants], std::uint64_t{0});\n    block_.fence();\n", ""),
        (
            "post_grant(m, share(i).number);\n",
            "post_grant(m, share(i).number); block_.store(&m.local->placed[share(i).number % kGrants], std::uint64_t{0});\n",
        ),
    ),
    roles(
        "grant: what was placed stays for the next message there",
        ("if (!sends(m)) block_.store(&m.local->placed[own.number % kGrants], std::uint64_t{0});", ""),
    ),
    roles("grant: an operation that is given up leaves while mates may write", ("if (stopped) outlast_grants();", "")),
    roles(
        "in step: where a mate's operation was not balanced",
        ("all = all && (!sends(message(i)) || share(i).granted_bytes != 0);", ""),
        test="in_turn_test",
    ),
    roles(
        "ledger: an operation counts when it begins",
        (
            "if (m.begins && block_.index() == 0 && count.over == 0) report_begin(block_, m);",
            "if (m.begins && block_.index() == 0 && count.over == 0) report_begin(block_, m), report(block_, m);",
        ),
        ("if (m.reports) report(block_, m);\n    });", "});"),
    ),
    roles(
        "packets: a bundle is written without credits",
        ("ready = ready && (sends(m) ? is_credited(static_cast<Credit>(values[k]), number) :", "ready = ready && (sends(m) ? true :"),
        test="windows_test",
    ),
    Mutant(
        "packets: credit before the packet is read",
        "src/cuda/packet_roles.hpp",
        ((READ_PACKET, f"if (is_ready(i)) taken(); {READ_PACKET.replace('taken', '[] {}')}"),),
        "windows_test",
    ),
    Mutant(
        "packets: one credit in a hundred is lost",
        "src/cuda/packet_roles.hpp",
        ((STORE_CREDIT, f"if (number % 100 != 99) {STORE_CREDIT}"),),
        "windows_test",
    ),
    Mutant(
        "packets: a line's flag before its data",
        "tests/cpp/cuda/host_block.hpp",
        (
            (FLAG_LINE, ""),
            (
                "delay(Site::current());\n      std::uint64_t words[Line::kWords] = {};",
                f"{FLAG_LINE} delay(Site::current()); std::uint64_t words[Line::kWords] = {{}};",
            ),
        ),
        "roles_test",
    ),
    Mutant(
        "fetch: the source ends before its bytes are read",
        "src/cuda/fetch_roles.hpp",
        (("return fetched >= m.bytes - fetched_from(m.bytes) ?", "return fetched > 0 ?"),),
        "fetch_test",
    ),
    Mutant(
        "fetch: bytes counted before they are read",
        "src/cuda/fetch_roles.hpp",
        (
            (FETCH, f"block_.leader([&] {{ block_.add_between(&m.remote->fetched, std::uint64_t{{bytes}}); }}); {FETCH}"),
            (COUNT_FETCHED, ""),
        ),
        "fetch_test",
    ),
    Mutant(
        "indirect: a piece announced before it is copied",
        "src/cuda/indirect_roles.hpp",
        ((COPY_TO_INDIRECT, ANNOUNCE_INDIRECT + COPY_TO_INDIRECT), (f"{ANNOUNCE_INDIRECT}\n      if (next", "if (next")),
        "indirect_test",
    ),
    *(
        Mutant(
            f"indirect: a slot {where} freed before it is read",
            "src/cuda/indirect_roles.hpp",
            (
                (COPY_FROM_INDIRECT, f"if ({early}) {FREE_INDIRECT} {COPY_FROM_INDIRECT}"),
                (f"block_.sync();\n    {FREE_INDIRECT}", f"if (!({early})) {FREE_INDIRECT}"),
            ),
            "indirect_test",
        )
        for where, early in (("in host memory", "path == kHostPath"), ("of a relay", "path != kHostPath"))
    ),
    Mutant(
        "checksum: without the last word of each chunk",
        "src/cuda/checksum.hpp",
        (("? m.bytes : begin + size;", "? m.bytes : begin + size - 8;"),),
        "checksum_test",
    ),
    Mutant(
        "rails: a copy is said to be made before it is",
        "src/cuda/rail_roles.hpp",
        ((COPY_FOR_RAIL, ""), (SAY_MADE, SAY_MADE + COPY_FOR_RAIL)),
        "rails_test",
    ),
    Mutant(
        "rails: messages are listed before they are staged",
        "src/cuda/rail_roles.hpp",
        (
            (f"      {STAGE}\n", ""),
            (
                "block_.release(&port.begun, number_of(messages_[first]));\n    });",
                "block_.release(&port.begun, number_of(messages_[first]));\n    });\n    for (std::uint32_t i = 0; i < listed; ++i) {\n"
                f"      const Message& m = messages_[first + i];\n{STAGE} }}",
            ),
        ),
        "rails_test",
    ),
)


class Build:
    """How the build compiles and links a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        entries = json.loads((folder / "compile_commands.json").read_text())
        self.compiles = {Path(e["file"]): shlex.split(e["command"]) for e in entries if Path(e["file"]).parent == ROOT / "tests/cpp/cuda"}

    @staticmethod
    def program(test: str) -> str:
        return "gpu_rails_test" if test == "rails_test" else "gpu_protocol_test"

    def environment(self) -> dict[str, str]:
        return os.environ | {"UCX_MEM_EVENTS": "n"}  # as CMakeLists.txt has it

    def make(self, test: str, sources: Path, to: Path) -> None:
        """The program of one test file, out of a copy of the sources."""
        source = ROOT / f"tests/cpp/cuda/{test}.cpp"
        command = [word.replace(str(source), str(sources / source.relative_to(ROOT))) for word in self.compiles[source]]
        command[command.index("-o") + 1] = f"{to}.o"
        # Without debug information and warnings, as a mistake may leave something unused.
        run([command[0], f"-I{sources / 'src/cuda'}", *command[1:], "-g0", "-w"], self.folder)
        commands = run(["ninja", "-t", "commands", self.program(test)], self.folder).splitlines()
        link = [word for word in shlex.split(commands[-1]) if not word.endswith(".o")]
        link = link[link.index("&&") + 1 :]
        link = link[: link.index("&&")]
        link[link.index("-o") + 1] = str(to)
        link.insert(link.index("-o"), f"{to}.o")
        run(link, self.folder)


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\n{done.stderr[-4000:]}")
    return done.stdout


def caught_by(program: Path, environment: dict[str, str], limit_s: float = LIMIT_S) -> str:
    """What a run of the tests says, or nothing if all pass."""
    try:
        done = subprocess.run(
            [str(program), "--gtest_fail_fast"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s
        )
    except subprocess.TimeoutExpired as late:
        return f"{last_test(late.stdout or b'')} hangs"
    if done.returncode == 0:
        return ""
    failed = re.search(rb"^\[  FAILED  \] ([\w/.]+)", done.stdout, re.MULTILINE)
    return failed[1].decode() if failed else f"{last_test(done.stdout)} crashes"


def last_test(output: bytes) -> str:
    return re.findall(rb"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)[-1].decode()


def mutated(mutant: Mutant, folder: Path) -> None:
    """A copy of the sources with the mistake."""
    for part in SOURCES:
        shutil.copytree(ROOT / part, folder / part)
    file = folder / mutant.file
    text = file.read_text()
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.file} has this {text.count(old)} times, so the mutant needs a new text:\n{old}")
        text = text.replace(old, new)
    file.write_text(text)


def judge(build: Build, mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mutated(mutant, folder)
        build.make(mutant.test, folder, folder / mutant.test)
        begin = time.monotonic()
        for _ in range(RUNS):
            if found := caught_by(folder / mutant.test, build.environment()):
                return f"{found} ({time.monotonic() - begin:.1f} s)"
    return ""


def main(arguments: list[str]) -> int:
    build = Build(Path(arguments[0]).resolve())
    mutants = [m for m in MUTANTS if not arguments[1:] or m.name in arguments[1:]]
    for program in sorted({build.program(m.test) for m in mutants}):
        if found := caught_by(build.folder / "tests/cpp/cuda" / program, build.environment(), 5 * LIMIT_S):
            print(f"without a mutant: {found}")
            return 1
    survivors = 0
    with ThreadPoolExecutor(2) as pool:  # a run has dozens of threads
        for mutant, found in zip(mutants, pool.map(lambda m: judge(build, m), mutants), strict=True):
            survivors += not found
            print(f"{mutant.name}: {found or 'SURVIVES'}", flush=True)
    print(f"{len(mutants) - survivors} of {len(mutants)} mutants are caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
