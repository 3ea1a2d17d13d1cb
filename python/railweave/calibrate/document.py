"""The file of a calibration: JSON with a version, read strictly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from railweave.errors import Error
from railweave.records import dataclass

FORMAT = "railweave-calibration"
VERSION = 1
_MOST_GPUS = 64
_MOST_ROWS = 256
_MOST_BPS = 1 << 60
_MOST_BYTES = 1 << 40
_HOUR_NS = 3600 * 10**9
_MOST_TEXT = 1 << 20
_PAIR_TIMES = ("packets_ns", "granted_ns")
_BALANCED_TIMES = ("balanced_packets_ns", "balanced_granted_ns")
_TIMES = _PAIR_TIMES + _BALANCED_TIMES


class CalibrationError(Error):
    """A calibration that cannot be read or made; the text names the file, the place in it, and what was expected."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that took part."""

    name: str
    bus_id: str


@dataclass(frozen=True)
class BlockRate:
    """What kernels of at most so many blocks (the setting gpu_blocks) move: one pair alone, and all pairs with equal bytes, per GPU."""

    blocks: int
    pair_Bps: int
    balanced_Bps: int


@dataclass(frozen=True)
class SizeTime:
    """A message of so many bytes in packets and after a grant: of one pair alone, and of each pair at once.

    The latter is None in a file that was made before it was measured.
    """

    bytes: int
    packets_ns: int
    granted_ns: int
    balanced_packets_ns: int | None = None
    balanced_granted_ns: int | None = None

    def times(self) -> Iterator[tuple[int, int]]:
        """In packets and after a grant, of each kind of traffic that was measured."""
        yield self.packets_ns, self.granted_ns
        if self.balanced_packets_ns is not None and self.balanced_granted_ns is not None:
            yield self.balanced_packets_ns, self.balanced_granted_ns


@dataclass(frozen=True)
class PairRate:
    """One direction of a pair: written by a kernel, through slots, by a copy engine, and by copy engines over host memory."""

    source: int
    destination: int
    push_Bps: int
    slots_Bps: int
    copy_Bps: int
    host_Bps: int


@dataclass(frozen=True)
class Calibration:
    """GPUs by their ordinal; `launch_ns` is an operation of 8 bytes."""

    date: str
    driver: str
    gpus: tuple[Gpu, ...]
    launch_ns: int
    blocks: tuple[BlockRate, ...]
    sizes: tuple[SizeTime, ...]
    pairs: tuple[PairRate, ...]

    def text(self) -> str:
        """As a file has it; `parse` reads it."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "date": self.date,
            "driver": self.driver,
            "gpus": [{"name": gpu.name, "bus_id": gpu.bus_id} for gpu in self.gpus],
            "launch_ns": self.launch_ns,
            "blocks": [{"blocks": row.blocks, "pair_Bps": row.pair_Bps, "balanced_Bps": row.balanced_Bps} for row in self.blocks],
            "sizes": [
                {"bytes": row.bytes} | {name: time for name in _TIMES if (time := getattr(row, name)) is not None} for row in self.sizes
            ],
            "pairs": [
                {
                    "from": row.source,
                    "to": row.destination,
                    "push_Bps": row.push_Bps,
                    "slots_Bps": row.slots_Bps,
                    "copy_Bps": row.copy_Bps,
                    "host_Bps": row.host_Bps,
                }
                for row in self.pairs
            ],
        }
        return json.dumps(document, indent=1) + "\n"


def read(path: str) -> Calibration:
    """Reads a file. Raises CalibrationError."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            return parse(file.read(_MOST_TEXT + 1), path)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CalibrationError(f"{path}: not UTF-8 text; expected a calibration (railweave calibrate)") from None


