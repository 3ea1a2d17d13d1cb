"""A fabric as a picture (SVG): the network on top, one host of each kind below it, line widths by capacity."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

from railweave.fabric import Edge, EdgeKind, Fabric, Vertex, VertexKind
from railweave.topo.hierarchy import Host, Kind, Part, alike, port_rate, rate, read_hosts
from railweave.topo.layout import BOX, CELL, Box, HostLayout, lay_out
from railweave.topo.marks import Mark, Numbered

FONT = "Inter, 'Segoe UI', Helvetica, Arial, sans-serif"
INK, MUTED, PAPER, PANEL, PANEL_LINE = "#1f2933", "#62707d", "#ffffff", "#f4f6f8", "#d5dbe1"
GPU_FILL, GPU_LINE = "#dff0c8", "#5f9a15"
NVLINK, PCIE, SOCKET, UPLINK = "#5f9a15", "#8a97a3", "#b7791f", "#4a5568"
CPU_FILL, CPU_LINE = "#fdf0d9", "#b7791f"
SWITCH_FILL, SWITCH_LINE = "#e6eaee", "#8a97a3"
RAILS = ("#2563eb", "#db2777", "#0d9488", "#ea580c", "#7c3aed", "#0284c7", "#be123c", "#4d7c0f")
OFF_RAIL = "#8a97a3"

MARGIN, HOST_GAP = 36.0, 48.0
SHOWN_HOSTS = 4
"""More hosts than this would not fit a slide; the rest is said in words."""
LEAF_HEIGHT, SPINE_HEIGHT = 34.0, 30.0
_CHARACTER = 0.56
"""Width of one, as a part of the font's size."""
_TIGHTEST = 0.65
"""Of its width a character is still readable."""


def render_svg(fabric: Fabric, marks: Sequence[Mark] = (), title: str = "") -> str:
    """The whole picture as one SVG text; `marks` are findings, shown at the parts they are on. `title` stands for the fabric's name."""
    return _Picture(fabric, marks, title or fabric.name).svg()


def _shown(kinds: list[Kind]) -> list[tuple[Host, int]]:
    """Hosts to draw, each with the number of hosts it stands for."""
    if len(kinds) == 1 and len(kinds[0].hosts) == 2:
        return [(host, 1) for host in kinds[0].hosts]
    return [(kind.hosts[0], len(kind.hosts)) for kind in kinds[:SHOWN_HOSTS]]


def _stroke(capacity_Bps: int, scale: float) -> float:
    """Line width in pixels. The square root keeps a PCIe link visible beside NVLink; `scale` adapts to slow fabrics such as a lab's."""
    return 1.0 + 6.0 * math.sqrt(capacity_Bps / scale)


