"""NCCL's topology XML as a document: what is common to writing it for a machine and for a fabric.

Elements and attributes as in NCCL `src/graph/xml.cc` and `topo.cc`; what NCCL reads of a file, it does not ask the system for again.
"""

from __future__ import annotations

from railweave.records import dataclass, field

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SPEED_NAMES = {
    2.5: "2.5 GT/s PCIe",
    5.0: "5.0 GT/s PCIe",
    8.0: "8.0 GT/s PCIe",
    16.0: "16.0 GT/s PCIe",
    32.0: "32.0 GT/s PCIe",
    64.0: "64.0 GT/s PCIe",
}
# All planes of the NVSwitches are one for NCCL, which knows them by class; this address it writes where a guest sees none.
ANY_NVSWITCH = "fffffff:ff:ff.0"
_WRITABLE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 ._:,;/()+#-"
_VALUE_LIMIT = 254
# Links to a processor end at that of the GPU, whatever their target.
ANY_CPU = "0000:00:00.0"
GPU_CLASS, ETHERNET_CLASS, BRIDGE_CLASS, NVSWITCH_CLASS, CPU_CLASS = "0x030200", "0x020000", "0x060400", "0x068000", "0x068001"


@dataclass
class NvLinks:
    """NVLinks of a GPU to one other end."""

    target: str
    count: int
    target_class: str


@dataclass
class Net:
    """A network port. `gdr`: a NIC reads and writes GPU memory through it."""

    name: str
    dev: int
    port: int
    Mbps: int | None
    gdr: bool
    guid: str | None = None
    rail: int | None = None
    latency_us: float | None = None
    kept: Mapping[str, str] = field(default_factory=dict)
    """As another topology file has the element: stands before all fields."""


@dataclass
class Pci:
    """A device or bridge and what is below it. For an unknown speed or width NCCL takes its defaults."""

    bus_id: str
    pci_class: str
    ids: dict[str, int] = field(default_factory=dict)
    """vendor, device, subsystem_vendor, subsystem_device"""
    speed_GTps: float | None = None
    width: int | None = None
    children: list[Pci] = field(default_factory=list)
    gpu: dict[str, int] | None = None
    """dev, sm, rank, gdr of a GPU."""
    nvlinks: list[NvLinks] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    kept: Mapping[str, str] = field(default_factory=dict)
    """As another topology file has the element: stands before all fields but the address."""
    kept_below: Sequence[tuple[str, Mapping[str, str]]] = ()
    """Elements of another topology file by tag: `gpu`, of which the first one stands before the field, `nvlink`, `c2c`, `pcilink`."""


@dataclass
class Cpu:
    """A NUMA node. `cpus` None leaves the cores to NCCL."""

    numa: int
    cpus: Sequence[int] | None = None
    arch: str | None = None
    vendor: str | None = None
    family: int | None = None
    """As CPUID counts it with the extended family shifted left by 4, which is what NCCL writes."""
    model: int | None = None
    children: list[Pci] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    """Ports that are on no PCI device."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """As another topology file has the element: stands before all fields."""


def mask(cpus: Sequence[int]) -> str:
    """`00000000,000000ff`: words of 32 bits, as sysfs writes masks."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = max(1, -(-bits.bit_length() // 32))
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def render(cpus: Sequence[Cpu], name: str, notes: Sequence[str] = ()) -> str:
    """The file's text; `notes`, what was not known or cannot be said, stand on top as comments, which NCCL skips."""
    lines = [f"<!-- {_comment(note)} -->" for note in notes]
    lines += [f"<system{_attributes({'version': 1, 'name': name})}>"]
    for cpu in cpus:
        attributes: dict[str, object] = {"numaid": cpu.numa}
        # A mask that does not fit (900 CPUs and more) is left to NCCL, which then takes the kernel's.
        if cpu.cpus is not None and len(written := mask(cpu.cpus)) <= _VALUE_LIMIT:
            attributes["affinity"] = written
        attributes.update({"arch": cpu.arch, "vendor": cpu.vendor, "familyid": cpu.family, "modelid": cpu.model})
        inside: list[str] = []
        for child in cpu.children:
            _add_pci(inside, child, "    ")
        _add_nets(inside, cpu.nets, "    ")
        _add(lines, "cpu", dict(cpu.kept) or attributes, "  ", inside)
    return "\n".join([*lines, "</system>"]) + "\n"


