"""What is known about a machine: typed facts, each with where it was read, or why it is not known.

Units are in the names: `_B` bytes, `_bps` bit/s, `_GTps` transfers/s, `_MHz`. PCI addresses are written as Linux does, `0000:1b:00.0`.
"""

from __future__ import annotations

from railweave.machine.source import Reason
from railweave.records import cached_property, dataclass, field, field_names

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Generic, TypeVar, Union

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
else:

    class Generic:
        """What type checkers alone look at, without `typing`, whose import takes a tenth of a rank's first start."""

        def __class_getitem__(cls, _):
            return cls

    T_co = None


@dataclass(frozen=True)
class Known(Generic[T_co]):
    """A value, and the file, command line or library call that gave it."""

    value: T_co
    evidence: str

    def __init__(self, value: T_co, evidence: str) -> None:
        values = self.__dict__  # of the thousands that a machine has, the quick way
        values["value"] = value
        values["evidence"] = evidence


@dataclass(frozen=True)
class Unknown:
    """Why there is no value: the reason, and the file, command line or library call that was asked."""

    reason: Reason
    path: str
    detail: str = ""

    def __str__(self) -> str:
        why = f"{self.reason.value.replace('_', ' ')}{f' ({self.detail})' if self.detail else ''}"
        return f"{self.path}: {why}" if self.path else why


if TYPE_CHECKING:
    Fact = Union[Known[T], Unknown]  # noqa: UP007 - Python 3.10 cannot apply | to generic classes here
else:
    Fact = (Known, Unknown)
FLAT_TREE = "guest sees a flat tree"
NOT_ASKED = Unknown(Reason.not_given, "", "this source of the machine's description does not have it")


def known(fact: Fact[T]) -> T | None:
    """The value, or None where unknown: for places that treat both alike. Whoever shows or judges a fact must tell them apart."""
    return fact.value if isinstance(fact, Known) else None


@dataclass(frozen=True)
class PciLink:
    """A PCI Express link: transfers/s of a lane (2.5, 5, 8, 16, 32, 64 GT/s), and lanes."""

    speed_GTps: float
    width: int

    def __str__(self) -> str:
        return f"{self.speed_GTps:g} GT/s x{self.width}"


@dataclass(frozen=True)
class Sriov:
    """Virtual functions of a physical function: how many it can have, how many are on."""

    total: int
    enabled: int


@dataclass(frozen=True)
class PciDevice:
    """A function on the PCI bus."""

    bus_id: str
    parent: str | None
    """The bridge above it; None on a root bus (for a machine whose tree is hidden, everything is)."""
    root: str
    """The root bus: `pci0000:00`."""
    unplaced: Unknown | None = None
    """Why its place in the tree is not known; `parent` and `root` say nothing then."""
    vendor: Fact[int] = NOT_ASKED
    device: Fact[int] = NOT_ASKED
    pci_class: Fact[int] = NOT_ASKED
    """24 bits: 0x030200 a GPU, 0x0200xx Ethernet, 0x0207xx InfiniBand, 0x0604xx a bridge, 0x0680xx NVSwitch."""
    subsystem_vendor: Fact[int] = NOT_ASKED
    subsystem_device: Fact[int] = NOT_ASKED
    name: Fact[str] = NOT_ASKED
    """As a tool wrote it (`lspci`, hwloc); sysfs has no names."""
    numa: Fact[int] = NOT_ASKED
    local_cpus: Fact[tuple[int, ...]] = NOT_ASKED
    link: Fact[PciLink] = NOT_ASKED
    """What the link to the bridge above runs at now. An idle GPU lowers its speed."""
    link_max: Fact[PciLink] = NOT_ASKED
    """What this device can do; compare with the bridge's."""
    rate_Bps: Fact[int] = NOT_ASKED
    """Bytes/s of the link, for sources that give it instead of speed and width (hwloc)."""
    driver: Fact[str | None] = NOT_ASKED
    iommu_group: Fact[int | None] = NOT_ASKED
    iommu_domain: Fact[str] = NOT_ASKED
    """identity (pass-through), DMA, DMA-FQ."""
    config: Fact[bytes] = NOT_ASKED
    """Configuration space: 4096 bytes as root (256 on old buses), 64 otherwise; `railweave.machine.pci_config` decodes it."""
    sriov: Fact[Sriov | None] = NOT_ASKED
    physical_function: Fact[str | None] = NOT_ASKED
    """Address of the physical function that this is a virtual function of."""
    aer: Fact[Mapping[str, int]] = NOT_ASKED
    """Errors counted by PCIe Advanced Error Reporting: `correctable`, `nonfatal`, `fatal`."""
    irqs: Fact[tuple[int, ...]] = NOT_ASKED

    def is_class(self, prefix: int, digits: int) -> bool:
        """Whether the class begins with these hexadecimal digits; False where it is not known."""
        return isinstance(self.pci_class, Known) and self.pci_class.value >> (4 * (6 - digits)) == prefix

    @property
    def is_bridge(self) -> bool:
        """A PCI-to-PCI bridge: a root port, or a port of a switch."""
        return self.is_class(0x0604, 4)


