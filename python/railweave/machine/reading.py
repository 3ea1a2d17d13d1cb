"""From a source's files to facts: each function reads one thing and says why when it cannot."""

from __future__ import annotations

from railweave.machine.facts import Fact, Known, Unknown
from railweave.machine.source import CommandOutput, Reason, Source, Unreadable

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    T = TypeVar("T")


class NotGiven(ValueError):  # noqa: N818 - named for what it says
    """A file that says nothing: `Unknown`, -1, an empty text."""


def attempt(path: str, read: Callable[[], T]) -> Fact[T]:
    """What `read` gives; `path` is its evidence. `NotGiven` and other ValueErrors of it say what was found."""
    try:
        return Known(read(), path)
    except (Unreadable, ValueError, LookupError, OverflowError) as error:
        return _unknown(path, error)


def _unknown(path: str, error: Exception) -> Unknown:
    if isinstance(error, Unreadable):
        return Unknown(error.reason, error.path, error.detail)
    if isinstance(error, NotGiven):
        return Unknown(Reason.not_given, path, str(error))
    return Unknown(Reason.error, path, f"not understood: {error}"[:200])


def text_fact(source: Source, path: str) -> Fact[str]:
    """A file's text, not empty."""

    def read() -> str:
        text = source.read_text(path).strip().strip("\0")
        if not text:
            raise NotGiven("empty")
        return text

    return attempt(path, read)


def parsed(source: Source, path: str, parse: Callable[[str], T]) -> Fact[T]:
    """A file's text, parsed."""
    try:  # as `attempt` does, without a function more for each of thousands of files
        return Known(parse(source.read_text(path).strip()), path)
    except (Unreadable, ValueError, LookupError, OverflowError) as error:
        return _unknown(path, error)


def integer(source: Source, path: str) -> Fact[int]:
    """A number in any of C's notations."""
    return parsed(source, path, _any_base)


def _any_base(text: str) -> int:
    return int(text, 0)


def or_none(fact: Fact[T]) -> Fact[T | None]:
    """Absence as an answer: for files that exist only where the thing exists."""
    if isinstance(fact, Unknown) and fact.reason is Reason.absent:
        return Known(None, f"{fact.path}: absent")
    return fact


def or_else(fact: Fact[T], value: T) -> Fact[T]:
    """The value that absence means."""
    if isinstance(fact, Unknown) and fact.reason is Reason.absent:
        return Known(value, f"{fact.path}: absent")
    return fact


def link_name(source: Source, path: str) -> Fact[str]:
    """Last part of a link's target: the driver, the IOMMU group, the bond."""
    return attempt(path, lambda: source.readlink(path).rsplit("/", 1)[-1])


def folder(source: Source, path: str) -> tuple[str, ...]:
    """Names in a folder, none where it cannot be listed."""
    try:
        return source.listdir(path)
    except Unreadable:
        return ()


def ran(source: Source, argv: Sequence[str]) -> CommandOutput:
    """A program's output if its exit status is 0; raises `Unreadable` with what it wrote otherwise."""
    output = source.command(argv)
    if output.returncode != 0:
        words = (output.stderr or output.stdout).strip().splitlines()
        raise Unreadable(" ".join(argv), Reason.error, f"exit status {output.returncode}{f': {words[-1][:120]}' if words else ''}")
    return output


MASK_CPUS = 65_536
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_WORD_DIGITS = 256


def cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,8` as numbers, as the kernel writes lists of CPUs, nodes and processors. Raises ValueError."""
    if text.isascii() and text.isdigit() and int(text) < MASK_CPUS:  # as most of thousands are
        return (int(text),)
    found = _lists.get(text)
    if found is None:
        if len(_lists) >= _LISTS:
            _lists.clear()
        found = _lists[text] = _parsed_list(text)
    return found


_LISTS = 256
_lists: dict[str, tuple[int, ...]] = {}  # hundreds of CPUs and devices have one of a few lists


def _parsed_list(text: str) -> tuple[int, ...]:
    numbers: set[int] = set()
    for part in text.replace("\n", "").split(","):
        if not part.strip():
            continue
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < MASK_CPUS:
            raise ValueError(f"{part.strip()!r} in a list of CPUs")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def decimal_before(text: str, unit: str) -> float | None:
    """The number that stands in front of the first such unit and at the beginning: `32.0 GT/s PCIe`."""
    number, found, _ = text.partition(unit)
    whole, point, part = number.partition(".")
    digits = (whole, part) if point else (whole,)
    return float(number) if found and all(word.isascii() and word.isdigit() for word in digits) else None


def is_hex(text: str, most: int, least: int = 1) -> bool:
    """Hexadecimal digits and nothing else, so many. Without `re`, which takes longer to import than a machine's wiring to read."""
    return least <= len(text) <= most and _HEX_DIGITS.issuperset(text)


def cpu_mask(text: str) -> tuple[int, ...]:
    """`ff,00000000` (also `0x000000ff,,0x0`, as hwloc writes) as numbers. hwloc's infinite sets, `0xf...f`, are no mask of CPUs. Raises
    ValueError."""
    words = [word.strip().removeprefix("0x") or "0" for word in text.split(",")]
    if len(words) * 32 > MASK_CPUS or not all(is_hex(word, _WORD_DIGITS) for word in words) or any(len(word) > 8 for word in words[1:]):
        raise ValueError(f"{text[:40]!r} in a CPU mask")
    bits = int("".join([words[0], *(word.rjust(8, "0") for word in words[1:])]), 16)
    return tuple(number for number in range(bits.bit_length()) if bits >> number & 1)


def ranges(cpus: Sequence[int]) -> str:
    """The reverse of `cpu_list`: `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