def _comment(text: str) -> str:
    written = _written(text)
    while "--" in written:
        written = written.replace("--", "-")
    return written.strip("-")


def _written(text: str) -> str:
    if not text.strip(_WRITABLE):
        return text
    return "".join(character if character in _WRITABLE else "_" for character in text)


def _attributes(attributes: Mapping[str, object]) -> str:
    """NCCL's reader knows no character references and has room for 255 bytes a value, so what could need either is replaced or cut."""
    shown = {
        name: value if value.__class__ is int else _written(str(value))[:_VALUE_LIMIT]
        for name, value in attributes.items()
        if value is not None
    }
    return "".join([f' {name}="{text}"' for name, text in shown.items()])


def _add(lines: list[str], tag: str, attributes: Mapping[str, object], indent: str, inside: Sequence[str] = ()) -> None:
    """Without a space before `/>`: NCCL 2.28 takes one for an attribute without a name, and writes it into its dumps."""
    head = f"{indent}<{tag}{_attributes(attributes)}"
    if inside:
        lines += [f"{head}>", *inside, f"{indent}</{tag}>"]
    else:
        lines.append(f"{head}/>")


def _add_pci(lines: list[str], pci: Pci, indent: str) -> None:
    attributes: dict[str, object] = {"busid": pci.bus_id, "class": pci.pci_class}
    attributes.update({name: f"0x{value:04x}" for name, value in pci.ids.items()})
    # Both must be there, or NCCL 2.28 ends with an internal error; empty and 0 are what it writes itself where sysfs says nothing.
    attributes["link_speed"] = "" if pci.speed_GTps is None else _SPEED_NAMES[pci.speed_GTps]
    attributes["link_width"] = pci.width or 0
    if pci.kept:
        attributes = {"busid": pci.bus_id, **pci.kept}
        attributes.setdefault("link_speed", "")
        attributes.setdefault("link_width", 0)
    inside: list[str] = []
    below = indent + "  "
    _add_gpus(inside, pci, below)
    for tag, kept in pci.kept_below:
        if tag == "pcilink":
            _add(inside, tag, kept, below)
    _add_nets(inside, pci.nets, below)
    for child in pci.children:
        _add_pci(inside, child, below)
    _add(lines, "pci", attributes, indent, inside)


def _add_gpus(lines: list[str], pci: Pci, indent: str) -> None:
    """The GPU with its links, and what shares the device with it."""
    elements: list[Mapping[str, object]] = [kept for tag, kept in pci.kept_below if tag == "gpu"]
    if not elements and pci.gpu is not None:
        elements = [pci.gpu]
    for place, gpu in enumerate(elements):
        inside: list[str] = []
        if place == 0:
            for nvlink in pci.nvlinks:
                link = {"target": nvlink.target, "count": nvlink.count, "tclass": nvlink.target_class}
                _add(inside, "nvlink", link, indent + "  ")
            for tag, kept in pci.kept_below:
                if tag in ("nvlink", "c2c"):
                    _add(inside, tag, kept, indent + "  ")
        _add(lines, "gpu", gpu, indent, inside)


def _add_nets(lines: list[str], nets: Sequence[Net], indent: str) -> None:
    inside: list[str] = []
    for net in nets:
        attributes: dict[str, object] = {"name": net.name, "dev": net.dev, "speed": net.Mbps, "port": net.port, "guid": net.guid}
        attributes.update({"rail": net.rail, "latency": net.latency_us, "gdr": int(net.gdr)})
        _add(inside, "net", dict(net.kept) or attributes, indent + "  ")
    if inside:
        _add(lines, "nic", {}, indent, inside)
