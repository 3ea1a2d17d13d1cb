"""Moving a process into a node or a rank of a lab."""

from __future__ import annotations

import os
from pathlib import Path

from railweave.lab import syscalls, wire
from railweave.lab.errors import LabError
from railweave.lab.spec import LabSpec

_CGROUPS = Path("/sys/fs/cgroup")


def enter(lab: str | None, *, rank: int | None = None, node: int | None = None) -> LabSpec:
    """Move the calling (single-threaded) process into a rank's or a node's namespaces; `lab` is None inside a lab.

    Like `ip netns exec` it gives the process a /sys of its own, because programs find their NICs in /sys/class/net.
    """
    if rank is not None:
        answer, fds = wire.request(lab, "enter-rank", rank=rank)
    else:
        answer, fds = wire.request(lab, "enter-node", node=node)
    network, mounts, hostname, ipc = fds
    syscalls.setns(network, syscalls.CLONE_NEWNET)
    syscalls.setns(hostname, syscalls.CLONE_NEWUTS)
    syscalls.setns(ipc, syscalls.CLONE_NEWIPC)
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise LabError("the working directory has been deleted") from None
    syscalls.setns(mounts, syscalls.CLONE_NEWNS)
    for fd in fds:
        os.close(fd)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    _fresh_sys()
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    hosts = wire.INSIDE / ("hosts" if rank is None else "rank-hosts")
    if Path("/etc/hosts").exists():
        syscalls.mount(str(hosts), "/etc/hosts", "", syscalls.MS_BIND)
    os.chdir(here)
    return LabSpec.from_json(answer["spec"])


def _fresh_sys() -> None:
    """A /sys that shows this network namespace; control groups stay visible where they were."""
    cgroups = os.open(_CGROUPS, os.O_PATH) if _CGROUPS.exists() else -1
    syscalls.mount("sysfs", "/sys", "sysfs", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    if cgroups >= 0:
        syscalls.mount(f"/proc/self/fd/{cgroups}", str(_CGROUPS), "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(cgroups)
