"""Traffic matrices: who sends how many bytes to whom. Rows send, columns receive; the file format is nccl-tests'.

Each generator makes a uint64 array of shape [ranks, ranks], bytes, zero on the diagonal but for `all-to-all`. They are named on the
command line as `NAME:ARGUMENT:…`; equal arguments give equal matrices, whatever the machine.
"""

from __future__ import annotations

import codecs
import dataclasses
import importlib.resources
import io
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from railweave.errors import DemandError, ParseError
from railweave.size import counted, parse_size

Matrix = npt.NDArray[np.uint64]

MOST_RANKS = 16_384  # what the reader of matrix files takes, too
_ENTRY_BYTES = 64  # of a file, with room for separators and comments
_MOST_RECORDING_BYTES = 1 << 28
_MOE_CHOICES = 1 << 26  # memory: 8 bytes each, several times over


def balanced(ranks: int, size: int) -> Matrix:
    """Every rank sends `size` bytes to every other one."""
    return between_ranks(all_to_all(ranks, size))


def all_to_all(ranks: int, size: int) -> Matrix:
    """Every rank sends `size` bytes to every one, itself too, as programs' all-to-all calls do."""
    return np.full((ranks, ranks), size, dtype=np.uint64)


def between_ranks(matrix: Matrix) -> Matrix:
    """Without what ranks send themselves, which crosses no link."""
    between = matrix.copy()
    np.fill_diagonal(between, 0)
    return between


