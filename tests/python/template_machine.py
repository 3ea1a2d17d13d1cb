"""Machines made up for tests: the files, links and answers that discovery would find on a healthy machine wired like a node template.

`TemplateMachine(template)` is such a machine; its methods and dictionaries break one thing at a time. `source` replays it, `record`
writes it as a recording.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from railweave import fabric
from railweave.fabric import EdgeKind, VertexKind
from railweave.machine import discovery
from railweave.machine.facts import Machine
from railweave.machine.pci_config import ACS_BITS
from railweave.machine.reading import ranges
from railweave.machine.recording import RecordedSource, Recording
from railweave.machine.source import CommandOutput, Reason, Unreadable

PCI = "/sys/bus/pci/devices"
JOB = 4242
CORES_PER_NODE = 8
SERIAL_NUMBER = 0x164  # in configuration space
LANES = 16
PCIE_GBPS = {8.0: 7.877, 16.0: 15.754, 32.0: 31.508}  # x8, GB/s: what a template's capacity is looked up in
# Compute capability, NVLink version as NVML numbers them (2 is 2.0, 4 is 3.0, 6 is 4.0), NVLinks.
PARTS = {"V100": ((7, 0), 2, 6), "A100": ((8, 0), 4, 12), "H100": ((9, 0), 6, 18), "H200": ((9, 0), 6, 18)}
INFINIBAND = {12.5: "100 Gb/sec (4X EDR)", 25.0: "200 Gb/sec (4X HDR)", 50.0: "400 Gb/sec (4X NDR)"}
COUNTERS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "local_link_integrity_errors")
STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors")

Files = dict[str, "str | bytes"]


class WholeSource(RecordedSource):
    """A recording that holds the whole machine: what it does not have is absent, not unrecorded."""

    def _missing(self, path: str) -> Unreadable:
        reason, detail = self.recording.unreadable.get(path, (Reason.absent, "No such file or directory"))
        return Unreadable(path, reason, detail)


@dataclass
class Port:
    """A bridge or device of the PCI tree."""

    bus_id: str
    path: str  # below /sys/devices
    numa: int
    children: int = 0


@dataclass
class TemplateMachine:
    """A machine; change `files`, `links`, `commands`, `nvml` before asking for it."""

    template: str
    ethernet: bool | None = None  # None: as the template's NICs say.
    files: Files = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: dict[tuple[str, ...], str] = field(default_factory=dict)
    nvml: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, tuple[Reason, str]] = field(default_factory=dict)
    gpus: list[Port] = field(default_factory=list)
    nics: list[Port] = field(default_factory=list)
    job: bool = False

    def __post_init__(self) -> None:
        self.fabric = fabric.load(self.template)
        self._vertices = self.fabric.vertices
        self.numa_count = sum(vertex.kind == VertexKind.numa for vertex in self._vertices)
        self._next_bus = 0x10
        self._pci()
        self._gpus()
        self._nics()
        self._cpus()
        self._kernel()
        self._lldp()

    # ---- asking for it ----

    @property
    def source(self) -> WholeSource:
        """Replays the machine."""
        recording = Recording(
            files={path: content.encode() if isinstance(content, str) else content for path, content in self.files.items()},
            links=dict(self.links),
            commands={argv: CommandOutput(output, "", 0) for argv, output in self.commands.items()},
            libraries={"nvml": json.dumps(self.nvml)},
            unreadable=dict(self.unreadable),
        )
        folders: dict[str, set[str]] = {}
        for path in (*recording.files, *recording.links):
            while path != "/":
                parent, _, name = path.rpartition("/")
                folders.setdefault(parent or "/", set()).add(name)
                path = parent or "/"
        recording.folders = {path: tuple(sorted(names)) for path, names in folders.items()}
        return WholeSource(recording)

    def machine(self) -> Machine:
        """What discovery makes of it."""
        return discovery.discover(self.source, JOB if self.job else None)

    def lay_out(self, root: Path) -> None:
        """Its files and links below a folder, with what the driver says of the GPUs, as `LiveSource(root)` reads them."""
        root.mkdir()
        for path, target in self.links.items():
            link = root / path.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            (link.parent / target).resolve().mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)
        about = {
            f"/proc/driver/nvidia/gpus/{port.bus_id}/information": "Model: \t\t NVIDIA H100 80GB HBM3\n"
            f"GPU UUID: \t GPU-{gpu:08x}-0000-0000-0000-000000000000\nDevice Minor: \t {gpu}\n"
            for gpu, port in enumerate(self.gpus)
        }
        for path, content in {**self.files, **about}.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)

    def record(self, path: Path) -> Path:
        """Writes a recording of it."""
        discovery.record(path, self.source, salt="crafted", pid=JOB if self.job else None)
        return path

    # ---- breaking it ----

    def acs(self, bus_id: str, *on: str) -> None:
        """Switches bits of a bridge's ACS control register on, all others off."""
        config = bytearray(self._config(bus_id))
        struct.pack_into("<H", config, 0x14E, sum(ACS_BITS[bit] for bit in on))
        self.files[f"{PCI}/{bus_id}/config"] = bytes(config)

    def ats(self, nic: int, enabled: bool) -> None:
        """Sets the enable bit of a NIC's ATS control register."""
        bus_id = self.nics[nic].bus_id
        config = bytearray(self._config(bus_id))
        struct.pack_into("<H", config, 0x14E, 0x8000 if enabled else 0)
        self.files[f"{PCI}/{bus_id}/config"] = bytes(config)

    def parent(self, port: Port) -> str:
        """Address of the bridge above."""
        return port.path.rsplit("/", 2)[-2]

    def device(self, bus_id: str, **files: str) -> None:
        """Overwrites files of a PCI function."""
        self.files.update({f"{PCI}/{bus_id}/{name}": content for name, content in files.items()})

    def infiniband(self, nic: int, name: str, content: str) -> None:
        """Overwrites a file of an RDMA device; `port/...` is one of its port's."""
        self.files[f"/sys/class/infiniband/mlx5_{nic}/{name.replace('port/', 'ports/1/')}"] = content

    def netdev(self, nic: int, name: str, content: str) -> None:
        """Overwrites a file of a NIC's netdevice."""
        self.files[f"/sys/class/net/rail{nic}/{name}"] = content

    def virtual_functions(self, nic: int, count: int) -> list[str]:
        """Gives a NIC virtual functions, each an RDMA device with a port that is up: their addresses. Eight functions make a device."""
        physical = self.nics[nic]
        found = []
        for number in range(1, count + 1):
            bus_id = f"{physical.bus_id[:-4]}{number >> 3:02x}.{number & 7}"
            path = f"{physical.path.rpartition('/')[0]}/{bus_id}"
            name = f"mlx5_{nic}v{number}"
            for old, new in (
                (f"{PCI}/{physical.bus_id}/", f"{PCI}/{bus_id}/"),
                (f"/sys/class/infiniband/mlx5_{nic}/", f"/sys/class/infiniband/{name}/"),
            ):
                self.files |= {new + file[len(old) :]: content for file, content in self.files.items() if file.startswith(old)}
            self.device(bus_id, current_link_speed="Unknown", current_link_width="0")
            self.links[f"{PCI}/{bus_id}"] = f"../../../devices/{path}"
            self.links[f"{PCI}/{bus_id}/physfn"] = f"../{physical.bus_id}"
            self.links[f"/sys/class/infiniband/{name}"] = f"../../devices/{path}/infiniband/{name}"
            found.append(bus_id)
        return found

    def subfunction(self, nic: int) -> str:
        """Gives a NIC an mlx5 sub-function, an RDMA device with a port that is up, and a netdevice: that device's name."""
        device, netdev = f"mlx5_{nic}s1", f"enp{nic}s1"
        path = f"{self.nics[nic].path}/mlx5_core.sf.{nic}"
        for old, new in (
            (f"/sys/class/infiniband/mlx5_{nic}/", f"/sys/class/infiniband/{device}/"),
            (f"/sys/class/net/rail{nic}/", f"/sys/class/net/{netdev}/"),
        ):
            self.files |= {new + file[len(old) :]: content for file, content in self.files.items() if file.startswith(old)}
        self.links[f"/sys/class/infiniband/{device}"] = f"../../devices/{path}/infiniband/{device}"
        self.links[f"/sys/class/net/{netdev}"] = f"../../devices/{path}/net/{netdev}"
        return device

    def virtual(self) -> None:
        """Makes it a virtual machine that hides the host's bridges."""
        self.files["/proc/cpuinfo"] = self.files["/proc/cpuinfo"].replace("flags\t\t: fpu", "flags\t\t: fpu hypervisor")  # type: ignore[arg-type]
        for port in (*self.gpus, *self.nics):
            self.links[f"{PCI}/{port.bus_id}"] = f"../../../devices/pci0000:00/{port.bus_id}"
            port.path = f"pci0000:00/{port.bus_id}"

    def environ(self, **variables: str) -> None:
        """Gives it a job with these variables, and healthy otherwise."""
        self.job = True
        at = f"/proc/{JOB}"
        near = self.files[f"{PCI}/{self.gpus[0].bus_id}/local_cpulist"]
        environment = {"LOCAL_RANK": "0", **variables}
        self.files[f"{at}/environ"] = "".join(f"{name}={value}\0" for name, value in environment.items())
        self.files.setdefault(
            f"{at}/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes\n",
        )
        self.files.setdefault(
            f"{at}/status", f"Name:\tpython\nCapEff:\t0000000000000000\nCpus_allowed_list:\t{near}\nMems_allowed_list:\t0\n"
        )
        self.files.setdefault(f"{at}/mountinfo", "30 1 0:26 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=67108864k\n")
        self.files.setdefault(f"{at}/maps", "7f0000000000-7f0000001000 r-xp 00000000 00:00 1 /usr/lib/x86_64-linux-gnu/libnccl.so.2.28.9\n")
        self.files.setdefault(f"{at}/root/dev/null", "")
        for gpu in range(len(self.gpus)):
            self.files.setdefault(f"{at}/root/dev/nvidia{gpu}", "")
        for nic in range(len(self.nics)):
            self.files.setdefault(f"{at}/root/dev/infiniband/uverbs{nic}", "")

    def process(self, name: str, content: str) -> None:
        """Overwrites a file of the job's process."""
        if not self.job:
            self.environ()
        self.files[f"/proc/{JOB}/{name}"] = content

    # ---- making it ----

    def _config(self, bus_id: str) -> bytes:
        content = self.files[f"{PCI}/{bus_id}/config"]
        assert isinstance(content, bytes)
        return content

    def _local(self, numa: int) -> str:
        return ranges(range(numa * CORES_PER_NODE, (numa + 1) * CORES_PER_NODE))

    def _pci(self) -> None:
        """Root port, switch and its ports, or root port alone, above each device, as the template's edges have them."""
        above = {}
        for edge in self.fabric.edges:
            if edge.kind == EdgeKind.pcie and self._vertices[edge.src].node == 0 and self._is_up(edge.src, edge.dst):
                above[edge.src] = (edge.dst, edge.capacity_Bps)
        ports: dict[int, Port] = {}
        # Parents first; numbers of a switch are lower than those of what hangs from it only within a kind.
        order = sorted(above, key=lambda vertex: (self._vertices[vertex].kind != VertexKind.pcie_switch, vertex))
        for vertex in order:
            self._attach(vertex, *above[vertex], ports)
        for vertex in order:
            kind = self._vertices[vertex].kind
            if kind == VertexKind.gpu:
                self.gpus.append(ports[vertex])
            elif kind == VertexKind.nic:
                self.nics.append(ports[vertex])

    def _is_up(self, src: int, dst: int) -> bool:
        rank = {VertexKind.numa: 0, VertexKind.pcie_switch: 1, VertexKind.gpu: 2, VertexKind.nic: 2}
        return rank[self._vertices[src].kind] > rank[self._vertices[dst].kind]

    def _bus(self) -> int:
        self._next_bus += 1
        return self._next_bus

    def _attach(self, vertex: int, parent: int, capacity_Bps: int, ports: dict[int, Port]) -> None:
        above = self._vertices[parent]
        speed = min(PCIE_GBPS, key=lambda speed: abs(2 * PCIE_GBPS[speed] - capacity_Bps / 1e9))
        if above.kind == VertexKind.numa:
            bus = self._bus()
            bridge = Port(f"0000:{bus:02x}:01.0", f"pci0000:{bus:02x}/0000:{bus:02x}:01.0", above.index)
            self._function(bridge, 0x060400, 4, speed, (0x8086, 0x352A))
        else:
            switch = ports[parent]
            bridge_id = f"{switch.bus_id[:-4]}{switch.children:02x}.0"
            switch.children += 1
            bridge = Port(bridge_id, f"{switch.path}/{bridge_id}", switch.numa)
            self._function(bridge, 0x060400, 6, speed, (0x1000, 0xC030))
        device = Port("", "", bridge.numa)
        kind = self._vertices[vertex].kind
        device.bus_id = f"0000:{self._bus():02x}:00.0"
        device.path = f"{bridge.path}/{device.bus_id}"
        if kind == VertexKind.pcie_switch:
            self._function(device, 0x060400, 5, speed, (0x1000, 0xC030))
            inside = self._bus()
            ports[vertex] = Port(f"0000:{inside:02x}:00.0", device.path, device.numa)
        else:
            gpu = kind == VertexKind.gpu
            self._function(device, 0x030200 if gpu else 0x020000, 0, speed, (0x10DE, 0x2330) if gpu else (0x15B3, 0x1021))
            ports[vertex] = device

    def _function(self, port: Port, pci_class: int, express: int, speed: float, ids: tuple[int, int]) -> None:
        at = f"{PCI}/{port.bus_id}"
        bus = int(port.bus_id[5:7], 16)
        self.links[at] = f"../../../devices/{port.path}"
        link = {"speed": f"{speed:.1f} GT/s PCIe", "width": str(LANES)}
        self.device(
            port.bus_id,
            vendor=f"{ids[0]:#06x}",
            device=f"{ids[1]:#06x}",
            subsystem_vendor=f"{ids[0]:#06x}",
            subsystem_device="0x0001",
            numa_node=str(port.numa),
            local_cpulist=self._local(port.numa),
            **{"class": f"{pci_class:#08x}"},
            **{f"{when}_link_{what}": text for when in ("current", "max") for what, text in link.items()},
            **{
                f"aer_dev_{kind}": f"RxErr 0\nTOTAL_ERR_{name} 0"
                for kind, name in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL"))
            },
        )
        serial = 0x1122334455660000 | bus if express == 0 else None
        self.files[f"{at}/config"] = config_space(express, pci_class, speed, serial)
        if pci_class >> 16 != 0x06:
            for irq in range(bus * 16, bus * 16 + 4):
                self.files[f"{at}/msi_irqs/{irq}"] = "msix"
                self.files[f"/proc/irq/{irq}/smp_affinity_list"] = self._local(port.numa)

    def _gpus(self) -> None:
        entries: list[dict[str, Any]] = []
        for index, port in enumerate(self.gpus):
            model = self._vertices[self.fabric.gpu(index)].model
            (major, minor), version, most = next(part for name, part in PARTS.items() if model.startswith(name))
            links = [
                {
                    "state": {"value": 1},
                    "version": {"value": version},
                    "remote_type": {"value": 0 if peer is not None else 2},
                    "remote_bus_id": {"value": f"0000{self.gpus[peer].bus_id.upper()}"}
                    if peer is not None
                    else {"value": "00000000:01:00.0"},
                    "errors": {name: {"value": 0} for name in ("replay", "recovery", "crc_flit", "crc_data")},
                }
                for peer in self._nvlinks(index)
            ]
            switched = any(link["remote_type"] == {"value": 2} for link in links)
            entries.append(
                {
                    "index": index,
                    "bus_id": {"value": f"0000{port.bus_id.upper()}"},
                    "name": {"value": f"NVIDIA {model}"},
                    "uuid": {"value": f"GPU-{index:08x}-0000-0000-0000-000000000000"},
                    "minor": {"value": index},
                    "compute_capability": {"value": [major, minor]},
                    "memory_B": {"value": 80 << 30},
                    "pcie_generation": {"value": 5},
                    "pcie_width": {"value": LANES},
                    "pcie_generation_max": {"value": 5},
                    "pcie_width_max": {"value": LANES},
                    "sm_clock_MHz": {"value": 1980},
                    "sm_clock_max_MHz": {"value": 1980},
                    "throttle_reasons": {"value": 1},
                    "persistence": {"value": 1},
                    "mig": {"value": 0},
                    "fabric_state": {"value": 3} if switched and major >= 9 else {"error": "NVML_ERROR_NOT_SUPPORTED"},
                    "cpu_affinity": {"error": "NVML_ERROR_NOT_SUPPORTED"},
                    "nvlinks": links + [{"state": {"error": "NVML_ERROR_NOT_SUPPORTED"}}] * max(0, most - len(links)),
                    "common_ancestor": {str(other): {"value": 30} for other in range(len(self.gpus)) if other != index},
                }
            )
        self.nvml = {"version": 1, "driver": {"value": "580.95.05"}, "nvml": {"value": "13.580"}, "gpus": entries}

    def _nvlinks(self, gpu: int) -> list[int | None]:
        """For each NVLink of a GPU the GPU at its other end, None for an NVSwitch."""
        found: list[int | None] = []
        vertex = self.fabric.gpu(gpu)
        for edge_id in self.fabric.out_edges(vertex):
            edge = self.fabric.edge(edge_id)
            if edge.kind == EdgeKind.nvlink:
                other = self._vertices[edge.dst]
                found += [other.index if other.kind == VertexKind.gpu else None] * round(edge.capacity_Bps / 25e9)
        return found

    def _nics(self) -> None:
        for index, vertex_id in enumerate(self.fabric.nics_of(0)):
            port, vertex = self.nics[index], self._vertices[vertex_id]
            rate = (
                next(
                    self.fabric.edge(e).capacity_Bps for e in self.fabric.out_edges(vertex_id) if self.fabric.edge(e).kind == EdgeKind.rail
                )
                / 1e9
            )
            ethernet = self.ethernet if self.ethernet is not None else rate == 50.0 and "h200" not in self.template
            if not ethernet:
                self.device(port.bus_id, **{"class": "0x020700"})
            self.links[f"/sys/class/infiniband/mlx5_{index}"] = f"../../devices/{port.path}/infiniband/mlx5_{index}"
            self.links[f"/sys/class/net/rail{index}"] = f"../../devices/{port.path}/net/rail{index}"
            for name, content in {
                "fw_ver": "28.43.1014",
                "board_id": "MT_0000000838" if vertex.model == "ConnectX-7" else "MT_0000000224",
                "node_guid": f"0000:0000:0000:{index + 1:04x}",
                "port/link_layer": "Ethernet" if ethernet else "InfiniBand",
                "port/rate": INFINIBAND[rate],
                "port/state": "4: ACTIVE",
                "port/phys_state": "5: LinkUp",
                "port/gids/0": f"fe80:0000:0000:0000:0000:0000:0000:{index + 1:04x}",
                "port/gid_attrs/types/0": "RoCE v2" if ethernet else "IB/RoCE v1",
                **{f"port/counters/{counter}": "0" for counter in COUNTERS},
                "port/hw_counters/packet_seq_err": "0",
            }.items():
                self.infiniband(index, name, content)
            for name, content in {
                "mtu": "9000" if ethernet else "2044",
                "operstate": "up",
                "carrier": "1",
                "carrier_changes": "2",
                "dev_port": "0",
                "type": "1" if ethernet else "32",
                "speed": str(round(rate * 8000)),
                **{f"statistics/{name}": "0" for name in STATISTICS},
                **(
                    {f"ecn/roce_{end}/enable/{priority}": str(int(priority == 3)) for end in ("np", "rp") for priority in range(8)}
                    if ethernet
                    else {}
                ),
            }.items():
                self.netdev(index, name, content)
            if ethernet:
                self.qos(index)

    def qos(self, nic: int, trust: str = "dscp", pfc: str = "0   0   0   1   0   0   0   0") -> None:
        """What mlnx_qos says of a NIC."""
        self.commands["mlnx_qos", "-i", f"rail{nic}"] = (
            f"DCBX mode: OS controlled\nPriority trust state: {trust}\nPFC configuration:\n"
            f"\tpriority    0   1   2   3   4   5   6   7\n\tenabled     {pfc}\n"
        )

    def _cpus(self) -> None:
        count = self.numa_count * CORES_PER_NODE
        self.files["/proc/cpuinfo"] = (
            "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu\n"
        )
        self.files["/proc/sys/kernel/arch"] = "x86_64"
        self.files["/sys/devices/system/cpu/online"] = ranges(range(count))
        self.files["/sys/devices/system/cpu/isolated"] = ""
        self.files["/sys/devices/system/cpu/smt/active"] = "0"
        self.files["/sys/devices/system/cpu/smt/control"] = "notsupported"
        for node in range(self.numa_count):
            at = f"/sys/devices/system/node/node{node}"
            self.files[f"{at}/cpulist"] = self._local(node)
            self.files[f"{at}/meminfo"] = f"Node {node} MemTotal:       1056000000 kB"
            self.files[f"{at}/distance"] = " ".join("10" if node == other else "21" for other in range(self.numa_count))
            self.files[f"{at}/hugepages/hugepages-2048kB/nr_hugepages"] = "0"
        for cpu in range(count):
            node = cpu // CORES_PER_NODE
            at = f"/sys/devices/system/cpu/cpu{cpu}"
            self.files[f"{at}/topology/thread_siblings_list"] = str(cpu)
            self.files[f"{at}/topology/physical_package_id"] = str(node)
            self.files[f"{at}/topology/core_siblings_list"] = self._local(node)
            self.files[f"{at}/cache/index3/shared_cpu_list"] = self._local(node)
            policy = f"/sys/devices/system/cpu/cpufreq/policy{cpu}"
            self.files[f"{policy}/scaling_governor"] = "performance"
            self.files[f"{policy}/energy_performance_preference"] = "performance"
            self.files[f"{policy}/affected_cpus"] = str(cpu)

    def _kernel(self) -> None:
        self.files |= {
            "/proc/sys/kernel/osrelease": "6.8.0-90-generic",
            "/proc/sys/kernel/hostname": "gpu-node-17",
            "/proc/sys/kernel/numa_balancing": "0",
            "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt",
            "/proc/modules": "gdrdrv 16384 0 - Live 0x0\nnvidia 1 0 - Live 0x0\nmlx5_ib 1 0 - Live 0x0\n",
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
            "/sys/module/gdrdrv/version": "2.5",
            "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "/sys/class/dmi/id/product_name": self.template,
            "/proc/1/cgroup": "0::/init.scope",
            "/dev/null": "",
        }
        self.commands["systemctl", "is-active", "nvidia-fabricmanager"] = "active\n"
        self.commands["systemctl", "is-active", "irqbalance"] = "inactive\n"

    def _lldp(self) -> None:
        self.leaf({nic: f"leaf{nic}" for nic in range(len(self.nics))})

    def leaf(self, switches: dict[int, str]) -> None:
        """What LLDP says about the switch at the other end of each NIC's cable."""
        interfaces = [
            {
                f"rail{nic}": {
                    "chassis": {switch: {"id": {"type": "mac", "value": "00:00:00:00:00:01"}}},
                    "port": {"id": {"type": "ifname", "value": "Eth1"}},
                }
            }
            for nic, switch in switches.items()
        ]
        self.commands["lldpcli", "-f", "json", "show", "neighbors"] = json.dumps({"lldp": {"interface": interfaces}})


