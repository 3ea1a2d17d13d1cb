"""A job's process: cores, locked memory, shared memory, RDMA devices. Judged for a job only; doctor's own shell says nothing about jobs."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.doctor.check import Check, Subject, Verdict, clear, fires
from railweave.doctor.finding import Severity
from railweave.doctor.patient import Patient, cpu_list, evidence, label, need
from railweave.errors import Error
from railweave.machine.facts import Known
from railweave.size import figures

# NCCL's own advice for containers is --shm-size=1g; Docker gives 64 MB without it.
SHM_B = 1 << 30
# What distributions give without configuration is 64 KiB to 8 MiB; below this not even the queues of a few connections can be registered.
MEMLOCK_TINY_B = 64 << 20
_TOO_FEW = "the GPU's NUMA node has fewer cores than GPUs"


def _process(patient: Patient) -> Sequence[Subject]:
    return [Subject(f"process {patient.job.pid}")]


def _process_with_rdma(patient: Patient) -> Sequence[Subject]:
    subjects = _process(patient)
    return subjects if any(isinstance(nic.rdma, Known) and nic.rdma.value is not None for nic in patient.nics) else []


def _judge_affinity(patient: Patient, _: Subject) -> Verdict:
    process = patient.job
    allowed = set(need(process.affinity))
    nodes = [set(need(node.cpus)) for node in need(patient.machine.numa)]
    if sum(bool(cpus) for cpus in nodes) < 2:
        return clear("one NUMA node", evidence(process.affinity, cpu_list(tuple(allowed))))
    gpu = patient.job_gpu
    device = patient.need_device(gpu)
    near = set(need(device.local_cpus))
    lines = [evidence(process.affinity, cpu_list(tuple(allowed))), evidence(device.local_cpus, cpu_list(tuple(near)))]
    if allowed <= near:
        return clear(f"bound to cores near {label(gpu)}", *lines)
    advised = _advised(patient, device.bus_id)
    borrowed = advised - near
    if borrowed and allowed <= advised | near:
        return clear(f"bound to cores of {label(gpu)}'s rank, which borrows {cpu_list(tuple(borrowed))}: {_TOO_FEW}", *lines)
    fix = f"Start it with `railweave run`, or bind it to cores {cpu_list(tuple(advised))}: {_TOO_FEW}." if borrowed else ""
    if not allowed & near:
        return fires(f"bound to cores {cpu_list(tuple(allowed))}, none of them near its {label(gpu)}", *lines, fix=fix)
    return fires(f"may run on cores of other NUMA nodes than its {label(gpu)}'s", *lines, fix=fix)


def _advised(patient: Patient, gpu: str) -> set[int]:
    """The cores that `railweave run` gives a GPU's rank, where they are known: a NUMA node with fewer cores than GPUs borrows some."""
    from railweave.advise.binding import bind
    from railweave.advise.live import host_of

    try:
        host, _ = host_of(patient.machine)
    except Error:
        return set()
    return {cpu for one, binding in zip(host.gpus, bind(host), strict=True) if one.bus_id == gpu for cpu in binding.cpus or ()}


def _judge_memlock(patient: Patient, _: Subject) -> Verdict:
    process = patient.job
    limit = need(process.memlock_B)
    if limit is None:
        return clear("unlimited", evidence(process.memlock_B, "unlimited"))
    if need(process.ipc_lock):
        return clear("limited, but the process may lock any amount (CAP_IPC_LOCK)", evidence(process.memlock_B), evidence(process.ipc_lock))
    severity = Severity.error if limit < MEMLOCK_TINY_B else Severity.warning
    return fires(f"limited to {figures(limit / 2**20)} MiB", evidence(process.memlock_B), severity=severity)


def _judge_rdma_devices(patient: Patient, _: Subject) -> Verdict:
    process = patient.job
    names = need(process.infiniband_devices)
    verbs = [name for name in names if name.startswith("uverbs")]
    if verbs:
        return clear(f"{len(verbs)} RDMA devices can be opened", evidence(process.infiniband_devices, ", ".join(verbs)))
    return fires("the process sees no /dev/infiniband/uverbs*", evidence(process.infiniband_devices, ", ".join(names) or "empty"))


def _judge_shm(patient: Patient, _: Subject) -> Verdict:
    process = patient.job
    size = need(process.shm_B)
    if size is None:
        return clear("half of the memory, the kernel's default", evidence(process.shm_B, "no size= in the mount's options"))
    if size >= SHM_B:
        return clear(f"{figures(size / 2**30)} GiB", evidence(process.shm_B))
    return fires(f"{figures(size / 2**20)} MiB", evidence(process.shm_B))


CHECKS = (
    Check(
        "job.cpu-affinity",
        "Process is not bound to its GPU's cores",
        Severity.warning,
        "Cpus_allowed_list of the process; local_cpulist of its GPU; cores and GPUs by NUMA node; /dev/nvidiaN that it has open; "
        "CUDA_VISIBLE_DEVICES, local rank",
        "Proxy and progress threads run across the link between sockets from GPU and NIC, or wander: lower and unsteady bandwidth.",
        "Start it with `railweave run`, or numactl --cpunodebind=N --membind=N.",
        "Lee, Shin, Koo: Rail Optimized and NCCL PXN (43.8 to 80.7 GB/s with cores bound); NCCL user guide 2.30, performance and "
        "tuning: placement",
        _judge_affinity,
        _process,
        needs="job",
    ),
    Check(
        "job.memlock",
        "Locked memory is limited",
        Severity.warning,
        "Max locked memory and CapEff of the process",
        "Registering memory with a NIC fails (ibv_reg_mr: cannot allocate memory), or the library silently takes TCP.",
        "ulimit -l unlimited: /etc/security/limits.conf, LimitMEMLOCK=infinity of slurmd or containerd, --ulimit memlock=-1 for Docker.",
        "NCCL user guide 2.30, troubleshooting, networking and containers",
        _judge_memlock,
        _process_with_rdma,
        "no RDMA device",
        "job",
    ),
    Check(
        "job.rdma-devices",
        "Container without RDMA devices",
        Severity.error,
        "/dev/infiniband of the process; RDMA devices of the machine",
        "NCCL and UCX fall back to TCP sockets: a small part of what the NICs carry, and no GPUDirect RDMA.",
        "Docker: --device=/dev/infiniband; Kubernetes: an RDMA device plugin, or the CNI chain of this project.",
        "NCCL user guide 2.30, troubleshooting, networking",
        _judge_rdma_devices,
        _process_with_rdma,
        "no RDMA device",
        "job",
    ),
    Check(
        "job.shm",
        "Shared memory is too small",
        Severity.error,
        "size of the mount at /dev/shm of the process",
        "NCCL cannot create its buffers (failed to extend /dev/shm/nccl-...), and data loaders die with a bus error.",
        "Docker: --shm-size=1g or --ipc=host; Kubernetes: an emptyDir with medium Memory at /dev/shm.",
        "NCCL user guide 2.30, troubleshooting, containers: --shm-size=1g",
        _judge_shm,
        _process,
        needs="job",
    ),
)
