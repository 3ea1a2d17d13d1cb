"""Requests to a lab's supervisor: one JSON line each way over a Unix socket, namespaces as file descriptors beside it.

Outside the lab the socket is abstract (no file stays behind, whatever happens); inside, each node has one at a path,
because abstract sockets do not cross network namespaces.

Anybody can listen under the name of a lab, and whoever enters namespaces that somebody else made runs what that one put there. So each end
asks the kernel who the other is, before anything is sent or taken; only labs of the same user are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
from pathlib import Path
from typing import Any

from railweave.lab.errors import LabError

RELEASE = b"r"  # what an owner writes to its pipe to let a lab live on without it

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

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
        owner = owners().get(name)
        if owner == os.geteuid():
            text = f"a lab named '{name}' is up already: see `railweave lab status`, or take it down with `railweave lab down {name}`"
        else:  # or of nobody's: bound, and not listening
            whose = "another process" if owner is None else f"user {owner}"
            text = f"the name '{name}' is taken by {whose}: give this lab another one"
        raise LabError(text) from error
    server.listen(64)
    return server


def owners() -> dict[str, int]:
    """The labs on this machine and their users: the kernel's list of listening sockets is the only register there is."""
    found = {}
    # Names of sockets are any bytes that any user chose, and may look like lines of this list; the connection says what there is.
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split()
        # Num RefCount Protocol Flags Type St Inode Path; flag 0x10000 = listening
        if len(fields) == 8 and fields[7].startswith("@" + _PREFIX) and fields[3] == "00010000":
            name = fields[7][len(_PREFIX) + 1 :]
            if NAME.fullmatch(name):
                with contextlib.suppress(OSError), _connection(name) as connection:
                    found[name] = user(connection)
    return dict(sorted(found.items()))


def names() -> list[str]:
    """The labs of this user."""
    return [name for name, owner in owners().items() if owner == os.geteuid()]


def supervisor(name: str) -> int | None:
    """Process id of a lab's supervisor, also of one that no longer answers; None if there is no such lab.

    It is the one that began to listen: if it has ended and another process has its socket, the number may be anybody's by now.
    Raises LabError for another user's lab.
    """
    try:
        with _connection(name) as connection:
            _refuse_foreign(name, connection)
            return _credentials(connection)[0]
    except BlockingIOError as error:
        raise LabError(f"the lab '{name}' does not answer: too many wait for it") from error
    except OSError:
        return None


def user(connection: socket.socket) -> int:
    """The user at the other end: who asks, or who began to listen."""
    return _credentials(connection)[1]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid


def _connection(name: str | None) -> socket.socket:
    """To the lab of that name, or, inside a lab, to this one (None). Nothing has been sent yet."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(INSIDE_SOCKET) if name is None else "\0" + _PREFIX + name)
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse_foreign(name: str | None, connection: socket.socket) -> None:
    owner = user(connection)
    if owner != os.geteuid():
        lab = "this lab" if name is None else f"the lab '{name}'"
        raise LabError(f"{lab} belongs to user {owner}" + (": run the command with sudo" if owner == 0 else ", who alone can use it"))


def request(name: str | None, what: str, **arguments: Any) -> tuple[dict[str, Any], list[int]]:
    """Ask the supervisor of the lab `name`, or, inside a lab, of this one (None). Returns its answer and file descriptors.

    Raises LabError, having sent nothing, if it is another user's.
    """
    try:
        with _connection(name) as connection:
            _refuse_foreign(name, connection)
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
    others = f"labs that are up: {', '.join(up)}" if up else "no lab is up; `railweave lab up NAME NODESxGPUS` starts one"
    return f"no lab named '{name}' ({others})" if name not in up else f"the lab '{name}' does not answer: {error}"
