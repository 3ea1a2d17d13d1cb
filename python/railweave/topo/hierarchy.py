"""A fabric seen the way people draw one: hosts, the PCIe tree of each, NVLink beside it, the network around them."""

from __future__ import annotations

from railweave.fabric import Edge, EdgeKind, Fabric, Vertex, VertexKind
from railweave.records import dataclass, field


@dataclass
class Part:
    """A vertex of a host's PCIe tree with what hangs below it; `link` leads up to its parent."""

    id: int
    vertex: Vertex
    link: Edge | None
    children: list[Part] = field(default_factory=list)

    def below(self, kind: VertexKind) -> list[Part]:
        """Children of one kind."""
        return [child for child in self.children if child.vertex.kind == kind]

    def count(self, kind: VertexKind) -> int:
        """How many of a kind are in this part's tree, itself included."""
        return (self.vertex.kind == kind) + sum(child.count(kind) for child in self.children)


@dataclass
class Host:
    """One host. Edges are one direction of each link."""

    id: int
    name: str
    roots: list[Part]
    gpus: list[Vertex]
    nics: list[Vertex]
    nvlinks: list[tuple[Vertex, Vertex, Edge]]
    sockets: list[tuple[Vertex, Vertex, Edge]]
    ports: dict[str, list[tuple[Vertex, Edge]]]
    """By NIC name: the leafs it goes to."""

    def local(self, vertex: Vertex) -> str:
        """The vertex's name without the host's."""
        return vertex.name.removeprefix(f"{self.name}/")


@dataclass
class Kind:
    """Hosts that are wired alike; the first stands for all."""

    hosts: list[Host]


def read_hosts(fabric: Fabric) -> list[Host]:
    """All hosts of a fabric."""
    vertices, edges = fabric.vertices, fabric.edges
    by_node: dict[int, list[int]] = {node: [] for node in range(fabric.node_count)}
    for vertex_id, vertex in enumerate(vertices):
        if vertex.node is not None:
            by_node[vertex.node].append(vertex_id)
    out: dict[int, list[Edge]] = {}
    for edge in edges:
        out.setdefault(edge.src, []).append(edge)
    return [_read_host(node, name, by_node[node], vertices, out) for node, name in enumerate(fabric.node_names)]


def _read_host(node: int, name: str, ids: list[int], vertices: list[Vertex], out: dict[int, list[Edge]]) -> Host:
    nvlinks, sockets, ports = [], [], {}
    for vertex_id in ids:
        vertex = vertices[vertex_id]
        leafs = [(vertices[edge.dst], edge) for edge in out.get(vertex_id, []) if edge.kind == EdgeKind.rail]
        if leafs:
            ports[vertex.name] = leafs
        for edge in out.get(vertex_id, []):
            if edge.kind == EdgeKind.nvlink and (edge.src < edge.dst or not _has_edge(out, edge.dst, edge.src)):
                nvlinks.append((vertex, vertices[edge.dst], edge))
            if edge.kind == EdgeKind.socket and edge.src < edge.dst:
                sockets.append((vertex, vertices[edge.dst], edge))
    return Host(
        id=node,
        name=name,
        roots=_read_trees(ids, vertices, out),
        gpus=_of_kind(VertexKind.gpu, ids, vertices),
        nics=_of_kind(VertexKind.nic, ids, vertices),
        nvlinks=nvlinks,
        sockets=sockets,
        ports=ports,
    )


def _of_kind(kind: VertexKind, ids: list[int], vertices: list[Vertex]) -> list[Vertex]:
    return sorted((vertices[i] for i in ids if vertices[i].kind == kind), key=lambda vertex: vertex.index)


def _has_edge(out: dict[int, list[Edge]], src: int, dst: int) -> bool:
    return any(edge.dst == dst for edge in out.get(src, []))


def _read_trees(ids: list[int], vertices: list[Vertex], out: dict[int, list[Edge]]) -> list[Part]:
    """PCIe (and C2C) trees, one for each NUMA node; what no NUMA node reaches is a root of its own."""
    up: dict[int, list[Edge]] = {}  # by the upper end
    for vertex_id in ids:
        for edge in out.get(vertex_id, []):
            if edge.kind in (EdgeKind.pcie, EdgeKind.c2c):
                up.setdefault(edge.dst, []).append(edge)
    seen: set[int] = set()

    def grow(vertex_id: int, link: Edge | None) -> Part:
        seen.add(vertex_id)
        part = Part(vertex_id, vertices[vertex_id], link)
        for edge in up.get(vertex_id, []):
            if edge.src not in seen:
                part.children.append(grow(edge.src, edge))
        order = (VertexKind.pcie_switch, VertexKind.gpu, VertexKind.nic, VertexKind.numa)
        part.children.sort(key=lambda child: (order.index(child.vertex.kind), child.vertex.index))
        return part

    roots = [grow(i, None) for i in ids if vertices[i].kind == VertexKind.numa]
    inner = (VertexKind.pcie_switch, VertexKind.gpu, VertexKind.nic)
    for kind in inner:
        roots += [grow(i, None) for i in ids if vertices[i].kind == kind and i not in seen]
    return roots


def alike(hosts: list[Host]) -> list[Kind]:
    """Groups hosts by their wiring, in order of first appearance."""
    kinds: dict[object, Kind] = {}
    for host in hosts:
        kinds.setdefault(_wiring(host), Kind([])).hosts.append(host)
    return list(kinds.values())


def _wiring(host: Host) -> object:
    def tree(part: Part) -> object:
        vertex = part.vertex
        own = (vertex.egress_Bps, vertex.ingress_Bps, vertex.through_Bps)
        link = part.link and (part.link.kind.name, part.link.capacity_Bps, part.link.latency_ns)
        return (host.local(vertex), vertex.rail, vertex.gdr, vertex.model, own, link, tuple(tree(child) for child in part.children))

    def links(pairs: list[tuple[Vertex, Vertex, Edge]]) -> object:
        return tuple((host.local(a), host.local(b), edge.capacity_Bps, edge.latency_ns) for a, b, edge in pairs)

    ports = tuple(
        (nic, tuple((leaf.rail, edge.capacity_Bps, edge.latency_ns) for leaf, edge in leafs)) for nic, leafs in _local_ports(host)
    )
    return (tuple(tree(root) for root in host.roots), links(host.nvlinks), links(host.sockets), ports)


def _local_ports(host: Host) -> list[tuple[str, list[tuple[Vertex, Edge]]]]:
    return [(nic.removeprefix(f"{host.name}/"), leafs) for nic, leafs in host.ports.items()]


def rate(bytes_per_second: int) -> str:
    """Bytes/s as people say them: '450 GB/s'."""
    for unit, factor in (("TB/s", 10**12), ("GB/s", 10**9), ("MB/s", 10**6), ("kB/s", 10**3)):
        if bytes_per_second >= factor:
            return (
                f"{bytes_per_second / factor:.3g} {unit}"
                if bytes_per_second < 999.5 * factor
                else f"{bytes_per_second / factor:.0f} {unit}"
            )
    return f"{bytes_per_second} B/s"


def port_rate(bytes_per_second: int) -> str:
    """The rate of a network port, which people give in bits: '400 Gbit/s'."""
    bits = bytes_per_second * 8
    for unit, factor in (("Tbit/s", 10**12), ("Gbit/s", 10**9), ("Mbit/s", 10**6)):
        if bits >= factor:
            return f"{bits / factor:.4g} {unit}"
    return f"{bits / 1000:.4g} kbit/s"
