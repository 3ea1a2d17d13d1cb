"""What a process of a job was started with: environment, limits, mounts, cores."""

from __future__ import annotations

import re
from collections.abc import Mapping

from railweave.machine.facts import Fact, Process, Unknown
from railweave.machine.reading import NotGiven, attempt, cpu_list, or_else, parsed
from railweave.machine.source import Reason, Source, Unreadable

# Variables that say how a job communicates and where its ranks run. Nothing else is read of an environment, which holds secrets.
_PREFIXES = (
    "NCCL_",
    "UCX_",
    "OMPI_",
    "PMIX_RANK",
    "MV2_",
    "MPICH_",
    "FI_",
    "CUDA_",
    "NVIDIA_VISIBLE",
    "NVSHMEM_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "TORCH_NCCL_",
    "RAILWEAVE_",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_CPU_BIND",
)
_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "JOB_COMPLETION_INDEX", "LD_PRELOAD"}
# Variables whose value is a file that must be there (NCCL user guide, environment variables).
_FILES = ("NCCL_TOPO_FILE", "NCCL_CONF_FILE", "NCCL_GRAPH_FILE")
_GPU_DEVICE = re.compile(r"nvidia(\d{1,4})")
_OPEN_FILE = re.compile(r"/proc/\d+/fd/\d+")
_CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_process(source: Source, pid: int) -> Process:
    """A process by number; what its owner alone may read is unknown to others."""
    at = f"/proc/{pid}"
    return Process(
        pid=pid,
        environ=attempt(f"{at}/environ", lambda: _environment(source.read_bytes(f"{at}/environ"))),
        memlock_B=parsed(source, f"{at}/limits", _memlock),
        shm_B=parsed(source, f"{at}/mountinfo", _shm),
        affinity=parsed(source, f"{at}/status", lambda text: cpu_list(_status(text, "Cpus_allowed_list"))),
        memory_nodes=parsed(source, f"{at}/status", lambda text: cpu_list(_status(text, "Mems_allowed_list"))),
        infiniband_devices=_infiniband(source, at),
        gpu_devices=_gpu_devices(source, at),
        open_gpus=_open_gpus(source, at),
        ipc_lock=parsed(source, f"{at}/status", lambda text: bool(int(_status(text, "CapEff"), 16) >> _CAP_IPC_LOCK & 1)),
        nccl_version=_nccl_version(source, at),
        missing_files=_missing_files(source, at),
    )


def is_communication_variable(name: str) -> bool:
    """Whether a variable is one of those that are read."""
    return name in _NAMES or name.startswith(_PREFIXES)


def _environment(block: bytes, errors: str = "replace") -> Mapping[str, str]:
    pairs = (entry.decode("utf-8", errors=errors).partition("=") for entry in block.split(b"\0") if entry)
    found: dict[str, str] = {}
    for name, _, value in pairs:
        if is_communication_variable(name):
            found.setdefault(name, value)  # of those that stand twice programs get the first (getenv)
    return found


def kept(path: str, content: bytes) -> bytes:
    """The part of a file of /proc that a recording may hold: an environment has secrets, mounts name servers and users, and what follows
    `--` on the kernel's command line is meant for init."""
    if path.endswith("/environ"):
        variables = _environment(content, "surrogateescape").items()
        return b"".join(f"{name}={value}\0".encode(errors="surrogateescape") for name, value in variables)
    if path.endswith("/mountinfo"):
        return b"".join(line + b"\n" for line in content.splitlines() if line.split()[4:5] == [b"/dev/shm"])
    if path.endswith("/maps"):
        return b"".join(line + b"\n" for line in content.splitlines() if b"/libnccl.so" in line)
    if path == "/proc/cmdline":
        return content.split(b" -- ")[0].rstrip(b"\n") + b"\n"
    return content


