"""A fabric as text: one tree for each kind of host, NVLink as a table, the network, and where the figures come from."""

from __future__ import annotations

from collections import Counter

from railweave.fabric import Edge, EdgeKind, Fabric, VertexKind
from railweave.machine.fabric import GDR_UNKNOWN
from railweave.topo.hierarchy import Host, Kind, Part, alike, port_rate, rate, read_hosts

_INDENT = "  "


def render_tree(fabric: Fabric) -> str:
    """The whole text, ending in a newline."""
    hosts = read_hosts(fabric)
    lines = [_headline(fabric, hosts)]
    for kind in alike(hosts):
        lines += ["", _host_names(kind), *_host_lines(kind.hosts[0])]
    network = _network_lines(fabric)
    if network:
        lines += ["", "network", *network]
    lines += ["", "where the figures come from", *_source_lines(fabric)]
    return "\n".join(lines) + "\n"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _headline(fabric: Fabric, hosts: list[Host]) -> str:
    rails = {vertex.rail for vertex in fabric.vertices if vertex.kind == VertexKind.leaf and vertex.rail is not None}
    nics = sum(len(host.nics) for host in hosts)
    parts = [_plural(fabric.node_count, "node"), _plural(fabric.gpu_count, "GPU"), _plural(nics, "NIC")]
    if rails:
        parts.append(_plural(len(rails), "rail"))
    return f"{fabric.name}: {', '.join(parts)}"


def _host_names(kind: Kind) -> str:
    names = [host.name for host in kind.hosts]
    if len(names) == 1:
        return names[0]
    listed = ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} ... {names[-1]}"
    return f"{listed} ({len(names)} alike)"


def _host_lines(host: Host) -> list[str]:
    rows = [row for root in host.roots for row in _part_rows(host, root, _INDENT, "")]
    width = max((len(label) for label, _ in rows), default=0)
    lines = [f"{label:<{width}}  {what}".rstrip() for label, what in rows]
    if host.sockets:
        rates = sorted({rate(edge.capacity_Bps) for _, _, edge in host.sockets})
        ends = f"{host.local(host.sockets[0][0])} - {host.local(host.sockets[0][1])}" if len(host.sockets) == 1 else "each two NUMA nodes"
        lines.append(f"{_INDENT}between sockets: {ends}, {' or '.join(rates)}")
    return lines + _nvlink_lines(host)


def _part_rows(host: Host, part: Part, indent: str, branch: str) -> list[tuple[str, str]]:
    rows = [(f"{indent}{branch}{host.local(part.vertex)}", _part_text(host, part))]
    deeper = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
    for child in part.children:
        rows += _part_rows(host, child, deeper, "└─ " if child is part.children[-1] else "├─ ")
    return rows


def _part_text(host: Host, part: Part) -> str:
    vertex = part.vertex
    words = [vertex.model] if vertex.model else []
    if part.link is not None:
        words.append(f"{'C2C' if part.link.kind == EdgeKind.c2c else 'PCIe'} {rate(part.link.capacity_Bps)}")
    if vertex.through_Bps:
        words.append(f"memory {rate(vertex.through_Bps)}")
    if vertex.egress_Bps or vertex.ingress_Bps:
        words.append(f"injection {rate(vertex.egress_Bps or vertex.ingress_Bps)}")
    if vertex.kind == VertexKind.gpu:
        unknown = GDR_UNKNOWN in vertex.attributes
        words.append("GPUDirect RDMA unknown" if unknown else "GPUDirect RDMA" if vertex.gdr else "no GPUDirect RDMA")
    for leaf, edge in host.ports.get(vertex.name, []):
        words.append(f"{port_rate(edge.capacity_Bps)} to {leaf.name}{'' if leaf.rail is None else f' (rail {leaf.rail})'}")
    if vertex.kind == VertexKind.nic and vertex.name not in host.ports:
        words.append("not on the GPU network")
    return ", ".join(words)


def _nvlink_lines(host: Host) -> list[str]:
    if not host.nvlinks:
        return []
    lines = []
    switched = [(a, b, edge) for a, b, edge in host.nvlinks if VertexKind.nvswitch in (a.kind, b.kind)]
    if switched:
        for text, count in Counter(rate(edge.capacity_Bps) for _, _, edge in switched).items():
            lines.append(f"{_INDENT}NVSwitch: {_plural(count, 'GPU')} at {text} each way")
    pairs = {(a.name, b.name): edge for a, b, edge in host.nvlinks if a.kind == b.kind == VertexKind.gpu}
    if pairs:
        lines += _pair_table(host, pairs)
    for a, b, edge in host.nvlinks:
        if VertexKind.numa in (a.kind, b.kind):
            lines.append(f"{_INDENT}NVLink {host.local(a)} - {host.local(b)}: {rate(edge.capacity_Bps)}")
    return lines


def _pair_table(host: Host, pairs: dict[tuple[str, str], Edge]) -> list[str]:
    names = [gpu.name for gpu in host.gpus]
    cells = [[""] + [host.local(gpu) for gpu in host.gpus]]
    for row in names:
        texts = []
        for column in names:
            edge = pairs.get((row, column)) or pairs.get((column, row))
            texts.append("-" if edge is None else f"{edge.capacity_Bps / 1e9:.4g}")
        cells.append([row.removeprefix(f"{host.name}/"), *texts])
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    table = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
    return [f"{_INDENT}NVLink, GB/s each way", *(f"{_INDENT * 2}{line}" for line in table)]


def _network_lines(fabric: Fabric) -> list[str]:
    vertices, lines = fabric.vertices, []
    ports: dict[int, list[Edge]] = {}
    uplinks: dict[int, list[Edge]] = {}
    for edge in fabric.edges:
        if edge.kind == EdgeKind.rail and vertices[edge.dst].kind == VertexKind.leaf:
            ports.setdefault(edge.dst, []).append(edge)
        if edge.kind == EdgeKind.uplink and vertices[edge.src].kind == VertexKind.leaf:
            uplinks.setdefault(edge.src, []).append(edge)
    for leaf_id, leaf in enumerate(vertices):
        if leaf.kind != VertexKind.leaf:
            continue
        words = [f"{_plural(len(ports.get(leaf_id, [])), 'port')}"]
        rates = Counter(port_rate(edge.capacity_Bps) for edge in ports.get(leaf_id, []))
        words[0] += "".join(f" of {text}" if len(rates) == 1 else f", {count} of {text}" for text, count in rates.items())
        words += [f"{rate(edge.capacity_Bps)} up to {vertices[edge.dst].name}" for edge in uplinks.get(leaf_id, [])]
        rail = "" if leaf.rail is None else f" (rail {leaf.rail})"
        lines.append(f"{_INDENT}{leaf.name}{rail}: {', '.join(words)}")
    return lines


def _source_lines(fabric: Fabric) -> list[str]:
    sources: dict[tuple[str, str], str] = {}
    for vertex in fabric.vertices:
        if vertex.through_Bps and vertex.source:
            sources.setdefault((f"memory {rate(vertex.through_Bps)}", vertex.source), "")
    for edge in fabric.edges:
        text = port_rate(edge.capacity_Bps) if edge.kind == EdgeKind.rail else rate(edge.capacity_Bps)
        sources.setdefault((f"{edge.kind.name} {text}", edge.source or "not given"), "")
    return [f"{_INDENT}{what}: {source}" for what, source in sources]
