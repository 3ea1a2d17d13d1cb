"""Mutation fuzzer for the parsers in Python, most of `railweave.machine`: `fuzz_machine.py TARGET RUNS [SEED]`.

Inputs come from the corpus by cutting, repeating, swapping and splicing lines, tokens and bytes; numbers and words of the formats are
thrown in. A text may parse or raise the errors that its parser promises; anything else is written to build/fuzz/found and ends the run. A
parser that takes more than ten seconds is a finding too.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from railweave import calibrate
from railweave import fabric as fabrics
from railweave.advise.advice import advise
from railweave.advise.errors import AdviceError
from railweave.advise.facts import with_machine
from railweave.advise.host import read_host
from railweave.advise.mapping import Workload
from railweave.advise.measured import decide_measured, parse_measurements
from railweave.doctor.checks import gpus as gpu_checks
from railweave.doctor.examine import examine
from railweave.doctor.patient import Patient
from railweave.errors import FabricError, ParseError
from railweave.launch import placement
from railweave.launch.errors import LaunchError
from railweave.machine import fabric_export
from railweave.machine.disagreement import descriptions
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Known, Machine, PciDevice
from railweave.machine.gpus import parse_nvml, read_gpus
from railweave.machine.hwloc import parse_hwloc
from railweave.machine.lint import lint_nccl
from railweave.machine.lspci_tree import parse_lspci_tree
from railweave.machine.network import parse_dcb_pfc, parse_lldp, parse_mlnx_pfc, parse_mlnx_trust
from railweave.machine.pci import unlisted_gpus
from railweave.machine.pci_config import acs, ats, express
from railweave.machine.reading import cpu_list, cpu_mask
from railweave.machine.recording import RecordedSource, Recording, RecordingError, parse_recording
from railweave.machine.redaction import Redactor
from railweave.machine.text import render_machine
from railweave.machine.topo_matrix import parse_topo_matrix
from railweave.machine.topology_file import parse_places

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path("build/fuzz/found")
SIZE_LIMIT = 16_384
SECONDS_PER_INPUT = 10  # of CPU time: a busy machine may stop it for as long
# One in so many texts that parse goes on to a fabric and a text, which cost a hundred times as much.
FOLLOW_ONE_IN = 50
DICTIONARY = [
    *b"0 1 -1 -0 00 65536 4294967296 18446744073709551616 1e999 NaN 0x 0xffffffff 0xf...f null true false {} [] , : ; = < > / &".split(),
    *b"N/A X NV1 NV18 NV999 PIX PXB PHB NODE SYS SOC GPU0 GPU9999 NIC0 mlx5_0 0000:00:00.0 ffff:ff:1f.7 -[0000:00]- -[01-05]-".split(),
    *b"+- \\- | ---- 00.0 1f.7 object type PCIDev Bridge NUMANode nodeset cpuset value error index gpus NVML_ERROR_GPU_IS_LOST".split(),
    *(b"\n", b"\r\n", b"\t", b"  ", b"\0", b"\xff", b"\xef\xbb\xbf", b"\x1b[4m", b"CPU Affinity", b"NUMA Affinity"),
]

Target = Callable[[bytes], object]

NVIDIA, DISPLAY = Known(0x10DE, "fuzz"), Known(0x030200, "fuzz")


def machine_target(parse: Callable[[str, str], Machine]) -> Target:
    """What parses can be shown, and either makes a fabric or says why not."""
    count = 0

    def run(data: bytes) -> None:
        nonlocal count
        try:
            machine = parse(data.decode("utf-8", errors="replace"), "fuzz")
        except ParseError:
            return
        count += 1
        if count % FOLLOW_ONE_IN == 0:
            follow(machine)

    return run


def follow(machine: Machine) -> None:
    """Shows the machine, compares it with itself, makes its fabric and advises it."""
    assert render_machine(machine).endswith("\n")
    assert not list(descriptions(machine, machine))
    try:
        fabric, _ = fabric_of(machine)
    except (FabricError, ParseError):
        return
    assert fabric.gpu_count >= 1
    with contextlib.suppress(AdviceError):
        advise(with_machine(read_host(fabric), machine))


def nvml(data: bytes) -> None:
    """NVML's answers: parsed or refused, and never in the way of the rest."""
    text = data.decode("utf-8", errors="replace")
    try:
        parse_nvml(text)
    except ValueError:
        return
    pci = Known(
        tuple(PciDevice(f"0000:{bus:02x}:00.0", None, "pci", vendor=NVIDIA, device=NVIDIA, pci_class=DISPLAY) for bus in (0x1B, 0x43)),
        "fuzz",
    )
    gpus, _ = read_gpus(RecordedSource(Recording(libraries={"nvml": text})), pci)
    machine = Machine("fuzz", pci=pci, gpus=gpus)
    assert isinstance(gpus, Known) and len(unlisted_gpus(machine)) <= 2
    checks = (check for check in gpu_checks.CHECKS if not check.needs)
    assert all(finding.text for check in checks for finding in check.examine(Patient(machine)))


