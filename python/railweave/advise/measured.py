"""When GPUDirect RDMA and GDRCopy should be on, by message size, from measurements."""

from __future__ import annotations

from math import log

from railweave.advise.gdr import Decision
from railweave.advise.mapping import Workload
from railweave.errors import ParseError
from railweave.records import dataclass, replace
from railweave.size import exact_size, figures

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

COLUMNS = ("metric", "size_B", "gdr", "gdrcopy", "value")
_MOST_TEXT = 1 << 24
# Far beyond what is measured, and so near that ratios of two stay within what a float has.
_VALUES = (1e-9, 1e15)


@dataclass(frozen=True)
class Measurement:
    """One run: latency in µs, bandwidth in MB/s (as the OSU micro-benchmarks print them)."""

    metric: Workload
    size_B: int
    gdr: bool
    gdrcopy: bool
    value: float


def read_measurements(path: Path) -> list[Measurement]:
    """A CSV file with the columns metric, size_B, gdr, gdrcopy, value; a repetition is a further line. Raises ParseError."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            text = file.read(_MOST_TEXT + 1)
    except OSError as error:
        raise ParseError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not UTF-8 text; expected CSV with the columns {', '.join(COLUMNS)}") from error
    if len(text) > _MOST_TEXT:
        raise ParseError(f"{path}: more than {_MOST_TEXT} characters; expected CSV with the columns {', '.join(COLUMNS)}")
    return parse_measurements(text, str(path))


def parse_measurements(text: str, source: str) -> list[Measurement]:
    """The same from a text; `source` names it in errors."""
    import csv  # not for those who start a rank
    import io

    rows = csv.reader(io.StringIO(text))
    found = []
    header: list[str] | None = None
    try:
        for row in rows:
            if not row or row[0].lstrip().startswith("#"):
                continue
            cells = [cell.strip() for cell in row]
            if header is None:
                header = cells
                if sorted(header) != sorted(COLUMNS):
                    raise ParseError(f"{source}:{rows.line_num}: columns {', '.join(header)[:60]}; expected {', '.join(COLUMNS)}")
                continue
            if len(cells) != len(header):
                raise ParseError(f"{source}:{rows.line_num}: {len(cells)} fields; expected {len(header)}")
            found.append(_measurement(dict(zip(header, cells, strict=True)), f"{source}:{rows.line_num}"))
    except csv.Error as error:
        raise ParseError(f"{source}:{rows.line_num}: {error}; expected CSV") from error
    if not found:
        raise ParseError(f"{source}: no measurement; expected lines of {', '.join(COLUMNS)}")
    return found


def _measurement(cells: dict[str, str], place: str) -> Measurement:
    def fail(column: str, expected: str) -> ParseError:
        return ParseError(f"{place}: {column}: '{cells[column]}'; expected {expected}")

    switches = {"on": True, "off": False}
    if cells["metric"] not in Workload.__members__:
        raise fail("metric", "latency (in µs) or bandwidth (in MB/s)")
    for column in ("gdr", "gdrcopy"):
        if cells[column] not in switches:
            raise fail(column, "on or off")
    if not (cells["size_B"].isascii() and cells["size_B"].isdigit() and len(cells["size_B"]) <= 15):
        raise fail("size_B", "a number of bytes")
    try:
        value = float(cells["value"])
    except ValueError:
        value = -1.0
    if not _VALUES[0] <= value <= _VALUES[1]:
        raise fail("value", "a positive number, 1e-9 to 1e15")
    return Measurement(Workload(cells["metric"]), int(cells["size_B"]), switches[cells["gdr"]], switches[cells["gdrcopy"]], value)


Switches = tuple[bool, bool]
DEFAULT: Switches = (True, True)


def decide_measured(measurements: Iterable[Measurement], source: str) -> list[Decision]:
    """The best switches by metric and size, from the least measured size to the largest; outside nothing is decided.

    Neighbouring sizes with the same answer are one decision. Where the answer changes between two sizes, both answers are interpolated
    (size and value logarithmic), and the decision changes where they cross; if they were not both measured at both sizes, the sizes
    between are decided by nobody. The library's default (both on) stands unless the worst run of the best switches beats its best run.
    """
    runs: dict[tuple[Workload, int], dict[Switches, list[float]]] = {}
    for m in measurements:
        runs.setdefault((m.metric, m.size_B), {}).setdefault((m.gdr, m.gdrcopy), []).append(m.value)
    decisions: list[Decision] = []
    for metric in Workload:
        sizes = sorted(size for of, size in runs if of == metric)
        last: Decision | None = None
        for place, size in enumerate(sizes):
            switches, why = _best(metric, runs[metric, size])
            if last is not None and (last.gdr, last.gdrcopy) == switches:
                last = decisions[-1] = replace(last, last_B=size)
                continue
            first, caveat = size, ""
            if last is not None:
                before = sizes[place - 1]
                change = _crossing(before, runs[metric, before], size, runs[metric, size], (last.gdr, last.gdrcopy), switches)
                if change is not None:
                    decisions[-1] = replace(last, last_B=change)
                    first, caveat = change + 1, f"between {exact_size(before)} and {exact_size(size)} interpolated"
            last = Decision(metric, first, size, *switches, why, source, caveat)
            decisions.append(last)
    return decisions


def _median(values: Sequence[float]) -> float:
    """As `statistics.median`, whose import takes longer than starting a rank may."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _crossing(
    small: int, at_small: dict[Switches, list[float]], large: int, at_large: dict[Switches, list[float]], one: Switches, other: Switches
) -> int | None:
    """The last size at which `one` is better, if `one` is so at `small` and `other` at `large`."""
    if not all(switches in runs for switches in (one, other) for runs in (at_small, at_large)):
        return None
    here, there = (log(_median(runs[one]) / _median(runs[other])) for runs in (at_small, at_large))
    share = 0.5 if here == there else min(max(here / (here - there), 0.0), 1.0)
    return min(max(int(small * (large / max(small, 1)) ** share), small), large - 1)


def _best(metric: Workload, runs: dict[Switches, list[float]]) -> tuple[Switches, str]:
    sign = 1 if metric == Workload.bandwidth else -1  # larger is better, in these terms
    scores = {switches: [sign * value for value in values] for switches, values in runs.items()}
    best = max(sorted(scores, reverse=True), key=lambda switches: _median(scores[switches]))
    unit = "MB/s" if metric == Workload.bandwidth else "µs"
    best_text = f"{_words(best)}: {figures(sign * _median(scores[best]))} {unit}"
    if DEFAULT not in scores:
        return best, f"{best_text}; the default, both on, was not measured"
    default_text = f"both on: {figures(sign * _median(scores[DEFAULT]))} {unit}"
    if best != DEFAULT and min(scores[best]) > max(scores[DEFAULT]):
        return best, f"{best_text}, {default_text}"
    if best != DEFAULT:
        return DEFAULT, f"{default_text}; {best_text} is within its repetitions"
    return DEFAULT, best_text


def _words(switches: Switches) -> str:
    return {
        (True, True): "both on",
        (True, False): "GPUDirect RDMA alone",
        (False, True): "GDRCopy alone",
        (False, False): "both off",
    }[switches]
