"""The machine of these tests as a recording: two sockets, PCIe switches with GPUs and NICs, made by `template_machine` from a template of
its own, so that switches may hold any number of either."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from template_machine import TemplateMachine

from railweave.fabric import Fabric
from railweave.machine.recording import Recording
from railweave.machine.source import Reason


@dataclass
class Switch:
    """A PCIe switch on a socket, with so many GPUs and NICs below it."""

    socket: int
    gpus: int
    nics: int


@dataclass
class Crafted:
    """The recording under construction; PCI functions by role."""

    recording: Recording = field(default_factory=Recording)
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    """Downstream ports, in the order of the GPUs."""

    def file(self, path: str, text: str | bytes) -> None:
        self.recording.files[path] = text if isinstance(text, bytes) else f"{text}\n".encode()

    def folder(self, path: str, names: Sequence[str]) -> None:
        self.recording.folders[path] = tuple(sorted(names))

    def absent(self, path: str) -> None:
        self.recording.unreadable[path] = (Reason.absent, "No such file or directory")


HGX = (Switch(0, 2, 2), Switch(0, 2, 2), Switch(1, 2, 2), Switch(1, 2, 2))

_TEMPLATE = """\
format: railweave-node
version: 1
name: crafted
description: switches of a test
links:
  pcie5: {pcie: gen5 x16, latency: 250ns, source: "test"}
  nvlink4: {nvlink: gen4 x18, latency: 500ns, source: "test"}
  ndr: {capacity: 400Gbit/s, latency: 1us, source: "test"}
  upi: {capacity: 22GB/s, latency: 150ns, source: "test"}
"""


def craft(switches: Sequence[Switch] = HGX) -> Crafted:
    """The machine: idle H100s with 18 links to an NVSwitch each, ConnectX-7s on InfiniBand without netdevices, peer memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crafted.yaml"
        path.write_text(_TEMPLATE + _wiring(switches))
        machine = TemplateMachine(str(path), ethernet=False)
    for gpu in machine.nvml["gpus"]:
        gpu |= {"pcie_generation": {"value": 1}, "sm_clock_MHz": {"value": 345}}
    machine.files = {path: content for path, content in machine.files.items() if not path.startswith("/sys/class/net/")}
    machine.links = {path: target for path, target in machine.links.items() if not path.startswith("/sys/class/net/")}
    machine.links["/sys/class/net/lo"] = "../../devices/virtual/net/lo"
    machine.files["/sys/module/nvidia_peermem/version"] = "580.95.05"
    ports = [machine.parent(port) for port in machine.gpus]
    return Crafted(machine.source.recording, [port.bus_id for port in machine.gpus], [port.bus_id for port in machine.nics], ports)


def _wiring(switches: Sequence[Switch]) -> str:
    def below(counts: Sequence[int]) -> str:
        return ", ".join(f"switch{number}" for number, count in enumerate(counts) for _ in range(count))

    sockets = [switch.socket for switch in switches]
    lines = [
        f"numa: {{count: {max(sockets) + 1}{', socket: upi' if max(sockets) else ''}}}",
        f"switches: [{{link: pcie5, at: [{', '.join(f'numa{socket}' for socket in sockets)}]}}]",
        f"gpus: [{{model: H100 SXM5 80GB, link: pcie5, gdr: true, at: [{below([switch.gpus for switch in switches])}]}}]",
        "nvlink: [{link: nvlink4, between: nvswitch}]",
    ]
    if any(switch.nics for switch in switches):
        lines.append(f"nics: [{{model: ConnectX-7, link: pcie5, port: ndr, at: [{below([switch.nics for switch in switches])}]}}]")
    return "\n".join(lines) + "\n"


def host(fabric: Fabric) -> tuple[dict[str, object], list[tuple[object, ...]]]:
    """All of a host that the format can say: parts, and links with their rates. Rails only where the network has them."""
    rails = any(vertex.rail is not None for vertex in fabric.vertices if vertex.kind.name == "nic")
    parts = {
        vertex.name: (vertex.kind.name, vertex.index, vertex.gdr, vertex.rail if rails else None)
        for vertex in fabric.vertices
        if vertex.node is not None
    }
    links = [
        (fabric.vertex(edge.src).name, fabric.vertex(edge.dst).name, edge.kind.name, edge.capacity_Bps)
        for edge in fabric.edges
        if fabric.vertex(edge.src).node is not None and fabric.vertex(edge.dst).node is not None
    ]
    ports = [
        (fabric.vertex(edge.src).name, edge.capacity_Bps, edge.latency_ns)
        for edge in fabric.edges
        if edge.kind.name == "rail" and fabric.vertex(edge.src).node is not None
    ]
    return parts, sorted(map(tuple, links)) + sorted(map(tuple, ports))
