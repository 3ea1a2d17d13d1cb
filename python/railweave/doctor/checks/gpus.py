"""GPUs: NVLink, Fabric Manager, clocks held back, copies under load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from railweave.doctor.check import Check, Subject, Verdict, clear, fires, unknown
from railweave.doctor.effect import NVLINK_BPS, pcie_GBps
from railweave.doctor.finding import Severity
from railweave.doctor.patient import Patient, bus_ids, evidence, label, need, need_all
from railweave.machine.facts import Gpu, Known, PciDevice, known
from railweave.machine.pci import NVIDIA, unlisted_gpus

# NVLinks of a part (data sheets: bandwidth over both directions / bandwidth of a link). Parts that take optional bridges are not listed.
_NVLINKS = (
    (r"B[23]00|GB[23]00", 18),
    (r"H[12]00|GH200|H20\b", 18),
    (r"H800", 8),
    (r"A100", 12),
    (r"A800", 8),
    (r"V100", 6),
    (r"P100", 4),
)
# As NVML names them: "NVIDIA H100 80GB HBM3" and "NVIDIA H200" are the SXM parts, "NVIDIA H100 PCIe" and "NVIDIA H200 NVL" the cards.
_ON_A_BOARD = re.compile(r"SXM|HGX|GB[23]00|GH200|NVL72|B[23]00|HBM3|H[28]00$|H20$")
_NO_ANSWER = b"\xff\xff\xff\xff"  # what reads of a device that is gone return (PCI Express base specification 6.0, 2.3.2)
_NVSWITCH = 0x0680  # PCI class of an NVSwitch: other bridge, by NVIDIA

# The part of a link's rate that copies must reach. Packets of 128 B payload, the least that PCI Express allows, leave 128 / (128 + 24);
# two H200 on 32 GT/s x16 reached 0.87 each way (benchmarks/machine/live_commands.py). A fifth below that is no noise.
COPY_SHARE = 0.7

_HELD_BACK = {
    "hw_slowdown": (Severity.error, "the hardware halves clocks or worse: too hot, or its power supply asks for it"),
    "hw_thermal": (Severity.error, "too hot"),
    "hw_power_brake": (Severity.error, "the power supply asks for it"),
    "sw_thermal": (Severity.warning, "hotter than its limit for full clocks"),
    "sw_power_cap": (Severity.info, "at its power limit, as under full load"),
}


def _gpus(patient: Patient) -> Sequence[Subject]:
    return [Subject(label(gpu), (gpu,), bus_ids(gpu)) for gpu in patient.gpus]


def _gpus_and_unlisted(patient: Patient) -> Sequence[Subject]:
    found = [Subject(f"GPU at {device.bus_id}", (device,), (device.bus_id,)) for device in unlisted_gpus(patient.machine)]
    return [*_gpus(patient), *found]


def _judge_lost(patient: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    if isinstance(gpu, PciDevice):
        return _judge_unlisted(patient, gpu)
    assert isinstance(gpu, Gpu)
    if gpu.lost is not None:
        return fires("the driver cannot reach it", str(gpu.lost))
    device = patient.device(gpu.bus_id)
    if device is None and isinstance(gpu.bus_id, Known) and isinstance(patient.machine.pci, Known):
        return fires(
            "the driver lists it, and it is not on the PCI bus", evidence(gpu.bus_id), f"{patient.machine.pci.evidence}: not there"
        )
    if device is not None and isinstance(device.config, Known) and device.config.value[:4] == _NO_ANSWER:
        return fires("it does not answer on the PCI bus", evidence(device.config, "vendor and device ffff ffff"))
    need(gpu.name)
    return clear("the driver reaches it", evidence(gpu.name))


def _judge_unlisted(patient: Patient, device: PciDevice) -> Verdict:
    """On the bus, not among NVML's: lost, kept for a guest, or of a container that is given some GPUs only."""
    driver, listed = need(device.driver), patient.machine.gpus
    lines = (evidence(device.driver, driver or "none"), f"{listed.evidence if isinstance(listed, Known) else ''}: not listed")
    if driver == "vfio-pci":
        return clear("it is kept for a virtual machine", *lines)
    container = need(patient.machine.host.container)
    if container is not None:
        return unknown(f"the driver does not list it here; a container ({container}) may be given some of the GPUs only", *lines)
    if driver is None:
        return fires("it is on the PCI bus, and no driver has it", *lines)
    return fires(f"it is on the PCI bus, driver {driver} has it, and NVML does not list it", *lines)


