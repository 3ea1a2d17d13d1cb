"""Advice for one node: everything that `railweave advise` prints and `railweave run` applies."""

from __future__ import annotations

from railweave.advise import binding as bindings
from railweave.advise import gdr
from railweave.advise.binding import Binding
from railweave.advise.errors import AdviceError
from railweave.advise.gdr import Decision
from railweave.advise.host import Distance, Host
from railweave.advise.mapping import Mapping, Workload, distances, map_nics
from railweave.advise.settings import Setting, in_force, settings
from railweave.records import dataclass

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.advise.measured import Measurement

# One message of the size that a job of that kind is about: the largest that GDRCopy speeds up, and one that rendezvous moves.
DEFAULT_SIZE_B = {Workload.latency: gdr.SMALL_B, Workload.bandwidth: 4 << 20}


@dataclass(frozen=True)
class Advice:
    """For one node; lists are by local rank."""

    host: Host
    workload: Workload
    size_B: int
    mapping: Mapping | None
    distances: tuple[Distance | None, ...]
    bindings: tuple[Binding, ...]
    decisions: tuple[tuple[Decision, ...], ...]
    settings: tuple[Setting, ...]
    missing: tuple[str, ...]
    """What could not be advised, and what it would need."""
    notes: tuple[str, ...]

    def environment(self, rank: int) -> dict[str, str]:
        """Variables of one rank."""
        values = {setting.name: setting.value(rank) for setting in self.settings}
        return {name: value for name, value in values.items() if value is not None}


def advise(
    host: Host,
    workload: Workload = Workload.bandwidth,
    size: int | None = None,
    measurements: Sequence[Measurement] = (),
    measured_in: str = "",
    nccl_topology: str | None = None,
) -> Advice:
    """Works everything out. `measurements` replace the rules on GPUDirect RDMA and GDRCopy; `measured_in` names their file."""
    size = DEFAULT_SIZE_B[workload] if size is None else size
    mapping = map_nics(host, workload)
    far = distances(host, mapping) if mapping else []
    decisions = [gdr.decide(gpu, distance, host.ways_why) for gpu, distance in zip(host.gpus, far, strict=True)] if far else []
    if measurements and decisions:
        from railweave.advise.measured import decide_measured  # not for those who start a rank

        measured = decide_measured(measurements, measured_in)
        decisions = [measured for _ in decisions]
    chosen = _in_force(decisions, workload, size, measured_in)
    found, missing = settings(host, mapping, chosen, bool(measurements), nccl_topology)
    if decisions and not chosen:
        missing.append(_outside(decisions[0], workload, size, measured_in))
    return Advice(
        host=host,
        workload=workload,
        size_B=size,
        mapping=mapping,
        distances=tuple(far),
        bindings=tuple(bindings.bind(host)),
        decisions=tuple(tuple(of_rank) for of_rank in decisions),
        settings=tuple(found),
        missing=tuple(missing + _missing(host)),
        notes=tuple(_notes(host, mapping, far, decisions) + bindings.notes(host)),
    )


def _in_force(decisions: Sequence[Sequence[Decision]], workload: Workload, size: int, measured_in: str) -> list[Decision]:
    metrics = {decision.metric for of_rank in decisions for decision in of_rank}
    if decisions and workload not in metrics:
        raise AdviceError(
            f"{measured_in}: no measurement of {workload.value}; it has {', '.join(sorted(metric.value for metric in metrics))}"
        )
    if decisions and not any(decision.covers(workload, size) for decision in decisions[0]):
        if measured_in:
            return []
        # The rules on latency end where GDRCopy's effect does, those on bandwidth begin there.
        other = Workload.bandwidth if workload == Workload.latency else Workload.latency
        return in_force(decisions, other, size)
    return in_force(decisions, workload, size)


def _outside(decisions: Sequence[Decision], workload: Workload, size: int, measured_in: str) -> str:
    from railweave.size import exact_size  # likewise

    sizes = [bound for decision in decisions if decision.metric == workload for bound in (decision.first_B, decision.last_B or 0)]
    return (
        f"GPUDirect RDMA and GDRCopy for messages of {exact_size(size)}: {measured_in} has measurements of {workload.value} from "
        f"{exact_size(min(sizes))} to {exact_size(max(sizes))}, and says nothing about this size; the libraries' defaults are left"
    )


def _missing(host: Host) -> list[str]:
    if any(numa.cores is None for numa in host.numas) or not host.numas:
        return ["cores: which cores the NUMA nodes have is not known; a recording of the node has it, and so has the node itself"]
    bare = bindings.bare_nodes(host)
    return [f"cores of the ranks there: {bare}"] if bare else []


def _notes(host: Host, mapping: Mapping | None, far: Sequence[Distance | None], decisions: Sequence[Sequence[Decision]]) -> list[str]:
    if mapping is None:
        return ["no NIC on the GPU network: cores and memory only"]
    found = []
    if not mapping.exact:
        found.append(f"the search was cut off after {mapping.steps} steps: this is the best assignment found, not proven the best")
    on_switch = [gpu.name for gpu, distance in zip(host.gpus, far, strict=True) if distance is not None and distance <= Distance.PXB]
    listed = ", ".join(on_switch)
    if None in far:
        found.append(
            f"ways between GPUs and NICs are not known ({host.ways_why}): NICs are divided evenly, not by distance, and NCCL sees no more. "
            "A topology file of the host tells them (NCCL_TOPO_FILE; written there by `railweave topo --nccl-xml`)"
        )
    elif not on_switch:
        found.append(
            "no GPU shares a PCIe switch with a NIC, so every byte to the network crosses a CPU's PCIe root; NCCL then uses neither "
            "GPUDirect RDMA (its default distance is PXB) nor PXN"
        )
    elif len(on_switch) < len(host.gpus):
        found.append(
            f"{len(on_switch)} of {len(host.gpus)} GPUs reach a NIC without leaving their PCIe switch"
            f" ({listed}). NCCL's PXN sends the others' bytes through them where NVLink joins them; it does not cover "
            "receiving, so what arrives for the others crosses the CPU's PCIe root, and all-to-all suffers more than rings"
        )
    else:
        served = [(nic.name, [host.gpus[rank].name for rank in mapping.ranks_of(nic)]) for nic in host.network_nics]
        found.append(
            "every rank's NIC is on its GPU's PCIe switch: " + "; ".join(f"{nic} serves {', '.join(gpus)}" for nic, gpus in served if gpus)
        )
    if host.gdr_why:
        found.append(f"whether GPUDirect RDMA is usable is not known ({host.gdr_why}); the bound assumes host memory")
    elif not any(gpu.gdr for gpu in host.gpus) and any(decision.gdr for of_rank in decisions for decision in of_rank):
        found.append("GPUDirect RDMA is not in use on this fabric; `railweave doctor` on the node says whether it could be, and why not")
    if host.gdrcopy is False and any(decision.gdrcopy for of_rank in decisions for decision in of_rank):
        found.append("GDRCopy is wanted, but its driver (gdrdrv) is not loaded")
    if host.virtual:
        found.append("this is a virtual machine: where it hides the PCIe tree, give NCCL a topology file (--nccl-topology)")
    return found
