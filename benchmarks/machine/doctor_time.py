"""How long `railweave doctor` takes as a whole command: live, and for recordings of machines of full size, in turn with another version.

.venv/bin/python benchmarks/machine/doctor_time.py [--runs N] [--railweave PATH]... [--keep FOLDER]

The machines are made up: 8 GPUs and 10 NICs (8 of the GPU network and 2 for storage), 224 logical CPUs, 250 PCI functions, healthy, and
with faults whose cost is worked out in GB/s. PATH is a `railweave` command, by default the one of this Python; with several, each
takes its turn. Compiled Python files, as installed packages have.
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

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/python"))

import template_machine
from template_machine import PCI, TemplateMachine

import railweave

CPUS, FUNCTIONS = 224, 250
STORAGE = """  - {model: ConnectX-6, link: pcie5, port: hdr, at: [numa0, numa1]}
"""


def node() -> str:
    """The template of an HGX H100 with two NICs of 200 Gbit/s more, on the CPUs."""
    lines = (Path(railweave.__file__).parent / "templates/hgx-h100.yaml").read_text().splitlines(keepends=True)
    ndr = next(place for place, line in enumerate(lines) if line.startswith("  ndr:"))
    nvlink = lines.index("nvlink:\n")
    lines.insert(nvlink, STORAGE)
    lines.insert(ndr, lines[ndr].replace("ndr:", "hdr:").replace("400Gbit/s", "200Gbit/s"))
    return "".join(lines)


def full_size(folder: Path) -> TemplateMachine:
    """8 GPUs and 10 NICs, and all else that such a machine has."""
    template = folder / "node.yaml"
    template.write_text(node())
    template_machine.CORES_PER_NODE = CPUS // 2
    machine = TemplateMachine(str(template))
    there = sum(path.startswith(PCI) for path in machine.links)
    for number in range(FUNCTIONS - there):
        at = f"{PCI}/0000:{0x80 + number // 32:02x}:{number % 32:02x}.0"
        machine.links[at] = f"../../../devices/pci0000:80/{at.rsplit('/', 1)[1]}"
        machine.files |= {f"{at}/class": "0x088000", f"{at}/vendor": "0x8086", f"{at}/device": "0x09a2"}
    return machine


def with_faults(machine: TemplateMachine) -> None:
    """What they cost is worked out in GB/s where capacities are known; they make eleven findings."""
    machine.acs(machine.parent(machine.nics[1]), "ReqRedir")
    machine.files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"
    for nic, name, content in ((2, "port/state", "1: DOWN"), (3, "fw_ver", "28.36.1010"), (4, "port/counters/link_downed", "200")):
        machine.infiniband(nic, name, content)
    for index in (0, 5):
        machine.device(machine.gpus[index].bus_id, current_link_width="8")
        machine.nvml["gpus"][index]["pcie_width"] = {"value": 8}
    machine.netdev(5, "mtu", "1500")
    machine.files["/proc/sys/kernel/numa_balancing"] = "1"
    machine.files["/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"] = "powersave"
    machine.nvml["gpus"][7]["nvlinks"][0]["state"] = {"value": 0}


def main() -> None:
    """Prints milliseconds of wall clock: median, least and most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--railweave", action="append", help="a `railweave` command to measure")
    parser.add_argument("--keep", type=Path, help="leave the recordings there")
    options = parser.parse_args()
    versions = options.railweave or [str(Path(sys.executable).parent / "railweave")]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        machine = full_size(folder)
        healthy = machine.record(folder / "healthy.tar.zst")
        with_faults(machine)
        ill = machine.record(folder / "ill.tar.zst")
        commands = {
            "doctor, live": ["doctor"],
            "doctor of a healthy recording": ["doctor", str(healthy)],
            "doctor of one with faults": ["doctor", str(ill)],
            "the same with --html": ["doctor", str(ill), "--html", str(folder / "page.html")],
        }
        measure(versions, commands, options.runs)
    print(f"load {os.getloadavg()[0]:.1f}, {options.runs} runs each, in turn")


def measure(versions: list[str], commands: dict[str, list[str]], runs: int) -> None:
    """Each command of each version in turn, after one that warms the caches."""
    taken: dict[tuple[str, str], list[float]] = {}
    for run in range(runs + 1):
        for name, arguments in commands.items():
            for version in versions:
                begin = time.perf_counter()
                subprocess.run([version, *arguments], check=True, stdout=subprocess.DEVNULL)
                if run:
                    taken.setdefault((name, version), []).append(1e3 * (time.perf_counter() - begin))
    for (name, version), times in taken.items():
        print(f"{name:<30} {statistics.median(times):6.0f} ({min(times):.0f} to {max(times):.0f}) ms  {version}")


if __name__ == "__main__":
    main()
