"""A crafted machine as a recording: two sockets, PCIe switches with GPUs and NICs, written file by file as Linux shows it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from railweave.fabric import Fabric
from railweave.machine.recording import Recording
from railweave.machine.source import CommandOutput, Reason

CORES_PER_SOCKET = 8


@dataclass
class Switch:
    """A PCIe switch on a socket, with so many GPUs and NICs below it."""

    socket: int
    gpus: int
    nics: int


@dataclass
class Crafted:
    """The recording under construction; PCI functions by role."""

    recording: Recording = field(default_factory=Recording)
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    """Downstream ports, in the order of their devices."""

    def file(self, path: str, text: str | bytes) -> None:
        self.recording.files[path] = text if isinstance(text, bytes) else f"{text}\n".encode()

    def folder(self, path: str, names: Sequence[str]) -> None:
        self.recording.folders[path] = tuple(sorted(names))

    def absent(self, path: str) -> None:
        self.recording.unreadable[path] = (Reason.absent, "No such file or directory")


HGX = (Switch(0, 2, 2), Switch(0, 2, 2), Switch(1, 2, 2), Switch(1, 2, 2))


def craft(switches: Sequence[Switch] = HGX, nvlinks: int = 18) -> Crafted:
    """The machine: H100s with their NVLinks to an NVSwitch, ConnectX-7s on InfiniBand."""
    crafted = Crafted()
    sockets = sorted({switch.socket for switch in switches})
    _processors(crafted, sockets)
    functions: list[str] = []
    for number, switch in enumerate(switches):
        functions += _switch(crafted, number, switch)
    crafted.folder("/sys/bus/pci/devices", functions)
    crafted.recording.libraries["nvml"] = json.dumps(_nvml(crafted.gpus, nvlinks))
    _rdma(crafted, switches)
    _kernel(crafted)
    return crafted


def _function(
    crafted: Crafted, bus_id: str, path: str, socket: int, pci_class: int, ids: tuple[int, int], config: bytes, speed: str = "32.0"
) -> None:
    at = f"/sys/bus/pci/devices/{bus_id}"
    crafted.recording.links[at] = f"../../../devices/{path}"
    values = {
        "class": f"0x{pci_class:06x}",
        "vendor": f"0x{ids[0]:04x}",
        "device": f"0x{ids[1]:04x}",
        "subsystem_vendor": f"0x{ids[0]:04x}",
        "subsystem_device": "0x0001",
        "numa_node": str(socket),
        "local_cpulist": _cpus(socket),
        "current_link_speed": f"{speed} GT/s PCIe",
        "max_link_speed": f"{speed} GT/s PCIe",
        "current_link_width": "16",
        "max_link_width": "16",
        "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0",
        "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
        "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
    }
    for name, value in values.items():
        crafted.file(f"{at}/{name}", value)
    crafted.file(f"{at}/config", config)
    for name in ("iommu_group", "driver", "sriov_totalvfs", "physfn"):
        crafted.absent(f"{at}/{name}")
    crafted.folder(f"{at}/msi_irqs", [])


def _switch(crafted: Crafted, number: int, switch: Switch) -> list[str]:
    """Root port, upstream port, and a downstream port for each device."""
    base = 0x10 + 0x20 * number
    root = f"pci0000:{base:02x}"
    root_port, upstream = f"0000:{base:02x}:01.0", f"0000:{base + 1:02x}:00.0"
    path = f"{root}/{root_port}"
    functions = [root_port, upstream]
    _function(crafted, root_port, path, switch.socket, 0x060400, (0x8086, 0x352A), config_space("root port"))
    path += f"/{upstream}"
    _function(crafted, upstream, path, switch.socket, 0x060400, (0x1000, 0xC030), config_space("upstream port"))
    for slot in range(switch.gpus + switch.nics):
        port, device = f"0000:{base + 2:02x}:{slot:02x}.0", f"0000:{base + 3 + slot:02x}:00.0"
        _function(crafted, port, f"{path}/{port}", switch.socket, 0x060400, (0x1000, 0xC030), config_space("downstream port"))
        is_gpu = slot < switch.gpus
        ids, pci_class = ((0x10DE, 0x2330), 0x030200) if is_gpu else ((0x15B3, 0x1021), 0x020700)
        _function(crafted, device, f"{path}/{port}/{device}", switch.socket, pci_class, ids, config_space("endpoint", serial=slot + 1))
        (crafted.gpus if is_gpu else crafted.nics).append(device)
        crafted.ports.append(port)
        functions += [port, device]
    return functions


_TYPES = {"endpoint": 0, "root port": 4, "upstream port": 5, "downstream port": 6}


def config_space(kind: str, acs_control: int = 0, serial: int | None = None) -> bytes:
    """4096 bytes with the PCI Express capability, ACS on ports, and a serial number on endpoints that have one."""
    space = bytearray(4096)
    struct.pack_into("<H", space, 0x06, 0x10)
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, 2 | _TYPES[kind] << 4)
    struct.pack_into("<I", space, 0x4C, 5 | 16 << 4)
    if kind == "endpoint":
        struct.pack_into("<I", space, 0x100, 0x0003 | 1 << 16)
        struct.pack_into("<Q", space, 0x104, 0x1122334455660000 | (serial or 0))
    else:
        struct.pack_into("<IHH", space, 0x100, 0x000D | 1 << 16, 0x1F, acs_control)
    return bytes(space)


def _cpus(socket: int) -> str:
    return f"{socket * CORES_PER_SOCKET}-{(socket + 1) * CORES_PER_SOCKET - 1}"


def _processors(crafted: Crafted, sockets: Sequence[int]) -> None:
    nodes, cpus = "/sys/devices/system/node", "/sys/devices/system/cpu"
    crafted.folder(nodes, [f"node{socket}" for socket in sockets])
    for socket in sockets:
        crafted.file(f"{nodes}/node{socket}/cpulist", _cpus(socket))
        crafted.file(f"{nodes}/node{socket}/meminfo", f"Node {socket} MemTotal:       1048576 kB")
        crafted.file(f"{nodes}/node{socket}/distance", " ".join("10" if other == socket else "21" for other in sockets))
        crafted.folder(f"{nodes}/node{socket}/hugepages", ["hugepages-2048kB"])
        crafted.file(f"{nodes}/node{socket}/hugepages/hugepages-2048kB/nr_hugepages", "0")
    crafted.file(
        "/proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Crafted\nflags\t\t: fpu"
    )
    crafted.file(f"{cpus}/online", f"0-{len(sockets) * CORES_PER_SOCKET - 1}")
    crafted.file(f"{cpus}/smt/active", "0")
    for socket in sockets:
        for cpu in range(socket * CORES_PER_SOCKET, (socket + 1) * CORES_PER_SOCKET):
            crafted.file(f"{cpus}/cpu{cpu}/topology/thread_siblings_list", str(cpu))
            crafted.file(f"{cpus}/cpu{cpu}/topology/physical_package_id", str(socket))
            crafted.file(f"{cpus}/cpu{cpu}/cache/index3/shared_cpu_list", _cpus(socket))
    crafted.folder(f"{cpus}/cpufreq", ["policy0"])
    crafted.file(f"{cpus}/cpufreq/policy0/scaling_governor", "performance")
    crafted.file(f"{cpus}/cpufreq/policy0/energy_performance_preference", "performance")
    crafted.file(f"{cpus}/cpufreq/policy0/affected_cpus", "0 1 2 3")


def _nvml(gpus: Sequence[str], nvlinks: int) -> dict[str, object]:
    def value(answer: object) -> dict[str, object]:
        return {"value": answer}

    def link(number: int) -> dict[str, object]:
        if number >= nvlinks:
            return {"state": {"error": "NVML_ERROR_NOT_SUPPORTED"}}
        errors = {"replay": value(0), "recovery": value(0), "crc_flit": value(0)}
        return {
            "state": value(1),
            "version": value(6),
            "remote_type": value(2),
            "remote_bus_id": value("00000000:00:00.0"),
            "errors": errors,
        }

    return {
        "version": 1,
        "driver": value("580.1"),
        "nvml": value("13.580.1"),
        "gpus": [
            {
                "index": index,
                "bus_id": value(f"0000{bus_id.upper()}"),
                "name": value("NVIDIA H100 80GB HBM3"),
                "uuid": value(f"GPU-00000000-1111-2222-3333-{index:012}"),
                "compute_capability": value([9, 0]),
                "memory_B": value(80 << 30),
                "pcie_generation": value(1),
                "pcie_width": value(16),
                "pcie_generation_max": value(5),
                "pcie_width_max": value(16),
                "sm_clock_MHz": value(345),
                "sm_clock_max_MHz": value(1980),
                "throttle_reasons": value(1),
                "persistence": value(1),
                "mig": value(0),
                "fabric_state": value(3),
                "cpu_affinity": value([0xFF]),
                "nvlinks": [link(number) for number in range(18)],
                "common_ancestor": {str(other): value(50) for other in range(len(gpus)) if other != index},
            }
            for index, bus_id in enumerate(gpus)
        ],
    }


def _rdma(crafted: Crafted, switches: Sequence[Switch]) -> None:
    rdma, net = "/sys/class/infiniband", "/sys/class/net"
    crafted.folder(net, ["lo"])
    crafted.recording.links[f"{net}/lo"] = "../../devices/virtual/net/lo"
    crafted.folder(rdma, [f"mlx5_{number}" for number in range(len(crafted.nics))])
    for number, bus_id in enumerate(crafted.nics):
        device, port = f"{rdma}/mlx5_{number}", f"{rdma}/mlx5_{number}/ports/1"
        path = crafted.recording.links[f"/sys/bus/pci/devices/{bus_id}"]
        crafted.recording.links[device] = f"{path}/infiniband/mlx5_{number}"
        crafted.folder(f"{device}/ports", ["1"])
        values = {"link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)", "state": "4: ACTIVE", "phys_state": "5: LinkUp"}
        for name, text in values.items():
            crafted.file(f"{port}/{name}", text)
        crafted.file(f"{device}/fw_ver", "28.39.1002")
        crafted.file(f"{device}/board_id", "MT_0000000838")
        crafted.file(f"{device}/node_guid", f"9c63:c003:00ab:{number:04x}")
        crafted.folder(f"{port}/gids", ["0", "1"])
        crafted.file(f"{port}/gids/0", f"fe80:0000:0000:0000:9c63:c003:00ab:{number:04x}")
        crafted.file(f"{port}/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000")
        crafted.file(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
        crafted.folder(f"{port}/counters", ["symbol_error"])
        crafted.file(f"{port}/counters/symbol_error", "0")
        crafted.folder(f"{port}/hw_counters", [])


def _kernel(crafted: Crafted) -> None:
    crafted.file("/proc/sys/kernel/osrelease", "6.8.0-45-generic")
    crafted.file("/proc/sys/kernel/hostname", "gpu-node-17")
    crafted.file("/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=1b4e28ba-2fa1-11d2-883f-0016d3cca427 iommu=pt")
    crafted.file("/proc/modules", "nvidia 1 0 - Live\nmlx5_core 1 0 - Live")
    crafted.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.1")
    crafted.absent("/sys/kernel/mm/memory_peers")
    crafted.folder("/sys/module/nvidia_peermem", ["version"])
    crafted.file("/proc/sys/kernel/numa_balancing", "0")
    crafted.file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    crafted.folder("/sys/kernel/iommu_groups", [])
    crafted.recording.commands[("systemctl", "is-active", "nvidia-fabricmanager")] = CommandOutput("active\n", "", 0)
    crafted.recording.commands[("systemctl", "is-active", "irqbalance")] = CommandOutput("inactive\n", "", 3)


def host(fabric: Fabric) -> tuple[dict[str, object], list[tuple[object, ...]]]:
    """All of a host that the format can say: parts, and links with their rates. Rails only where the network has them."""
    rails = any(vertex.rail is not None for vertex in fabric.vertices if vertex.kind.name == "nic")
    parts = {
        vertex.name: (vertex.kind.name, vertex.index, vertex.gdr, vertex.rail if rails else None)
        for vertex in fabric.vertices
        if vertex.node is not None
    }
    links = [
        (fabric.vertex(edge.src).name, fabric.vertex(edge.dst).name, edge.kind.name, edge.capacity_Bps)
        for edge in fabric.edges
        if fabric.vertex(edge.src).node is not None and fabric.vertex(edge.dst).node is not None
    ]
    ports = [
        (fabric.vertex(edge.src).name, edge.capacity_Bps, edge.latency_ns)
        for edge in fabric.edges
        if edge.kind.name == "rail" and fabric.vertex(edge.src).node is not None
    ]
    return parts, sorted(map(tuple, links)) + sorted(map(tuple, ports))
