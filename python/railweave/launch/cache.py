"""Keeps the placement of this machine between starts: the first rank works it out, the others wait for it and read it.

It is kept per user and boot in the runtime folder or /tmp, under a key of what is quick to read and changes when the advice could: boot,
PCI devices, RDMA devices, online CPUs and NUMA nodes, driver, and the installed version of Railweave.
"""

from __future__ import annotations

import os
import stat

from railweave.launch.errors import LaunchError, NoAdviceError
from railweave.launch.placement import read

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Callable

    from railweave.launch.placement import Placement


def key(workload: str) -> str:
    """One line."""
    files = (
        "/proc/sys/kernel/random/boot_id",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/node/online",
        "/proc/driver/nvidia/version",
    )
    folders = ("/sys/bus/pci/devices", "/sys/class/infiniband", "/proc/driver/nvidia/gpus")
    installed = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parts = [workload, *(_text(path) for path in files), *(",".join(_names(path)) for path in folders)]
    parts += [str(os.stat(os.path.join(installed, room)).st_mtime_ns) for room in ("advise", "launch", "machine")]
    return "; ".join(parts)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def folder() -> str | None:
    """The user's own folder, made if need be; None where somebody else's is in its place."""
    path = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"railweave-{os.geteuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    try:
        found = os.lstat(path)
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return path if ours else None


def placements(workload: str, work_out: Callable[[str], str]) -> list[Placement]:
    """The kept placements, or new ones from `work_out(workload)`, which returns their text. Raises NoAdviceError."""
    place = folder()
    if place is None:
        return read(work_out(workload), "advice")
    now = key(workload)
    path = os.path.join(place, f"placement-{workload}")
    kept = _kept(path, now)
    if kept is not None:
        return kept
    import fcntl

    lock = os.open(path + ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = _kept(path, now)  # another rank was first
        if kept is not None:
            return kept
        text = work_out(workload)
        _write(path, f"{now}\n{text}")
        return read(text, "advice")
    finally:
        os.close(lock)


def _kept(path: str, now: str) -> list[Placement] | None:
    try:
        with open(path) as file:
            first, _, rest = file.read().partition("\n")
        return read(rest, path) if first == now else None
    except NoAdviceError:
        raise
    except (OSError, UnicodeDecodeError, LaunchError):
        return None


def _write(path: str, text: str) -> None:
    """Whole or not at all; a full disk only means that the next rank works it out again."""
    partial = f"{path}.{os.getpid()}"
    try:
        with open(partial, "x") as file:
            file.write(text)
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.unlink(partial)
