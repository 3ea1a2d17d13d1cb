"""XML with line numbers, read within bounds: what hwloc's and NCCL's files need, and nothing that a hostile file could use."""

from __future__ import annotations

import xml.parsers.expat
from collections.abc import Iterator

from railweave.errors import ParseError
from railweave.records import dataclass, field

TEXT_LIMIT_B = 16 << 20  # as the C++ reader of NCCL topology files
DEPTH_LIMIT = 128  # hwloc nests a PCI device some 20 deep: machine, package, groups, bridges
ELEMENT_LIMIT = 1_000_000


@dataclass
class Node:
    """An element: where it begins, its attributes, its children."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Node] = field(default_factory=list)
    text: str = ""
    """Directly in it."""

    def get(self, name: str) -> str:
        """An attribute's value, empty where it is not there."""
        return self.attributes.get(name, "")

    def walk(self) -> Iterator[Node]:
        """This element and all below it, in the file's order."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(reversed(node.children))


def fail(source: str, line: int, found: str, expected: str) -> ParseError:
    """An error in the words that all readers use."""
    return ParseError(f"{source}:{line}: {found}; expected {expected}" if line else f"{source}: {found}; expected {expected}")


def parse_xml(text: str, source: str, root: str, what: str) -> Node:
    """The element `root` of a file; `what` says in errors what was expected. Raises ParseError."""
    if len(text) > TEXT_LIMIT_B:
        raise fail(source, 0, f"{len(text)} characters", f"at most {TEXT_LIMIT_B}")
    stack: list[Node] = []
    found: list[Node] = []
    count = 0
    parser = xml.parsers.expat.ParserCreate("utf-8")  # whatever the text declares: it was decoded before

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(stack) >= DEPTH_LIMIT or count > ELEMENT_LIMIT:
            raise fail(source, parser.CurrentLineNumber, "elements nested too deep, or too many", what)
        node = Node(tag, attributes, parser.CurrentLineNumber)
        if stack:
            stack[-1].children.append(node)
        else:
            found.append(node)
        stack.append(node)

    def entity(*_: object) -> None:
        raise fail(source, parser.CurrentLineNumber, "an entity declaration", what)

    def characters(text: str) -> None:
        if stack:
            stack[-1].text += text

    parser.StartElementHandler = start
    parser.CharacterDataHandler = characters
    parser.EndElementHandler = lambda _: stack.pop()
    parser.EntityDeclHandler = entity
    try:
        parser.Parse(text.encode("utf-8", errors="replace"), True)
    except xml.parsers.expat.ExpatError as error:
        raise fail(source, error.lineno, f"not XML: {xml.parsers.expat.ErrorString(error.code)}", what) from error
    if not found or found[0].tag != root:
        raise fail(source, found[0].line if found else 0, f"element '{found[0].tag[:40]}'" if found else "no element", what)
    return found[0]
