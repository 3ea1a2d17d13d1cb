"""Checks of a job and its NCCL variables: each fires on its fault, is silent without it, unknown where its input is not readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Break, Case, unread
from template_machine import JOB, TemplateMachine

from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer
from railweave.machine.discovery import discover
from railweave.machine.facts import known
from railweave.machine.recording import RecordedSource

STATUS = "Name:\tpython\nCapEff:\t0000000000000000\nCpus_allowed_list:\t{}\nMems_allowed_list:\t0\n"
LIMITS = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         {0}            {0}            bytes\n"
SHM = "30 1 0:26 / /dev/shm rw,nosuid - tmpfs shm rw,size={}k\n"


def environ(**variables: str) -> Break:
    return lambda machine: machine.environ(**variables)


def process(name: str, content: str) -> Break:
    return lambda machine: machine.process(name, content)


def no_verbs(machine: TemplateMachine) -> None:
    machine.environ()
    for path in [path for path in machine.files if path.startswith(f"/proc/{JOB}/root/dev/infiniband/")]:
        del machine.files[path]


def many_devices(machine: TemplateMachine) -> None:
    """Enough of them that mlx5_1 is a prefix of another one's name."""
    machine.links["/sys/class/infiniband/mlx5_10"] = machine.links["/sys/class/infiniband/mlx5_3"].replace("mlx5_3", "mlx5_10")
    del machine.links["/sys/class/infiniband/mlx5_3"]
    for path in [path for path in machine.files if path.startswith("/sys/class/infiniband/mlx5_3/")]:
        machine.files[path.replace("mlx5_3", "mlx5_10")] = machine.files.pop(path)


def prefix(machine: TemplateMachine) -> None:
    many_devices(machine)
    machine.environ(NCCL_IB_HCA="mlx5_0,mlx5_1,mlx5_2,mlx5_10")


