"""Where the parts of a host stand in the picture: NICs on top, switches and CPUs in the middle, GPUs and NVLink below."""

from __future__ import annotations

from railweave.fabric import VertexKind
from railweave.records import dataclass, field
from railweave.topo.hierarchy import Host, Part

CELL = 96.0
"""Width of a column, in which one GPU or one NIC stands."""
BOX = 84.0
NIC_Y, SWITCH_Y, GPU_Y = 46.0, 166.0, 300.0
NIC_HEIGHT, SWITCH_HEIGHT, CPU_HEIGHT, GPU_HEIGHT = 46.0, 34.0, 62.0, 52.0
NESTED = 52.0
"""Height that each further level of switches adds."""
CPU_WIDTH = 104.0
PANEL_GAP = 20.0
PANEL_PAD = 12.0


@dataclass
class Box:
    """A drawn part; x and y are its centre."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> float:
        """Upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.y + self.height / 2


@dataclass
class HostLayout:
    """Boxes of one host by vertex id, relative to the host's upper left corner."""

    boxes: dict[int, Box] = field(default_factory=dict)
    panels: list[tuple[float, float]] = field(default_factory=list)
    """Left and right edge of each NUMA node's panel, and of what belongs to none."""
    links: list[tuple[Part, Part]] = field(default_factory=list)
    """Child and parent."""
    width: float = 0.0
    gpu_y: float = GPU_Y


def lay_out(host: Host) -> HostLayout:
    """Places all parts of a host."""
    layout = HostLayout()
    sockets = [root for root in host.roots if root.vertex.kind == VertexKind.numa]
    loose = [root for root in host.roots if root.vertex.kind != VertexKind.numa]
    depth = max((_switch_depth(root) for root in host.roots), default=0)
    layout.gpu_y = GPU_Y + NESTED * max(0, depth - 1)
    x = 0.0
    for socket in sockets:
        right = _place_socket(layout, socket, x)
        layout.panels.append((x, right))
        x = right + PANEL_GAP
    if loose:
        left = x
        x += PANEL_PAD
        for part in loose:
            x = _place_unit(layout, part, x, 0)
        layout.panels.append((left, x + PANEL_PAD))
        x += PANEL_PAD + PANEL_GAP
    layout.width = x - PANEL_GAP
    return layout


def _switch_depth(part: Part) -> int:
    below = max((_switch_depth(child) for child in part.children), default=0)
    return below + (part.vertex.kind == VertexKind.pcie_switch)


def _columns(part: Part) -> int:
    """Columns that a part and what is below it take: GPUs and NICs share columns, switches stand over theirs."""
    nested = part.below(VertexKind.pcie_switch)
    direct = max(len(part.below(VertexKind.gpu)), len(part.below(VertexKind.nic)))
    return max(1, direct + sum(_columns(child) for child in nested))


def _place_socket(layout: HostLayout, socket: Part, left: float) -> float:
    """Switches left and right of the CPU; GPUs and NICs that hang from the CPU itself stand in its column."""
    switches = socket.below(VertexKind.pcie_switch)
    half = (len(switches) + 1) // 2
    x = left + PANEL_PAD
    for switch in switches[:half]:
        x = _place_unit(layout, switch, x, 0)
    gpus, nics = socket.below(VertexKind.gpu), socket.below(VertexKind.nic)
    width = max(CPU_WIDTH + 12, CELL * max(len(gpus), len(nics)))
    centre = x + width / 2
    layout.boxes[socket.id] = Box(centre, SWITCH_Y, CPU_WIDTH, CPU_HEIGHT)
    _place_row(layout, gpus, centre, layout.gpu_y, GPU_HEIGHT)
    _place_row(layout, nics, centre, NIC_Y, NIC_HEIGHT)
    x += width
    for switch in switches[half:]:
        x = _place_unit(layout, switch, x, 0)
    layout.links += [(child, socket) for child in socket.children if child.id in layout.boxes]
    return x + PANEL_PAD


def _place_row(layout: HostLayout, parts: list[Part], centre: float, y: float, height: float) -> None:
    for i, part in enumerate(parts):
        layout.boxes[part.id] = Box(centre + CELL * (i - (len(parts) - 1) / 2), y, BOX, height)


def _place_unit(layout: HostLayout, part: Part, left: float, level: int) -> float:
    """Places a switch with its tree (or a single device) from `left` on; returns the right edge."""
    width = CELL * _columns(part)
    if part.vertex.kind == VertexKind.gpu:
        layout.boxes[part.id] = Box(left + width / 2, layout.gpu_y, BOX, GPU_HEIGHT)
    elif part.vertex.kind == VertexKind.nic:
        layout.boxes[part.id] = Box(left + width / 2, NIC_Y, BOX, NIC_HEIGHT)
    else:
        layout.boxes[part.id] = Box(left + width / 2, SWITCH_Y + NESTED * level, width - 12, SWITCH_HEIGHT)
        gpus, nics = part.below(VertexKind.gpu), part.below(VertexKind.nic)
        direct = max(len(gpus), len(nics))
        _place_row(layout, gpus, left + CELL * direct / 2, layout.gpu_y, GPU_HEIGHT)
        _place_row(layout, nics, left + CELL * direct / 2, NIC_Y, NIC_HEIGHT)
        x = left + CELL * direct
        for nested in part.below(VertexKind.pcie_switch):
            x = _place_unit(layout, nested, x, level + 1)
        layout.links += [(child, part) for child in part.children]
    return left + width
