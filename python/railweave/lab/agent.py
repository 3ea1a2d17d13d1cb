"""OpenMPI's way into a lab: `host NODE COMMAND…` in place of ssh, `rank COMMAND…` around each program that a daemon starts.

With `gpu` isolation a daemon sits in its node's own namespace and its programs in their ranks', where the daemon's loopback
address is out of reach: a small relay carries the connection between them (start-up and wire-up only, never data).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import sys
from pathlib import Path

from railweave.lab import environment, syscalls, wire
from railweave.lab.enter import enter
from railweave.lab.errors import LabError


def _host(name: str, command: list[str]) -> None:
    match = re.fullmatch(r"node(\d+)", name)
    if not match:
        sys.exit(f"railweave lab: no host '{name}': the hosts of a lab are node0, node1, …")
    spec = enter(None, node=int(match[1]))
    os.environ.update(environment.for_node(spec, int(match[1])))
    os.execvp("/bin/sh", ["sh", "-c", " ".join(command)])  # as ssh does it


def _rank(command: list[str]) -> None:
    node, local = int(os.environ["NODE_RANK"]), int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    rank = node * int(os.environ["LOCAL_WORLD_SIZE"]) + local  # the place; MPI may number its ranks otherwise
    _relay_to_daemon(rank)
    spec = enter(None, rank=rank)
    os.environ.update({**environment.for_rank(spec, rank), "RANK": os.environ["OMPI_COMM_WORLD_RANK"]})
    os.execvp(command[0], command)


def _relay_to_daemon(rank: int) -> None:
    """Give the program an address of its own namespace for its daemon, in place of the one that the daemon has here.

    That one is 127.0.0.1, but with OpenMPI 5's mpirun, the daemon of its own node's ranks, the one that other nodes reach it at.
    """
    uris = {key: value for key, value in os.environ.items() if key.startswith("PMIX_SERVER_URI")}
    place = re.compile(r"(?<=://)([\d.]+):(\d+)")
    _, fds = wire.request(None, "enter-rank", rank=rank)
    listeners: dict[socket.socket, tuple[str, int]] = {}
    nearby: dict[tuple[str, str], str] = {}
    for address, port in set(place.findall(" ".join(uris.values()))):
        with syscalls.in_namespace(fds[0], "net"):
            listener = socket.create_server(("127.0.0.1", 0))  # not its port: that may be taken there
        listeners[listener] = (address, int(port))
        nearby[address, port] = f"127.0.0.1:{listener.getsockname()[1]}"
    os.environ.update({key: place.sub(lambda found: nearby[found[1], found[2]], value) for key, value in uris.items()})
    if os.fork() == 0:
        if os.fork() == 0:  # an orphan: the program must not find a child it did not start
            # The daemon waits until nobody holds the program's output any more, so let go of everything but the listeners.
            keep = {listener.fileno() for listener in listeners}
            for fd in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
                if fd not in keep:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            _pump(listeners)
        os._exit(0)
    os.wait()
    for fd in (*fds, *(listener.detach() for listener in listeners)):
        os.close(fd)


def _pump(listeners: dict[socket.socket, tuple[str, int]]) -> None:
    """Carry bytes both ways until the last connection has closed."""
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    other: dict[socket.socket, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            source = key.fileobj
            assert isinstance(source, socket.socket)
            if source in listeners:
                pair = source.accept()[0], socket.create_connection(listeners[source])
                other.update([pair, pair[::-1]])
                for end in pair:
                    selector.register(end, selectors.EVENT_READ)
            elif source in other:
                data = b""
                with contextlib.suppress(OSError):
                    data = source.recv(65536)
                    other[source].sendall(data)
                if not data:
                    for end in (source, other[source]):
                        selector.unregister(end)
                        end.close()
                        del other[end]
                    if not other:
                        return


def main(mode: str, *arguments: str) -> None:
    """Entry point of `agent.sh`."""
    try:
        if mode == "host":
            _host(arguments[0], list(arguments[1:]))
        _rank(list(arguments))
    except KeyError as error:
        sys.exit(f"railweave lab: {error.args[0]} is not set; mpirun (or prterun --personality ompi) sets it for each rank")
    except (LabError, OSError) as error:
        sys.exit(f"railweave lab: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
