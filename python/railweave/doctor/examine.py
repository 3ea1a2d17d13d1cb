"""Runs the catalogue over a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from railweave.doctor.catalogue import CHECKS
from railweave.doctor.examination import LEAF, Examination, in_order
from railweave.doctor.finding import Finding
from railweave.doctor.patient import Patient, label
from railweave.machine.facts import Known, Machine
from railweave.machine.network import switches_at

if TYPE_CHECKING:
    from railweave.doctor.probe import Probes
    from railweave.doctor.rails import Rails


def examine(
    machine: Machine,
    name: str,
    nics: Sequence[str] = (),
    probes: Probes | None = None,
    rails: Rails | None = None,
    salt: str | None = None,
) -> Examination:
    """Every check that applies: those about a job where the machine has one, those that measure where there are probes.

    `nics` names the NICs of the GPU network; without it they are inferred, and the examination says how. `rails` tells which switch belongs
    to which NIC, `salt` which salt its names were replaced with.
    """
    patient = Patient(machine, nics, probes, rails)
    findings: list[Finding] = []
    for check in CHECKS:
        if (check.needs == "job" and machine.process is None) or (check.needs == "probe" and probes is None):
            continue
        findings += check.examine(patient)
    count = len(machine.gpus.value) if isinstance(machine.gpus, Known) else None
    return Examination(name, in_order(findings), patient.fabric_nics_why, _traits(machine), patient.gpus_told, count, salt)


def _traits(machine: Machine) -> dict[str, str]:
    """What should be equal on machines that do the same work."""
    kernel, host, cpus = machine.kernel, machine.host, machine.cpus
    single = {
        "product": host.product,
        "BIOS": host.bios,
        "CPU": cpus.model_name,
        "kernel": kernel.release,
        "NVIDIA driver": kernel.nvidia_driver,
        "GDRCopy": kernel.gdrcopy,
    }
    traits = {name: str(fact.value) for name, fact in single.items() if isinstance(fact, Known)}
    for what, listed in (("GPUs", machine.gpus), ("NICs", machine.nics)):
        if isinstance(listed, Known):
            traits[f"number of {what}"] = str(len(listed.value))
    if isinstance(kernel.cmdline, Known):
        # What names this boot and this disk differs without meaning anything.
        words = (word for word in kernel.cmdline.value if not word.startswith(("BOOT_IMAGE=", "root=", "initrd=", "resume=")))
        traits["kernel command line"] = " ".join(words)
    for gpu in machine.gpus.value if isinstance(machine.gpus, Known) else ():
        if isinstance(gpu.name, Known):
            traits[label(gpu)] = gpu.name.value
    for nic in machine.nics.value if isinstance(machine.nics, Known) else ():
        if isinstance(nic.rdma, Known) and nic.rdma.value is not None:
            if isinstance(nic.firmware, Known):
                traits[f"firmware of {label(nic)}"] = nic.firmware.value
            if isinstance(nic.rate_bps, Known):
                traits[f"rate of {label(nic)}"] = f"{nic.rate_bps.value / 1e9:g} Gbit/s"
    neighbours = machine.lldp.value if isinstance(machine.lldp, Known) else ()
    for netdev in {neighbour.netdev: None for neighbour in neighbours}:
        traits[f"{LEAF}{netdev}"] = ", ".join(sorted(neighbour.switch for neighbour in switches_at(neighbours, netdev)))
    return traits