def topology_places(data: bytes) -> None:
    """What stands above what in a guest's topology file: each switch has a place of its own, and none is above itself."""
    try:
        places = parse_places(data.decode("utf-8", errors="replace"), "fuzz")
    except ParseError:
        return
    for bus_id in places:
        seen, at = {bus_id}, places[bus_id]
        while at.above:
            assert at.above[0] not in seen
            seen.add(at.above[0])
            at = places[at.above[0]]


def tools(data: bytes) -> None:
    """Texts of LLDP and quality-of-service tools, lists and masks."""
    text = data.decode("utf-8", errors="replace")
    for parse in (parse_lldp, parse_mlnx_trust, parse_mlnx_pfc, parse_dcb_pfc, cpu_list, cpu_mask):
        try:
            parse(text)
        except ValueError:
            continue
    Redactor(b"fuzz").text(text)
    acs(data), ats(data), express(data)


def topology_file() -> Target:
    """Problems or a refusal, also against a machine. What parses is advised, and written again as something that parses."""
    machine = parse_hwloc((CORPUS / "hwloc" / "small.xml").read_text(), "small.xml")
    count = 0

    def run(data: bytes) -> None:
        nonlocal count
        text = data.decode("utf-8", errors="replace")
        count += 1
        try:
            lint_nccl(text, "fuzz", machine if count % 10 == 0 else None)
            fabric = fabrics.loads(text, "fuzz.xml")
        except (ParseError, FabricError):
            return
        host = read_host(fabric)
        if count % FOLLOW_ONE_IN == 0:
            with contextlib.suppress(AdviceError):
                advise(host)
        try:
            exported = fabric_export.export(fabric)
        except FabricError:
            return
        assert fabrics.loads(exported.text, "again.xml").gpu_count == fabric.gpu_count

    return run


