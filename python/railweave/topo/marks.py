"""Findings on a picture: a numbered badge at each part concerned, and the list of them below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

from railweave.fabric import Fabric
from railweave.records import dataclass
from railweave.topo.layout import Box

COLOURS = {"error": "#c81e1e", "warning": "#b45309", "info": "#2563eb"}
"""By severity, the gravest first; each carries white digits with a contrast above 4.5:1 (WCAG 2.1, AA)."""
RADIUS = 9.0
TEXT_SIZE = 13
LINE = 19.0
_CHARACTER = 0.56 * TEXT_SIZE
"""Mean width of a character in pixels; the picture's fonts are all of that kind."""


@dataclass(frozen=True)
class Mark:
    """A finding: on which parts (names of the fabric, or PCI addresses; none is the machine as a whole), how grave, and what."""

    at: tuple[str, ...]
    severity: str
    text: str
    near: tuple[str, ...] = ()
    """Where it stands if none of those is drawn, the best place first: bridges above a NIC that is down, which no fabric has."""


class Numbered:
    """Marks in the order of their gravity, numbered from 1, with the parts of a fabric that each is on."""

    def __init__(self, fabric: Fabric, marks: Sequence[Mark]) -> None:
        for mark in marks:
            if mark.severity not in COLOURS:
                raise ValueError(f"severity '{mark.severity}' of '{mark.text}'; expected {', '.join(COLOURS)}")
        order = list(COLOURS)
        self.marks = sorted(marks, key=lambda mark: order.index(mark.severity))
        names: dict[str, list[str]] = {}
        for vertex in fabric.vertices:
            for key in (vertex.name, vertex.bus_id):
                if key:
                    names.setdefault(key, []).append(vertex.name)
        self.on: dict[str, list[int]] = {}
        """By vertex name: positions in `marks`."""
        self.placed: set[int] = set()
        for position, mark in enumerate(self.marks):
            places = [name for key in mark.at for name in names.get(key, ())]
            for name in dict.fromkeys(places or next((names[key] for key in mark.near if key in names), [])):
                self.on.setdefault(name, []).append(position)

    def badges(self, vertex: str, box: Box) -> list[str]:
        """Along the upper edge of a part's box, from its right corner on; what does not fit is counted."""
        positions = self.on.get(vertex, [])
        self.placed.update(positions)
        room = max(1, int((box.width + 2 * RADIUS) // (2 * RADIUS + 2)))
        shown = positions if len(positions) <= room else positions[: room - 1]
        drawn = [self._badge(box.x + box.width / 2 - n * (2 * RADIUS + 2), box.top, position) for n, position in enumerate(shown)]
        if len(shown) < len(positions):
            x = box.x + box.width / 2 - len(shown) * (2 * RADIUS + 2)
            drawn.append(_disc(x, box.top, f"+{len(positions) - len(shown)}", COLOURS[self.marks[positions[len(shown)]].severity], ""))
        return drawn

    def _badge(self, x: float, y: float, position: int) -> str:
        mark = self.marks[position]
        return _disc(x, y, str(position + 1), COLOURS[mark.severity], f"{mark.severity}: {mark.text}")

    def listing(self, x: float, y: float, width: float, ink: str, muted: str) -> tuple[list[str], float]:
        """The texts with their badges from `y` on, and the lower edge. What is on no part drawn says where it is in words."""
        drawn: list[str] = []
        indent = 2 * RADIUS + 10
        for position, mark in enumerate(self.marks):
            drawn.append(self._badge(x + RADIUS, y, position))
            where = "" if position in self.placed else f"{', '.join(mark.at) or 'machine'}: "
            fill = muted if mark.severity == "info" else ink
            for line in _wrapped(f"{where}{mark.text}", int((width - indent) / _CHARACTER)):
                drawn.append(f'<text x="{x + indent:.1f}" y="{y + 4.5:.1f}" font-size="{TEXT_SIZE}" fill="{fill}">{escape(line)}</text>')
                y += LINE
            y += 5
        return drawn, y


def _disc(x: float, y: float, text: str, colour: str, title: str) -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<g>{tip}<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS:.1f}" fill="{colour}" stroke="#ffffff" stroke-width="1.5"/>'
        f'<text x="{x:.1f}" y="{y + 3.8:.1f}" font-size="{11 if len(text) < 3 else 9}" font-weight="700" fill="#ffffff" '
        f'text-anchor="middle">{text}</text></g>'
    )


def _wrapped(text: str, characters: int) -> Iterable[str]:
    """Lines of at most so many characters; a longer word is cut."""
    line = ""
    for word in text.split():
        while len(word) > characters:
            if line:
                yield line
            line = ""
            yield word[:characters]
            word = word[characters:]
        if line and len(line) + 1 + len(word) > characters:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line
