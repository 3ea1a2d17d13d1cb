"""Binds this process to cores and memory, within what its cpuset allows, and without undoing what somebody chose before."""

from __future__ import annotations

import os

from railweave.launch.placement import cpu_set, cpu_text

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Callable

    Say = Callable[[str], None]

MPOL_DEFAULT, MPOL_PREFERRED, MPOL_PREFERRED_MANY = 0, 1, 5
_SYSCALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
"""get_mempolicy and set_mempolicy, from the kernel's tables (asm/unistd_64.h, asm-generic/unistd.h): the C library lacks them."""


_ISOLATED = "/sys/devices/system/cpu/isolated"


def bind_cpus(cpus: frozenset[int], override: bool, explain: Say, warn: Say) -> bool:
    """Whether the process is now where it was advised to be."""
    before = os.sched_getaffinity(0)
    try:
        # The kernel narrows any set to the cpuset, so asking for all CPUs shows it.
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    except OSError as error:
        warn(f"CPU affinity cannot be set here ({error.strerror}); left at {cpu_text(before)}")
        return False
    whole = os.sched_getaffinity(0)
    # CPUs that isolcpus keeps from the scheduler: a process has none of them by itself, but all of its container's. A cpuset may have no
    # others.
    allowed = whole - cpu_set(_read(_ISOLATED)) or whole
    wanted = cpus & allowed
    if before not in (allowed, whole) and not override:
        os.sched_setaffinity(0, before)
        warn(
            f"CPU affinity was {cpu_text(before)} before and is kept (advice: {cpu_text(cpus)}); let the launcher not bind "
            "(mpirun --bind-to none, srun --cpu-bind=none), or replace it with --override"
        )
        return False
    if not wanted:
        os.sched_setaffinity(0, before)
        warn(f"none of the advised cores {cpu_text(cpus)} is in this process's cpuset {cpu_text(allowed)}; not bound")
        return False
    os.sched_setaffinity(0, wanted)
    rest = "" if wanted == cpus else f", of the advised {cpu_text(cpus)} those in the cpuset {cpu_text(allowed)}"
    explain(f"CPU affinity {cpu_text(wanted)}{rest}")
    return True


def bind_memory(nodes: frozenset[int], override: bool, explain: Say, warn: Say) -> None:
    """Prefers these NUMA nodes. Preferred and not bound: a full node then lends from others, where binding would kill the process."""
    online = _read("/sys/devices/system/node/online")
    if online in ("", "0"):
        explain("memory: the machine has one NUMA node, nothing to choose")
        return
    machine = os.uname().machine
    if machine not in _SYSCALLS:
        warn(f"memory policy: not known how to set it on {machine}")
        return
    import ctypes

    get_mempolicy, set_mempolicy = _SYSCALLS[machine]
    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_int(MPOL_DEFAULT)
    if libc.syscall(get_mempolicy, ctypes.byref(mode), None, 0, None, 0) == 0 and mode.value != MPOL_DEFAULT and not override:
        warn("a memory policy was set before and is kept; --override replaces it")
        return
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    policy = MPOL_PREFERRED if len(nodes) == 1 else MPOL_PREFERRED_MANY
    # The kernel reads one bit less than it is told.
    if libc.syscall(set_mempolicy, policy, ctypes.byref(mask), ctypes.c_ulong(8 * ctypes.sizeof(mask) + 1)) != 0:
        warn(f"memory policy: refused ({os.strerror(ctypes.get_errno())}); memory is left where the process first touches it")
        return
    explain(f"memory preferred on NUMA node {cpu_text(nodes)}")


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
