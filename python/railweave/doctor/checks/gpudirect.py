"""How GPUs and NICs meet: distance, sharing, GPUDirect RDMA, GDRCopy."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from railweave.doctor.check import Check, MissingError, Subject, Verdict, clear, fires
from railweave.doctor.effect import nearest_only, port_share, without_gdr
from railweave.doctor.finding import Severity
from railweave.doctor.patient import Patient, bus_ids, evidence, label, need
from railweave.machine.facts import Gpu, Known, Unknown
from railweave.machine.paths import SWITCHED
from railweave.size import counted

# dma-buf memory regions came to the RDMA core with Linux 5.12 (release notes; NCCL user guide, NCCL_DMABUF_ENABLE).
_DMABUF_KERNEL = (5, 12)

# NVIDIA's module for peer memory, of the driver and before it had one.
_PEER_MODULES = ("nvidia_peermem", "nv_peer_mem")

# Parts with NVLink-C2C to their CPU (data sheets of GH200, GB200 and GB300).
_C2C = re.compile(r"\bG[BH][23]00\b")

_WAYS = {
    "PHB": "the two meet only in the CPU's PCIe root",
    "NODE": "they hang from different PCIe roots of one NUMA node",
    "SYS": "they hang from different NUMA nodes, so the traffic crosses the link between sockets",
}


def _gpus_if_nics(patient: Patient) -> Sequence[Subject]:
    return [Subject(label(gpu), (gpu,), bus_ids(gpu)) for gpu in patient.gpus] if patient.fabric_nics else []


def _machine_if_both(patient: Patient) -> Sequence[Subject]:
    return [Subject("machine")] if patient.gpus and patient.fabric_nics else []


def _judge_distance(patient: Patient, subject: Subject) -> Verdict:
    (gpu,) = subject.facts
    assert isinstance(gpu, Gpu)
    kind, nics = patient.nearest_nics(gpu)
    device = patient.need_device(gpu)
    lines = [f"/sys/bus/pci/devices: {device.bus_id} below {device.root}"]
    lines += [
        f"/sys/bus/pci/devices: {nic.bus_id.value} below {patient.need_device(nic).root}" for nic in nics if isinstance(nic.bus_id, Known)
    ]
    names = ", ".join(label(nic) for nic in nics)
    if kind in SWITCHED:
        return clear(f"{kind} to {names}", *lines)
    if kind != "SYS" and _C2C.search(need(gpu.name)):
        return clear(f"{kind} to {names}; from NCCL 2.27.3 on they use GPUDirect RDMA over NVLink-C2C", *lines, evidence(gpu.name))
    return fires(f"its nearest NIC is {kind} away ({names})", *lines, effect=_through_cpu(patient, kind))


def _through_cpu(patient: Patient, kind: str) -> str:
    near = [label(other) for other in patient.gpus if _shares_a_switch(patient, other)]
    effect = (
        f"Its traffic to other nodes passes the CPU: {_WAYS[kind]}. "
        "By default NCCL uses GPUDirect RDMA only where PCIe switches alone are between"
    )
    if near:
        relay = near[0] if len(near) == 1 else f"one of {', '.join(near)}"
        effect += f"; what it sends, PXN can take over NVLink and {relay}, what it receives, it cannot"
    return f"{effect}."


def _shares_a_switch(patient: Patient, gpu: Gpu) -> bool:
    """Whether it is known to; one that fell off the bus relays nothing."""
    try:
        return patient.nearest_nics(gpu)[0] in SWITCHED
    except MissingError:
        return False


def _judge_ratio(patient: Patient, _: Subject) -> Verdict:
    gpus, nics = len(patient.gpus), len(patient.sure_fabric_nics)
    line = f"fabric NICs: {patient.fabric_nics_why}"
    text = f"{counted(gpus, 'GPU')}, {counted(nics, 'fabric NIC')}"
    if gpus == nics:
        return clear(text, line)
    return fires(text, line, effect=port_share(patient))


def _judge_imbalance(patient: Patient, _: Subject) -> Verdict:
    share = dict.fromkeys((label(nic) for nic in patient.sure_fabric_nics), 0.0)
    unplaced = ""
    for gpu in patient.gpus:
        try:
            nics = patient.nearest_nics(gpu, all_of_them=True)[1]
        except MissingError as missing:
            unplaced = unplaced or f"{label(gpu)}: {missing}"
            continue
        for near in nics:
            share[label(near)] += 1 / len(nics)
    lines = [f"GPUs that have {name} nearest: {count:g}" for name, count in share.items()]
    # Shares are fractions where a GPU has several NICs equally near: ten tenths of 20 GPUs come to 2.0000000000000004.
    if round(max(share.values()), 9) <= math.ceil(len(patient.gpus) / len(share)):
        if unplaced:
            raise MissingError(unplaced)
        return clear("no NIC is nearest to more GPUs than its share", *lines)
    busiest, idlest = max(share, key=lambda name: share[name]), min(share, key=lambda name: share[name])
    text = f"{share[busiest]:g} GPUs have {busiest} nearest, {share[idlest]:g} have {idlest}"
    return fires(text, *lines, effect=nearest_only(patient))


def _judge_gdr(patient: Patient, _: Subject) -> Verdict:
    kernel = patient.machine.kernel
    if isinstance(kernel.peermem, Known) and any(name.startswith(("nv_mem", "nvidia_peermem")) for name in kernel.peermem.value):
        return clear("nvidia-peermem serves it", evidence(kernel.peermem, ", ".join(kernel.peermem.value)))
    loaded = [name for name in _PEER_MODULES if isinstance(kernel.modules, Known) and name in kernel.modules.value]
    if loaded and isinstance(kernel.modules, Known):
        return clear(f"{loaded[0]} serves it", f"{kernel.modules.evidence}: {loaded[0]}")
    exported = _exports_dma_buf(patient)
    why, lines, doubt = [], [], []
    if isinstance(kernel.peermem, Known):
        why.append("no peer memory client is registered")
        lines.append(kernel.peermem.evidence)
    elif isinstance(kernel.peermem, Unknown):
        doubt.append(str(kernel.peermem))
    if isinstance(kernel.modules, Known):
        why.append("nvidia_peermem is not loaded")
        lines.append(kernel.modules.evidence)
    else:
        doubt.append(str(kernel.modules))
    if isinstance(kernel.nvidia_open, Unknown) or isinstance(kernel.release, Unknown):
        doubt += [str(fact) for fact in (kernel.nvidia_open, kernel.release) if isinstance(fact, Unknown)]
    else:
        lines += [
            evidence(kernel.nvidia_open, "open modules" if kernel.nvidia_open.value else "proprietary modules"),
            evidence(kernel.release),
        ]
        recent = _version(kernel.release.value) >= _DMABUF_KERNEL
        if kernel.nvidia_open.value and recent and exported is not None and not exported.value:
            lines.append(evidence(exported, "no"))
            why.append("CUDA does not export GPU memory as dma-buf")
        elif kernel.nvidia_open.value and recent:
            lines += [evidence(exported, "yes")] if exported is not None else []
            return clear("dma-buf serves it: open kernel modules on Linux 5.12 or later", *lines)
        else:
            why.append("dma-buf needs the open kernel modules, these are proprietary" if recent else "dma-buf needs Linux 5.12 or later")
    if doubt:
        raise MissingError("; ".join(doubt))
    return fires("; ".join(why), *lines, effect=f"Every byte between NIC and GPU is copied through host memory.{without_gdr(patient)}")


def _exports_dma_buf(patient: Patient) -> Known[bool] | None:
    """What CUDA said of the first GPU that refuses, else of the first; None without --probe."""
    probes = patient.probes.gpus.values() if patient.probes is not None else ()
    told = [probe.dma_buf for probe in probes if isinstance(probe.dma_buf, Known)]
    return min(told, key=lambda answer: answer.value, default=None)


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _judge_gdrcopy(patient: Patient, _: Subject) -> Verdict:
    kernel = patient.machine.kernel
    if isinstance(kernel.gdrcopy, Known):
        return clear(f"gdrdrv {kernel.gdrcopy.value}", evidence(kernel.gdrcopy))
    modules = need(kernel.modules)
    if "gdrdrv" in modules:
        return clear("gdrdrv is loaded", f"{kernel.modules.evidence if isinstance(kernel.modules, Known) else ''}: gdrdrv")
    return fires("the gdrdrv module is not loaded", str(kernel.gdrcopy), evidence(kernel.modules, "no gdrdrv"))


CHECKS = (
    Check(
        "gdr.unavailable",
        "GPUDirect RDMA is not available",
        Severity.error,
        "/proc/modules, /sys/kernel/mm/memory_peers, /proc/driver/nvidia/version, kernel release; with --probe what CUDA says of dma-buf",
        "",
        "Install NVIDIA's open kernel modules on Linux 5.12 or later (dma-buf, preferred), or load nvidia-peermem.",
        "NCCL user guide 2.30, NCCL_DMABUF_ENABLE; NCCL src/transport/net_ib/gdr.cc; nccl#1939",
        _judge_gdr,
        _machine_if_both,
        "no GPU, or no fabric NIC",
    ),
    Check(
        "gdr.gdrcopy",
        "GDRCopy is not installed",
        Severity.info,
        "/sys/module/gdrdrv, /proc/modules",
        "UCX copies small messages between host and GPU with cudaMemcpy: microseconds where GDRCopy takes less than one (seed study: "
        "one-way "
        "latency up to 8 KB 5.8 to 7.8 times lower with GDRCopy and GPUDirect RDMA). NCCL does not use it by default.",
        "Install gdrcopy with its kernel module gdrdrv, and a UCX that is built with it.",
        "NVIDIA/gdrcopy README; Chulkevich et al., GPUDirect on cHARISMa",
        _judge_gdrcopy,
        _machine_if_both,
        "no GPU, or no fabric NIC",
    ),
    Check(
        "gdr.distance",
        "GPU and NIC do not share a PCIe switch",
        Severity.warning,
        "PCI tree and NUMA nodes of GPUs and fabric NICs; GPU name",
        "",
        "Move NICs so that each GPU shares a switch with one, or have the vendor rewire the switches; until then let PXN and relays "
        "carry its traffic.",
        "NCCL user guide 2.30, NCCL_NET_GDR_LEVEL (default PXB), NCCL_NET_GDR_C2C and NCCL_PXN_DISABLE; LINE Yahoo Tech Blog, Rethinking "
        "AI Infrastructure Part 3",
        _judge_distance,
        _gpus_if_nics,
        "no GPU, or no fabric NIC",
    ),
    Check(
        "nic.ratio",
        "GPUs share NICs",
        Severity.info,
        "GPUs; fabric NICs",
        "",
        "None needed; more NICs raise the bound.",
        "nccl-tests doc/PERFORMANCE.md (busbw); nccl-tests#267",
        _judge_ratio,
        _machine_if_both,
        "no GPU, or no fabric NIC",
    ),
    Check(
        "nic.imbalance",
        "Nearest-NIC choices load NICs unevenly",
        Severity.warning,
        "PCI tree and NUMA nodes of GPUs and fabric NICs",
        "",
        "Give ranks their NICs by `railweave advise`, which balances; nearest-only choosers leave NICs idle here.",
        "ucx#11680 (4 of 8 NICs carry everything), ucx#8401",
        _judge_imbalance,
        _machine_if_both,
        "no GPU, or no fabric NIC",
    ),
)
