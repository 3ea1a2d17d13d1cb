"""The kernel, its drivers, and what surrounds it: hypervisor, container, devices."""

from __future__ import annotations

from railweave.machine.facts import Fact, Host, Kernel, Known, PciDevice, Unknown, known
from railweave.machine.processors import has_hypervisor_flag
from railweave.machine.reading import NotGiven, attempt, cpu_list, integer, or_else, or_none, parsed, text_fact
from railweave.machine.source import Reason, Source, Unreadable
from railweave.records import replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FABRIC_MANAGER = ("systemctl", "is-active", "nvidia-fabricmanager")
DETECT_VIRT = ("systemd-detect-virt", "--vm")
IRQBALANCE = ("systemctl", "is-active", "irqbalance")
_CONTAINER_MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
TOPOLOGYD_FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"
# Interrupts are read of GPUs and NICs only, and of each not more than a NIC has queues.
_IRQS = 4096


def _is_open(text: str) -> bool:
    """`NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 ...`; proprietary ones have no `Open`."""
    if "Kernel Module" not in text:
        raise NotGiven(f"{text[:40]!r}: no line with the kernel module's name")
    return "Open Kernel Module" in text


def read_kernel(source: Source, nvidia_driver: Fact[str], pci: Fact[tuple[PciDevice, ...]]) -> Kernel:
    """Release, command line, modules, and what they offer to GPUs and NICs."""
    return replace(
        read_peer_access(source),
        cmdline=parsed(source, "/proc/cmdline", lambda text: tuple(text.split())),
        modules=parsed(source, "/proc/modules", lambda text: tuple(sorted(line.split()[0] for line in text.splitlines() if line.strip()))),
        nvidia_driver=nvidia_driver if isinstance(nvidia_driver, Known) else text_fact(source, "/sys/module/nvidia/version"),
        iommu_groups=_iommu_groups(source),
        numa_balancing=integer(source, "/proc/sys/kernel/numa_balancing"),
        transparent_hugepages=parsed(source, "/sys/kernel/mm/transparent_hugepage/enabled", _chosen),
        irq_affinity=_irq_affinity(source, pci),
        irqbalance=_service(source, IRQBALANCE),
    )


def read_peer_access(source: Source) -> Kernel:
    """What decides whether NICs and CPUs reach the memory of GPUs."""
    return Kernel(
        release=text_fact(source, "/proc/sys/kernel/osrelease"),
        nvidia_open=parsed(source, "/proc/driver/nvidia/version", _is_open),
        peermem=_peer_memory_clients(source),
        gdrcopy=text_fact(source, "/sys/module/gdrdrv/version"),
    )


def _chosen(text: str) -> str:
    """The word in brackets: `always [madvise] never`."""
    import re  # here and below: not for those who only start ranks

    found = re.search(r"\[(\w+)\]", text)
    if found is None:
        raise ValueError(f"{text[:40]!r}, expected one word in brackets")
    return found[1]


def _peer_memory_clients(source: Source) -> Fact[tuple[str, ...]]:
    """Of the out-of-tree RDMA core, in /sys/kernel/mm; of the in-tree one, the module alone, which then found its interface."""
    path = "/sys/kernel/mm/memory_peers"
    clients = attempt(path, lambda: source.listdir(path))
    if isinstance(clients, Known):
        return clients
    module = attempt("/sys/module/nvidia_peermem", lambda: source.listdir("/sys/module/nvidia_peermem"))
    if isinstance(module, Known):
        return Known(("nvidia_peermem",), module.evidence)
    return or_else(clients, ())


def _iommu_groups(source: Source) -> Fact[int]:
    path = "/sys/kernel/iommu_groups"
    return or_else(attempt(path, lambda: len(source.listdir(path))), 0)


def _irq_affinity(source: Source, pci: Fact[tuple[PciDevice, ...]]) -> Fact[Mapping[int, tuple[int, ...]]]:
    if isinstance(pci, Unknown):
        return pci
    path = "/proc/irq/*/smp_affinity_list"
    unsure = next((device.pci_class for device in pci.value if isinstance(device.pci_class, Unknown)), None)
    if unsure is not None:
        return unsure

    def read() -> Mapping[int, tuple[int, ...]]:
        numbers = [irq for device in pci.value if device.is_class(0x02, 2) or device.is_class(0x03, 2) for irq in known(device.irqs) or ()]
        found = {}
        for number in sorted(set(numbers))[:_IRQS]:
            try:
                found[number] = cpu_list(source.read_text(f"/proc/irq/{number}/smp_affinity_list"))
            except Unreadable as error:
                if error.reason is not Reason.absent:  # allocated, and not requested by the driver
                    raise
        return found

    return attempt(path, read)


