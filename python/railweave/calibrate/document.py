"""The file of a calibration: JSON with a version, read strictly."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from railweave.errors import Error
from railweave.fields import Fields
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
    return parse(_reader(path).file(_MOST_TEXT + 1), path)


def parse(text: str, source: str) -> Calibration:
    """Reads the text of a file; `source` is its name in errors. Raises CalibrationError."""
    reader = _reader(source)
    if len(text) > _MOST_TEXT:
        raise reader.none(f"more than {_MOST_TEXT} characters")
    return reader.calibration(reader.document(text, FORMAT, VERSION))


def _reader(source: str) -> _Reader:
    return _Reader(source, "a calibration (railweave calibrate)", CalibrationError)


class _Reader(Fields):
    def text(self, at: str, found: object) -> str:
        """What one line of a terminal can have."""
        if not isinstance(found, str) or len(found) > 200 or not found.isprintable():
            raise self.fail(at, found, "printable text of at most 200 characters")
        return found

    def calibration(self, found: dict[str, Any]) -> Calibration:
        names = ("format", "version", "date", "driver", "gpus", "launch_ns", "blocks", "sizes", "pairs")
        top = self.only_keys("the whole", found, names)
        gpus = tuple(self._gpu(f"gpus[{i}]", row) for i, row in enumerate(self.rows("gpus", top["gpus"], 2, _MOST_GPUS)))
        blocks = tuple(self._blocks(f"blocks[{i}]", row) for i, row in enumerate(self.rows("blocks", top["blocks"], 1, _MOST_ROWS)))
        sizes = tuple(self._size(f"sizes[{i}]", row) for i, row in enumerate(self.rows("sizes", top["sizes"], 1, _MOST_ROWS)))
        count = len(gpus) * (len(gpus) - 1)
        rows = self.rows("pairs", top["pairs"], count, count)
        pairs = tuple(self._pair(f"pairs[{i}]", row, len(gpus)) for i, row in enumerate(rows))
        self._ascending("blocks", [row.blocks for row in blocks])
        self._ascending("sizes", [row.bytes for row in sizes])
        if len({(row.source, row.destination) for row in pairs}) != count:
            raise CalibrationError(f"{self.source}: pairs: one stands twice; expected each pair of GPUs once in each direction")
        return Calibration(
            self.text("date", top["date"]),
            self.text("driver", top["driver"]),
            gpus,
            self.whole("launch_ns", top["launch_ns"], 1, _HOUR_NS),
            blocks,
            sizes,
            pairs,
        )

    def _ascending(self, at: str, values: list[int]) -> None:
        for before, after in itertools.pairwise(values):
            if after <= before:
                raise self.fail(at, after, f"more than {before}, which stands before it")

    def _gpu(self, at: str, found: object) -> Gpu:
        row = self.only_keys(at, found, ("name", "bus_id"))
        return Gpu(self.text(f"{at}.name", row["name"]), self.text(f"{at}.bus_id", row["bus_id"]))

    def _rate(self, at: str, row: dict[str, Any], name: str) -> int:
        return self.whole(f"{at}.{name}", row[name], 1, _MOST_BPS)

    def _blocks(self, at: str, found: object) -> BlockRate:
        row = self.only_keys(at, found, ("blocks", "pair_Bps", "balanced_Bps"))
        blocks = self.whole(f"{at}.blocks", row["blocks"], 1, 64)
        return BlockRate(blocks, self._rate(at, row, "pair_Bps"), self._rate(at, row, "balanced_Bps"))

    def _size(self, at: str, found: object) -> SizeTime:
        balanced = isinstance(found, dict) and any(name in found for name in _BALANCED_TIMES)
        names = _TIMES if balanced else _PAIR_TIMES
        row = self.only_keys(at, found, ("bytes", *names))
        size = self.whole(f"{at}.bytes", row["bytes"], 1, _MOST_BYTES)
        times = (self.whole(f"{at}.{name}", row[name], 1, _HOUR_NS) for name in names)
        return SizeTime(size, *times)

    def _pair(self, at: str, found: object, gpus: int) -> PairRate:
        row = self.only_keys(at, found, ("from", "to", "push_Bps", "slots_Bps", "copy_Bps", "host_Bps"))
        source, destination = (self.whole(f"{at}.{name}", row[name], 0, gpus - 1) for name in ("from", "to"))
        if source == destination:
            raise self.fail(f"{at}.to", destination, "another GPU than from")
        rates = (self._rate(at, row, name) for name in ("push_Bps", "slots_Bps", "copy_Bps", "host_Bps"))
        return PairRate(source, destination, *rates)
