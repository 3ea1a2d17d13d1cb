"""Requests to a lab's supervisor: one JSON line each way over a Unix socket, namespaces as file descriptors beside it.

Outside the lab the socket is abstract (no file stays behind, whatever happens); inside, each node has one at a path,
because abstract sockets do not cross network namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from railweave.lab.errors import LabError

RELEASE = b"r"  # what an owner writes to its pipe to let a lab live on without it

_PREFIX = "railweave/lab/"
_MAX_FDS = 8
_TIMEOUT_S = 30.0

# Everything of a lab inside its nodes lives in the node's private /dev/shm, and vanishes with it.
INSIDE = Path("/dev/shm/.railweave-lab")
INSIDE_SOCKET = INSIDE / "supervisor.sock"
INSIDE_TMP = INSIDE / "tmp"


def listen(name: str) -> socket.socket:
    """The socket of a new lab outside."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        server.bind("\0" + _PREFIX + name)
    except OSError as error:
        server.close()
        raise LabError(
            f"a lab named '{name}' is up already: see `railweave lab status`, or take it down with `railweave lab down {name}`"
        ) from error
    server.listen(64)
    return server


def names() -> list[str]:
    """The labs on this machine: the kernel's list of listening sockets is the only register there is."""
    found = set()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        # Num RefCount Protocol Flags Type St Inode Path; flag 0x10000 = listening
        if len(fields) == 8 and fields[7].startswith("@" + _PREFIX) and int(fields[3], 16) & 0x10000:
            found.add(fields[7][len(_PREFIX) + 1 :])
    return sorted(found)


def supervisor(name: str) -> int | None:
    """Process id of a lab's supervisor, also of one that no longer answers; None if there is no such lab."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.connect("\0" + _PREFIX + name)
        except OSError:
            return None
        return _credentials(connection)[0]


def user(connection: socket.socket) -> int:
    """Who asks: the user at the other end."""
    return _credentials(connection)[1]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def request(name: str | None, what: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
    """Ask the supervisor of the lab `name`, or, inside a lab, of this one (None). Returns its answer and file descriptors."""
    address = str(INSIDE_SOCKET) if name is None else "\0" + _PREFIX + name
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(_TIMEOUT_S)
        try:
            connection.connect(address)
            with contextlib.suppress(BrokenPipeError):  # whoever is refused has the answer before the question is out
                connection.sendall(json.dumps({"request": what, **arguments}).encode() + b"\n")
            answer, fds = _receive(connection)
        except (OSError, ValueError) as error:
            raise LabError(_unreachable(name, error)) from error
    if "error" in answer:
        for fd in fds:
            os.close(fd)
        raise LabError(answer["error"])
    return answer, fds


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, fds = b"", []
    while not data.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(connection, 1 << 20, _MAX_FDS)
        fds.extend(more)
        if not part:
            raise ConnectionError("the lab went away")
        data += part
    for fd in fds:
        os.set_inheritable(fd, False)
    answer = json.loads(data)
    assert isinstance(answer, dict)
    return answer, fds


def _unreachable(name: str | None, error: Exception) -> str:
    if name is None:
        return f"not inside a lab, or its supervisor is gone ({error})"
    up = names()
    others = f"labs that are up: {', '.join(up)}" if up else "no lab is up; `railweave lab up NAME` starts one"
    return f"no lab named '{name}' ({others})" if name not in up else f"the lab '{name}' does not answer: {error}"
