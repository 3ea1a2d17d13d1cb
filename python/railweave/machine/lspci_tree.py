"""The text of `lspci -tv` as a machine: the PCI tree, and what the names in it say."""

from __future__ import annotations

import re

from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, PciDevice, Unknown
from railweave.machine.source import Reason
from railweave.machine.xml_tree import fail
from railweave.records import dataclass, replace

_TEXT_LIMIT = 4 << 20
_ROOT = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]")
_BUS = re.compile(r"-\[(?:[0-9a-f]{4,8}:)?([0-9a-f]{2})(?:-[0-9a-f]{2})?\]")
_DEVICE = re.compile(r"([0-9a-f]{2})\.([0-7])")
_START = re.compile(r"[\s|]*(?:-|\\-|\+-)?(?:\+-)?-?\[[0-9a-f]{4,8}:[0-9a-f]{2}")
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_NVIDIA = re.compile(r"NVIDIA Corporation (?!.*(?:NVSwitch|Device (?:1ac[0-2]|1af1|22a3)|Audio|USB|UCSI|Bridge))")
_NETWORK = re.compile(
    r"Mellanox|ConnectX|BlueField|Ethernet|InfiniBand|Infiniband|Network (?:Connection|Adapter|Controller)|Elastic Fabric|network device",
    re.I,
)
# Functions of network cards that are no ports, by their names in pci.ids.
_NO_PORT = re.compile(
    r"bridge|Management Interface|NVMe|SNAP|\bDMA\b|Data Direct|Communication Channel|Flash Recovery|Virtio (?:block|file ?system|fs)\b",
    re.I,
)
_WHAT = "the text that `lspci -tv` prints"


@dataclass(frozen=True)
class _Bus:
    domain: str
    number: str
    bridge: str | None
    root: str


def is_lspci_tree(text: str) -> bool:
    """Whether a text looks like it: a line with a root bus in brackets behind a branch."""
    return any(_START.match(line) for line in text.splitlines()[:50])


def parse_lspci_tree(text: str, source: str) -> Machine:
    """A machine from the text. Raises ParseError with the line."""
    if len(text) > _TEXT_LIMIT:
        raise fail(source, 0, f"{len(text)} characters", f"at most {_TEXT_LIMIT}")
    branches: dict[int, _Bus] = {}
    devices: list[PciDevice] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip(" |\t"):
            devices += _Line(line.rstrip(), number, source).read(branches)
    if not devices:
        raise fail(source, 0, "no PCI device", _WHAT)
    seen: set[str] = set()
    for device in devices:
        if device.bus_id in seen:
            raise fail(source, 0, f"{device.bus_id} twice", "each PCI function once")
        seen.add(device.bus_id)
    at = source
    return Machine(source, pci=Known(tuple(devices), at), gpus=Known(_gpus(devices), at), nics=Known(_nics(devices), at))


class _Line:
    """One line: branches that go on from lines above, then buses and functions, then a name."""

    def __init__(self, line: str, number: int, source: str) -> None:
        self._line = line
        self._number = number
        self._source = source

    def _fail(self, found: str, expected: str) -> Exception:
        return fail(self._source, self._number, found, expected)

    def read(self, branches: dict[int, _Bus]) -> list[PciDevice]:
        line, found = self._line, []
        at, bus, bridge = 0, None, None
        while at < len(line):
            mark = line[at]
            root = _ROOT.match(line, at)
            below = _BUS.match(line, at)
            device = _DEVICE.match(line, at)
            if root and (bridge is None):
                bus = _Bus(root[1], root[2], None, f"pci{root[1]}:{root[2]}")
                at = root.end()
            elif below and bridge is not None and bus is not None:
                bus, bridge = _Bus(bus.domain, below[1], bridge, bus.root), None
                at = below.end()
            elif device and bus is not None and bridge is None:
                found.append(self._function(bus, device))
                bridge = found[-1].bus_id
                at = device.end()
            elif line.startswith("  ", at) and bridge is not None:
                found[-1] = self._named(found[-1], line[at:].strip())
                break
            elif mark in "+\\":
                bus, bridge = self._branch(at, bus, branches), None
                at += 1
            elif mark in " |-":
                at += 1
            else:
                raise self._fail(f"{line[at : at + 30]!r} at column {at + 1}", f"a bus, a function or a branch, as in {_WHAT}")
        return found

    def _branch(self, column: int, bus: _Bus | None, branches: dict[int, _Bus]) -> _Bus | None:
        """A branch opens behind a bus, and goes on at the same column in the lines below. The first one holds the root buses."""
        if bus is not None:
            branches[column] = bus
            return bus
        return branches.get(column)

    def _function(self, bus: _Bus, device: re.Match[str]) -> PciDevice:
        return PciDevice(f"{bus.domain}:{bus.number}:{device[1]}.{device[2]}", bus.bridge, bus.root)

    def _named(self, device: PciDevice, name: str) -> PciDevice:
        at = f"{self._source}:{self._number}"
        ids = _IDS.search(name)
        vendor: Fact[int] = Known(int(ids[1], 16), at) if ids else Unknown(Reason.not_given, at, "lspci -tv without -nn has no ids")
        model: Fact[int] = Known(int(ids[2], 16), at) if ids else Unknown(Reason.not_given, at, "lspci -tv without -nn has no ids")
        return replace(device, name=Known(name, at), vendor=vendor, device=model)


def _gpus(devices: list[PciDevice]) -> tuple[Gpu, ...]:
    """What NVIDIA makes and is no switch, by address."""
    named = sorted(
        (device for device in devices if isinstance(device.name, Known) and _NVIDIA.match(device.name.value)), key=lambda d: d.bus_id
    )
    no_nvlink = [Unknown(Reason.not_given, device.bus_id, "lspci shows no NVLinks") for device in named]
    return tuple(
        Gpu(index, Known(device.bus_id, device.name.evidence), name=device.name, nvlinks=no_nvlink[index])
        for index, device in enumerate(named)
        if isinstance(device.name, Known)
    )


def _nics(devices: list[PciDevice]) -> tuple[Nic, ...]:
    return tuple(
        Nic(device.bus_id, 1, Known(device.bus_id, device.name.evidence))
        for device in devices
        if isinstance(device.name, Known) and _NETWORK.search(device.name.value) and not _NO_PORT.search(device.name.value)
    )