class _Picture:
    def __init__(self, fabric: Fabric, marks: Sequence[Mark], title: str) -> None:
        self.fabric = fabric
        self.title = title
        self.marks = Numbered(fabric, marks)
        self.vertices = fabric.vertices
        self.hosts = read_hosts(fabric)
        self.kinds = alike(self.hosts)
        self.shown = _shown(self.kinds)
        self.layouts = [lay_out(host) for host, _ in self.shown]
        self.edges = fabric.edges
        self.scale = float(max((edge.capacity_Bps for edge in self.edges if edge.kind != EdgeKind.uplink), default=1))
        if any(self._is_direct(edge) for edge in self.edges):
            self.scale *= 2.5  # many arcs below one another need thin lines
        if all(edge.kind != EdgeKind.nvlink for edge in self.edges):
            self.scale *= 4.0  # PCIe alone need not look as wide as NVLink
        self.leafs = [(i, vertex) for i, vertex in enumerate(self.vertices) if vertex.kind == VertexKind.leaf]
        self.spines = [(i, vertex) for i, vertex in enumerate(self.vertices) if vertex.kind == VertexKind.spine]
        self.lines: list[str] = []
        self.boxes: list[str] = []
        self.badges: list[str] = []
        self.legend: dict[tuple[str, str], tuple[str, float]] = {}

    def _is_direct(self, edge: Edge) -> bool:
        return edge.kind == EdgeKind.nvlink and self.vertices[edge.src].kind == self.vertices[edge.dst].kind == VertexKind.gpu

    # ---- the whole ----

    def svg(self) -> str:
        content = sum(layout.width + 24 for layout in self.layouts) + HOST_GAP * (len(self.layouts) - 1)
        drawn = self._drawn_leafs()
        width = max(content, CELL * len(drawn), 560) + 2 * MARGIN
        title_bottom = 84.0
        spine_y = title_bottom + SPINE_HEIGHT / 2 + 8
        leaf_y = spine_y + (74 if self.spines else 0)
        hosts_y = (leaf_y + 92) if drawn else title_bottom + 12
        x = (width - content) / 2
        leaf_boxes = self._place_leafs(drawn, leaf_y, width)
        self._draw_network(leaf_boxes, spine_y, width)
        bottom = hosts_y
        for (host, count), layout in zip(self.shown, self.layouts, strict=True):
            bottom = max(bottom, self._draw_host(host, count, layout, x + 12, hosts_y, leaf_boxes))
            x += layout.width + 24 + HOST_GAP
        height = self._draw_legend(bottom + 34, width) + 24
        if self.marks.marks:
            listing, height = self.marks.listing(MARGIN, height + 16, width - 2 * MARGIN, INK, MUTED)
            self.badges += listing
        self._draw_title(len(drawn) < len(self.leafs), width - 2 * MARGIN)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
            f'font-family={quoteattr(FONT)} role="img">\n<title>{escape(self.title)}</title>\n'
            f'<rect width="100%" height="100%" fill="{PAPER}"/>\n' + "\n".join(self.lines + self.boxes + self.badges) + "\n</svg>\n"
        )

    def _draw_title(self, leafs_left_out: bool, room: float) -> None:
        self._text(MARGIN, 44, self.title, size=24, weight=650, anchor="start", room=room)
        nodes, gpus = self.fabric.node_count, self.fabric.gpu_count
        nics = sum(len(host.nics) for host in self.hosts)
        rails = {leaf.rail for _, leaf in self.leafs if leaf.rail is not None}
        words = [f"{nodes} node{'s' * (nodes != 1)}", f"{gpus} GPU{'s' * (gpus != 1)}", f"{nics} NIC{'s' * (nics != 1)}"]
        if rails:
            words.append(f"{len(rails)} rail{'s' * (len(rails) != 1)}")
        left_out = len(self.kinds) - SHOWN_HOSTS
        if left_out > 0:
            words.append(f"{left_out} more kinds of node not drawn")
        if leafs_left_out:
            words.append(f"{len(self.leafs)} leafs, those of the drawn nodes shown")
        self._text(MARGIN, 68, " · ".join(words), size=14, fill=MUTED, anchor="start")

    # ---- network ----

    def _drawn_leafs(self) -> list[tuple[int, Vertex]]:
        """Leafs that a drawn host is on."""
        names = {leaf.name for host, _ in self.shown for leafs in host.ports.values() for leaf, _ in leafs}
        return [(i, leaf) for i, leaf in self.leafs if leaf.name in names]

    def _place_leafs(self, drawn: list[tuple[int, Vertex]], y: float, width: float) -> dict[str, tuple[int, Vertex, Box]]:
        """Over the NICs of a single host where they do not crowd, else evenly over the width."""
        step = min(max(CELL, (width - 2 * MARGIN) / max(1, len(drawn))), 240.0)
        first = width / 2 - step * (len(drawn) - 1) / 2
        centres = {leaf.name: first + step * n for n, (_, leaf) in enumerate(drawn)}
        if len(self.shown) == 1:
            above = self._above_nics([leaf.name for _, leaf in drawn], (width - self.layouts[0].width) / 2)
            if all(right - left >= CELL for left, right in itertools.pairwise(sorted(above.values()))):
                centres = above
        gaps = [right - left for left, right in itertools.pairwise(sorted(centres.values()))]
        box_width = min([120.0, *(gap - 12 for gap in gaps)]) if gaps else 260.0
        return {leaf.name: (i, leaf, Box(centres[leaf.name], y, box_width, LEAF_HEIGHT)) for i, leaf in drawn}

    def _above_nics(self, leafs: list[str], left: float) -> dict[str, float]:
        host, layout = self.shown[0][0], self.layouts[0]
        columns: dict[str, list[float]] = {name: [] for name in leafs}
        for root in host.roots:
            for part in _walk(root):
                for leaf, _ in host.ports.get(part.vertex.name, []):
                    columns[leaf.name].append(left + layout.boxes[part.id].x)
        return {name: sum(xs) / len(xs) for name, xs in columns.items()}

    def _draw_network(self, leafs: dict[str, tuple[int, Vertex, Box]], spine_y: float, width: float) -> None:
        if not leafs:
            return
        if self.spines:
            left = min(box.x - box.width / 2 for _, _, box in leafs.values())
            right = max(box.x + box.width / 2 for _, _, box in leafs.values())
            spine = Box((left + right) / 2, spine_y, right - left, SPINE_HEIGHT)
            uplinks = {edge.src: edge for edge in self.edges if edge.kind == EdgeKind.uplink}
            for leaf_id, _, box in leafs.values():
                if leaf_id in uplinks:
                    capacity = uplinks[leaf_id].capacity_Bps
                    self._line(box.x, spine.bottom, box.x, box.top, UPLINK, min(9.0, _stroke(capacity, self.scale)))
                    self._note("uplink", rate(capacity), UPLINK, capacity)
            self._box(spine, "#e2e6eb", UPLINK, ["spine"])
        for _, leaf, box in leafs.values():
            colour = _rail_colour(leaf)
            label = f"leaf {leaf.index}" if leaf.rail is None else f"rail {leaf.rail}"
            self._box(box, _tint(colour), colour, [label], size=14)
            self.badges += self.marks.badges(leaf.name, box)

    # ---- one host ----

    def _draw_host(
        self, host: Host, count: int, layout: HostLayout, x: float, y: float, leafs: dict[str, tuple[int, Vertex, Box]]
    ) -> float:
        """Draws a host with its upper left corner at x, y; returns its lower edge."""
        head = 12.0
        boxes = {vertex: Box(box.x + x, box.y + y + head, box.width, box.height) for vertex, box in layout.boxes.items()}
        panel_bottom = y + head + layout.gpu_y + 44
        bottom = self._draw_nvlinks(host, boxes, layout, x, panel_bottom)
        frame_height = bottom - y + 40
        self.boxes.insert(
            0,
            f'<rect x="{x - 12:.1f}" y="{y:.1f}" width="{layout.width + 24:.1f}" height="{frame_height:.1f}" rx="14" fill="none" '
            f'stroke="{PANEL_LINE}" stroke-width="1.5"/>',
        )
        name = host.name if count == 1 else f"{host.name} · {count} nodes alike"
        self._text(x + 2, bottom + 27, name, size=16, weight=650, anchor="start", room=layout.width)
        for left, right in layout.panels:
            self._draw_panel(x + left, y + head, right - left, panel_bottom - y - head)
        for child, parent in layout.links:
            self._draw_pcie(child, parent, boxes)
        self._draw_sockets(host, boxes)
        self._draw_ports(host, boxes, leafs)
        for root in host.roots:
            self._draw_part(host, root, boxes)
        return y + frame_height

    def _draw_panel(self, x: float, y: float, width: float, height: float) -> None:
        self.lines.insert(
            0,
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="10" fill="{PANEL}" stroke="{PANEL_LINE}"/>',
        )

    def _draw_part(self, host: Host, part: Part, boxes: dict[int, Box]) -> None:
        vertex, box = part.vertex, boxes[part.id]
        if vertex.kind == VertexKind.gpu:
            self._box(box, GPU_FILL, GPU_LINE, [f"GPU {vertex.index}", _short(vertex.model)], size=14)
        elif vertex.kind == VertexKind.nic:
            colour = _rail_colour(vertex)
            ports = host.ports.get(vertex.name, [])
            second = port_rate(ports[0][1].capacity_Bps) if ports else "not on a rail"
            self._box(box, _tint(colour), colour, [vertex.attributes.get("net.name") or f"NIC {vertex.index}", second], size=13)
        elif vertex.kind == VertexKind.numa:
            lines = [f"CPU · NUMA {vertex.index}"] + ([f"{rate(vertex.through_Bps)}", "memory"] if vertex.through_Bps else [])
            self._box(box, CPU_FILL, CPU_LINE, lines, size=12)
        else:
            label = f"PCIe switch {vertex.index}" if box.width > 100 else f"switch {vertex.index}"
            self._box(box, SWITCH_FILL, SWITCH_LINE, [label], size=12)
        self.badges += self.marks.badges(vertex.name, box)
        for child in part.children:
            self._draw_part(host, child, boxes)

    def _draw_pcie(self, child: Part, parent: Part, boxes: dict[int, Box]) -> None:
        a, b = boxes[child.id], boxes[parent.id]
        assert child.link is not None
        c2c = child.link.kind == EdgeKind.c2c
        colour = NVLINK if c2c else PCIE
        width = _stroke(child.link.capacity_Bps, self.scale)
        self._note("NVLink-C2C" if c2c else "PCIe", rate(child.link.capacity_Bps), colour, child.link.capacity_Bps)
        if child.vertex.kind == VertexKind.pcie_switch and parent.vertex.kind == VertexKind.numa:
            self._draw_root_link(child, parent, boxes, colour, width)
        elif a.y < b.y:
            self._line(a.x, a.bottom, _within(a.x, b), b.top, colour, width)
        else:
            self._line(a.x, a.top, _within(a.x, b), b.bottom, colour, width)

    def _draw_root_link(self, switch: Part, cpu: Part, boxes: dict[int, Box], colour: str, width: float) -> None:
        """From a switch to its CPU: straight when they are neighbours, else in a lane of its own above those between."""
        a, b = boxes[switch.id], boxes[cpu.id]
        side = 1 if a.x < b.x else -1
        between = [
            other
            for other in cpu.below(VertexKind.pcie_switch)
            if other.id != switch.id and min(a.x, b.x) < boxes[other.id].x < max(a.x, b.x)
        ]
        if not between:
            self._line(a.x + side * a.width / 2, a.y, b.x - side * b.width / 2, a.y, colour, width)
            return
        lane = b.top + 1 - 10.0 * len(between)
        into = b.x - side * (b.width / 2 - 10 - 12.0 * (len(between) - 1))
        start = a.x + side * (a.width / 2 - 12)
        self._path(f"M{start:.1f},{a.top:.1f} V{lane:.1f} H{into:.1f} V{b.top:.1f}", colour, width)

    def _draw_sockets(self, host: Host, boxes: dict[int, Box]) -> None:
        if not host.sockets:
            return
        ids = {root.vertex.name: root.id for root in host.roots}
        centres = sorted(boxes[ids[name]].x for name in {v.name for a, b, _ in host.sockets for v in (a, b)})
        box = boxes[ids[host.sockets[0][0].name]]
        capacity = max(edge.capacity_Bps for _, _, edge in host.sockets)
        width = _stroke(capacity, self.scale)
        lane = box.bottom + 20
        for x in centres:
            self._line(x, box.bottom, x, lane, SOCKET, width)
        self._line(centres[0], lane, centres[-1], lane, SOCKET, width)
        self._note("between sockets", rate(capacity), SOCKET, capacity)

    def _draw_ports(self, host: Host, boxes: dict[int, Box], leafs: dict[str, tuple[int, Vertex, Box]]) -> None:
        ids = {part.vertex.name: part.id for root in host.roots for part in _walk(root)}
        for name, links in host.ports.items():
            nic = boxes[ids[name]]
            for leaf, edge in links:
                if leaf.name not in leafs:
                    continue
                box = leafs[leaf.name][2]
                colour = _rail_colour(leaf)
                middle = (nic.top + box.bottom) / 2
                into = _within(nic.x, box, inset=14)
                path = f"M{nic.x:.1f},{nic.top:.1f} C{nic.x:.1f},{middle:.1f} {into:.1f},{middle:.1f} {into:.1f},{box.bottom:.1f}"
                self._path(path, colour, _stroke(edge.capacity_Bps, self.scale), opacity=0.85)
                self._note("rail", port_rate(edge.capacity_Bps), RAILS[0] if leaf.rail is not None else OFF_RAIL, edge.capacity_Bps)

    def _draw_nvlinks(self, host: Host, boxes: dict[int, Box], layout: HostLayout, x: float, top: float) -> float:
        """NVSwitch as a bar below the GPUs, direct links as arcs; returns the lower edge of what was drawn."""
        ids = {part.vertex.name: part.id for root in host.roots for part in _walk(root)}
        bar = Box(x + layout.width / 2, top + 46, layout.width - 20, 34)
        switch_name = ""
        arcs: list[tuple[Box, Box, Edge]] = []
        for a, b, edge in host.nvlinks:
            if VertexKind.nvswitch in (a.kind, b.kind):
                end = boxes[ids[a.name if a.kind == VertexKind.gpu else b.name]]
                switch_name = (b if a.kind == VertexKind.gpu else a).name
                self._line(end.x, end.bottom, end.x, bar.top, NVLINK, _stroke(edge.capacity_Bps, self.scale))
            elif a.kind == b.kind == VertexKind.gpu:
                arcs.append((boxes[ids[a.name]], boxes[ids[b.name]], edge))
            else:
                numa, gpu = (a, b) if a.kind == VertexKind.numa else (b, a)
                start, end = boxes[ids[gpu.name]], boxes[ids[numa.name]]
                self._line(start.x - 14, start.top, _within(start.x - 14, end), end.bottom, NVLINK, _stroke(edge.capacity_Bps, self.scale))
            self._note("NVLink", rate(edge.capacity_Bps), NVLINK, edge.capacity_Bps)
        if switch_name:
            self._box(bar, GPU_FILL, NVLINK, ["NVSwitch"], size=14)
            self.badges += self.marks.badges(switch_name, bar)
        return max(self._draw_arcs(arcs, top), bar.bottom if switch_name else top)

    def _draw_arcs(self, arcs: list[tuple[Box, Box, Edge]], top: float) -> float:
        """Arcs between GPUs. At each GPU the ends are ordered so that arcs to one side nest: the longest stands innermost."""
        arcs = [(a, b, edge) if a.x < b.x else (b, a, edge) for a, b, edge in arcs]
        ends: dict[float, list[tuple[float, int]]] = {}  # by GPU: order of an arc's end there, arc
        for n, (left, right, _) in enumerate(arcs):
            span = right.x - left.x
            ends.setdefault(left.x, []).append((1 / span, n))  # to the right: long before short
            ends.setdefault(right.x, []).append((-1 / span, n))  # to the left: short before long
        at: dict[tuple[float, int], float] = {}
        for x, order in ends.items():
            step = min(14.0, (BOX - 16) / len(order))
            for place, (_, n) in enumerate(sorted(order)):
                at[x, n] = x + step * (place - (len(order) - 1) / 2)
        bottom = top
        for n, (left, right, edge) in enumerate(arcs):
            start, end = at[left.x, n], at[right.x, n]
            low = left.bottom + 44 + 24 * min((right.x - left.x) / CELL, 9)
            path = f"M{start:.1f},{left.bottom:.1f} C{start:.1f},{low:.1f} {end:.1f},{low:.1f} {end:.1f},{right.bottom:.1f}"
            self._path(path, NVLINK, _stroke(edge.capacity_Bps, self.scale), opacity=0.85)
            bottom = max(bottom, left.bottom + 0.75 * (low - left.bottom) + 8)
        return bottom

    # ---- legend ----

    def _note(self, what: str, how_much: str, colour: str, capacity: int) -> None:
        self.legend[what, how_much] = (colour, _stroke(capacity, self.scale))

    def _draw_legend(self, y: float, width: float) -> float:
        x = MARGIN
        for (what, how_much), (colour, stroke) in self.legend.items():
            label = f"{what} {how_much}"
            space = 62 + 7.4 * len(label)
            if x + space > width - MARGIN + 20 and x > MARGIN:
                x, y = MARGIN, y + 26
            self._line(x, y, x + 34, y, colour, min(9.0, stroke))
            self._text(x + 42, y + 5, label, size=13, fill=INK, anchor="start")
            x += space
        return y

    # ---- marks ----

    def _line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> None:
        self._path(f"M{x1:.1f},{y1:.1f} L{x2:.1f},{y2:.1f}", colour, width)

    def _path(self, path: str, colour: str, width: float, opacity: float = 1.0) -> None:
        see_through = f' stroke-opacity="{opacity}"' if opacity < 1 else ""
        self.lines.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:.2f}"{see_through} stroke-linejoin="round" '
            f'stroke-linecap="butt"/>'
        )

    def _box(self, box: Box, fill: str, line: str, texts: list[str], size: int = 13) -> None:
        self.boxes.append(
            f'<rect x="{box.x - box.width / 2:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="7" '
            f'fill="{fill}" stroke="{line}" stroke-width="1.4"/>'
        )
        texts = [text for text in texts if text]
        sizes = [size] + [11] * (len(texts) - 1)
        y = box.y - (sum(sizes) + 3 * (len(texts) - 1)) / 2
        for text, text_size in zip(texts, sizes, strict=True):
            y += text_size
            first = text is texts[0]
            self._text(box.x, y - 1.5, text, size=text_size, weight=600 if first else 400, fill=INK if first else MUTED, room=box.width - 8)
            y += 3

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        weight: int = 400,
        fill: str = INK,
        anchor: str = "middle",
        room: float | None = None,
    ) -> None:
        """`room` squeezes a text that is wider, and cuts off what would no longer be readable."""
        fit = ""
        if room is not None:
            most = int(room / (size * _CHARACTER * _TIGHTEST))
            text = text if len(text) <= most else text[: most - 1] + "…"
            if len(text) * size * _CHARACTER > room:
                fit = f' textLength="{room:.0f}" lengthAdjust="spacingAndGlyphs"'
        self.boxes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}"{fit}>'
            f"{escape(text)}</text>"
        )


def _walk(part: Part) -> Iterable[Part]:
    yield part
    for child in part.children:
        yield from _walk(child)


def _within(x: float, box: Box, inset: float = 10) -> float:
    """x, moved into the box's width where it lies outside."""
    half = max(0.0, box.width / 2 - inset)
    return min(max(x, box.x - half), box.x + half)


def _rail_colour(vertex: Vertex) -> str:
    return OFF_RAIL if vertex.rail is None else RAILS[vertex.rail % len(RAILS)]


def _tint(colour: str) -> str:
    """The colour, mixed with 85% white."""
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - (255 - channel) * 0.15):02x}" for channel in channels)


def _short(model: str) -> str:
    """A model's name that fits a box."""
    return model if len(model) * 11 * _CHARACTER <= BOX - 8 else model.rsplit(" ", 1)[0]
