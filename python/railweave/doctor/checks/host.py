"""Processors and kernel: clock policy, sub-NUMA clustering, balancing, huge pages, interrupts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from railweave.doctor.check import Check, MissingError, Subject, Verdict, clear, fires
from railweave.doctor.finding import Severity
from railweave.doctor.patient import Patient, bus_ids, cpu_list, evidence, label, need
from railweave.machine.facts import Known, Nic
from railweave.machine.processors import nodes_per_package


def _judge_sub_numa(patient: Patient, _: Subject) -> Verdict:
    cores = need(patient.machine.cpus.cores)
    for node in need(patient.machine.numa):
        need(node.cpus)
    nodes = nodes_per_package(patient.machine.cpus, patient.machine.numa)
    lines = [f"socket {package}: NUMA nodes {', '.join(map(str, ids))}" for package, ids in nodes.items()]
    most = max((len(ids) for ids in nodes.values()), default=0)
    if cores and not nodes and all(core.package is None for core in cores):
        raise MissingError("the system does not number sockets")
    if not nodes or not cores:
        raise MissingError("no core is on a known NUMA node")
    if most == 1:
        return clear("one NUMA node a socket", *lines)
    return fires(f"{most} NUMA nodes a socket", *lines)


def _judge_smt(patient: Patient, _: Subject) -> Verdict:
    smt = patient.machine.cpus.smt
    if not need(smt):
        return clear("one hardware thread a core", evidence(smt, "off"))
    return fires("several hardware threads a core", evidence(smt, "on"))


def _judge_clock(patient: Patient, _: Subject) -> Verdict:
    cpus = patient.machine.cpus
    governors = need(cpus.governors)
    slow: list[str] = []
    lines = [evidence(cpus.governors, _by_setting(governors))]
    slow += [f"governor {name} on CPUs {cpu_list(those)}" for name, those in governors.items() if name != "performance"]
    if isinstance(cpus.energy_preferences, Known):
        preferences = cpus.energy_preferences.value
        lines.append(evidence(cpus.energy_preferences, _by_setting(preferences)))
        # 0 is how drivers write the same as a number.
        slow += [f"preference {name} on CPUs {cpu_list(those)}" for name, those in preferences.items() if name not in ("performance", "0")]
    return fires("; ".join(slow), *lines) if slow else clear("all CPUs are set to performance", *lines)


def _by_setting(settings: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} on {cpu_list(cpus)}" for name, cpus in settings.items())


def _judge_balancing(patient: Patient, _: Subject) -> Verdict:
    nodes = need(patient.machine.numa)
    balancing = patient.machine.kernel.numa_balancing
    if len(nodes) < 2:
        return clear("one NUMA node", evidence(patient.machine.numa, f"{len(nodes)} node"))
    if not need(balancing):
        return clear("off", evidence(balancing))
    return fires("on", evidence(balancing))


def _judge_hugepages(patient: Patient, _: Subject) -> Verdict:
    transparent = patient.machine.kernel.transparent_hugepages
    setting = need(transparent)
    if setting != "never":
        return clear(f"transparent huge pages: {setting}", evidence(transparent))
    reserved = {node.id: sum(need(node.hugepages).values()) for node in need(patient.machine.numa)}
    lines = [evidence(transparent), *(evidence(node.hugepages) for node in need(patient.machine.numa))]
    if any(reserved.values()):
        return clear(f"{sum(reserved.values())} huge pages are reserved", *lines)
    return fires("transparent huge pages are off, and none are reserved", *lines)


def _nics_with_nodes(patient: Patient) -> Sequence[Subject]:
    if len(need(patient.machine.numa)) < 2:
        return []
    return [Subject(label(nic), (nic,), bus_ids(nic)) for nic in patient.fabric_nics]


def _judge_interrupts(patient: Patient, subject: Subject) -> Verdict:
    nic = subject.facts[0]
    assert isinstance(nic, Nic)
    device = patient.need_device(nic)
    local, irqs = set(need(device.local_cpus)), need(device.irqs)
    affinity = need(patient.machine.kernel.irq_affinity)
    judged = {irq: affinity[irq] for irq in irqs if irq in affinity}
    if not judged:
        raise MissingError(f"no interrupt of {device.bus_id} is among those whose CPUs are known")
    away = [irq for irq, cpus in judged.items() if cpus and not local & set(cpus)]
    lines = [evidence(device.local_cpus, cpu_list(tuple(local)))]
    if not away:
        return clear(f"its {len(judged)} interrupts go to CPUs near it", *lines)
    lines += [f"/proc/irq/{irq}/smp_affinity_list: {cpu_list(judged[irq])}" for irq in away[:4]]
    mover = patient.machine.kernel.irqbalance
    if isinstance(mover, Known) and mover.value:
        lines.append(evidence(mover, "irqbalance runs and may move them again"))
    return fires(f"{len(away)} of its {len(judged)} interrupts go to CPUs of another NUMA node", *lines)


CHECKS = (
    Check(
        "cpu.sub-numa",
        "Sub-NUMA clustering (SNC, NPS) is on",
        Severity.info,
        "/sys/devices/system/node/*/cpulist, CPU topology",
        "More, smaller NUMA nodes: less far within one, farther between them, and a rank that is bound to a node has fewer cores and "
        "memory channels. "
        "Which is faster depends on the machine: off helped an XE9680, NPS4 helped an R7525.",
        "Measure both (railweave bench, --label snc-on and snc-off).",
        "Lee, Shin, Koo: Rail Optimized and NCCL PXN (off: +24.8% with PXN path and affinity); nccl-tests#293 (NPS4)",
        _judge_sub_numa,
    ),
    Check(
        "cpu.smt",
        "Simultaneous multithreading is on",
        Severity.info,
        "/sys/devices/system/cpu/smt/active",
        "Two ranks, or a rank and its NIC's proxy, that are bound to two threads of one core share it.",
        "Bind ranks to whole cores (railweave advise does).",
        "Linux admin-guide/hw-vuln and ABI/testing/sysfs-devices-system-cpu: smt",
        _judge_smt,
    ),
    Check(
        "cpu.clock",
        "CPU clock policy saves energy",
        Severity.warning,
        "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor, energy_performance_preference",
        "Proxies and progress threads that sleep between messages wake up on slow cores: higher latency, and less bandwidth where the "
        "host copies.",
        "cpupower frequency-set -g performance; and EPP performance (tuned-adm profile hpc-compute or throughput-performance).",
        "NVIDIA Grace CPU benchmarking guide, platform configuration; Linux admin-guide/pm/intel_pstate, amd-pstate",
        _judge_clock,
    ),
    Check(
        "cpu.numa-balancing",
        "Automatic NUMA balancing is on",
        Severity.warning,
        "/proc/sys/kernel/numa_balancing",
        "The kernel unmaps pages to see who uses them; the faults stall proxies and host copies, and pages wander while ranks are "
        "bound anyway.",
        "sysctl kernel.numa_balancing=0, and numa_balancing=disable on the kernel command line.",
        "NVIDIA Grace CPU benchmarking guide, platform configuration; CUDA C++ best practices guide, NUMA",
        _judge_balancing,
    ),
    Check(
        "cpu.hugepages",
        "No huge pages",
        Severity.info,
        "/sys/kernel/mm/transparent_hugepage/enabled, /sys/devices/system/node/*/hugepages",
        "Registering large host buffers pins and maps each 4 KiB page by itself: slower set-up, more misses in the NIC's translation "
        "cache.",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        "NVIDIA Grace performance tuning guide, OS settings: huge pages; Linux admin-guide/mm/transhuge",
        _judge_hugepages,
    ),
    Check(
        "nic.irq-affinity",
        "NIC interrupts go to another NUMA node",
        Severity.warning,
        "/sys/bus/pci/devices/*/msi_irqs, local_cpulist; /proc/irq/*/smp_affinity_list",
        "Completions and TCP traffic of this NIC are handled across the link between sockets: higher latency, less TCP bandwidth.",
        "set_irq_affinity_bynode.sh NODE NETDEV (mlnx-tools); stop irqbalance or give it --policyscript that keeps them.",
        "NVIDIA, performance tuning for network adapters: IRQ affinity; Linux core-api/irq/irq-affinity",
        _judge_interrupts,
        _nics_with_nodes,
        "one NUMA node, or no fabric NIC",
    ),
)
