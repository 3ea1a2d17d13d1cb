"""Fabrics: what a machine or a cluster can carry. `load` reads one from any file or template; see docs/fabric.md."""

from __future__ import annotations

import os

from railweave import _native
from railweave._native import Edge, Fabric, Resource, Vertex
from railweave.errors import FabricError

__all__ = [
    "Edge",
    "EdgeKind",
    "Fabric",
    "LinkState",
    "Resource",
    "ResourceKind",
    "Vertex",
    "VertexKind",
    "load",
    "loads",
    "templates",
]

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from pathlib import Path  # which takes longer to import than a fabric takes to make

    from railweave._native import EdgeKind, LinkState, ResourceKind, VertexKind
else:

    def __getattr__(name):
        # Bound when asked for: enumerations take longer than a rank has that only wants its place (docs/run.md).
        if name in __all__:
            return getattr(_native, name)
        raise AttributeError(f"module 'railweave.fabric' has no attribute '{name}'")


TEMPLATE_DIRS = [os.path.join(os.path.dirname(__file__), "templates")]
_MOST_NODES = 16_384  # limits::kNodes; more than 32 bits would not even reach that check


def _node_count(nodes: int | None) -> int:
    if nodes is None:
        return 0
    if not 0 < nodes <= _MOST_NODES:
        raise FabricError(f"{nodes} nodes; expected 1 to {_MOST_NODES}")
    return nodes


def load(source: str | Path, nodes: int | None = None) -> Fabric:
    """Read a fabric from a file (fabric JSON, cluster YAML, node template YAML, NCCL topology XML) or a template's name.

    `nodes` is how many nodes to make of a template, a topology file, or a cluster file with one group of nodes.
    Raises ParseError (file, line, what was expected) or FabricError.
    """
    try:
        str(source).encode()
    except UnicodeEncodeError as error:
        shown = str(source).encode(errors="backslashreplace").decode()
        raise FabricError(f"{shown}: a name that is not UTF-8; expected a file or a template, which can be renamed or linked to") from error
    return _native.load_fabric(str(source), _node_count(nodes), TEMPLATE_DIRS)


def loads(text: str, source: str = "<string>", nodes: int | None = None, described_by: str = "topology file") -> Fabric:
    """Read a fabric from the text of a file; `source` is the name that errors show and where files named in it are looked for.

    `described_by` is what the sources of a topology file's figures begin with.
    """
    return _native.parse_fabric(text, source, _node_count(nodes), TEMPLATE_DIRS, described_by)


def templates() -> dict[str, str]:
    """Names of the node templates that come with Railweave, each with its description."""
    return {name: _native.template_description(name, TEMPLATE_DIRS) for name in _native.template_names(TEMPLATE_DIRS)}