def parse(text: str, source: str) -> Calibration:
    """Reads the text of a file; `source` is its name in errors. Raises CalibrationError."""
    if len(text) > _MOST_TEXT:
        raise CalibrationError(f"{source}: more than {_MOST_TEXT} characters; expected a calibration (railweave calibrate)")
    try:
        document = json.loads(text)
    except RecursionError:
        raise CalibrationError(f"{source}: nested too deep; expected a calibration (railweave calibrate)") from None
    except ValueError as error:
        raise CalibrationError(f"{source}: not JSON ({error}); expected a calibration (railweave calibrate)") from None
    return _Reader(source).calibration(document)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source

    def _fail(self, at: str, found: object, expected: str) -> CalibrationError:
        shown = json.dumps(found)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return CalibrationError(f"{self._source}: {at}: {shown}; expected {expected}")

    def _keys(self, at: str, found: object, names: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._fail(at, found, "an object")
        for name in found:
            if name not in names:
                raise self._fail(at, name, f"only {', '.join(names)}")
        for name in names:
            if name not in found:
                raise CalibrationError(f"{self._source}: {at}: no {name}; expected {', '.join(names)}")
        return found

    def _number(self, at: str, found: object, least: int, most: int) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self._fail(at, found, f"a whole number from {least} to {most}")
        return found

    def _text(self, at: str, found: object) -> str:
        if not isinstance(found, str) or len(found) > 200 or not found.isprintable():
            raise self._fail(at, found, "printable text of at most 200 characters")
        return found

    def _rows(self, at: str, found: object, least: int, most: int) -> list[Any]:
        if not isinstance(found, list) or not least <= len(found) <= most:
            raise self._fail(at, found, f"a list of {least} to {most}")
        return found

    def calibration(self, found: object) -> Calibration:
        names = ("format", "version", "date", "driver", "gpus", "launch_ns", "blocks", "sizes", "pairs")
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CalibrationError(f"{self._source}: no format {FORMAT}; expected a calibration (railweave calibrate)")
        if found.get("version") != VERSION:
            raise self._fail("version", found.get("version"), f"{VERSION}; calibrate again with this version of Railweave")
        top = self._keys("the whole", found, names)
        gpus = tuple(self._gpu(f"gpus[{i}]", row) for i, row in enumerate(self._rows("gpus", top["gpus"], 2, _MOST_GPUS)))
        blocks = tuple(self._blocks(f"blocks[{i}]", row) for i, row in enumerate(self._rows("blocks", top["blocks"], 1, _MOST_ROWS)))
        sizes = tuple(self._size(f"sizes[{i}]", row) for i, row in enumerate(self._rows("sizes", top["sizes"], 1, _MOST_ROWS)))
        count = len(gpus) * (len(gpus) - 1)
        rows = self._rows("pairs", top["pairs"], count, count)
        pairs = tuple(self._pair(f"pairs[{i}]", row, len(gpus)) for i, row in enumerate(rows))
        self._ascending("blocks", [row.blocks for row in blocks])
        self._ascending("sizes", [row.bytes for row in sizes])
        if len({(row.source, row.destination) for row in pairs}) != count:
            raise CalibrationError(f"{self._source}: pairs: one stands twice; expected each pair of GPUs once in each direction")
        return Calibration(
            self._text("date", top["date"]),
            self._text("driver", top["driver"]),
            gpus,
            self._number("launch_ns", top["launch_ns"], 1, _HOUR_NS),
            blocks,
            sizes,
            pairs,
        )

    def _ascending(self, at: str, values: list[int]) -> None:
        for before, after in itertools.pairwise(values):
            if after <= before:
                raise self._fail(at, after, f"more than {before}, which stands before it")

    def _gpu(self, at: str, found: object) -> Gpu:
        row = self._keys(at, found, ("name", "bus_id"))
        return Gpu(self._text(f"{at}.name", row["name"]), self._text(f"{at}.bus_id", row["bus_id"]))

    def _rate(self, at: str, row: dict[str, Any], name: str) -> int:
        return self._number(f"{at}.{name}", row[name], 1, _MOST_BPS)

    def _blocks(self, at: str, found: object) -> BlockRate:
        row = self._keys(at, found, ("blocks", "pair_Bps", "balanced_Bps"))
        blocks = self._number(f"{at}.blocks", row["blocks"], 1, 64)
        return BlockRate(blocks, self._rate(at, row, "pair_Bps"), self._rate(at, row, "balanced_Bps"))

    def _size(self, at: str, found: object) -> SizeTime:
        balanced = isinstance(found, dict) and any(name in found for name in _BALANCED_TIMES)
        names = _TIMES if balanced else _PAIR_TIMES
        row = self._keys(at, found, ("bytes", *names))
        size = self._number(f"{at}.bytes", row["bytes"], 1, _MOST_BYTES)
        times = (self._number(f"{at}.{name}", row[name], 1, _HOUR_NS) for name in names)
        return SizeTime(size, *times)

    def _pair(self, at: str, found: object, gpus: int) -> PairRate:
        row = self._keys(at, found, ("from", "to", "push_Bps", "slots_Bps", "copy_Bps", "host_Bps"))
        source, destination = (self._number(f"{at}.{name}", row[name], 0, gpus - 1) for name in ("from", "to"))
        if source == destination:
            raise self._fail(f"{at}.to", destination, "another GPU than from")
        rates = (self._rate(at, row, name) for name in ("push_Bps", "slots_Bps", "copy_Bps", "host_Bps"))
        return PairRate(source, destination, *rates)
