"""What a finding costs, in GB/s where capacities are known: by a link's numbers, or by planning an exchange on the machine's fabric."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from railweave.doctor.check import MissingError
from railweave.machine.facts import Known, PciLink

if TYPE_CHECKING:
    from railweave.doctor.patient import Patient
    from railweave.fabric import Fabric

# bytes/s of one NVLink, one direction, by version (docs/fabric.md has the data sheets).
NVLINK_BPS = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
# Line coding of a PCI Express lane by GT/s (docs/fabric.md).
_CODING = {2.5: 8 / 10, 5.0: 8 / 10, 8.0: 128 / 130, 16.0: 128 / 130, 32.0: 128 / 130, 64.0: 236 / 256}
# An exchange that no latency matters for.
_BYTES = 64 << 20
_EXCHANGE = "An even exchange between two such machines carries"


def pcie_GBps(link: PciLink) -> float:  # noqa: N802 - the unit
    """What a PCI Express link carries at most, one direction."""
    return link.speed_GTps * _CODING.get(link.speed_GTps, 1.0) * link.width / 8


def without_gdr(patient: Patient, devices: Sequence[str] | None = None) -> str:
    """An even exchange of two such machines with GPUDirect RDMA, and with some GPUs (by PCI address; without, all) through host memory."""

    def switch(on: bool) -> Callable[[dict[str, Any]], None]:
        def change(document: dict[str, Any]) -> None:
            for vertex in document["vertices"]:
                if vertex["kind"] == "gpu":
                    vertex["gdr"] = on or (devices is not None and vertex.get("bus_id") not in devices)

        return change

    return _compared(patient, switch(True), switch(False), "through host memory")


def with_links_at(patient: Patient, devices: Sequence[str], now: PciLink) -> str:
    """The same exchange with a device's link as it is, and as it should be."""
    able = pcie_GBps(now)

    def narrow(document: dict[str, Any]) -> None:
        names = {vertex["name"] for vertex in document["vertices"] if vertex.get("bus_id") in devices}
        for edge in document["edges"]:
            if edge["kind"] == "pcie" and (edge["from"] in names or edge["to"] in names):
                edge["capacity_Bps"] = min(edge["capacity_Bps"], int(able * 1e9))

    return _compared(patient, lambda _: None, narrow, "with the link as it is")


def nearest_only(patient: Patient) -> str:
    """What choosing the nearest NIC reaches, and what balancing does."""
    try:
        fabric = patient.fabric(2)
    except MissingError:
        return ""
    nearest, balanced = (_even_exchange(fabric, policy) for policy in ("single-path", "railweave"))
    if nearest is None or balanced is None or balanced <= nearest * 1.01:
        return ""
    return f"{_EXCHANGE} {nearest:.1f} GB/s a machine over nearest NICs, {balanced:.1f} GB/s balanced (model)."


def port_share(patient: Patient) -> str:
    """The bound that the NICs set for collectives between nodes."""
    rates = [nic.rate_bps.value / 8e9 for nic in patient.fabric_nics if isinstance(nic.rate_bps, Known)]
    if len(rates) < len(patient.fabric_nics):
        return "Traffic between nodes is bound by the NICs together."
    gpus, total = len(patient.gpus), sum(rates)
    share, ranks = total / gpus, 2 * gpus
    # busbw of an all-to-all: (ranks - 1)/ranks of S/t, of which (ranks - gpus)/ranks leave the node.
    bound = share * (ranks - 1) / (ranks - gpus)
    return (
        f"Between nodes all of them share {total:g} GB/s: rings reach at most that busbw, all-to-all over two such nodes "
        f"{share:g} x {ranks - 1}/{ranks - gpus} = {bound:.1f} GB/s."
    )


def rail_down(patient: Patient, devices: Sequence[str]) -> str:
    """What is left without a NIC."""
    up = [nic for nic in patient.fabric_nics if patient.is_up(nic)]
    text = f"{len(up)} of {len(patient.fabric_nics)} fabric NICs carry all traffic between nodes"
    rates = [nic.rate_bps.value / 8e9 for nic in up if isinstance(nic.rate_bps, Known)]
    if rates and len(rates) == len(up):
        text += f": {sum(rates):g} GB/s"
    return f"{text}. NCCL stops where a rank counts on the NIC, or loads another twice."


def _compared(patient: Patient, good: Callable[[dict[str, Any]], None], bad: Callable[[dict[str, Any]], None], how: str) -> str:
    """A sentence when the model sees a difference, else nothing: no figure is shown that nothing stands behind."""
    try:
        text = patient.fabric_json(2)
    except MissingError:
        return ""
    from railweave.fabric import Fabric

    rates = []
    for change in (good, bad):
        document = json.loads(text)
        change(document)
        key = json.dumps(document), "nccl"
        if key not in patient.exchanges:
            patient.exchanges[key] = _even_exchange(Fabric.from_json(key[0]), key[1])
        rates.append(patient.exchanges[key])
    before, after = rates
    if before is None or after is None or after > before * 0.99:
        return ""
    return f" {_EXCHANGE} {after:.1f} GB/s a machine {how}, {before:.1f} GB/s otherwise (model, NCCL's routes)."


def _even_exchange(fabric: Fabric, policy: str) -> float | None:
    """GB/s out of one machine when all its GPUs send as much to each of the other's, both ways. None when they cannot."""
    from railweave._native import Demand, LinkState, Planner, PlannerSettings, UnreachableError

    settings = PlannerSettings()
    settings.policy = policy
    here = range(fabric.gpu_count // 2)
    demand = Demand(fabric.gpu_count)
    for one in here:
        for other in here:
            demand.set(one, other + len(here), _BYTES)
            demand.set(other + len(here), one, _BYTES)
    try:
        plan = Planner(fabric, settings).plan(demand, LinkState(fabric))
    except UnreachableError:
        return None
    return _BYTES * len(here) ** 2 / plan.z_seconds / 1e9 if plan.z_seconds > 0 else None