@dataclass(frozen=True)
class NvLink:
    """One active NVLink of a GPU."""

    link: int
    version: Fact[int]
    """Generation: 4 on Hopper."""
    remote: str
    """`gpu`, `switch`, `cpu` or `unknown`."""
    remote_bus_id: Fact[str]
    errors: Fact[Mapping[str, int]] = NOT_ASKED
    """`replay`, `recovery`, `crc_flit` and `crc_data` since the driver was loaded."""


@dataclass(frozen=True)
class Gpu:
    """A GPU. `index` is the driver's (NVML, nvidia-smi), which orders by bus id, as NCCL and `CUDA_DEVICE_ORDER=PCI_BUS_ID` do."""

    index: int
    bus_id: Fact[str]
    name: Fact[str] = NOT_ASKED
    uuid: Fact[str] = NOT_ASKED
    minor: Fact[int] = NOT_ASKED
    """The N of /dev/nvidiaN."""
    sm: Fact[int] = NOT_ASKED
    """Compute capability, 90 for 9.0."""
    memory_B: Fact[int] = NOT_ASKED
    nvlinks: Fact[tuple[NvLink, ...]] = NOT_ASKED
    """Active links only."""
    nvlink_slots: Fact[int] = NOT_ASKED
    """NVLinks that the driver knows of this GPU, active or not."""
    peers: Fact[Mapping[int, str]] = NOT_ASKED
    """Way to each other GPU as `nvidia-smi topo -m` names it: NV18, PIX, PXB, PHB, NODE, SYS."""
    nic_paths: Fact[Mapping[str, str]] = NOT_ASKED
    """Way to each NIC, likewise."""
    affinity: Fact[tuple[int, ...]] = NOT_ASKED
    """Cores that the driver calls near."""
    numa: Fact[int] = NOT_ASKED
    """NUMA node that the driver calls near, of a source without a PCI tree."""
    link: Fact[PciLink] = NOT_ASKED
    link_max: Fact[PciLink] = NOT_ASKED
    sm_clock_MHz: Fact[int] = NOT_ASKED
    sm_clock_max_MHz: Fact[int] = NOT_ASKED
    throttle: Fact[tuple[str, ...]] = NOT_ASKED
    """Why clocks are held back now: `sw_power_cap`, `hw_slowdown`, `sw_thermal`, `hw_thermal`, `hw_power_brake`; `idle` is none."""
    persistence: Fact[bool] = NOT_ASKED
    mig: Fact[bool] = NOT_ASKED
    fabric_state: Fact[str] = NOT_ASKED
    """Registration of an NVSwitch machine's GPU with Fabric Manager: `not_supported`, `not_started`, `in_progress`, `completed`."""

    @property
    def lost(self) -> Unknown | None:
        """The answer that says that the driver cannot reach this GPU any more; None while it can."""
        answers = (getattr(self, name) for name in field_names(self) if name != "peers")
        return next((fact for fact in answers if isinstance(fact, Unknown) and fact.reason is Reason.vanished), None)


