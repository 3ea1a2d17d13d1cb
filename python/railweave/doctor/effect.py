"""What a finding costs, in GB/s where capacities are known: by a link's numbers, or by planning an exchange on the machine's fabric."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from railweave.doctor.check import MissingError
from railweave.machine.facts import Known, PciLink
from railweave.records import dataclass

if TYPE_CHECKING:
    from railweave.doctor.patient import Patient
    from railweave.fabric import Fabric, LinkState

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

    def switched(on: bool) -> _Exchange:
        def run() -> float | None:
            from railweave.fabric import Fabric

            document = json.loads(patient.fabric_json(2))
            for vertex in document["vertices"]:
                if vertex["kind"] == "gpu":
                    vertex["gdr"] = on or (devices is not None and vertex.get("bus_id") not in devices)
            return _even_exchange(Fabric.from_json(json.dumps(document)), "nccl")

        return _Exchange(f"GPUDirect RDMA {on or devices}", run)

    return _compared(patient, switched(True), switched(False), "through host memory")


def with_links_at(patient: Patient, devices: Sequence[str], now: PciLink) -> str:
    """The same exchange with a device's link as it is, and as it should be."""
    able = pcie_GBps(now)

    def narrow() -> float | None:
        from railweave.fabric import EdgeKind, LinkState

        fabric = patient.fabric(2)
        ends = {number for number, vertex in enumerate(fabric.vertices) if vertex.bus_id in devices}
        links = LinkState(fabric)
        for number, edge in enumerate(fabric.edges):
            if edge.kind == EdgeKind.pcie and (edge.src in ends or edge.dst in ends):
                links.set_rate(number, min(edge.capacity_Bps, int(able * 1e9)))
        return _even_exchange(fabric, "nccl", links)

    as_it_should = _Exchange("", lambda: _even_exchange(patient.fabric(2), "nccl"))
    return _compared(patient, as_it_should, _Exchange(f"{devices} at {able}", narrow), "with the link as it is")


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


@dataclass(frozen=True)
class _Exchange:
    """An exchange of two machines; those of equal names come to the same."""

    name: str
    run: Callable[[], float | None]


def _compared(patient: Patient, good: _Exchange, bad: _Exchange, how: str) -> str:
    """A sentence when the model sees a difference, else nothing: no figure is shown that nothing stands behind."""
    try:
        for exchange in (good, bad):
            if exchange.name not in patient.exchanges:
                patient.exchanges[exchange.name] = exchange.run()
    except MissingError:
        return ""
    before, after = patient.exchanges[good.name], patient.exchanges[bad.name]
    if before is None or after is None or after > before * 0.99:
        return ""
    return f" {_EXCHANGE} {after:.1f} GB/s a machine {how}, {before:.1f} GB/s otherwise (model, NCCL's routes)."


def _even_exchange(fabric: Fabric, policy: str, links: LinkState | None = None) -> float | None:
    """GB/s out of one machine when all its GPUs send as much to each of the other's, both ways. None when they cannot. Without `links` all
    have their nominal rates."""
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
        plan = Planner(fabric, settings).plan(demand, links or LinkState(fabric))
    except UnreachableError:
        return None
    return _BYTES * len(here) ** 2 / plan.z_seconds / 1e9 if plan.z_seconds > 0 else None
