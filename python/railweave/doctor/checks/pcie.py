"""PCI Express: redirected peer traffic, translation, narrow or slow links, errors."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.doctor.check import Check, MissingError, Subject, Verdict, clear, fires, unknown
from railweave.doctor.effect import pcie_GBps, with_links_at, without_gdr
from railweave.doctor.finding import Severity
from railweave.doctor.patient import Patient, Way, bus_ids, evidence, label, need
from railweave.machine import pci_config
from railweave.machine.facts import Gpu, Known, Nic, PciDevice, PciLink, Unknown
from railweave.machine.source import Reason

REDIRECTS = ("ReqRedir", "CmpltRedir", "UpstreamFwd")
_CONNECTX8 = 0x1023  # pci.ids, vendor 15b3


def _ends(patient: Patient) -> tuple[list[tuple[Gpu | Nic, PciDevice]], list[Subject]]:
    """GPUs and fabric NICs with their PCI functions, and those of which none is known."""
    found: list[tuple[Gpu | Nic, PciDevice]] = []
    unplaced: list[Subject] = []
    for kind, listed in (("GPUs", lambda: patient.gpus), ("fabric NICs", lambda: patient.fabric_nics)):
        try:
            ends: Sequence[Gpu | Nic] = listed()
        except MissingError as missing:
            unplaced.append(Subject(kind, missing=str(missing)))
            continue
        for end in ends:
            try:
                found.append((end, patient.need_device(end)))
            except MissingError as missing:
                unplaced.append(Subject(label(end), (end,), bus_ids(end), str(missing)))
    return found, unplaced


def _peer_paths(patient: Patient) -> Sequence[Subject]:
    """GPU-NIC and GPU-GPU pairs that meet below the CPU: only there can a bridge send peer traffic a longer way than it needs."""
    ends, found = _ends(patient)
    gpus = [(end, device) for end, device in ends if isinstance(end, Gpu)]
    nics = [(end, device) for end, device in ends if isinstance(end, Nic)]
    pairs = [(gpu, nic) for gpu in gpus for nic in nics] + [(one, other) for place, one in enumerate(gpus) for other in gpus[place + 1 :]]
    by_pcie = [(one, other) for one, other in pairs if not (isinstance(other[0], Gpu) and _by_nvlink(one[0], other[0]))]
    if by_pcie and patient.machine.hidden_tree is not None and isinstance(patient.machine.topology, Unknown):
        raise MissingError(str(patient.machine.hidden_tree))
    for (one, device), (other, other_device) in by_pcie:
        name, at = f"{label(one)} - {label(other)}", bus_ids(one, other)
        try:
            way = patient.way(device, other_device)
        except MissingError as missing:
            found.append(Subject(name, (one, other), at, str(missing)))
            continue
        if way.kind in ("PIX", "PXB"):
            found.append(Subject(name, (one, other, way), at))
    return found


def _by_nvlink(one: Gpu, other: Gpu) -> bool:
    """Whether two GPUs are known to reach each other over NVLink, so that their PCIe path does not matter."""
    if isinstance(one.nvlinks, Known) and isinstance(other.nvlinks, Known):
        to_switch = all(
            any(link.remote == "switch" for link in gpu.nvlinks.value) for gpu in (one, other) if isinstance(gpu.nvlinks, Known)
        )
        direct = any(isinstance(link.remote_bus_id, Known) and link.remote_bus_id.value in bus_ids(other) for link in one.nvlinks.value)
        return to_switch or direct
    return False


def _judge_acs(patient: Patient, subject: Subject) -> Verdict:
    one, other, way = subject.facts
    assert isinstance(one, Gpu)
    assert isinstance(other, (Gpu, Nic))
    assert isinstance(way, Way)
    if patient.is_virtual:
        return unknown("a guest does not see the host's ACS registers; the host must keep ACS on and switch ATS on (pcie.ats)")
    on, unread = _acs_of(way)
    registers = [
        f"{bridge.bus_id} ACSCtl (config {acs.offset:#05x}): {' '.join(f'{bit}{_sign(bit in acs.on)}' for bit in REDIRECTS)}"
        for bridge, acs, _ in on
    ]
    redirecting = [f"{bridge.bus_id} {', '.join(bits)}" for bridge, _, bits in on if bits]
    if not redirecting and unread:
        raise MissingError(unread)
    if not redirecting:
        return clear("no bridge between them redirects peer traffic", *registers)
    if _data_direct(patient, other):
        return unknown(
            "Grace with ConnectX-8 Data Direct sets these bits on purpose; `rdma_topo check` of rdma-core tells whether rightly", *registers
        )
    if isinstance(other, Gpu) and not isinstance(one.nvlinks, Known):
        raise MissingError(f"PCIe peer traffic is redirected ({'; '.join(redirecting)}), but not whether they have NVLink: {one.nvlinks}")
    ports = [bridge.bus_id for bridge, _, bits in on if bits]
    commands = "; ".join(f"setpci -s {port} ECAP_ACS+6.w=0:1c" for port in ports)
    effect = (
        "Peer reads and writes go up to the CPU and back instead of turning round in the switch; NCCL may also hang or stop using them."
    )
    if isinstance(other, Nic):
        effect += without_gdr(patient, _redirected_gpus(patient))
    return fires(
        f"ACS redirects peer traffic at {'; '.join(redirecting)}",
        *registers,
        effect=effect,
        fix=f"Until the next boot, as root: {commands}. For good: switch ACS (or VT-d/AMD-Vi, where no VM needs it) off in the BIOS.",
    )


def _acs_of(way: Way) -> tuple[list[tuple[PciDevice, pci_config.Acs, list[str]]], str]:
    """Bridges of a path with ACS and what redirects there; and why some of them could not be read."""
    found, unread = [], ""
    for bridge in way.bridges:
        try:
            acs = pci_config.acs(_extended(bridge))
        except MissingError as missing:
            unread = unread or str(missing)
            continue
        if acs is not None:
            found.append((bridge, acs, [bit for bit in REDIRECTS if bit in acs.on]))
    return found, unread


def _redirected_gpus(patient: Patient) -> Sequence[str]:
    """Addresses of all GPUs whose way to a fabric NIC is redirected: one register often serves several."""
    found: list[str] = []
    for subject in _peer_paths(patient):
        if subject.missing:
            continue
        gpu, other, way = subject.facts
        assert isinstance(gpu, Gpu)
        assert isinstance(way, Way)
        if isinstance(other, Nic) and any(bits for _, _, bits in _acs_of(way)[0]):
            found += bus_ids(gpu)
    return found


def _sign(on: bool) -> str:
    return "+" if on else "-"


def _extended(bridge: PciDevice) -> bytes:
    config = need(bridge.config)
    if not pci_config.has_extended_space(config):
        where = bridge.config.evidence if isinstance(bridge.config, Known) else bridge.bus_id
        raise MissingError(f"{where}: only {len(config)} bytes of the configuration space are readable; ACS needs root")
    return config


def _data_direct(patient: Patient, other: Gpu | Nic) -> bool:
    device = patient.device(other.bus_id)
    is_connectx8 = device is not None and device.device == Known(_CONNECTX8, getattr(device.device, "evidence", ""))
    return is_connectx8 and need(patient.machine.cpus.arch) == "aarch64"


def _nics_of_a_guest(patient: Patient) -> Sequence[Subject]:
    if not patient.is_virtual or not patient.gpus:
        return ()
    return [Subject(label(nic), (nic,), bus_ids(nic)) for nic in patient.fabric_nics]


def _judge_ats(patient: Patient, subject: Subject) -> Verdict:
    (nic,) = subject.facts
    assert isinstance(nic, Nic)
    device = patient.need_device(nic)
    ats = pci_config.ats(_extended(device))
    if ats is None:
        return unknown("the guest sees no ATS capability on this NIC; ask the host (lspci -vvv: ATSCtl)", evidence(device.config, "no ATS"))
    register = f"{device.bus_id} ATSCtl (config {ats.offset:#05x}): Enable{_sign(ats.enabled)}"
    return (
        clear("the NIC translates addresses itself", register)
        if ats.enabled
        else fires("ATS is off", register, effect=without_gdr(patient))
    )


def _devices(patient: Patient) -> Sequence[Subject]:
    ends, unplaced = _ends(patient)
    return [Subject(label(end), (end,), bus_ids(end)) for end, _ in ends] + unplaced


def _judge_iommu(patient: Patient, subject: Subject) -> Verdict:
    (end,) = subject.facts
    assert isinstance(end, (Gpu, Nic))
    device = patient.need_device(end)
    if need(device.iommu_group) is None:
        return clear("no IOMMU in its way", evidence(device.iommu_group, "none"))
    mode = need(device.iommu_domain)
    if mode == "identity":
        return clear("the IOMMU passes its addresses through", evidence(device.iommu_domain))
    return fires(f"the IOMMU translates its addresses ({mode})", evidence(device.iommu_domain))


def _links(patient: Patient) -> Sequence[Subject]:
    """The link of each GPU and fabric NIC, and those of the switches above, each once: a link is judged from its lower end."""
    found: dict[str, Subject] = {}
    ends, unplaced = _ends(patient)
    for end, device in ends:
        found.setdefault(device.bus_id, Subject(label(end), (device, patient.parent(device), isinstance(end, Gpu)), bus_ids(end)))
        # Every second bridge is a switch's upstream port. The others, root ports and downstream ports, tell of the same links from above.
        for bridge in patient.machine.ancestors(device.bus_id)[1::2]:
            above = patient.parent(bridge)
            if above is not None and isinstance(bridge.link, Known):
                found.setdefault(bridge.bus_id, Subject(f"bridge {bridge.bus_id}", (bridge, above, False), bus_ids(end)))
    return [*found.values(), *unplaced]


def _judge_link(patient: Patient, subject: Subject) -> Verdict:
    device, above, idles = subject.facts
    assert isinstance(device, PciDevice)
    now, own = need(device.link), need(device.link_max)
    able = own
    if isinstance(above, PciDevice):
        bridge = need(above.link_max)
        able = PciLink(min(own.speed_GTps, bridge.speed_GTps), min(own.width, bridge.width))
    lines = [evidence(device.link), evidence(device.link_max)]
    if isinstance(above, PciDevice):
        lines.append(evidence(above.link_max))
    loaded = patient.probes.link_under_load(device.bus_id) if patient.probes is not None else None
    if loaded is not None:
        now = loaded.value
        lines.append(evidence(loaded))
    narrow, slow = now.width < able.width, now.speed_GTps < able.speed_GTps
    if not narrow and not slow:
        return clear(f"{now}, all that both ends can do", *lines)
    if not narrow and idles and loaded is None:
        return unknown(f"{now} of {able}: GPUs that idle lower their link's speed; --probe measures it under load", *lines)
    effect = f"It carries {pcie_GBps(now):.1f} GB/s each way instead of {pcie_GBps(able):.1f} GB/s." + with_links_at(
        patient, subject.devices, now
    )
    return fires(f"{now}; both ends can do {able}", *lines, effect=effect)


def _judge_aer(patient: Patient, subject: Subject) -> Verdict:
    device = subject.facts[0]
    assert isinstance(device, PciDevice)
    counts = need(device.aer)
    line = evidence(device.aer, ", ".join(f"{kind} {count}" for kind, count in counts.items()))
    severe = {kind: count for kind, count in counts.items() if count and kind != "correctable"}
    if severe:
        return fires(", ".join(f"{count} {kind} errors" for kind, count in severe.items()), line)
    if counts.get("correctable", 0):
        effect = "The link repeated packets, which costs bandwidth while it lasts. A few since boot are common; a growing count is not."
        return fires(f"{counts['correctable']} corrected errors since boot", line, effect=effect, severity=Severity.info)
    return clear("no errors since boot", line)


def _guest_with_gpus(patient: Patient) -> Sequence[Subject]:
    return [Subject("machine")] if patient.is_virtual and patient.gpus and patient.fabric_nics else []


def _judge_topology_file(patient: Patient, _: Subject) -> Verdict:
    machine = patient.machine
    if machine.hidden_tree is None:
        return clear("the guest sees switches above GPUs or NICs", machine.pci.evidence if isinstance(machine.pci, Known) else "")
    if isinstance(machine.topology, Known):
        return clear("NCCL is given a topology file", evidence(machine.topology, f"{len(machine.topology.value)} PCI functions"))
    why = machine.topology
    if why.reason is not Reason.absent:
        raise MissingError(str(why))
    return fires(f"{machine.hidden_tree.detail}, so that no PCI path between GPUs and NICs is known, and has no topology file", str(why))


CHECKS = (
    Check(
        "pcie.acs-redirect",
        "ACS redirects peer-to-peer traffic",
        Severity.error,
        "configuration space (ACS control) of each bridge between a GPU and a NIC or GPU of the same switch; hypervisor flag",
        "",
        "",
        "NCCL user guide 2.30, troubleshooting, PCI Access Control Services; nccl#606 (judge ReqRedir, CmpltRedir, UpstreamFwd, not "
        "SrcValid); "
        "Grace exception: rdma-core rdma_topo",
        _judge_acs,
        _peer_paths,
        "no GPU shares a PCIe switch with a fabric NIC, or with a GPU that it reaches by PCIe only",
    ),
    Check(
        "pcie.ats",
        "Address translation off in a virtual machine",
        Severity.error,
        "hypervisor flag; configuration space (ATS control) of each fabric NIC",
        "With ACS on, as virtual machines need it, each peer transaction goes up to the IOMMU.",
        "On the host: mlxconfig -d DEVICE set ATS_ENABLED=1, restart, and give the guest a device with ATS.",
        "NCCL user guide 2.30, troubleshooting, PCI Access Control Services: virtual machines; nccl#1464",
        _judge_ats,
        _nics_of_a_guest,
        "not a virtual machine with GPUs and fabric NICs",
    ),
    Check(
        "pcie.iommu",
        "IOMMU translates device addresses",
        Severity.warning,
        "/sys/bus/pci/devices/*/iommu_group, .../type",
        "Each DMA of GPU and NIC is looked up in the IOMMU; peer traffic can lose bandwidth, or stop to work where groups differ.",
        "Boot with iommu=pt (and intel_iommu=on or amd_iommu=on where virtual functions need it), or switch the IOMMU off in the BIOS.",
        "NVIDIA GPUDirect Storage and GPUDirect RDMA guides (IOMMU off or pass-through); Linux admin-guide/kernel-parameters: iommu=pt",
        _judge_iommu,
        _devices,
        "no GPU and no fabric NIC",
    ),
    Check(
        "pcie.link",
        "PCIe link below what both ends can do",
        Severity.warning,
        "current_link_speed, current_link_width, max_link_* of the device and of the bridge above it; under load with --probe",
        "",
        "Reseat the card or riser; look at the slot's lanes and speed in the BIOS; a link that trains lower again has a bad card, "
        "cable or slot.",
        "PCI Express base specification 6.0, link training; hwloc#653 (idle GPUs lower their speed)",
        _judge_link,
        _links,
        "no GPU and no fabric NIC",
    ),
    Check(
        "pcie.aer",
        "PCIe errors",
        Severity.error,
        "/sys/bus/pci/devices/*/aer_dev_*",
        "Transfers of this device failed; jobs see lost GPUs, RDMA errors or wrong data.",
        "Look at the kernel log for 'AER:'; reseat or replace the part that reports them.",
        "Linux PCI/pcieaer-howto; PCI Express base specification 6.0, 6.2",
        _judge_aer,
        _links,
        "no GPU and no fabric NIC",
    ),
    Check(
        "vm.topology-file",
        "Virtual machine without a topology file",
        Severity.warning,
        "hypervisor flag; PCI tree; /var/run/nvidia-topologyd/virtualTopology.xml; /etc/nccl.conf; NCCL_TOPO_FILE of a job",
        "NCCL cannot tell which NIC is near which GPU: it may not use GPUDirect RDMA and PXN, and takes NICs in an order of its own.",
        "Describe the host's real tree in a file (railweave topo --nccl-xml there) and set NCCL_TOPO_FILE in /etc/nccl.conf.",
        "NCCL user guide 2.30, NCCL_TOPO_FILE; nccl-tests#256; nccl#1464",
        _judge_topology_file,
        _guest_with_gpus,
        "not a virtual machine with GPUs and fabric NICs",
    ),
)