def kept_names(path: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The part of a folder's listing that a recording may hold: other devices name volumes, which are often named after the host, and other
    Python packages say what a user works on."""
    if path.endswith("/dev"):
        return tuple(name for name in names if name.startswith(("nvidia", "gdrdrv", "infiniband")))
    if "/root/" in path and not path.endswith("/dev/infiniband"):
        return tuple(name for name in names if name.startswith("nvidia_nccl_"))
    return names


def may_keep_link(path: str, target: str) -> bool:
    """Whether a recording may hold a link: what else than a GPU a process has open says what its user works on."""
    return _OPEN_FILE.fullmatch(path) is None or _gpu_of(target) is not None


def _memlock(text: str) -> int | None:
    found = re.search(r"^Max locked memory\s+(\S+)", text, re.MULTILINE)
    if found is None:
        raise ValueError("no line 'Max locked memory'")
    return None if found[1] == "unlimited" else int(found[1])


def _shm(text: str) -> int | None:
    """Size of the mount at /dev/shm; the last one hides those before it."""
    mounts = [line for line in text.splitlines() if line.split()[4:5] == ["/dev/shm"]]
    if not mounts:
        raise NotGiven("no mount at /dev/shm")
    found = re.search(r"(?:^|,)size=(\d+)([kmg]?)(?:,|$)", mounts[-1].split()[-1])
    return int(found[1]) * _UNITS[found[2]] if found else None


def _status(text: str, key: str) -> str:
    found = re.search(rf"^{key}:\s*(\S+)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"no line {key!r}")
    return found[1]


def _infiniband(source: Source, at: str) -> Fact[tuple[str, ...]]:
    """Through the process's own root, since a container has a /dev of its own."""
    path = f"{at}/root/dev/infiniband"
    names = attempt(path, lambda: source.listdir(path))
    if isinstance(names, Unknown) and names.reason is Reason.absent:
        root = attempt(f"{at}/root/dev", lambda: source.listdir(f"{at}/root/dev"))
        return root if isinstance(root, Unknown) else or_else(names, ())
    return names


def _gpu_devices(source: Source, at: str) -> Fact[tuple[int, ...]]:
    path = f"{at}/root/dev"
    return attempt(path, lambda: tuple(sorted(int(found[1]) for name in source.listdir(path) if (found := _GPU_DEVICE.fullmatch(name)))))


def _open_gpus(source: Source, at: str) -> Fact[tuple[int, ...]]:
    path = f"{at}/fd"

    def read() -> tuple[int, ...]:
        found = set()
        for name in source.listdir(path):
            try:
                found.add(_gpu_of(source.readlink(f"{path}/{name}")))
            except Unreadable as error:
                if error.reason is Reason.permission:
                    raise  # any other has been closed meanwhile, or is none that recordings keep
        return tuple(sorted(minor for minor in found if minor is not None))

    return attempt(path, read)


def _gpu_of(target: str) -> int | None:
    """N of the path /dev/nvidiaN."""
    found = _GPU_DEVICE.fullmatch(target.removeprefix("/dev/")) if target.startswith("/dev/") else None
    return int(found[1]) if found is not None else None


def _nccl_version(source: Source, at: str) -> Fact[tuple[int, int, int]]:
    """By the name of the library's file, as distributions have it, or of the Python package that it lies in."""
    path = f"{at}/maps"

    def read() -> tuple[int, int, int]:
        found = re.search(r"(/\S*/libnccl\.so[.\d]*)$", source.read_text(path), re.MULTILINE)
        if found is None:
            raise NotGiven("no libnccl.so is loaded (yet)")
        named = re.search(r"\.so\.(\d+)\.(\d+)\.(\d+)$", found[1])
        packages = found[1].split("/nvidia/nccl/lib/")[0] if "/nvidia/nccl/lib/" in found[1] else None
        if named is None and packages is not None:
            names = " ".join(source.listdir(f"{at}/root{packages}"))
            named = re.search(r"(?<!\S)nvidia_nccl_cu\d+-(\d+)\.(\d+)\.(\d+)\.dist-info(?!\S)", names)
        if named is None:
            raise NotGiven(f"{found[1]} does not tell its release")
        return int(named[1]), int(named[2]), int(named[3])

    return attempt(path, read)


def _missing_files(source: Source, at: str) -> Fact[tuple[str, ...]]:
    """Asked through the process's own root; a path that is not absolute depends on a folder that programs change."""
    path = f"{at}/environ"

    def read() -> tuple[str, ...]:
        environment = _environment(source.read_bytes(path))
        missing = []
        for file in (environment[name] for name in _FILES if environment.get(name, "").startswith("/")):
            try:
                source.read_bytes(f"{at}/root{file}")
            except Unreadable as error:
                if error.reason is not Reason.absent:
                    raise
                missing.append(file)
        return tuple(missing)

    return attempt(path, read)
