"""The few Linux system calls that Python 3.10 does not offer: namespaces, mounts, parent-death signal."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# linux/mount.h
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Give the calling thread new namespaces."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, filesystem: str, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    arguments = [text.encode() if text else None for text in (source, target, filesystem)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None), f"mount({filesystem or source} on {target})")


def sethostname(name: str) -> None:
    """Set the host name of the calling thread's UTS namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def open_namespace(kind: str) -> int:
    """A file descriptor that holds the calling thread's namespace of this kind ("net", "mnt", "pid", …)."""
    return os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def in_namespace(fd: int, kind: str) -> Iterator[None]:
    """Run a block in another network namespace ("net"), or let it start children in another process namespace ("pid")."""
    flag = {"net": CLONE_NEWNET, "pid": CLONE_NEWPID}[kind]
    home = open_namespace(kind)
    try:
        setns(fd, flag)
        try:
            yield
        finally:
            setns(home, flag)
    finally:
        os.close(home)
