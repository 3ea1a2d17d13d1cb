"""Settings for NCCL, UCX and OpenMPI: only where they differ from the library's default, each with reason, source and versions.

Sources of the defaults: NCCL's user guide ("Environment Variables"), `ucx_info -f` of UCX 1.22, OpenMPI's documentation.
"""

from __future__ import annotations

from railweave.advise.gdr import AMPERE, Decision
from railweave.advise.host import Distance, Host
from railweave.advise.mapping import Mapping, Workload
from railweave.records import StrEnum, dataclass

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence

UCX_RNDV_RAILS = 2
"""UCX's default of UCX_MAX_RNDV_RAILS."""


class Library(StrEnum):
    """Who reads a setting."""

    nccl = "NCCL"
    ucx = "UCX"
    openmpi = "OpenMPI"


@dataclass(frozen=True)
class Setting:
    """An environment variable. `values` has one value for all ranks of a node, or one for each rank (None: leave it unset there)."""

    name: str
    library: Library
    values: tuple[str | None, ...]
    default: str
    why: str
    source: str
    versions: str

    @property
    def per_rank(self) -> bool:
        """Whether ranks differ. What is for NCCL never does: NCCL reads a node's NICs once for all its ranks."""
        return len(self.values) > 1

    def value(self, rank: int) -> str | None:
        """For one rank."""
        return self.values[rank if self.per_rank else 0]


def uniform(values: Sequence[str | None]) -> tuple[str | None, ...]:
    """One value where all ranks agree."""
    return tuple(values[:1]) if len(set(values)) == 1 else tuple(values)


def settings(
    host: Host, mapping: Mapping | None, in_force: Sequence[Decision], measured: bool, nccl_topology: str | None
) -> tuple[list[Setting], list[str]]:
    """The settings, and what could not be set because something is not known. `in_force` is by rank; empty where nothing is decided.
    `measured` says that it was measured, not ruled."""
    found: list[Setting] = []
    missing: list[str] = []
    if nccl_topology is not None:
        found.append(_topology_file(nccl_topology))
    if mapping is None:
        return found, missing
    unnamed = [nic.name for nic in host.network_nics if nic.device is None]
    if unnamed:
        missing.append(
            f"UCX_NET_DEVICES and NCCL_IB_HCA: the RDMA device names of {', '.join(unnamed)} are not known; a recording of the node "
            "has them, and so has the node itself"
        )
    else:
        found += _hca(host) + _net_devices(host, mapping)
    found += _cross_nic(host) + _rails(mapping) + _gpudirect(in_force) + [_PML]
    if measured and in_force:
        found += _nccl_gdr(host, mapping, in_force[0])
    return found, missing


def _topology_file(path: str) -> Setting:
    return Setting(
        "NCCL_TOPO_FILE", Library.nccl, (path,), "what /sys shows",
        "NCCL sees the PCIe tree and NVLink as the fabric has them, and picks for each GPU the NICs and relays that the wiring allows; a "
        "per-rank NCCL_IB_HCA would hide NICs from PXN instead",
        "NCCL user guide, NCCL_TOPO_FILE; NVIDIA/nccl issues 1464 and 1843 for virtual machines", "2.6 and later",
    )  # fmt: skip


def _hca(host: Host) -> list[Setting]:
    others = [nic for nic in host.nics if not nic.on_network]
    if not others and not host.virtual_nics:
        return []
    devices = [str(nic.device) for nic in host.network_nics]
    reasons = []
    if others:
        reasons.append(f"{', '.join(nic.name for nic in others)} {'is' if len(others) == 1 else 'are'} not part of the GPU network")
    if host.virtual_nics:  # of which there may be hundreds
        reasons.append(f"virtual devices ({len(host.virtual_nics)}, such as {host.virtual_nics[0]}) share the wires of physical ones")
    left_out = f"{'; '.join(reasons)}; '=' because "
    if not all(":" in device for device in devices):  # names of netdevices have none
        return [
            Setting(
                "NCCL_SOCKET_IFNAME", Library.nccl, (f"={','.join(devices)}",), "interfaces named ib..., else all but lo and docker...",
                f"{left_out}without it eth1 also means eth10", "NCCL user guide, NCCL_SOCKET_IFNAME", "2.20 to 2.30",
            )
        ]  # fmt: skip
    # Without a port NCCL takes all that a device has.
    shared = {str(nic.device).split(":")[0] for nic in others}
    names = [device if (name := device.split(":")[0]) in shared else name for device in devices]
    return [
        Setting(
            "NCCL_IB_HCA", Library.nccl, (f"={','.join(dict.fromkeys(names))}",), "all InfiniBand and RoCE devices",
            f"{left_out}without it mlx5_1 also means mlx5_10", "NCCL user guide, NCCL_IB_HCA", "2.20 to 2.30",
        )
    ]  # fmt: skip


def _net_devices(host: Host, mapping: Mapping) -> list[Setting]:
    everything = {nic.vertex for nic in host.nics}
    if not host.virtual_nics and all({nic.vertex for nic in nics} == everything for nics in mapping.nics):
        return []
    values = [",".join(str(nic.device) for nic in nics) for nics in mapping.nics]
    return [
        Setting(
            "UCX_NET_DEVICES", Library.ucx, uniform(values), "all",
            "UCX takes the nearest device, so ranks at equal distance take the same one and others stay idle; this divides them "
            "evenly",
            "openucx/ucx issues 11680 and 8401", "1.12 to 1.22",
        )
    ]  # fmt: skip


