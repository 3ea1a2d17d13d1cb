"""The process that holds a lab: it builds it, answers requests, and takes everything along when it ends, however it ends.

It is the first process of a process namespace in which all programs of the lab run, so the kernel kills them when it dies;
the network, mount and other namespaces have no name and are held only by its file descriptors, so they go too, with every
link, every file in the nodes' /dev/shm and every System V segment in them. It dies when its owner's end of a pipe is closed, unless the
owner has released it; taking a lab down is killing this process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from railweave.lab import syscalls, wire
from railweave.lab.environment import hosts_file, node_name
from railweave.lab.errors import LabError, what_rights_it_needs
from railweave.lab.network import Network
from railweave.lab.spec import LabSpec

_NODE_NAMESPACES = ("mnt", "uts", "ipc")


class Supervisor:
    """A lab that is up."""

    def __init__(self, name: str, spec: LabSpec, owner: int) -> None:
        """Build the lab; `owner` is the reading end of the owner's pipe."""
        self.name, self.spec, self.owner = name, spec, owner
        self.outside = wire.listen(name)
        self.network = Network(spec)
        self.nodes: list[dict[str, int]] = []
        self.inside: list[socket.socket] = []
        for node in range(spec.nodes):
            fds = _start_node(spec, node)
            self.inside.append(socket.socket(fileno=fds.pop()))
            self.nodes.append(dict(zip(_NODE_NAMESPACES, fds, strict=True)))
        self.processes = syscalls.open_namespace("pid")

    def serve(self) -> None:
        """Answer requests until the owner goes away."""
        selector = selectors.DefaultSelector()
        for server in (self.outside, *self.inside):
            selector.register(server, selectors.EVENT_READ, server)
        selector.register(self.owner, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    if os.read(self.owner, 1) != wire.RELEASE:
                        return
                    selector.unregister(self.owner)
                else:
                    self._answer(key.data)

    def _answer(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.accept()[0] as connection:
            connection.settimeout(5.0)  # a peer that stalls must not stall the lab
            try:
                if wire.user(connection) != os.geteuid():  # an abstract socket has no permissions
                    raise LabError(f"it belongs to user {os.geteuid()}: run the command with sudo")
                asked = _read_line(connection)
                reply, fds = self._handle(asked.pop("request", ""), asked)
            except (LabError, OSError, TypeError, ValueError, KeyError) as error:
                reply, fds = {"error": f"lab '{self.name}': {error}"}, []
            socket.send_fds(connection, [json.dumps(reply).encode() + b"\n"], fds)

    def _handle(self, what: str, asked: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        if what == "describe":
            return {"name": self.name, "spec": self.spec.to_json(), "links": self.network.links()}, []
        if what == "processes":
            return {}, [self.processes]
        if what == "enter-rank":
            rank = self._within(asked["rank"], self.spec.world, "rank")
            return {"spec": self.spec.to_json()}, self._place(self.spec.node_of(rank), self.network.namespace_of(rank))
        if what == "enter-node":
            node = self._within(asked["node"], self.spec.nodes, "node")
            return {"spec": self.spec.to_json()}, self._place(node, f"node{node}")
        if what == "links":
            return {"links": self.network.links()}, []
        if what == "set-link":
            self.network.set_link(**asked)
            return {}, []
        raise LabError(f"unknown request '{what}'")

    def _place(self, node: int, network: str) -> list[int]:
        return [self.network.namespaces[network], *(self.nodes[node][kind] for kind in _NODE_NAMESPACES)]

    def _within(self, value: Any, count: int, what: str) -> int:
        if not isinstance(value, int) or not 0 <= value < count:
            raise LabError(f"no {what} {value}: this lab has {what}s 0 to {count - 1}")
        return value


def _start_node(spec: LabSpec, node: int) -> list[int]:
    """Namespaces of a node besides its network: [mount, host name, System V], and the socket that listens inside it."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            try:
                _be_node(spec, node, theirs)
            except OSError as error:
                theirs.sendall(str(error).encode())
        os._exit(0)
    theirs.close()
    with ours:
        message, fds, _, _ = socket.recv_fds(ours, 4096, len(_NODE_NAMESPACES) + 1)
    os.waitpid(pid, 0)
    if message != b"ok":
        raise LabError(f"cannot set up {node_name(node)}: {message.decode() or 'the process that sets it up died'}")
    return fds


def _be_node(spec: LabSpec, node: int, parent: socket.socket) -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC)
    syscalls.sethostname(node_name(node))
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("shm", "/dev/shm", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=1777")
    os.umask(0)
    wire.INSIDE.mkdir(mode=0o755)
    wire.INSIDE_TMP.mkdir(mode=0o1777)
    for file, for_ranks in (("hosts", False), ("rank-hosts", True)):
        (wire.INSIDE / file).write_text(hosts_file(spec, for_ranks=for_ranks))
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(wire.INSIDE_SOCKET))
    wire.INSIDE_SOCKET.chmod(0o600)
    server.listen(64)
    namespaces = [syscalls.open_namespace(kind) for kind in _NODE_NAMESPACES]
    socket.send_fds(parent, [b"ok"], [*namespaces, server.fileno()])


def _read_line(connection: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part or len(data) > 65536:
            raise ValueError("expected one line of JSON")
        data += part
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(name: str, spec_json: str, owner: str, ready: str) -> None:
    """Build the lab, tell the owner (`ready`: "ok" or what went wrong), and serve."""
    ready_fd = int(ready)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 256 ranks take 1,586 descriptors, and 1,024 are usual
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # the first process of a namespace ignores what it does not handle
    try:
        if not wire.NAME.fullmatch(name):
            raise LabError(f"lab name '{name}': expected letters, digits, '.', '_', '-', at most 63 of them, first a letter or a digit")
        supervisor = Supervisor(name, LabSpec.from_json(json.loads(spec_json)), int(owner))
    except Exception as error:  # whatever it was, the owner has to hear of it
        if isinstance(error, PermissionError) or (isinstance(error, NetlinkError) and error.code == errno.EPERM):
            text = what_rights_it_needs()
        elif isinstance(error, OSError) and error.errno == errno.EMFILE:
            text = f"this lab needs more than {most} open files at once: raise the hard limit (ulimit -Hn)"
        else:
            text = str(error) if isinstance(error, LabError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(BrokenPipeError):  # an owner that lacks rights, too, has said so and gone
            os.write(ready_fd, text.encode())
        os._exit(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())  # whoever reads the owner's output must not wait for a lab that lives on
    os.write(ready_fd, b"ok")
    os.close(ready_fd)
    signal.signal(signal.SIGCHLD, _reap)  # programs of the lab whose parents ended are this process's to collect
    supervisor.serve()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
