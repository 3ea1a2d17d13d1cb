"""What the lab's links really carry, for choosing the settings in railweave/lab/shaping.py and the MTU. Run as root:

    .venv/bin/python benchmarks/lab_shaping.py

One connection on one rail, after a pause of half a second: short and long messages, as a share of the shaped rate's payload
(MTU 9000: 99.3% of the rate), by burst; more than 1 means that the shaper let more pass than the rate. Then several senders
to one receiver, by queue and retransmission time.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import time

from railweave.lab import network, shaping, syscalls
from railweave.lab.network import Network
from railweave.lab.spec import LabSpec

MB = 1 << 20


def receiver(built: Network, namespace: str, address: str, connections: int, size: int, done: int) -> int:
    """Fork a process that takes `size` bytes from each connection, then writes the time."""
    ready_read, ready_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready_write)
        os.read(ready_read, 1)
        os.close(ready_read)
        return pid
    syscalls.setns(built.namespaces[namespace], syscalls.CLONE_NEWNET)
    server = socket.create_server((address, 7000))
    os.write(ready_write, b".")
    peers = [server.accept()[0] for _ in range(connections)]
    buffer = bytearray(MB)
    left = dict.fromkeys(peers, size)
    while left:
        for peer in select.select(list(left), [], [])[0]:
            left[peer] -= peer.recv_into(buffer)
            if left[peer] <= 0:
                del left[peer]
    os.write(done, json.dumps({"end": time.monotonic(), "cpu": sum(os.times()[:2])}).encode() + b"\n")
    os._exit(0)


def sender(built: Network, namespace: str, address: str, size: int, start: float) -> int:
    """Fork a process that connects, waits until `start`, and sends."""
    pid = os.fork()
    if pid:
        return pid
    syscalls.setns(built.namespaces[namespace], syscalls.CLONE_NEWNET)
    connection = socket.create_connection((address, 7000))
    data = bytes(MB)
    time.sleep(max(0.0, start - time.monotonic()))
    while size > 0:
        size -= connection.send(data[: min(size, MB)])
    connection.shutdown(socket.SHUT_WR)
    os._exit(0)


def once(built: Network, senders: list[str], to: str, address: str, size: int) -> float:
    """Seconds until everything has arrived."""
    done_read, done_write = os.pipe()
    start = time.monotonic() + 0.5
    pids = [receiver(built, to, address, len(senders), size, done_write)]
    pids += [sender(built, name, address, size, start) for name in senders]
    result = json.loads(os.read(done_read, 4096))
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(done_read)
    os.close(done_write)
    return result["end"] - start


def share(spec: LabSpec, senders: list[str], size: int, repeat: int = 3) -> float:
    """Median share of the rail's goodput that was reached."""
    built = Network(spec)
    try:
        seconds = statistics.median(once(built, senders, "node0", "10.1.0.1", size) for _ in range(repeat))
    finally:
        built.close()
    return len(senders) * size / seconds / spec.goodput


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("host:", os.uname().release, os.cpu_count(), "CPUs")
    burst = shaping.burst
    print("\none connection: share of the goodput, by rate, burst (KiB) and message; MTU 9000")
    for rate in (100, 400, 2000, 8000):
        for kib in (16, 32, 64, 128, 256, 1024, 4096):
            shaping.burst = lambda *_, kib=kib: kib * 1024
            spec = LabSpec(2, 1, rate=rate * 10**6, isolation="node")
            row = [share(spec, ["node1"], round(rate * 1e6 / 8 * seconds)) for seconds in (0.02, 0.1, 0.5)]
            print(f"{rate:5d} mbit  burst {kib:5d}   20 ms {row[0]:.3f}   100 ms {row[1]:.3f}   500 ms {row[2]:.3f}", flush=True)
    shaping.burst = burst
    print("\nMTU: payload bytes/s over rate/8, one connection of 1 s at 400 mbit")
    for mtu in (1500, 9000):
        spec = LabSpec(2, 1, rate=400 * 10**6, isolation="node", mtu=mtu)
        print(f"  {mtu}: {share(spec, ['node1'], 50 * 10**6) * spec.goodput / (spec.rate / 8):.4f}", flush=True)
    print("\nincast at 400 mbit: share of the receiver's goodput, by senders, queue (KiB) and least retransmission time")
    for senders in (4, 16, 40):
        for kib in (128, 256, 512, 2048):
            for milliseconds in (5, 200):
                shaping.queue = lambda _, kib=kib: kib * 1024
                network.METRICS["rto_min"] = milliseconds
                spec = LabSpec(senders + 1, 1, rate=400 * 10**6, isolation="node")
                names = [f"node{node}" for node in range(1, senders + 1)]
                row = [share(spec, names, round(50e6 / senders * seconds)) for seconds in (0.1, 0.5)]
                print(f"{senders:3d} senders  queue {kib:5d}  {milliseconds:3d} ms   100 ms {row[0]:.3f}   500 ms {row[1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