def hot_pair(ranks: int, size: int, background: int = 0) -> Matrix:
    """The first rank sends `size` bytes to the first rank of the second half; all others `background` bytes to each."""
    _at_least(ranks, 2)
    matrix = balanced(ranks, background)
    matrix[0, ranks // 2] = size
    return matrix


def bidir_pair(ranks: int, size: int, background: int = 0) -> Matrix:
    """Like a hot pair, both ways."""
    matrix = hot_pair(ranks, size, background)
    matrix[ranks // 2, 0] = size
    return matrix


def incast(ranks: int, size: int) -> Matrix:
    """Every rank of the first half sends `size` bytes to the first rank of the second half."""
    _at_least(ranks, 2)
    matrix = np.zeros((ranks, ranks), dtype=np.uint64)
    matrix[: ranks // 2, ranks // 2] = size
    return matrix


def outcast(ranks: int, size: int) -> Matrix:
    """The first rank sends `size` bytes to every rank of the second half."""
    _at_least(ranks, 2)
    matrix = np.zeros((ranks, ranks), dtype=np.uint64)
    matrix[0, ranks // 2 :] = size
    return matrix


def zipf(ranks: int, size: int, s: float, seed: int = 0) -> Matrix:
    """Every rank sends `size` bytes in all; destinations, in an order all ranks share, get shares ∝ 1/place^s (popular experts)."""
    _at_least(ranks, 2)
    order = np.random.default_rng(seed).permutation(ranks)
    weights = np.empty(ranks)
    weights[order] = 1.0 / np.arange(1, ranks + 1) ** s
    matrix = np.zeros((ranks, ranks), dtype=np.uint64)
    for source in range(ranks):
        share = np.where(np.arange(ranks) == source, 0.0, weights)
        matrix[source] = _split(size, share)
    return matrix


def moe(ranks: int, tokens: int, hidden: int, experts: int, topk: int, skew: float, seed: int = 0) -> Matrix:
    """What an expert-parallel dispatch sends: `tokens` a rank, each to the ranks of its `topk` experts, two bytes a hidden element.

    Experts' popularity is ∝ 1/place^skew; a token goes once to a rank, however many of its experts are there.
    """
    _at_least(ranks, 2)
    if experts % ranks:
        raise DemandError(f"moe: {experts} experts on {ranks} ranks; expected a multiple of the ranks")
    if not 1 <= topk <= experts:
        raise DemandError(f"moe: top {topk} of {experts} experts; expected 1 to {experts}")
    if tokens * experts > _MOE_CHOICES:
        raise DemandError(f"moe: {tokens} tokens × {experts} experts; expected at most {_MOE_CHOICES} choices a rank")
    random = np.random.default_rng(seed)
    popularity = np.empty(experts)
    popularity[random.permutation(experts)] = 1.0 / np.arange(1, experts + 1) ** skew
    matrix = np.zeros((ranks, ranks), dtype=np.uint64)
    for source in range(ranks):
        # Gumbel noise on log popularity and the topk largest: sampling without replacement
        keys = np.log(popularity) + random.gumbel(size=(tokens, experts))
        chosen = np.argpartition(-keys, topk - 1, axis=1)[:, :topk]
        homes = np.zeros((tokens, ranks), dtype=bool)
        np.put_along_axis(homes, chosen // (experts // ranks), values=True, axis=1)
        matrix[source] = _times(homes.sum(axis=0, dtype=np.uint64), 2 * hidden)
    np.fill_diagonal(matrix, 0)
    return matrix


def trace(ranks: int, file: str, step: int, layer: int, size: int) -> Matrix:
    """Recorded routing of a real model, BYTES a token copy; FILE is noaux, aux (without, with balance loss) or PATH.npz[#aux]."""
    counts = _recording(file)
    records, layers, shards, experts = counts.shape
    for value, count, what in ((step, records, "record"), (layer, layers, "layer")):
        if not 0 <= value < count:
            raise DemandError(f"trace {file}: no {what} {value}; it has {count}, counted from 0")
    if ranks < 2 or experts % ranks:
        raise DemandError(f"trace {file}: {experts} experts on {ranks} ranks; expected 2 ranks or more that divide the experts")
    homes = counts[step, layer].astype(np.uint64).reshape(shards, ranks, experts // ranks).sum(axis=2)
    # Fewer ranks than recorded shards carry several each; more ranks share the shards' load evenly.
    if shards % ranks == 0:
        sent = homes.reshape(ranks, shards // ranks, ranks).sum(axis=1)
    elif ranks % shards == 0:
        parts = ranks // shards
        sent = np.stack([homes[r // parts] // parts + (r % parts < homes[r // parts] % parts) for r in range(ranks)])
    else:
        raise DemandError(f"trace {file}: {shards} recorded shards on {ranks} ranks; expected one number to divide the other")
    matrix = _times(sent.astype(np.uint64), size)
    np.fill_diagonal(matrix, 0)
    return matrix


def rotating_hotspot(ranks: int, size: int) -> Matrix:
    """Each rank sends `size` bytes to the rank half the world further on and an eighth of it to the one after that."""
    _at_least(ranks, 2)
    matrix = np.zeros((ranks, ranks), dtype=np.uint64)
    for source in range(ranks):
        matrix[source, (source + ranks // 2) % ranks] += np.uint64(size)
        matrix[source, (source + ranks // 2 + 1) % ranks] += np.uint64(size // 8)
    np.fill_diagonal(matrix, 0)
    return matrix


def random(ranks: int, size: int, seed: int) -> Matrix:
    """Each pair gets between 0 and `size` bytes."""
    matrix = np.random.default_rng(seed).integers(0, size, (ranks, ranks), dtype=np.uint64, endpoint=True)
    np.fill_diagonal(matrix, 0)
    return matrix


@dataclasses.dataclass(frozen=True)
class Generator:
    """A generator's name, its arguments (a trailing `?` marks an optional one) and the function."""

    name: str
    arguments: tuple[tuple[str, Callable[[str], Any]], ...]
    optional: int
    make: Callable[..., Matrix]

    @property
    def usage(self) -> str:
        """As people write it: `hot-pair:SIZE[:BACKGROUND]`."""
        required = len(self.arguments) - self.optional
        text = self.name
        for position, (argument, _) in enumerate(self.arguments):
            text += f":{argument}" if position < required else f"[:{argument}]"
        return text

    @property
    def help(self) -> str:
        """First sentence of the function's documentation."""
        return (self.make.__doc__ or "").strip().split("\n")[0]


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise DemandError(f"'{text}': expected a whole number")
    return int(text)


def _exponent(text: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text) or float(text) > 20:
        raise DemandError(f"'{text}': expected a number from 0 to 20, such as 1.2")
    return float(text)


_SIZE, _SEED = ("SIZE", parse_size), ("SEED", _count)

GENERATORS = {
    generator.name: generator
    for generator in (
        Generator("balanced", (_SIZE,), 0, balanced),
        Generator("all-to-all", (_SIZE,), 0, all_to_all),
        Generator("hot-pair", (_SIZE, ("BACKGROUND", parse_size)), 1, hot_pair),
        Generator("bidir-pair", (_SIZE, ("BACKGROUND", parse_size)), 1, bidir_pair),
        Generator("incast", (_SIZE,), 0, incast),
        Generator("outcast", (_SIZE,), 0, outcast),
        Generator("zipf", (_SIZE, ("S", _exponent), _SEED), 1, zipf),
        Generator(
            "moe",
            (("TOKENS", _count), ("HIDDEN", _count), ("EXPERTS", _count), ("TOPK", _count), ("SKEW", _exponent), _SEED),
            1,
            moe,
        ),
        Generator("trace", (("FILE", str), ("STEP", _count), ("LAYER", _count), ("BYTES", parse_size)), 0, trace),
        Generator("rotating-hotspot", (_SIZE,), 0, rotating_hotspot),
        Generator("random", (_SIZE, _SEED), 0, random),
    )
}


def generate(text: str, ranks: int) -> Matrix:
    """The matrix that `NAME:ARGUMENT:…` stands for. Raises DemandError saying which argument is wrong."""
    name, *given = text.split(":")
    generator = GENERATORS.get(name)
    if generator is None:
        raise DemandError(f"matrix '{text}': no generator '{name}' and no such file; generators are {', '.join(GENERATORS)}")
    least, most = len(generator.arguments) - generator.optional, len(generator.arguments)
    if not least <= len(given) <= most:
        raise DemandError(f"matrix '{text}': expected {generator.usage}")
    if not 1 <= ranks <= MOST_RANKS:
        raise DemandError(f"matrix '{text}' for {ranks} ranks: expected 1 to {MOST_RANKS}")
    values = []
    for (argument, convert), value in zip(generator.arguments, given, strict=False):
        try:
            values.append(convert(value))
        except DemandError as error:
            raise DemandError(f"matrix '{text}', {argument}: {error}") from error
    matrix = generator.make(ranks, *values)
    if float(matrix.astype(np.float64).sum()) >= 2.0**63:
        raise DemandError(f"matrix '{text}': {ranks} ranks send 2^63 bytes or more in all; expected less")
    return matrix


def load(text: str, ranks: int) -> Matrix:
    """A matrix from a generator's name or from a file (or pipe) in nccl-tests' format. It must fit the number of ranks."""
    if text.split(":")[0] in GENERATORS:
        return generate(text, ranks)
    from railweave._native import parse_demand

    most = ranks * ranks * _ENTRY_BYTES + (1 << 20)  # or /dev/zero would fill the memory
    try:
        with Path(text).open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError) and "/" not in text:
            return generate(text, ranks)  # says which generators there are
        reason = error.strerror if isinstance(error, OSError) else error
        raise ParseError(f"matrix '{text}': cannot be read: {reason}; expected a matrix file, or a generator") from error
    if len(content) > most:
        raise ParseError(f"{text}: more than {most} bytes; expected a matrix of {ranks} ranks")
    shown = text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8 either
    matrix: Matrix = parse_demand(content.removeprefix(codecs.BOM_UTF8).decode(errors="backslashreplace"), shown).to_numpy()
    if len(matrix) != ranks:
        raise DemandError(f"{text}: a matrix of {len(matrix)} ranks; expected {ranks}")
    return matrix


def write(matrix: Matrix) -> str:
    """The matrix in nccl-tests' format: one row a line, bytes separated by spaces."""
    return "".join(" ".join(map(str, row)) + "\n" for row in map(np.ndarray.tolist, matrix))


def _recording(file: str) -> npt.NDArray[np.uint16]:
    """Token copies [record, layer, shard, expert] of the run without (noaux) or with (aux) a balance loss."""
    try:
        if file in ("noaux", "aux"):
            run, data = file, importlib.resources.files("railweave").joinpath("data/moe_trace.npz").read_bytes()
        else:
            path, _, run = file.partition("#")
            with Path(path).open("rb") as archive:
                run, data = run or "noaux", archive.read(_MOST_RECORDING_BYTES + 1)
        if len(data) > _MOST_RECORDING_BYTES:
            raise ValueError(f"more than {_MOST_RECORDING_BYTES} bytes")
        if not data.startswith(b"PK"):  # NumPy would read other forms, too
            raise ValueError("not an .npz file")
        counts: npt.NDArray[np.uint16] = np.load(io.BytesIO(data), allow_pickle=False)[f"{run}_counts"]
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise DemandError(f"trace '{file}': {reason}; expected noaux, aux, or an .npz with an array noaux_counts") from error
    if counts.ndim == 4 and counts.dtype.kind == "i" and counts.min(initial=0) < 0:
        raise DemandError(f"trace '{file}': a count of {counts.min()}; expected counts from 0 on")
    if counts.ndim != 4 or counts.dtype.kind not in "ui":
        raise DemandError(f"trace '{file}': expected whole numbers of shape [record, layer, shard, expert], found {counts.shape}")
    return counts


def _split(total: int, shares: npt.NDArray[np.float64]) -> Matrix:
    """Whole bytes in these proportions that add up to the total (largest remainders get the odd bytes)."""
    exact = shares / shares.sum() * total
    whole: Matrix = np.floor(exact).astype(np.uint64)
    missing = total - int(whole.sum())
    if 0 <= missing <= len(shares):
        whole[np.argsort(-(exact - np.floor(exact)), kind="stable")[:missing]] += np.uint64(1)
    else:  # beyond 2^53 bytes, where floating point counts in steps of more than one
        largest = int(np.argmax(exact))
        whole[largest] = int(whole[largest]) + missing
    return whole


def _times(counts: Matrix, size: int) -> Matrix:
    if int(counts.max(initial=0)) * size >= 2**63:
        raise DemandError(f"{int(counts.max())} × {size} bytes from one rank to another; expected less than 2^63")
    return counts * np.uint64(size)


def _at_least(ranks: int, least: int) -> None:
    if ranks < least:
        raise DemandError(f"{counted(ranks, 'rank')}; this matrix needs at least {least}")