def config_space(express: int, pci_class: int, speed: float, serial: int | None = None) -> bytes:
    """4096 bytes: PCI Express, AER, ACS of a port or ATS of a NIC, everything off; of an endpoint its serial number."""
    config = bytearray(4096)
    struct.pack_into("<H", config, 0x06, 0x10)
    config[0x34] = 0x40
    config[0x40] = 0x10
    generation = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5}[speed]
    struct.pack_into("<H", config, 0x42, 2 | express << 4)
    struct.pack_into("<I", config, 0x4C, generation | LANES << 4)
    extended = [(0x0001, 2, 0x100, b"")]
    if express in (4, 6):
        extended.append((0x000D, 1, 0x148, struct.pack("<HH", 0x1F | 0x40, 0)))
    elif pci_class >> 16 == 0x02:
        extended.append((0x000F, 1, 0x148, struct.pack("<HH", 0, 0x8000)))
    if serial is not None:
        extended.append((0x0003, 1, SERIAL_NUMBER - 4, struct.pack("<Q", serial)))
    for place, (capability, version, at, content) in enumerate(extended):
        following = extended[place + 1][2] if place + 1 < len(extended) else 0
        struct.pack_into("<I", config, at, capability | version << 16 | following << 20)
        config[at + 4 : at + 4 + len(content)] = content
    return bytes(config)