def _service_state(source: Source, argv: Sequence[str]) -> Fact[str]:
    """What `systemctl is-active` says; its exit status only repeats it."""

    def read() -> str:
        output = source.command(argv)
        state = output.stdout.strip()
        if not state:
            words = " ".join(output.stderr.split())
            reason = Reason.unsupported if "not been booted with systemd" in words else Reason.error
            raise Unreadable(" ".join(argv), reason, words[:120])
        return state

    return attempt(" ".join(argv), read)


def _service(source: Source, argv: Sequence[str]) -> Fact[bool]:
    state = _service_state(source, argv)
    return state if isinstance(state, Unknown) else Known(state.value == "active", state.evidence)


def read_host(source: Source) -> Host:
    """Hypervisor, container, devices, services."""
    return replace(
        read_guest(source),
        vendor=text_fact(source, "/sys/class/dmi/id/sys_vendor"),
        product=text_fact(source, "/sys/class/dmi/id/product_name"),
        bios=text_fact(source, "/sys/class/dmi/id/bios_version"),
        container=_container(source),
        infiniband_devices=or_else(attempt("/dev/infiniband", lambda: source.listdir("/dev/infiniband")), ()),
        nvidia_devices=attempt("/dev/nvidia*", lambda: _nvidia_devices(source)),
        fabric_manager=_service_state(source, FABRIC_MANAGER),
    )


def read_guest(source: Source) -> Host:
    """Whether this is a virtual machine, and what tells NCCL the wiring that it may hide."""
    return Host(hypervisor=_hypervisor(source), topology_file=_topology_file(source))


def _hypervisor(source: Source) -> Fact[bool]:
    """As an x86 processor says; of others, which do not, systemd looks into firmware tables and device tree."""
    flag = has_hypervisor_flag(source)
    if isinstance(flag, Known):
        return flag

    def read() -> bool:
        import re

        kind = source.command(DETECT_VIRT).stdout.strip()  # the exit status only repeats it
        if not re.fullmatch(r"[a-z0-9-]+", kind):
            raise NotGiven(f"{kind[:40]!r}")
        return kind != "none"

    asked = attempt(" ".join(DETECT_VIRT), read)
    return asked if isinstance(asked, Known) else flag


def _topology_file(source: Source) -> Fact[str | None]:
    """NCCL takes NCCL_TOPO_FILE, which /etc/nccl.conf may set, else the file of nvidia-topologyd (NCCL src/graph/topo.cc)."""

    def settings(text: str) -> list[str]:
        import re

        return re.findall(r"^\s*NCCL_TOPO_FILE=(\S+)", text, re.MULTILINE)

    named = parsed(source, "/etc/nccl.conf", settings)
    if isinstance(named, Known) and named.value:
        return Known(named.value[-1], named.evidence)
    written = or_none(parsed(source, TOPOLOGYD_FILE, lambda _: TOPOLOGYD_FILE))
    if isinstance(written, Known) and written.value is None:
        configured = or_none(named)
        return configured if isinstance(configured, Unknown) else Known(None, f"{TOPOLOGYD_FILE}, /etc/nccl.conf: none")
    return written


def _nvidia_devices(source: Source) -> tuple[str, ...]:
    return tuple(name for name in source.listdir("/dev") if name.startswith("nvidia") or name == "gdrdrv")


def _container(source: Source) -> Fact[str | None]:
    """Marks that container runtimes leave; cgroup paths name those that leave none."""
    systemd = or_none(text_fact(source, "/run/systemd/container"))
    if isinstance(systemd, Known) and systemd.value:
        return systemd
    for path, kind in _CONTAINER_MARKS.items():
        if isinstance(attempt(path, lambda path=path: source.read_bytes(path)), Known):  # type: ignore[misc]
            return Known(kind, path)
    cgroup = text_fact(source, "/proc/1/cgroup")
    if isinstance(cgroup, Unknown):
        return cgroup
    import re

    found = re.search(r"kubepods|docker|containerd|lxc|libpod", cgroup.value)
    kinds = {"kubepods": "kubernetes", "libpod": "podman"}
    return Known(kinds.get(found[0], found[0]) if found else None, cgroup.evidence)
