"""Sizes in bytes and numbers of things, as people write and read them."""

from __future__ import annotations

from railweave.errors import DemandError

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGTPE")
    for suffix, base in (("iB", 1024), ("B", 1000), ("", 1024))  # a bare letter is a power of two, as in nccl-tests
}


def parse_size(text: str) -> int:
    """Bytes from `16MiB`, `4096`, `1.5GB`, `64k` (a bare letter is a power of two)."""
    import re  # not for those who only write sizes

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGTPE]?(?:i?B)?)", text.strip())
    unit = match and match[2].replace("k", "K")
    if match is None or unit not in _UNITS:
        raise DemandError(f"size '{text}': expected bytes such as 4096, 64KiB, 16MiB, 1GB, with units up to E")
    is_whole = "." not in match[1] and len(match[1]) < 64  # Python reads no whole number of thousands of digits
    size: float = (int(match[1]) if is_whole else float(match[1])) * _UNITS[unit]
    if size >= 2**63:
        raise DemandError(f"size '{text}': expected less than 2^63 bytes")
    # 1.1GiB is no whole number either, and as near to one as anybody wants.
    if abs(round(size) - size) > (0 if _UNITS[unit] == 1 else size / 1000):
        raise DemandError(f"size '{text}': expected a whole number of bytes")
    return round(size)


def format_size(size: int) -> str:
    """The shortest exact form: 16777216 → 16MiB."""
    for unit, factor in (("EiB", 2**60), ("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def exact_size(size: int) -> str:
    """The same, with a unit always: 1000 → 1000B."""
    text = format_size(size)
    return f"{text}B" if text.isdigit() else text


def size_text(size: int) -> str:
    """Bytes for people, always with a unit: exact where that has up to four digits, else with one decimal."""
    exact = format_size(size)
    if not exact.isdigit() and len(exact) <= len("1023KiB"):
        return exact
    if size < 1024:
        return f"{size}B"
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}{unit}"


def figures(value: float) -> str:
    """Four figures, but all of those before the point: 0.0625, 52.73, 12000 (`:.4g` has 1.2e+04)."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `1,024 GPUs`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"