def _cross_nic(host: Host) -> list[Setting]:
    """Rails whose leafs meet only over a slower spine, or not at all."""
    fabric = host.fabric
    if fabric.node_count < 2:
        return []
    from railweave.fabric import EdgeKind, VertexKind  # not for those who start a rank

    leafs = [v for v, vertex in enumerate(fabric.vertices) if vertex.kind == VertexKind.leaf and vertex.rail is not None]
    if len({fabric.vertex(leaf).rail for leaf in leafs}) < 2:
        return []
    slow = []
    for leaf in leafs:
        ports = sum(fabric.edge(e).capacity_Bps for e in fabric.in_edges(leaf) if fabric.edge(e).kind == EdgeKind.rail)
        up = sum(fabric.edge(e).capacity_Bps for e in fabric.out_edges(leaf) if fabric.edge(e).kind == EdgeKind.uplink)
        if up < ports:
            slow.append((leaf, up, ports))
    if not slow:
        return []
    _, up, ports = slow[0]
    how = "there is no link between rails" if up == 0 else f"links between rails are {ports / up:.3g}:1 oversubscribed"
    return [
        Setting(
            "NCCL_CROSS_NIC", Library.nccl, ("0",), "2 (where it helps)",
            f"{how}, so rings and trees should stay on their rail", "NCCL user guide, NCCL_CROSS_NIC", "2.20 to 2.30",
        )
    ]  # fmt: skip


def _rails(mapping: Mapping) -> list[Setting]:
    width = max(len(nics) for nics in mapping.nics)
    if width <= UCX_RNDV_RAILS:
        return []
    return [
        Setting(
            "UCX_MAX_RNDV_RAILS", Library.ucx, (str(width),), str(UCX_RNDV_RAILS),
            f"each rank has {width} NICs to itself, and UCX would use {UCX_RNDV_RAILS} for one message", "ucx_info -f", "1.12 to 1.22",
        )
    ]  # fmt: skip


def _gpudirect(in_force: Sequence[Decision]) -> list[Setting]:
    found = []
    if any(not decision.gdr for decision in in_force):
        off = next(decision for decision in in_force if not decision.gdr)
        found.append(
            Setting(
                "UCX_IB_GPU_DIRECT_RDMA", Library.ucx, uniform([None if decision.gdr else "n" for decision in in_force]), "try",
                off.why, off.source, "1.12 to 1.22",
            )
        )  # fmt: skip
    if any(not decision.gdrcopy for decision in in_force):
        off = next(decision for decision in in_force if not decision.gdrcopy)
        found.append(
            Setting(
                "UCX_TLS", Library.ucx, uniform([None if decision.gdrcopy else "^gdr_copy" for decision in in_force]), "all",
                off.why, off.source, "1.12 to 1.22",
            )
        )  # fmt: skip
    return found


def _nccl_gdr(host: Host, mapping: Mapping, decision: Decision) -> list[Setting]:
    """NCCL uses GPUDirect RDMA up to a distance, for all ranks of a node alike, so only what was measured moves it: the rules agree with
    its default, which is PXB. Reads (sends) are off by default on GPUs before Ampere without NVLink."""
    ways = [host.paths[gpu.vertex, nic.vertex].distance for gpu, nics in zip(host.gpus, mapping.nics, strict=True) for nic in nics]
    known = [way for way in ways if way is not None]
    if len(known) < len(ways):
        return []
    level = ""
    if not decision.gdr and min(known) <= Distance.PXB:
        level = "LOC"
    if decision.gdr and max(known) > Distance.PXB:
        level = "SYS" if max(known) == Distance.SYS else "PHB"  # NCCL calls everything below one NUMA node PHB
    found = []
    if level:
        found.append(
            Setting(
                "NCCL_NET_GDR_LEVEL", Library.nccl, (level,), "PXB", f"measured: {decision.why}; "
                + ("NCCL would use GPUDirect RDMA here" if level == "LOC" else f"on this way ({max(known).name}) NCCL would not use it"),
                decision.source, "2.4 to 2.30",
            )
        )  # fmt: skip
    from railweave.fabric import EdgeKind

    linked = any(edge.kind == EdgeKind.nvlink for edge in host.fabric.edges)
    if decision.gdr and not linked and any(gpu.sm is not None and gpu.sm < AMPERE for gpu in host.gpus):
        found.append(
            Setting(
                "NCCL_NET_GDR_READ", Library.nccl, ("1",), "0 before Ampere without NVLink",
                f"measured: {decision.why}; NCCL would receive with GPUDirect RDMA and send through host memory", decision.source,
                "2.4.2 to 2.30",
            )
        )  # fmt: skip
    return found


_PML = Setting(
    "OMPI_MCA_pml", Library.openmpi, ("ucx",), "the best that initialises",
    "with UCX missing or broken, the job ends with an error instead of quietly sending GPU buffers over TCP",
    "Open MPI documentation, InfiniBand and RoCE support", "4.1, 5.0",
)  # fmt: skip


def in_force(decisions: Sequence[Sequence[Decision]], workload: Workload, size: int) -> list[Decision]:
    """By rank: the decision for messages of that size. UCX reads its switches once, so one size must stand for the job."""
    return [next(decision for decision in of_rank if decision.covers(workload, size)) for of_rank in decisions]
