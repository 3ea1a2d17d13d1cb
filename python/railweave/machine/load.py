"""A machine from whatever describes it: this host, a recording, or another tool's text; told apart by content."""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

from railweave import fabric as fabrics
from railweave.errors import ParseError
from railweave.fabric import Fabric
from railweave.machine.facts import Machine
from railweave.machine.hwloc import parse_hwloc
from railweave.machine.lspci_tree import is_lspci_tree, parse_lspci_tree
from railweave.machine.recording import ZSTANDARD
from railweave.machine.topo_matrix import is_topo_matrix, parse_topo_matrix

_LIMIT_B = 16 << 20


def read_text_file(path: Path) -> str:
    """A file's text. Raises ParseError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LIMIT_B + 1)
    except OSError as error:
        raise ParseError(f"{path}: cannot be read: {error.strerror}; expected a readable file") from error
    if len(content) > _LIMIT_B:
        raise ParseError(f"{path}: more than {_LIMIT_B} bytes; expected the description of a machine")
    if content.startswith(ZSTANDARD):
        raise ParseError(
            f"{path}: compressed by Zstandard, as recordings are; expected a text. `topo` and `advise` take recordings by "
            f"`--from {path}`; `railweave topo --from {path} --json` writes the fabric of one for `plan` and `simulate`"
        )
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ParseError(f"{path}: UTF-16 text; expected UTF-8 (iconv -f UTF-16 -t UTF-8)")
    return content.decode("utf-8", errors="replace")


def parse_machine(text: str, source: str) -> Machine | None:
    """A machine from hwloc's XML, `nvidia-smi topo -m` or `lspci -tv`; None for any other text. Raises ParseError."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        return parse_hwloc(text, source) if "<topology" in start[:4096] else None
    if start.startswith("{"):
        return None
    if is_topo_matrix(text):
        return parse_topo_matrix(text, source)
    if is_lspci_tree(text):
        return parse_lspci_tree(text, source)
    return None


def machine_or_text(source: str) -> tuple[Machine | None, str | None]:
    """The machine that a file describes, and the text of what can be read only once (a pipe, standard input), for who reads fabrics."""
    try:
        kind = Path(source).stat().st_mode
    except (OSError, ValueError):  # a template's name, or for the reader of fabrics to name
        return None, None
    if stat.S_ISREG(kind):
        # Fabrics of thousands of GPUs may be larger than any machine's description.
        return (load_machine(Path(source)), None) if Path(source).stat().st_size <= _LIMIT_B else (None, None)
    if stat.S_ISDIR(kind):
        return None, None
    text = read_text_file(Path(source))
    return parse_machine(text, source), text


def fabric_or_machine(source: str, text: str | None, nodes: int | None) -> Fabric:
    """The fabric of what `machine_or_text` found no machine in. Raises ParseError, which knows that it might have been one, FabricError."""
    try:
        return fabrics.load(source, nodes) if text is None else fabrics.loads(text, source, nodes)
    except ParseError as error:
        if "not of a kind that is read here" not in str(error):
            raise
        raise ParseError(f"{error}; or a machine: hwloc XML, or the text of `nvidia-smi topo -m` or `lspci -tv`") from error


def load_fabric(source: str, nodes: int | None) -> tuple[Fabric, tuple[str, ...]]:
    """The fabric of a file of any kind or of a template, and what is not known of it. Raises ParseError, FabricError."""
    machine, text = machine_or_text(source)
    if machine is None:
        return fabric_or_machine(source, text, nodes), ()
    from railweave.machine.fabric import fabric_of

    return fabric_of(machine, nodes)


def load_machine(path: Path) -> Machine | None:
    """The same from a file."""
    return parse_machine(read_text_file(path), str(path))
