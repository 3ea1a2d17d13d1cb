"""A machine as text: processors, GPUs, NICs, the ways between them, and what is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, Unknown, known
from railweave.machine.nccl_topology import gpudirect_rdma
from railweave.machine.paths import MEANING, device_way, gpu_way, nic_way
from railweave.machine.pci import unlisted_gpus
from railweave.machine.processors import nodes_per_package
from railweave.machine.reading import ranges
from railweave.machine.source import Reason
from railweave.records import field_names
from railweave.size import counted, figures

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from typing import Any

# Reasons that say "there is no such thing here" or "this tool cannot tell" rather than "it could not be read".
_EXPECTED = {Reason.not_given, Reason.absent, Reason.unsupported}
_UNKNOWN = "?"


def render_machine(machine: Machine) -> str:
    """The whole text, ending in a newline. `?` stands for what is not known; the last part says why."""
    lines = [f"{machine.origin}: {_headline(machine)}", *_processor_lines(machine), *_gpu_lines(machine), *_nic_lines(machine)]
    ways = ways_table(machine)
    if len(ways) > 2:
        lines += ["", "ways between them", *(f"  {line}" for line in _aligned(ways))]
        seen = {cell for row in ways[1:] for cell in row}
        lines += [f"  {way}: {meaning}" for way, meaning in MEANING.items() if way in seen]
        if _UNKNOWN in seen:
            lines.append(f"  {_UNKNOWN}: unknown{f' ({machine.hidden_tree.detail})' if machine.hidden_tree is not None else ''}")
    unread = unread_facts(machine)
    if unread:
        lines += ["", "could not be read", *(f"  {text}" for text in unread)]
    return "\n".join(lines) + "\n"


def titled(machine: Machine, name: str) -> str:
    """A name with the machine's maker and model, where they are known."""
    words = [word for word in (known(machine.host.vendor), known(machine.host.product)) if word]
    return f"{name}: {' '.join(words)}" if words else name


def _count(fact: Fact[Any], noun: str) -> str:
    return counted(len(fact.value), noun) if isinstance(fact, Known) else f"{noun}s not known"


def _headline(machine: Machine) -> str:
    return ", ".join([_count(machine.numa, "NUMA node"), _count(machine.gpus, "GPU"), _count(machine.nics, "NIC")])


def _shown(fact: Fact[Any]) -> str:
    return _UNKNOWN if isinstance(fact, Unknown) else str(fact.value)


def _processor_lines(machine: Machine) -> list[str]:
    cpus = machine.cpus
    words = [_shown(cpus.model_name) if isinstance(cpus.model_name, Known) else "processor not known"]
    cores = known(cpus.cores)
    if cores is not None:
        packages = {core.package for core in cores}
        words += [] if None in packages else [counted(len(packages), "socket")]
        words.append(counted(len(cores), "core"))
    if isinstance(cpus.smt, Known):
        words.append(f"SMT {'on' if cpus.smt.value else 'off'}")
    split = nodes_per_package(cpus, machine.numa)
    if split and max(map(len, split.values())) > 1:
        words.append(f"{max(map(len, split.values()))} NUMA nodes a socket (SNC or NPS)")
    if known(machine.host.hypervisor):
        words.append("virtual machine")
    container = machine.host.container
    if isinstance(container, Known) and container.value:
        words.append(f"in a container ({container.value})")
    lines = ["", "processors", f"  {', '.join(words)}"]
    for node in known(machine.numa) or ():
        memory = known(node.memory_B)
        nodes_cpus = known(node.cpus)
        parts = [f"CPUs {ranges(nodes_cpus)}" if nodes_cpus else "no CPUs" if nodes_cpus is not None else "CPUs ?"]
        parts += [f"{figures(memory / 2**30)} GiB"] if memory is not None else []
        lines.append(f"  numa{node.id}: {', '.join(parts)}")
    return lines