CASES = [
    Case(
        "job.cpu-affinity",
        process("status", STATUS.format("8-15")),
        (f"process {JOB}",),
        "none of them near its GPU 0",
        "8-15",
        "warning",
        job={},
    ),
    Case(
        "job.cpu-affinity",
        process("status", STATUS.format("0-15")),
        (f"process {JOB}",),
        "may run on cores of other NUMA nodes",
        "0-15",
        "warning",
        job={},
        name="missing",
    ),
    Case("job.memlock", process("limits", LIMITS.format("65536")), (f"process {JOB}",), "0.0625 MiB", "limits: 65536", "error", job={}),
    Case(
        "job.memlock",
        process("limits", LIMITS.format(str(1 << 34))),
        (f"process {JOB}",),
        "limited to 16384 MiB",
        "limits",
        "warning",
        job={},
        name="large",
    ),
    Case("job.rdma-devices", no_verbs, (f"process {JOB}",), "no /dev/infiniband/uverbs*", "/dev/infiniband", "error", job={}),
    Case("job.shm", process("mountinfo", SHM.format("65536")), (f"process {JOB}",), "64 MiB", "mountinfo", "error", job={}),
    Case(
        "nccl.prefix",
        prefix,
        ("NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2,mlx5_10",),
        "mlx5_1 also takes mlx5_10",
        f"/proc/{JOB}/environ: NCCL_IB_HCA=",
        "warning",
        job={"NCCL_IB_HCA": "=mlx5_0,mlx5_1,mlx5_2,mlx5_3"},
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_HCA="=mlx5_1"),
        ("NCCL_IB_HCA==mlx5_1",),
        "hides NICs from PXN",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "mlx5"},
        name="hca-per-rank",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_HCA="mlx4_0"),
        ("NCCL_IB_HCA=mlx4_0",),
        "leaves no RDMA device",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "^mlx4"},
        name="hca-none",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_GID_INDEX="3"),
        ("NCCL_IB_GID_INDEX=3",),
        "since 2.21",
        "environ",
        "warning",
        job={"NCCL_IB_GID_INDEX": "-1"},
        name="gid",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_TC="160"),
        ("NCCL_IB_TC=160",),
        "DSCP 40 is priority 5",
        "environ",
        "warning",
        job={"NCCL_IB_TC": "106"},
        name="traffic-class",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_NET_GDR_LEVEL="2"),
        ("NCCL_NET_GDR_LEVEL=2",),
        "write PXB",
        "environ",
        "warning",
        job={"NCCL_NET_GDR_LEVEL": "PHB"},
        name="number",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_NET="Socket"),
        ("NCCL_NET=Socket",),
        "sockets are chosen although",
        "environ",
        "warning",
        job={"NCCL_NET": "IB"},
        name="socket",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_IB_DISABLE="1"),
        ("NCCL_IB_DISABLE=1",),
        "RDMA is switched off",
        "environ",
        "warning",
        job={"NCCL_IB_DISABLE": "0"},
        name="ib-disable",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_P2P_DISABLE="1"),
        ("NCCL_P2P_DISABLE=1",),
        "instead of NVLink",
        "environ",
        "warning",
        job={"NCCL_P2P_DISABLE": "0"},
        name="p2p",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_PXN_DISABLE="1"),
        ("NCCL_PXN_DISABLE=1",),
        "send through the CPU",
        "environ",
        "warning",
        template="lineyahoo-2nic",
        job={"NCCL_PXN_DISABLE": "0"},
        name="pxn",
    ),
    Case(
        "nccl.contradiction",
        environ(NCCL_TOPO_FILE="/opt/gone.xml"),
        ("NCCL_TOPO_FILE=/opt/gone.xml",),
        "there is no file",
        "environ",
        "warning",
        name="topology-file",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_IB_TC="106", NCCL_NET="Socket"),
        ("NCCL_IB_TC=106",),
        "NCCL_NET=Socket takes sockets",
        "environ",
        "warning",
        job={"NCCL_IB_TC": "106"},
        name="sockets",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_IB_SPLIT_DATA_ON_QPS="1"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS=1",),
        "one queue pair",
        "environ",
        "warning",
        job={"NCCL_IB_SPLIT_DATA_ON_QPS": "1", "NCCL_IB_QPS_PER_CONNECTION": "4"},
        name="queues",
    ),
    Case(
        "nccl.ignored",
        environ(NCCL_SOCKET_NTHREADS="4"),
        ("NCCL_SOCKET_NTHREADS=4",),
        "over RDMA",
        "environ",
        "warning",
        job={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NET": "Socket"},
        name="threads",
    ),
    Case(
        "nccl.value",
        environ(NCCL_IB_TC="abc"),
        ("NCCL_IB_TC=abc",),
        "no number: NCCL 2.30.7 and releases before take 0",
        "environ",
        "warning",
        job={"NCCL_IB_TC": "106"},
        name="word",
    ),
    Case(
        "nccl.value",
        environ(NCCL_BUFFSIZE="8M"),
        ("NCCL_BUFFSIZE=8M",),
        "NCCL takes 8: it reads no further",
        "environ",
        "warning",
        job={"NCCL_BUFFSIZE": "0x800000"},
        name="unit",
    ),
    Case(
        "nccl.value",
        environ(NCCL_MIN_NCHANNELS="016"),
        ("NCCL_MIN_NCHANNELS=016",),
        "NCCL takes 14: a leading 0",
        "environ",
        "warning",
        job={"NCCL_MIN_NCHANNELS": "", "NCCL_DEBUG": "INFO", "NCCL_SET_THREAD_NAME": "true"},
        name="octal",
    ),
    Case(
        "nccl.default",
        environ(NCCL_IB_TIMEOUT="20"),
        ("NCCL_IB_TIMEOUT=20",),
        "20 is the default of NCCL 2.28.9",
        "environ",
        "info",
        job={"NCCL_IB_TIMEOUT": "18"},
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_IBHCA="mlx5"),
        ("NCCL_IBHCA=mlx5",),
        "NCCL_IB_HCA is meant?",
        "environ",
        "warning",
        job={"NCCL_IB_HCA": "mlx5"},
        name="misspelt",
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_IB_SUBNET_AWARE_ROUTING="1"),
        ("NCCL_IB_SUBNET_AWARE_ROUTING=1",),
        "releases did since 2.30",
        "environ",
        "warning",
        job={"NCCL_IB_DATA_DIRECT": "0"},
        name="newer",
    ),
    Case(
        "nccl.unknown",
        environ(NCCL_AGG_CHANNEL_SIZE="4"),
        ("NCCL_AGG_CHANNEL_SIZE=4",),
        "releases did until 2.19.4",
        "environ",
        "warning",
        name="gone",
    ),
]

