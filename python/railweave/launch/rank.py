"""Which rank of its node this process is, by what its launcher put into the environment."""

from __future__ import annotations

from railweave.launch.errors import LaunchError

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping


class Rank:
    """`local` counts from 0 on this node; `size` is how many ranks the node has, None where the launcher does not say."""

    def __init__(self, launcher: str, local: int, size: int | None) -> None:
        self.launcher = launcher
        self.local = local
        self.size = size

    @property
    def alone(self) -> bool:
        """The node's only rank: all GPUs that it sees are its own."""
        return self.size == 1


# The innermost launcher counts: torchrun may have been started by srun, mpirun inside a Slurm job.
_LAUNCHERS = (
    ("torchrun", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def find_rank(environment: Mapping[str, str]) -> Rank:
    """Raises LaunchError for a variable that is no number, and a rank that its node has no place for. An empty one counts as none, as in
    what `advise --format shell` writes: scripts cannot always unset what they do not want."""
    for launcher, local, size in _LAUNCHERS:
        if environment.get(local):
            number, among = _number(environment, local), _number(environment, size) if environment.get(size) else None
            if among is not None and number >= among:
                raise LaunchError(f"{local}={number}: expected less than {size}={among}")
            return Rank(launcher, number, among)
    # A batch script has SLURM_LOCALID too, but no step: it is not one of several tasks.
    if environment.get("SLURM_LOCALID") and environment.get("SLURM_STEP_ID"):
        return Rank("srun", _number(environment, "SLURM_LOCALID"), _slurm_tasks(environment))
    if environment.get("JOB_COMPLETION_INDEX"):
        _number(environment, "JOB_COMPLETION_INDEX")
        return Rank("Kubernetes indexed job", 0, 1)  # a pod is a rank, and sees only its own GPUs
    return Rank("none", 0, 1)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not _is_number(text):
        raise LaunchError(f"{name}={text}: expected a number, as launchers set it")
    return int(text)


def _slurm_tasks(environment: Mapping[str, str]) -> int | None:
    """Tasks on this node from a list such as `8(x2),4`: 8 on the first two nodes, 4 on the third."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE")
    node = environment.get("SLURM_NODEID") or "0"
    if not text or not _is_number(node):
        return None
    before = 0  # nodes
    for part in text.split(","):
        tasks, _, times = part.partition("(x")
        times = times.rstrip(")") or "1"
        if not (_is_number(tasks) and _is_number(times)):
            raise LaunchError(f"SLURM_STEP_TASKS_PER_NODE={text}: expected numbers such as 8(x2),4")
        before += int(times)
        if int(node) < before:
            return int(tasks)
    return None
