"""Which rank a process is, and which GPUs are its own: decision tables."""

from __future__ import annotations

import pytest

from railweave.launch.errors import LaunchError
from railweave.launch.gpus import gpus_of
from railweave.launch.placement import Placement
from railweave.launch.rank import Rank, find_rank

TORCHRUN = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "RANK": "11", "TORCHELASTIC_RUN_ID": "none"}
MPIRUN = {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_RANK": "6"}
MPICH = {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_RANK": "5"}
SLURM_JOB = {"SLURM_JOB_ID": "7", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
SRUN = {**SLURM_JOB, "SLURM_STEP_ID": "0", "SLURM_LOCALID": "5", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, ("torchrun", 3, 8)),
        ({"LOCAL_RANK": "1"}, ("torchrun", 1, None)),
        (MPIRUN, ("Open MPI", 2, 4)),
        (MPICH, ("MPICH", 1, 2)),
        (SRUN, ("srun", 5, 8)),
        ({**SRUN, "SLURM_NODEID": "2", "SLURM_LOCALID": "3"}, ("srun", 3, 4)),
        ({**SRUN, "SLURM_NODEID": "3"}, ("srun", 5, None)),
        ({k: v for k, v in SRUN.items() if "TASKS" not in k}, ("srun", 5, None)),
        (SLURM_JOB, ("none", 0, 1)),
        ({"JOB_COMPLETION_INDEX": "6"}, ("Kubernetes indexed job", 0, 1)),
        ({}, ("none", 0, 1)),
        # The innermost launcher counts.
        ({**SRUN, **TORCHRUN}, ("torchrun", 3, 8)),
        ({**SLURM_JOB, **MPIRUN}, ("Open MPI", 2, 4)),
        ({"JOB_COMPLETION_INDEX": "6", **TORCHRUN}, ("torchrun", 3, 8)),
        # An empty variable counts as none.
        ({"LOCAL_RANK": ""}, ("none", 0, 1)),
        ({**MPIRUN, "LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""}, ("Open MPI", 2, 4)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": ""}, ("torchrun", 3, None)),
        ({**MPICH, "OMPI_COMM_WORLD_LOCAL_RANK": ""}, ("MPICH", 1, 2)),
        ({**SRUN, "MPI_LOCALRANKID": ""}, ("srun", 5, 8)),
        ({**SRUN, "SLURM_STEP_ID": ""}, ("none", 0, 1)),
        ({**SRUN, "SLURM_LOCALID": ""}, ("none", 0, 1)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": ""}, ("srun", 5, None)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4,8", "SLURM_NODEID": ""}, ("srun", 5, 4)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "4(x900000000),8", "SLURM_NODEID": "900000000"}, ("srun", 5, 8)),
        ({"JOB_COMPLETION_INDEX": ""}, ("none", 0, 1)),
    ],
)
def test_rank(environment: dict[str, str], expected: tuple[str, int, int | None]) -> None:
    rank = find_rank(environment)
    assert (rank.launcher, rank.local, rank.size) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK=x: expected a number"),
        ({"LOCAL_RANK": " "}, "LOCAL_RANK= : expected"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1: expected"),
        ({"LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "8"}, "LOCAL_RANK=9: expected less than LOCAL_WORLD_SIZE=8"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_RANK=0: expected less than LOCAL_WORLD_SIZE=0"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "٣"}, "OMPI_COMM_WORLD_LOCAL_SIZE=٣"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "8(y2)"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "²"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "8(x" + "9" * 5000 + ")"}, "SLURM_STEP_TASKS_PER_NODE"),
        ({"JOB_COMPLETION_INDEX": "one"}, "JOB_COMPLETION_INDEX=one"),
    ],
)
def test_nonsense_is_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        find_rank(environment)
    assert message in str(caught.value)


NODE = [Placement({"name": f"gpu{i}", "minor": str(i), "uuid": f"GPU-{i}{i}{i}"}, {}) for i in range(8)]


@pytest.mark.parametrize(
    ("local", "size", "visible", "openable", "expected"),
    [
        (3, 8, None, range(8), [3]),
        (3, None, None, range(8), [3]),
        (0, 1, None, range(8), list(range(8))),  # a launcher, or a program that drives all GPUs
        (1, 2, "4,6", range(8), [6]),
        (0, 1, "4,6", range(8), [4, 6]),
        (5, 8, "2", range(8), [2]),  # a launcher that shows each rank its own GPU
        (5, 8, None, [6], [6]),  # a device cgroup that does
        (1, 2, "0,1", [4, 6], [6]),  # numbers count what can be opened
        (0, 1, "GPU-33", range(8), [3]),
        (0, 1, "GPU-9", range(8), []),
        (0, 1, "GPU-", range(8), []),  # names all, hence none
        (0, 1, "1,9,2", range(8), [1]),  # CUDA stops at the first that is none
        (0, 1, "1,²", range(8), [1]),
        (0, 1, "", range(8), []),
        (0, 1, "-1", range(8), []),
        (0, 1, "MIG-1234", range(8), []),
        (9, 16, None, range(8), [1]),  # two ranks a GPU
        (0, 1, None, [], []),
    ],
)
def test_gpus(local: int, size: int | None, visible: str | None, openable: list[int], expected: list[int]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    mine, why_none = gpus_of(Rank("x", local, size), NODE, environment, lambda minor: int(minor) in openable)
    assert [int(gpu.minor) for gpu in mine] == expected
    assert bool(why_none) == (not expected)


def test_gpus_without_known_device_files_are_all_taken_for_openable() -> None:
    node = [Placement({"name": "gpu0"}, {}), Placement({"name": "gpu1"}, {})]
    mine, _ = gpus_of(Rank("x", 1, 2), node, {}, lambda minor: False)
    assert [gpu.name for gpu in mine] == ["gpu1"]