def _judge_nvlink_errors(_: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    assert isinstance(gpu, Gpu)
    links = need(gpu.nvlinks)
    counted = {link.link: link.errors.value for link in links if isinstance(link.errors, Known)}
    totals: Counter[str] = Counter()
    for counts in counted.values():
        totals.update(counts)
    lines = [
        f"library:nvml: gpu {gpu.index} link {number}: {', '.join(f'{name} {count}' for name, count in counts.items() if count)}"
        for number, counts in counted.items()
        if any(counts.values())
    ]
    text = ", ".join(f"{name} {count}" for name, count in totals.items() if count)
    if totals["replay"] or totals["recovery"]:
        return fires(text, *lines)
    for link in links:
        need(link.errors)
    if not text:
        return clear("no NVLink has counted an error" if links else "no NVLink is active", evidence(gpu.nvlinks, f"{len(links)} active"))
    effect = "Each was found and sent again, too seldom for the link to replay; from 100 a second on a link is taken for faulty."
    return fires(text, *lines, effect=effect, severity=Severity.info)


def expected_nvlinks(name: str) -> int | None:
    """NVLinks of a part that sits on an NVLink board; None for others."""
    if not _ON_A_BOARD.search(name):
        return None
    return next((links for pattern, links in _NVLINKS if re.search(pattern, name)), None)


def _judge_nvlinks(patient: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    assert isinstance(gpu, Gpu)
    links = need(gpu.nvlinks)
    line = evidence(gpu.nvlinks, f"{len(links)} active")
    expected = expected_nvlinks(need(gpu.name))
    if expected is None:
        most = max(len(other.nvlinks.value) for other in patient.gpus if isinstance(other.nvlinks, Known) and other.name == gpu.name)
        if len(links) < most:
            return fires(f"{len(links)} NVLinks are active; others of its kind have {most}", line, effect=_lost(gpu, most - len(links)))
        return clear(f"{len(links)} NVLinks are active, as on the others of its kind", line)
    if len(links) >= expected:
        return clear(f"all {expected} NVLinks are active", line)
    text = f"{len(links)} of {expected} NVLinks are active"
    if patient.is_virtual and not links:
        return unknown(f"{text}; a guest that got single GPUs of a board sees none", line)
    if not links and len(patient.gpus) + len(unlisted_gpus(patient.machine)) == 1 and not _nvswitch_machine(patient):
        return unknown(f"{text}; there is nothing to link to, no other GPU and no NVSwitch", line)  # a Grace Hopper Superchip alone
    return fires(text, line, evidence(gpu.name), effect=_lost(gpu, expected - len(links)))


def _lost(gpu: Gpu, links: int) -> str:
    version = next((link.version.value for link in need(gpu.nvlinks) if isinstance(link.version, Known)), None)
    pace = "rings and trees go at the pace of the slowest GPU."
    if version in NVLINK_BPS:
        return f"It exchanges {links * NVLINK_BPS[version] / 1e9:.0f} GB/s less each way with the other GPUs; {pace}"
    return f"It exchanges less with the other GPUs; {pace}"


def _nvswitch_machine(patient: Patient) -> Sequence[Subject]:
    devices = known(patient.machine.pci) or ()
    switches = any(device.is_class(_NVSWITCH, 4) and known(device.vendor) == NVIDIA for device in devices)
    linked = any(any(link.remote == "switch" for link in gpu.nvlinks.value) for gpu in patient.gpus if isinstance(gpu.nvlinks, Known))
    registers = any(isinstance(gpu.fabric_state, Known) and gpu.fabric_state.value != "not_supported" for gpu in patient.gpus)
    if switches or linked or registers:
        return [Subject("machine", (), bus_ids(*patient.gpus))]
    need(patient.machine.pci)
    need_all(gpu.nvlinks for gpu in patient.gpus)
    return []


def _judge_fabric_manager(patient: Patient, _: Subject) -> Verdict:
    states = {label(gpu): gpu.fabric_state for gpu in patient.gpus}
    lines = [f"{name}, {evidence(state)}" for name, state in states.items() if isinstance(state, Known)]
    pending = [name for name, state in states.items() if isinstance(state, Known) and state.value in ("not_started", "in_progress")]
    service = patient.machine.host.fabric_manager
    if pending:
        return fires(f"{', '.join(pending)} did not register with Fabric Manager", *lines, evidence(service))
    if any(isinstance(state, Known) and state.value == "completed" for state in states.values()):
        need_all(states.values())
        return clear("the GPUs have registered with Fabric Manager", *lines)
    if need(service) == "active":
        return clear("Fabric Manager runs", evidence(service))
    return fires(f"Fabric Manager is {need(service)}", evidence(service))


def _judge_throttle(patient: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    assert isinstance(gpu, Gpu)
    reasons = [reason for reason in need(gpu.throttle) if reason in _HELD_BACK]
    if not reasons:
        return clear("nothing holds its clocks back", evidence(gpu.throttle, "none"))
    worst = max((_HELD_BACK[reason][0] for reason in reasons), key=lambda severity: severity.rank)
    text = "; ".join(f"{reason}: {_HELD_BACK[reason][1]}" for reason in reasons)
    return fires(text, evidence(gpu.throttle, ", ".join(reasons)), severity=worst)


def _judge_copies(patient: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    assert isinstance(gpu, Gpu)
    assert patient.probes is not None
    probe = patient.probes.gpus.get(need(gpu.bus_id) or "")
    if probe is None:
        return unknown("not probed: CUDA does not show this GPU to doctor's process (CUDA_VISIBLE_DEVICES)")
    rates = {"to": need(probe.to_device) / 1e9, "from": need(probe.to_host) / 1e9}
    link = need(probe.link)
    able = pcie_GBps(link)
    lines = [evidence(rate, f"{rate.value / 1e9:.1f} GB/s") for rate in (probe.to_device, probe.to_host) if isinstance(rate, Known)]
    lines.append(evidence(probe.link))
    reached = ", ".join(f"{rate:.1f} GB/s {way} it" for way, rate in rates.items())
    if min(rates.values()) >= COPY_SHARE * able:
        return clear(f"copies reach {reached}, of {able:.1f} GB/s that {link} carries", *lines)
    return fires(f"copies reach {reached}; {link} carries {able:.1f} GB/s", *lines)


CHECKS = (
    Check(
        "gpu.lost",
        "GPU fell off the bus",
        Severity.error,
        "NVML: list of GPUs and their answers; /sys/bus/pci/devices: class, driver, configuration space; container",
        "Jobs that use it abort, and those that count on all GPUs do not start.",
        "Look for Xid 79 and AER in the kernel log; restart the node; if it comes back, check power, riser and slot, or replace the board.",
        "NVIDIA Xid errors, 79; NVML API reference, NVML_ERROR_GPU_IS_LOST",
        _judge_lost,
        _gpus_and_unlisted,
        "no GPU",
    ),
    Check(
        "gpu.nvlinks",
        "Fewer NVLinks than the part has",
        Severity.error,
        "NVML: NVLink state of each link; GPU name",
        "",
        "Look for Xid 74 in the kernel log, reset the GPU (nvidia-smi -r, all GPUs of the board), reseat or replace the board.",
        "NVIDIA data sheets of each part; NVIDIA Xid errors, 74",
        _judge_nvlinks,
        _gpus,
        "no GPU",
    ),
    Check(
        "gpu.nvlink-errors",
        "NVLink counts errors",
        Severity.warning,
        "NVML: error counters of each active NVLink (replay, recovery, CRC of flits and data)",
        "A link that replays or recovers stands still meanwhile; rings and trees go at the pace of the slowest link.",
        "See whether they still grow (nvidia-smi nvlink -e) and look for Xid 74; reset the GPUs of the board, reseat or replace it.",
        "DCGM, health checks of NVLink: one replay or recovery is a fault, CRC errors from 100 a second",
        _judge_nvlink_errors,
        _gpus,
        "no GPU",
    ),
    Check(
        "gpu.fabric-manager",
        "Fabric Manager does not run",
        Severity.error,
        "NVML: fabric state of each GPU; systemctl is-active nvidia-fabricmanager; NVSwitches on the PCI bus",
        "CUDA does not start on these GPUs (error 802, system not yet initialized), or they reach each other without NVLink.",
        "systemctl enable --now nvidia-fabricmanager, in the driver's exact version; on a guest, ask the host.",
        "NVIDIA Fabric Manager user guide 580",
        _judge_fabric_manager,
        _nvswitch_machine,
        "no NVSwitch",
    ),
    Check(
        "gpu.throttle",
        "GPU clocks are held back",
        Severity.warning,
        "NVML: current clocks event reasons",
        "Kernels that move data run slower, and every other rank waits for this one.",
        "Look at cooling and power of the node; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER.",
        "NVML API reference, nvmlClocksEventReasons",
        _judge_throttle,
        _gpus,
        "no GPU",
    ),
    Check(
        "gpu.copy-rate",
        "Copies between host and GPU are slower than their link",
        Severity.warning,
        "copies of 64 MiB between the GPU and pinned memory of its NUMA node, 0.1 s each way; its link while they run",
        "What is staged in host memory (every byte to a NIC without GPUDirect RDMA, checkpoints, input) waits for this.",
        "Repeat it on a machine where nothing else runs. Then look at pcie.aer and pcie.iommu of this GPU, and at BIOS settings of "
        "payload size and memory channels.",
        "PCI Express base specification 6.0, 2.2 (packets of 128 B payload carry 84% of the link's rate)",
        _judge_copies,
        _gpus,
        "no GPU",
        "probe",
    ),
)