@dataclass(frozen=True)
class Gid:
    """An entry of an RDMA port's address table."""

    index: int
    gid: str
    type: Fact[str]
    """`IB/RoCE v1` or `RoCE v2`."""


@dataclass(frozen=True)
class Nic:
    """A network port: of an RDMA device, or a netdevice on the PCI bus without one."""

    name: str
    """The RDMA device (`mlx5_0`), else the netdevice."""
    port: int
    bus_id: Fact[str | None]
    """None for a port that is on no PCI device."""
    subfunction: Fact[str | None] = NOT_ASKED
    """The sub-function of the PCI device that has this port (`mlx5_core.sf.4`), None for a port of the device itself."""
    nic_paths: Fact[Mapping[str, str]] = NOT_ASKED
    """Way to each other NIC as `nvidia-smi topo -m` names it."""
    rdma: Fact[str | None] = NOT_ASKED
    netdevs: Fact[tuple[str, ...]] = NOT_ASKED
    link_layer: Fact[str] = NOT_ASKED
    """`InfiniBand` or `Ethernet`."""
    rate_bps: Fact[int] = NOT_ASKED
    state: Fact[str] = NOT_ASKED
    """`active`, `down`, `init`, `armed` of an RDMA port; `up`, `down` and others of a netdevice."""
    physical_state: Fact[str] = NOT_ASKED
    mtu: Fact[int] = NOT_ASKED
    """Of the netdevice, in bytes."""
    firmware: Fact[str] = NOT_ASKED
    board: Fact[str] = NOT_ASKED
    """The vendor's id of the board (`MT_0000000838`): boards of one id take the same firmware."""
    guid: Fact[str] = NOT_ASKED
    gids: Fact[tuple[Gid, ...]] = NOT_ASKED
    counters: Fact[Mapping[str, int]] = NOT_ASKED
    """Port and hardware counters of the RDMA device by name."""
    statistics: Fact[Mapping[str, int]] = NOT_ASKED
    """Counters of the netdevice, summed over those of this port."""
    carrier_changes: Fact[int] = NOT_ASKED
    bond: Fact[str | None] = NOT_ASKED
    """The bond this port's netdevice belongs to."""
    trust: Fact[str] = NOT_ASKED
    """Whether priorities come from `pcp` or from `dscp`."""
    pfc: Fact[tuple[int, ...]] = NOT_ASKED
    """Priorities with priority flow control."""
    ecn: Fact[tuple[int, ...]] = NOT_ASKED
    """Priorities on which congestion notification is on at both ends (notification and reaction point)."""
    traffic_class: Fact[int] = NOT_ASKED
    """`tclass` that the driver forces on RoCE; 0 leaves it to the program."""


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node: cores with memory of their own."""

    id: int
    cpus: Fact[tuple[int, ...]] = NOT_ASKED
    memory_B: Fact[int] = NOT_ASKED
    distances: Fact[Mapping[int, int]] = NOT_ASKED
    """By node, 10 is its own memory (ACPI SLIT)."""
    hugepages: Fact[Mapping[int, int]] = NOT_ASKED
    """Reserved huge pages by size in bytes."""


@dataclass(frozen=True)
class Core:
    """A core: its socket, None where the system does not number sockets, and the hardware threads (logical CPUs) on it."""

    package: int | None
    cpus: tuple[int, ...]


@dataclass(frozen=True)
class Cpus:
    """The processors."""

    arch: Fact[str] = NOT_ASKED
    vendor: Fact[str] = NOT_ASKED
    model_name: Fact[str] = NOT_ASKED
    family: Fact[int] = NOT_ASKED
    model: Fact[int] = NOT_ASKED
    online: Fact[tuple[int, ...]] = NOT_ASKED
    cores: Fact[tuple[Core, ...]] = NOT_ASKED
    isolated: Fact[tuple[int, ...]] = NOT_ASKED
    """Logical CPUs that are kept from the scheduler (`isolcpus`): a process with several of them stays on one."""
    l3: Fact[tuple[tuple[int, ...], ...]] = NOT_ASKED
    """Logical CPUs that share a last-level cache."""
    smt: Fact[bool] = NOT_ASKED
    governors: Fact[Mapping[str, tuple[int, ...]]] = NOT_ASKED
    """CPUs by frequency governor."""
    energy_preferences: Fact[Mapping[str, tuple[int, ...]]] = NOT_ASKED
    """CPUs by energy-performance preference (EPP)."""


@dataclass(frozen=True)
class Kernel:
    """Linux, and the drivers in it."""

    release: Fact[str] = NOT_ASKED
    cmdline: Fact[tuple[str, ...]] = NOT_ASKED
    modules: Fact[tuple[str, ...]] = NOT_ASKED
    nvidia_driver: Fact[str] = NOT_ASKED
    nvidia_open: Fact[bool] = NOT_ASKED
    """The open kernel modules, which dma-buf needs."""
    peermem: Fact[tuple[str, ...]] = NOT_ASKED
    """Peer memory clients that the RDMA core knows: nvidia-peermem shows as `nv_mem`."""
    gdrcopy: Fact[str] = NOT_ASKED
    """Version of the gdrdrv module, of GDRCopy."""
    iommu_groups: Fact[int] = NOT_ASKED
    """How many; 0 where no IOMMU translates."""
    numa_balancing: Fact[int] = NOT_ASKED
    transparent_hugepages: Fact[str] = NOT_ASKED
    irq_affinity: Fact[Mapping[int, tuple[int, ...]]] = NOT_ASKED
    """CPUs that may serve an interrupt, for the interrupts of NICs and GPUs."""
    irqbalance: Fact[bool] = NOT_ASKED
    """Whether the irqbalance daemon runs, which moves interrupts."""


@dataclass(frozen=True)
class Host:
    """What surrounds the kernel: hypervisor, container, devices that can be opened."""

    vendor: Fact[str] = NOT_ASKED
    product: Fact[str] = NOT_ASKED
    bios: Fact[str] = NOT_ASKED
    hypervisor: Fact[bool] = NOT_ASKED
    """Whether this is a virtual machine, as the CPU says."""
    container: Fact[str | None] = NOT_ASKED
    """Kind of the container this runs in, None outside of one."""
    infiniband_devices: Fact[tuple[str, ...]] = NOT_ASKED
    """Names in /dev/infiniband."""
    nvidia_devices: Fact[tuple[str, ...]] = NOT_ASKED
    """Names /dev/nvidia*, and /dev/gdrdrv."""
    fabric_manager: Fact[str] = NOT_ASKED
    """State of the service nvidia-fabricmanager: `active`, `inactive`, `failed`."""
    topology_file: Fact[str | None] = NOT_ASKED
    """The topology file that NCCL reads in every job here: the one that /etc/nccl.conf names, or that of nvidia-topologyd."""


@dataclass(frozen=True)
class PlaceInFile:
    """Where a PCI function stands in a topology file."""

    above: tuple[str, ...]
    """Addresses of the switches around it, nearest first."""
    numa: int | None
    link: PciLink | None


@dataclass(frozen=True)
class LldpNeighbour:
    """What is heard at a netdevice: the switch port at the other end of its cable, and at times others, such as a NIC's firmware."""

    netdev: str
    switch: str
    port: str
    forwards: bool | None = None
    """Whether it calls itself a bridge or a router; None where it tells no capabilities."""