UNKNOWN: list[tuple[str, Break, str]] = [
    ("job.cpu-affinity", lambda machine: (machine.environ(), machine.process("environ", ""))[0], "local rank"),
    ("job.memlock", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/limits"))[0], "permission"),
    ("job.shm", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/mountinfo"))[0], "permission"),
    ("nccl.ignored", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/environ"))[0], "permission"),
    ("nccl.value", lambda machine: (machine.environ(), unread(machine, f"/proc/{JOB}/environ"))[0], "permission"),
    ("nccl.default", lambda machine: (machine.environ(NCCL_IB_TIMEOUT="20"), machine.process("maps", ""))[0], "no libnccl.so is loaded"),
    (
        "nccl.unknown",
        lambda machine: (machine.environ(NCCL_IB_HCA="mlx5"), machine.process("maps", "x /lib/libnccl.so.2.99.1"))[0],
        "covers 2.8.3 to",
    ),
    ("nccl.contradiction", lambda machine: machine.environ(NCCL_SOCKET_IFNAME="bond0"), "virtual interface"),
]


@pytest.mark.parametrize(
    ("variables", "gpu"),
    [
        ({"SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "MPI_LOCALRANKID": "4"}, "GPU 4"),  # Slurm started MPICH's proxy, which is its task 0
        ({"SLURM_LOCALID": "4", "SLURM_STEP_ID": "0"}, "GPU 4"),
        ({"SLURM_LOCALID": "0"}, None),  # a batch script is one of no tasks
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, None),  # all GPUs are its own
        ({"LOCAL_RANK": "first"}, None),
        ({"LOCAL_RANK": "4", "CUDA_VISIBLE_DEVICES": "7,6,5,4,4"}, "GPU 4"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000004"}, "GPU 4"),
        ({"CUDA_VISIBLE_DEVICES": "4"}, "GPU 4"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "4"}, "GPU 4"),
        ({"CUDA_VISIBLE_DEVICES": "4", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "4"}, None),  # of a device cgroup, or of the node
    ],
)
def test_a_process_is_the_rank_that_run_takes_it_for(variables: dict[str, str], gpu: str | None) -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.process("environ", "".join(f"{name}={value}\0" for name, value in variables.items()))
    machine.process("status", STATUS.format("8-15"))  # near GPU 4
    (finding,) = (one for one in examine(machine.machine(), "machine").findings if one.check == "job.cpu-affinity")
    if gpu is None:
        assert finding.answer is Answer.unknown
    else:
        assert (finding.answer, finding.text) == (Answer.clear, f"bound to cores near {gpu}")


def of_job(machine: TemplateMachine) -> tuple[Answer, str]:
    (finding,) = (one for one in examine(machine.machine(), "machine").findings if one.check == "job.cpu-affinity")
    return finding.answer, finding.text


@pytest.mark.parametrize(
    ("cores", "answer", "said"),
    [
        ("4-5", Answer.clear, "bound to cores of GPU 2's rank, which borrows 4-5: the GPU's NUMA node has fewer cores than GPUs"),
        ("5", Answer.clear, "borrows 4-5"),  # what a container's cpuset left of them
        ("0-1,4", Answer.clear, "borrows 4-5"),
        ("2-3", Answer.fires, "bound to cores 2-3, none of them near its GPU 2"),  # lent to GPU 1
        ("0-7", Answer.fires, "may run on cores of other NUMA nodes"),
    ],
)
def test_cores_that_a_rank_borrows_are_its_own(cores: str, answer: Answer, said: str) -> None:
    """NPS4 with two cores a part: four GPUs hang from the first part of each socket, and the parts without GPUs lend theirs."""
    machine = TemplateMachine("lineyahoo-2nic")
    for node in range(8):
        machine.files[f"/sys/devices/system/node/node{node}/cpulist"] = f"{2 * node}-{2 * node + 1}"
    for path in [path for path in machine.files if path.endswith("/numa_node")]:
        node = 4 * int(str(machine.files[path]))
        machine.files[path] = str(node)
        machine.files[path.replace("numa_node", "local_cpulist")] = f"{2 * node}-{2 * node + 1}"
    machine.environ(LOCAL_RANK="2")
    machine.process("status", STATUS.format(cores))
    (finding,) = (one for one in examine(machine.machine(), "machine").findings if one.check == "job.cpu-affinity")
    assert finding.answer is answer and said in finding.text
    assert answer is Answer.clear or "bind it to cores 4-5" in finding.fix


def test_numbers_count_among_the_gpus_of_a_container() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.environ(CUDA_VISIBLE_DEVICES="0", LOCAL_RANK="")
    machine.process("status", STATUS.format("8-15"))
    for gpu in (0, 1, 2, 3, 4, 6, 7):
        del machine.files[f"/proc/{JOB}/root/dev/nvidia{gpu}"]
    assert of_job(machine) == (Answer.clear, "bound to cores near GPU 5")
    for entry in machine.nvml["gpus"]:
        del entry["minor"]
    answer, text = of_job(machine)
    assert answer is Answer.unknown and "minor: not recorded" in text


def test_the_gpu_that_a_process_has_open_is_its_own(tmp_path: Path) -> None:
    """Also where a device cgroup numbers GPUs anew. What else it has open is no recording's."""
    machine = TemplateMachine("xe9680-4hca")
    machine.environ(CUDA_VISIBLE_DEVICES="0", SLURM_STEP_ID="0", SLURM_LOCALID="5", LOCAL_RANK="")
    machine.process("status", STATUS.format("8-15"))
    assert of_job(machine)[0] is Answer.unknown
    for number, target in enumerate(["/home/anna/thesis.txt", "/dev/nvidiactl", "/dev/nvidia5", "/dev/nvidia5"]):
        machine.links[f"/proc/{JOB}/fd/{number}"] = target
    assert of_job(machine) == (Answer.clear, "bound to cores near GPU 5")
    kept = RecordedSource(machine.record(tmp_path / "node.tar.zst"))
    assert not any("thesis" in target for target in kept.recording.links.values())
    assert known(discover(kept, JOB).process.open_gpus) == (5,)  # type: ignore[union-attr]
    machine.links[f"/proc/{JOB}/fd/9"] = "/dev/nvidia4"
    assert of_job(machine)[0] is Answer.unknown