def recording() -> Target:
    """Archives: read as far as they go, or refused. Mutated before and after compression."""
    import zstandard

    compressor, count = zstandard.ZstdCompressor(level=1), 0

    def run(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            found = parse_recording(data if count % 4 == 0 else compressor.compress(data), "fuzz")
        except RecordingError:
            return
        if count % FOLLOW_ONE_IN == 0:
            machine = discover(RecordedSource(found))
            render_machine(machine)
            examine(machine, "fuzz")

    return run


def measurements(data: bytes) -> None:
    """Runs with GPUDirect RDMA on and off: each size that was measured has one answer."""
    try:
        found = parse_measurements(data.decode("utf-8", errors="replace"), "fuzz")
    except ParseError:
        return
    decisions = decide_measured(found, "fuzz")
    for run in found:
        assert sum(decision.covers(run.metric, run.size_B) for decision in decisions) == 1
    assert {decision.metric for decision in decisions} <= set(Workload)


def advice(data: bytes) -> None:
    """Advice and placements that ranks start by; what advice says survives being kept."""
    text = data.decode("utf-8", errors="replace")
    for read in (placement.read, placement.read_advice):
        try:
            found = read(text, "fuzz")
        except LaunchError:
            continue
        for gpu in found:
            assert placement.cpu_set(placement.cpu_text(gpu.cpus)) == gpu.cpus


def calibration(data: bytes) -> None:
    """A calibration says the same after it was written, and settings follow from it."""
    try:
        found = calibrate.parse(data.decode("utf-8", errors="replace"), "fuzz")
    except calibrate.CalibrationError:
        return
    assert calibrate.parse(found.text(), "fuzz") == found
    settings = {name: int(value) for name, value in calibrate.settings(found).items()}
    assert settings.keys() == {"gpu_blocks", "gpu_low_latency_bytes", "gpu_host_share", "gpu_relays", "gpu_pair_rate", "gpu_block_rate"}
    # Within what the library takes (src/engine/settings.cpp).
    assert 1 <= settings["gpu_blocks"] <= 64
    assert 0 <= settings["gpu_host_share"] <= 500
    assert settings["gpu_relays"] in (0, 1)


TARGETS: dict[str, Callable[[], Target]] = {
    "hwloc": lambda: machine_target(parse_hwloc),
    "topo_matrix": lambda: machine_target(parse_topo_matrix),
    "lspci_tree": lambda: machine_target(parse_lspci_tree),
    "nvml": lambda: nvml,
    "topology_places": lambda: topology_places,
    "machine_tools": lambda: tools,
    "nccl_lint": topology_file,
    "recording": recording,
    "measurements": lambda: measurements,
    "advice": lambda: advice,
    "calibration": lambda: calibration,
}
# Corpora that several targets start from.
CORPORA = {"nccl_lint": "nccl_topology", "topology_places": "nccl_topology"}

_PIECES = re.compile(rb"[0-9a-fA-F]+|[A-Za-z_]+|\s+|.", re.DOTALL)


class Mutator:
    """Makes inputs from the corpus."""

    def __init__(self, texts: list[bytes], seed: int) -> None:
        self._random = random.Random(seed)
        self._texts = texts

    def next(self) -> bytes:
        """One input: a text of the corpus after one to six changes."""
        text = self._random.choice(self._texts)
        for _ in range(self._random.choice((1, 1, 2, 3, 6))):
            text = self._random.choice((self._bytes, self._tokens, self._lines, self._splice, self._word, self._cut))(text)
        return text[:SIZE_LIMIT]

    def _range(self, size: int) -> tuple[int, int]:
        first = self._random.randint(0, size)
        return first, min(size, first + self._random.choice((1, 2, 4, 16, 64)))

    def _bytes(self, text: bytes) -> bytes:
        first, last = self._range(len(text))
        return text[:first] + self._random.randbytes(self._random.randint(0, 4)) + text[last:]

    def _tokens(self, text: bytes) -> bytes:
        first, last = self._range(len(text))
        pieces = _PIECES.findall(text[first : first + 200])
        self._random.shuffle(pieces)
        return text[:first] + b"".join(pieces[: self._random.randint(0, len(pieces))]) + text[max(last, first + 200) :]

    def _lines(self, text: bytes) -> bytes:
        lines = text.splitlines(keepends=True)
        if not lines:
            return text
        at, other = self._random.randrange(len(lines)), self._random.randrange(len(lines))
        match self._random.randrange(3):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, lines[other])
            case _:
                lines[at], lines[other] = lines[other], lines[at]
        return b"".join(lines)

    def _splice(self, text: bytes) -> bytes:
        other = self._random.choice(self._texts)
        return text[: self._random.randint(0, len(text))] + other[self._random.randint(0, len(other)) :]

    def _word(self, text: bytes) -> bytes:
        at = self._random.randint(0, len(text))
        return text[:at] + self._random.choice(DICTIONARY) + text[at + self._random.choice((0, 0, 1, 4)) :]

    def _cut(self, text: bytes) -> bytes:
        return text[: self._random.randint(0, len(text))]


def too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"more than {SECONDS_PER_INPUT} s")


def main() -> int:
    """Runs one target; the exit status."""
    name, runs = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    texts = [path.read_bytes() for path in sorted((CORPUS / CORPORA.get(name, name)).iterdir())]
    mutator, target = Mutator(texts, seed), TARGETS[name]()
    for text in texts:
        target(text)
    signal.signal(signal.SIGPROF, too_long)
    begin = time.monotonic()
    for number in range(runs):
        data = mutator.next()
        signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
        try:
            target(data)
        except BaseException as error:
            FOUND.mkdir(parents=True, exist_ok=True)
            path = FOUND / f"{name}-crash-{seed}-{number}"
            path.write_bytes(data)
            print(f"{name}: {type(error).__name__}: {error}; input written to {path}", file=sys.stderr)
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(f"{name}: {runs} inputs, {runs / (time.monotonic() - begin):.0f} a second, none found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
