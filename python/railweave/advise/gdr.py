"""When GPUDirect RDMA and GDRCopy should be on, by message size: rules on the way between GPU and NIC (`measured` has what replaces them).

A rule holds for ways of certain distances and GPUs of certain generations, and names who measured it. Where nobody did, the library's own
default stands (both on), and the advice says that it is not measured.
"""

from __future__ import annotations

from railweave.advise.host import Distance, Gpu
from railweave.advise.mapping import Workload
from railweave.records import dataclass

# Up to this size GDRCopy shortened latency on all node types of the study; from there on it made no difference.
SMALL_B = 8192
STUDY = "Chulkevich, Kozyrev, Kostenetskiy, Raimova: study of GPUDirect on cHARISMa (OSU 7.0.1, UCX 1.14.1, OpenMPI 4.1.5)"
AMPERE = 80


@dataclass(frozen=True)
class Decision:
    """For messages of `first_B` to `last_B` bytes (None: and all larger ones) under one metric."""

    metric: Workload
    first_B: int
    last_B: int | None
    gdr: bool
    gdrcopy: bool
    why: str
    source: str
    caveat: str = ""
    """Where the source contradicts itself, or does not cover the case."""

    def covers(self, metric: Workload, size: int) -> bool:
        """Whether this decides a message of `size` bytes."""
        return self.metric == metric and self.first_B <= size and (self.last_B is None or size <= self.last_B)


def decide(gpu: Gpu, distance: Distance | None, why_unknown: str = "") -> list[Decision]:
    """The rules for a GPU at that distance from its NIC: one decision for latency, one for bandwidth."""
    return [_latency(distance), _unknown(why_unknown) if distance is None else _bandwidth(gpu, distance)]


def _unknown(why: str) -> Decision:
    return Decision(
        Workload.bandwidth, SMALL_B + 1, None, True, True,
        f"the way between GPU and NIC is not known{f' ({why})' if why else ''}: the libraries' defaults stand", "none: rules hold for ways",
        "a topology file of the host tells the way; or measure",
    )  # fmt: skip


def _latency(distance: Distance | None) -> Decision:
    far = "the study bound GPU, NIC and cores to one NUMA node; between sockets this is not measured" if distance == Distance.SYS else ""
    return Decision(
        Workload.latency, 0, SMALL_B, True, True,
        "both together gave the least latency on all node types, 5.8 to 7.8 times less", STUDY, far,
    )  # fmt: skip


def _bandwidth(gpu: Gpu, distance: Distance) -> Decision:
    def decision(gdr: bool, why: str, source: str, caveat: str = "") -> Decision:
        return Decision(Workload.bandwidth, SMALL_B + 1, None, gdr, True, why, source, caveat)

    if distance <= Distance.PXB:
        return decision(
            True, "GPU and NIC share a PCIe switch: the bytes never reach the CPU. Without GDR, collectives were 2.7 and all-to-all "
            "4.6 times slower",
            f"Kwon, An, Hong: interconnects of KISTI's Neuron (8 x A100, 4 x HDR); node type E of {STUDY}",
        )  # fmt: skip
    if distance == Distance.SYS:
        return decision(
            False, "GPU and NIC are on different sockets: peer-to-peer reads over the link between CPUs are slow, staging in host memory "
            "is not",
            "NVIDIA: GPUDirect RDMA guide, supported systems (both devices below one root complex)",
        )  # fmt: skip
    if gpu.sm is not None and gpu.sm < AMPERE:
        return decision(
            False, "the way leads through the CPU's PCIe root, where V100 nodes moved large messages faster through host memory, with "
            "GDRCopy",
            f"node types A/B and C of {STUDY}",
            "the study's own curves disagree with its conclusion in places: on type A/B GPUDirect RDMA still gains up to 16 KB, and on "
            "type C its text has bandwidth rise from 64 KB on with both switched on. Measure between 8 and 64 KB",
        )  # fmt: skip
    known = "a GPU of the Ampere generation or later" if gpu.sm is not None else "a GPU of unknown generation"
    return decision(
        True, f"the way leads through the CPU's PCIe root, with {known}: UCX's default stands", f"node type E of {STUDY}",
        "the study saw no harm on A100 nodes, but does not say that its GPU was below another switch than its NIC. Measure",
    )  # fmt: skip