@dataclass(frozen=True)
class Process:
    """What a process of a job was started with."""

    pid: int
    environ: Fact[Mapping[str, str]]
    """Variables of communication libraries, launchers and CUDA; no others."""
    memlock_B: Fact[int | None]
    """Limit of locked memory; None is unlimited."""
    shm_B: Fact[int | None]
    """Size of /dev/shm that the mount states; None where it is the kernel's default, half of the memory."""
    affinity: Fact[tuple[int, ...]]
    memory_nodes: Fact[tuple[int, ...]]
    infiniband_devices: Fact[tuple[str, ...]]
    """Names in the process's /dev/infiniband."""
    gpu_devices: Fact[tuple[int, ...]] = NOT_ASKED
    """The N of each /dev/nvidiaN in the process's /dev; a device cgroup may refuse some of them."""
    open_gpus: Fact[tuple[int, ...]] = NOT_ASKED
    """Those that it has open."""
    ipc_lock: Fact[bool] = NOT_ASKED
    """Whether it may lock memory beyond the limit (CAP_IPC_LOCK)."""
    nccl_version: Fact[tuple[int, int, int]] = NOT_ASKED
    """Release of the NCCL library that it has loaded."""
    missing_files: Fact[tuple[str, ...]] = NOT_ASKED
    """Files that its variables name and that are not there for it."""


