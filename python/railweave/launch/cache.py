"""Keeps the placement of this machine between starts: the first rank works it out, the others wait for it and read it.

It is kept per user and boot in the runtime folder or /tmp, under a key of what is quick to read and changes when the advice could: boot,
PCI devices, RDMA devices and which of their ports are up, online CPUs and NUMA nodes, drivers, and the installed version of Railweave. What
root keeps is for all users. Nothing is kept where that cannot be written, and then each rank works it out.
"""

from __future__ import annotations

import os
import stat

from railweave.launch.errors import LaunchError, NoAdviceError
from railweave.launch.placement import read

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from railweave.launch.placement import Placement


FOR_ALL = "/run/railweave-placement"
"""Only root can make a folder there."""


def key(workload: str) -> str:
    """One line."""
    files = (
        "/proc/sys/kernel/random/boot_id",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/node/online",
        "/proc/driver/nvidia/version",
    )
    folders = ("/sys/bus/pci/devices", "/proc/driver/nvidia/gpus", "/sys/kernel/mm/memory_peers")
    installed = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parts = [workload, *(_text(path) for path in files), *(",".join(_names(path)) for path in folders)]
    parts += [f"{module}: {os.path.isdir(f'/sys/module/{module}')}" for module in ("nvidia_peermem", "gdrdrv")]
    parts += [f"{device}: {_ports(f'/sys/class/infiniband/{device}/ports')}" for device in _names("/sys/class/infiniband")]
    parts += [str(os.stat(os.path.join(installed, room)).st_mtime_ns) for room in ("advise", "launch", "machine")]
    return "; ".join(parts)


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return " ".join(file.read().split())
    except OSError:
        return ""


def _ports(path: str) -> str:
    """Their states: at boot they come up after much else, and advice counts on those that are up."""
    return ",".join(_text(f"{path}/{port}/state") for port in _names(path))


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def folders() -> Iterator[str]:
    """Where this user may keep things, the best first; each is made if need be, and left out where somebody else's is in its place.

    Root's is for all users even where there is a runtime folder: that one goes when root logs out, and jobs do not look there.
    """
    user = os.geteuid()
    if user == 0 and _made(FOR_ALL, 0o755):
        yield FOR_ALL
    own = os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"railweave-{user}")
    if _made(own, 0o700):
        yield own


def _made(path: str, mode: int) -> bool:
    try:
        os.mkdir(path, mode)
        os.chmod(path, mode)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError:
        return False
    return _is_trusted(path, os.geteuid(), 0o777 & ~mode)


def _is_trusted(path: str, owner: int, closed: int) -> bool:
    """A folder, and no link to one, of that owner, with these permissions given to nobody."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == owner and not found.st_mode & closed


def placements(workload: str, work_out: Callable[[str], str]) -> list[Placement]:
    """The kept placements, or new ones from `work_out(workload)`, which returns their text. Raises NoAdviceError."""
    now = key(workload)
    if _is_trusted(FOR_ALL, 0, 0o022):
        kept = _kept(os.path.join(FOR_ALL, f"placement-{workload}"), now)
        if kept is not None:
            return kept
    for place in folders():
        path = os.path.join(place, f"placement-{workload}")
        kept = _kept(path, now)
        if kept is not None:
            return kept
        lock = _locked(path + ".lock")
        if lock is None:
            continue
        try:
            kept = _kept(path, now)  # another rank was first
            if kept is not None:
                return kept
            text = work_out(workload)
            _write(path, f"{now}\n{text}")
            return read(text, "advice")
        finally:
            os.close(lock)
    return read(work_out(workload), "advice")


def keep(workload: str, text: str) -> None:
    """Keeps placements that somebody else has worked out, for the ranks to come."""
    keep_text(f"placement-{workload}", f"{key(workload)}\n{text}")


def _locked(path: str) -> int | None:
    """A lock that is held until it is closed; None where the folder cannot be written: mounted read-only, a full disk, a quota."""
    import fcntl

    try:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        os.close(lock)
        return None
    return lock


def _kept(path: str, now: str) -> list[Placement] | None:
    try:
        with open(path) as file:
            first, _, rest = file.read().partition("\n")
        return read(rest, path) if first == now else None
    except NoAdviceError:
        raise
    except (OSError, UnicodeDecodeError, LaunchError):
        return None


def _write(path: str, text: str) -> bool:
    """Whole or not at all, and which of both; a full disk only means that the next rank works it out again."""
    partial = f"{path}.{os.getpid()}"
    try:
        with open(partial, "x") as file:
            file.write(text)
        os.chmod(partial, 0o644)  # the folder decides who reads it
        os.replace(partial, path)
    except OSError:
        try:  # noqa: SIM105 - contextlib takes a first start too long
            os.unlink(partial)
        except OSError:
            pass
        return False
    return True


def keep_text(name: str, text: str) -> str | None:
    """Keeps a text under that name in the first folder that can be written, and says where; None where there is none."""
    for place in folders():
        path = os.path.join(place, name)
        if _write(path, text):
            return path
    return None
