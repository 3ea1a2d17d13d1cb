"""The text of `nvidia-smi topo -m` as a machine: which way leads from each GPU to each other GPU and NIC. It has no rates and no
addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping

from railweave.machine.facts import Fact, Gpu, Known, Machine, Nic, NumaNode, Unknown
from railweave.machine.paths import WAYS
from railweave.machine.reading import cpu_list
from railweave.machine.source import Reason
from railweave.machine.xml_tree import fail
from railweave.records import dataclass

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU(\d{1,4})")
_NIC = re.compile(r"NIC\d{1,4}")
_TITLES = re.compile(r"\s+(?:CPU Affinity|NUMA Affinity|GPU NUMA ID)")
_CELL = re.compile(r"X|NV(?:[1-9]\d{0,2})|N/A|SOC|" + "|".join(WAYS))
_LEGEND = re.compile(r"\s*(NIC\d{1,4}):\s*(\S+)\s*$")
_WHAT = "the text that `nvidia-smi topo -m` prints"
_TEXT_LIMIT = 4 << 20
# The tool cuts cells of cores: where CPUs alternate between two nodes it shows `0,2,4,6,8,10` and `1,3,5,7,9,11`, however many there are
# (drivers 570 and 580). A list of so many without a range may go on, and its last number may lack digits.
_MAY_BE_CUT = 6


@dataclass(frozen=True)
class _Row:
    name: str
    line: int
    cells: tuple[str, ...]
    rest: str


def is_topo_matrix(text: str) -> bool:
    """Whether a text looks like it: a line of column titles that begins with a GPU."""
    return _header(text.splitlines()) is not None


def parse_topo_matrix(text: str, source: str) -> Machine:
    """A machine from the text. Raises ParseError with the line."""
    if len(text) > _TEXT_LIMIT:
        raise fail(source, 0, f"{len(text)} characters", f"at most {_TEXT_LIMIT}")
    lines = text.splitlines()
    header = _header(lines)
    if header is None:
        raise fail(source, 0, "no line of column titles beginning with a GPU", _WHAT)
    number, columns = header
    if len(set(columns)) != len(columns):
        raise fail(source, number, "a column twice", "each device once")
    rows = {}
    for at, line in enumerate(lines[number:], start=number + 1):
        row = _row(line, columns, source, at)
        if row is not None:
            if row.name in rows:
                raise fail(source, at, f"a second row {row.name}", "one row for each device")
            rows[row.name] = row
    legend = {found[1]: found[2] for line in lines if (found := _LEGEND.match(line))}
    missing = [name for name in columns if _GPU.fullmatch(name) and name not in rows]
    if missing:
        raise fail(source, number, f"no row for {missing[0]}", "a row for each GPU of the columns")
    return _machine(columns, rows, legend, source)


def _header(lines: list[str]) -> tuple[int, list[str]] | None:
    for number, line in enumerate(lines, start=1):
        words = _TITLES.split(_ESCAPES.sub("", line))[0].split()
        # A row also begins with a GPU, but its second word is a way.
        if words and _GPU.fullmatch(words[0]) and not any(_CELL.fullmatch(word) for word in words[1:]):
            return number, words
    return None


def _row(line: str, columns: list[str], source: str, at: int) -> _Row | None:
    text = _ESCAPES.sub("", line).strip()
    name, _, rest = text.partition(" ") if "\t" not in text else text.partition("\t")
    if name not in columns:
        return None
    words = rest.split()
    cells = tuple(words[: len(columns)])
    for column, cell in zip(columns, cells, strict=False):
        if _CELL.fullmatch(cell) is None:
            raise fail(source, at, f"{cell[:20]!r} between {name} and {column}", f"X, NV# or one of {', '.join(WAYS)}")
    if len(cells) < len(columns):
        raise fail(source, at, f"{len(cells)} entries in row {name}", f"{len(columns)}, one for each column")
    # What is left: cores, NUMA node, NUMA node of the GPU's own memory.
    return _Row(name, at, cells, " ".join(words[len(columns) :]))


def _machine(columns: list[str], rows: Mapping[str, _Row], legend: Mapping[str, str], source: str) -> Machine:
    gpu_columns = [name for name in columns if _GPU.fullmatch(name)]
    nic_columns = [name for name in columns if name not in gpu_columns]
    gpus: list[Gpu] = []
    numa: dict[int, list[Fact[tuple[int, ...]]]] = {}
    for name in sorted(gpu_columns, key=lambda name: int(name[3:])):
        row = rows[name]
        at = f"{source}:{row.line}"
        ways = dict(zip(columns, ("SYS" if cell == "SOC" else cell for cell in row.cells), strict=True))
        if ways[name] != "X":
            raise fail(source, row.line, f"{ways[name]} from {name} to itself", "X")
        cores, node = _affinity(row, source)
        if isinstance(node, Known):
            numa.setdefault(node.value, []).append(cores)
        gpus.append(
            Gpu(
                index=int(name[3:]),
                bus_id=Unknown(Reason.not_given, at, "topo -m has no addresses"),
                nvlinks=Unknown(Reason.not_given, at, "topo -m has counts of NVLinks, not their ends"),
                peers=Known({int(other[3:]): ways[other] for other in gpu_columns if other != name}, at),
                nic_paths=Known({legend.get(nic, nic): ways[nic] for nic in nic_columns}, at),
                affinity=cores,
                numa=node,
            )
        )
    no_address: Fact[str | None] = Unknown(Reason.not_given, source, "topo -m has no addresses")
    paths = {name: _nic_paths(rows.get(name), legend, columns, source) for name in nic_columns}
    nics = tuple(
        Nic(legend.get(name, name), 1, no_address, rdma=_rdma(name, legend, source), nic_paths=paths[name]) for name in nic_columns
    )
    nodes = tuple(NumaNode(number, _of_node(cores, source)) for number, cores in sorted(numa.items()))
    no_node = Unknown(Reason.not_given, source, "no GPU has one NUMA node in its row")
    return Machine(source, gpus=Known(tuple(gpus), source), nics=Known(nics, source), numa=Known(nodes, source) if nodes else no_node)


def _rdma(column: str, legend: Mapping[str, str], source: str) -> Fact[str | None]:
    """RDMA devices are all that it lists as NICs: by number with a legend, or, in older releases, by name."""
    if column in legend or not _NIC.fullmatch(column):
        return Known(legend.get(column, column), source)
    return Unknown(Reason.not_given, source, f"no legend says what {column} is")


def _nic_paths(row: _Row | None, legend: Mapping[str, str], columns: list[str], source: str) -> Fact[Mapping[str, str]]:
    """Ways to the other NICs."""
    if row is None:
        return Unknown(Reason.not_given, source, "no row of this NIC")
    others = ((name, way) for name, way in zip(columns, row.cells, strict=True) if not _GPU.fullmatch(name) and name != row.name)
    return Known({legend.get(name, name): way for name, way in others}, f"{source}:{row.line}")


def _of_node(cores: list[Fact[tuple[int, ...]]], source: str) -> Fact[tuple[int, ...]]:
    """What the rows of a node's GPUs say together."""
    told = [of_gpu.value for of_gpu in cores if isinstance(of_gpu, Known)]
    return Known(tuple(sorted(set().union(*told))), source) if told else cores[0]


def _affinity(row: _Row, source: str) -> tuple[Fact[tuple[int, ...]], Fact[int]]:
    """Cores and NUMA node. `N/A` stands where there is none, several nodes where the GPU is near to several."""
    at = f"{source}:{row.line}"
    words = row.rest.split()
    cores: Fact[tuple[int, ...]] = Unknown(Reason.not_given, at, "no CPU affinity")
    node: Fact[int] = Unknown(Reason.not_given, at, "no NUMA affinity")
    try:
        if words and words[0] != "N/A":
            cores = Known(cpu_list(words[0]), at)
            if "-" not in words[0] and len(cores.value) >= _MAY_BE_CUT:
                cores = Unknown(Reason.not_given, at, f"CPU affinity {words[0]} may be cut off")
        if len(words) > 1 and words[1] != "N/A":
            nodes = cpu_list(words[1])
            node = Known(nodes[0], at) if len(nodes) == 1 else Unknown(Reason.not_given, at, f"NUMA nodes {words[1]}")
    except ValueError as error:
        raise fail(
            source, row.line, f"{row.rest[:60]!r} after the ways", "a list of cores and a NUMA node, such as 0-55,112-167 and 0"
        ) from error
    return cores, node