@dataclass(frozen=True)
class Machine:
    """One host. `origin` says what described it."""

    origin: str
    pci: Fact[tuple[PciDevice, ...]] = NOT_ASKED
    gpus: Fact[tuple[Gpu, ...]] = NOT_ASKED
    nics: Fact[tuple[Nic, ...]] = NOT_ASKED
    numa: Fact[tuple[NumaNode, ...]] = NOT_ASKED
    cpus: Cpus = field(default_factory=Cpus)
    kernel: Kernel = field(default_factory=Kernel)
    host: Host = field(default_factory=Host)
    lldp: Fact[tuple[LldpNeighbour, ...]] = NOT_ASKED
    topology: Fact[Mapping[str, PlaceInFile]] = NOT_ASKED
    """By PCI address, of the topology file that NCCL is given here; read in guests that see a flat tree only."""
    process: Process | None = None

    @cached_property
    def _by_bus_id(self) -> dict[str, PciDevice]:
        return {device.bus_id: device for device in known(self.pci) or ()}

    def pci_device(self, bus_id: str) -> PciDevice | None:
        """The function at that address."""
        return self._by_bus_id.get(bus_id)

    def ancestors(self, bus_id: str) -> tuple[PciDevice, ...]:
        """Bridges above a function, nearest first."""
        by_id = self._by_bus_id
        found: list[PciDevice] = []
        at = by_id.get(bus_id)
        while at is not None and at.parent is not None and len(found) < len(by_id):
            at = by_id.get(at.parent)
            if at is not None:
                found.append(at)
        return tuple(found)

    @cached_property
    def hidden_tree(self) -> Unknown | None:
        """Why PCI paths between GPUs and NICs cannot be told from the tree: a guest that is shown a flat one; None where the tree is real.
        `topology` may tell them then.

        A hypervisor that shows none of them below a switch has put them on root buses of its own making: that two devices meet in the CPU
        there says nothing about the host. On bare metal each PCI Express device has a root port above it.
        """
        hypervisor = self.host.hypervisor
        if known(hypervisor) is False:
            return None
        by_id = self._by_bus_id
        named = [known(gpu.bus_id) for gpu in known(self.gpus) or ()] + [known(nic.bus_id) for nic in known(self.nics) or ()]
        parents = [by_id[bus_id].parent for bus_id in named if bus_id in by_id and by_id[bus_id].unplaced is None]
        if any(parent in by_id and by_id[parent].parent is not None for parent in parents if parent is not None):
            return None
        if known(hypervisor) or None in parents:
            where = self.pci.evidence if isinstance(self.pci, Known) else ""
            return Unknown(Reason.not_given, where, FLAT_TREE) if parents else None
        return None