def _gpu_lines(machine: Machine) -> list[str]:
    gpus = known(machine.gpus)
    if not gpus:
        return []
    rows = [["", "address", "part", "NUMA", "PCIe now", "PCIe at most", "NVLinks"], *(_gpu_row(machine, gpu) for gpu in gpus)]
    gdr = gpudirect_rdma(machine)
    answer = f"not known ({gdr})" if isinstance(gdr, Unknown) else f"{'yes' if gdr.value else 'no'} ({gdr.evidence})"
    return ["", "GPUs", *(f"  {line}" for line in _aligned(rows)), f"  GPUDirect RDMA: {answer}"]


def _gpu_row(machine: Machine, gpu: Gpu) -> list[str]:
    device = machine.pci_device(known(gpu.bus_id) or "")
    links = gpu.nvlinks
    return [
        f"gpu{gpu.index}",
        _shown(gpu.bus_id),
        _shown(gpu.name),
        _UNKNOWN if device is None else _shown(device.numa),
        _shown(gpu.link if isinstance(gpu.link, Known) or device is None else device.link),
        _shown(gpu.link_max if isinstance(gpu.link_max, Known) or device is None else device.link_max),
        _UNKNOWN if isinstance(links, Unknown) else str(len(links.value)),
    ]


def _nic_lines(machine: Machine) -> list[str]:
    nics = known(machine.nics)
    if not nics:
        return []
    rows = [["", "port", "address", "netdevice", "kind", "rate", "state", "MTU", "NUMA"], *(_nic_row(machine, nic) for nic in nics)]
    return ["", "NICs", *(f"  {line}" for line in _aligned(rows))]


def _nic_row(machine: Machine, nic: Nic) -> list[str]:
    rate = known(nic.rate_bps)
    bus_id = known(nic.bus_id)
    device = machine.pci_device(bus_id or "")
    return [
        nic.name,
        str(nic.port),
        _shown(nic.bus_id),
        " ".join(nic.netdevs.value) or "-" if isinstance(nic.netdevs, Known) else _UNKNOWN,
        _shown(nic.link_layer),
        _UNKNOWN if rate is None else f"{rate / 1e9:g} Gbit/s",
        _shown(nic.state),
        _shown(nic.mtu),
        _UNKNOWN if device is None else _shown(device.numa),
    ]


def ways_table(machine: Machine) -> list[list[str]]:
    """The matrix of `nvidia-smi topo -m`: GPUs and NICs, titles first."""
    gpus, nics = known(machine.gpus) or (), known(machine.nics) or ()
    names = [f"gpu{gpu.index}" for gpu in gpus] + [nic.name for nic in nics]
    table = [["", *names]]
    for gpu in gpus:
        table.append([f"gpu{gpu.index}", *(gpu_way(machine, gpu, other) for other in gpus), *(nic_way(machine, gpu, nic) for nic in nics)])
    for nic in nics:
        ways = [nic_way(machine, gpu, nic) for gpu in gpus]
        table.append([nic.name, *ways, *(_nic_nic_way(machine, nic, other) for other in nics)])
    return table


def _nic_nic_way(machine: Machine, nic: Nic, other: Nic) -> str:
    if nic is other:
        return "X"
    return (known(nic.nic_paths) or {}).get(other.name) or device_way(machine, nic.bus_id, other.bus_id)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def unread_facts(machine: Machine) -> list[str]:
    """What a source should have told and did not, with the reason; alike ones once."""
    texts: dict[str, None] = {}
    for fact in _facts(machine):
        if isinstance(fact, Unknown) and fact.reason not in _EXPECTED:
            texts.setdefault(str(fact))
    for device in unlisted_gpus(machine):
        texts.setdefault(f"GPU at {device.bus_id}: on the PCI bus, and not among the driver's (railweave doctor: gpu.lost)")
    return list(texts)


def _facts(value: Any) -> Iterable[Any]:
    if isinstance(value, Known):
        yield value
        yield from _facts(value.value)
    elif isinstance(value, Unknown):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _facts(item)
    else:
        for name in field_names(value):
            yield from _facts(getattr(value, name))
