"""What NCCL reads from the environment: which release knows which variable, integer defaults, and the syntax of device lists."""

from __future__ import annotations

import functools
import os
import re

from railweave.records import dataclass

Version = tuple[int, int, int]

_TABLE = os.path.join(os.path.dirname(__file__), "nccl_variables.tsv")  # made by scripts/nccl-variables from NCCL's release tags

# Defaults that are words (NCCL user guide, environment variables), since the release named.
_WORD_DEFAULTS: dict[str, tuple[Version, tuple[str, ...]]] = {
    "NCCL_LAUNCH_MODE": ((2, 12, 0), ("PARALLEL",)),
    "NCCL_NET_MERGE_LEVEL": ((2, 23, 4), ("PORT",)),
}
# Switches that take words as well since 2.30.3 (NCCL src/include/param/parser_default.h).
_SWITCHES = ("NCCL_PARAM_DUMP_ALL", "NCCL_SET_THREAD_NAME", "NCCL_WARN_ENABLE_DEBUG_INFO")
# Levels by number (NCCL user guide, NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL): numbers are accepted for old scripts only.
LEVELS = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}


@dataclass(frozen=True)
class Variable:
    """One variable as the table has it."""

    name: str
    first: Version  # First release that reads it; the table's first release, or older.
    last: Version | None  # Last release that reads it; None while the newest does.
    defaults: tuple[tuple[Version, int | None], ...]  # From which release on which default; None: no integer.

    def read_by(self, version: Version) -> bool:
        """Whether a release reads it."""
        return self.first <= version and (self.last is None or version <= self.last)

    @property
    def is_number(self) -> bool:
        """Whether NCCL takes nothing but numbers: some release has it with an integer default."""
        return self.name not in (*_WORD_DEFAULTS, *_SWITCHES) and any(value is not None for _, value in self.defaults)

    def default(self, version: Version) -> str | None:
        """The default in a release, as one would write it; None when unknown or 'automatic'."""
        words = _WORD_DEFAULTS.get(self.name)
        if words and version >= words[0]:
            return words[1][0]
        value = None
        for since, candidate in self.defaults:
            if since <= version:
                value = candidate
        return None if value is None or value == -2 else str(value)  # -2 is NCCL's 'not set'


@dataclass(frozen=True)
class Table:
    """All variables, and the releases that the table covers."""

    first: Version
    last: Version
    variables: dict[str, Variable]

    def close_to(self, name: str) -> str | None:
        """The variable somebody may have meant."""
        import difflib  # 10 ms that only a misspelt variable is worth

        found = difflib.get_close_matches(name, self.variables, n=1, cutoff=0.85)
        return found[0] if found else None


def number_taken(text: str) -> int | None:
    """What NCCL takes of a number's text: C's strtoll, base 0 (NCCL src/misc/param.cc). None where no number stands first."""
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return None
    digits = match[2]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if match[1] == "-" else 1)


def parse_version(text: str) -> Version | None:
    """2.28.9 of '2.28.9', '2.28.9-1', 'NCCL version 2.28.9+cuda13.0'."""
    match = re.search(r"(?<![\d.])(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def format_version(version: Version) -> str:
    """As NCCL writes it."""
    return ".".join(map(str, version))


@functools.cache
def table() -> Table:
    """The table that comes with Railweave."""
    with open(_TABLE, encoding="utf-8") as file:
        lines = file.read().splitlines()
    covered = re.match(r"# NCCL (\S+) to (\S+);", lines[0])
    assert covered is not None
    first, last = (_version(text) for text in covered.groups())
    variables = {}
    for line in lines[2:]:
        name, since, until, defaults = line.split("\t")
        changes = tuple(
            (_version(at), int(value) if value else None) for at, _, value in (word.partition("=") for word in defaults.split())
        )
        variables[name] = Variable(name, _version(since) if since else first, _version(until) if until else None, changes)
    return Table(first, last, variables)


def _version(text: str) -> Version:
    version = parse_version(text)
    assert version is not None, text
    return version


@dataclass(frozen=True)
class DeviceList:
    """NCCL_IB_HCA, NCCL_SOCKET_IFNAME: `^` excludes, then `=` makes names whole, each once for the list; else they are prefixes."""

    exclude: bool
    exact: bool
    entries: tuple[tuple[str, int | None], ...]  # Name or prefix, and the port where one was given.

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether NCCL uses a device (and port) under this list. An empty list takes everything."""
        return not self.entries or any(self._matches(entry, name, port) for entry in self.entries) != self.exclude

    def by_prefix(self, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Entries that are the whole name of one device and a mere prefix of others: the entry, and the others that it takes, too."""
        if self.exact:
            return {}
        found = {}
        for entry, _ in self.entries:
            others = tuple(name for name in names if name != entry and name.startswith(entry))
            # mlx5 or mlx5_ is a prefix on purpose; mlx5_1 beside a device mlx5_1 is a name.
            if entry in names and others:
                found[entry] = others
        return found

    def unmatched(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Entries that no device matches."""
        return tuple(entry for entry, port in self.entries if not any(self._matches((entry, None), name, port) for name in names))

    def _matches(self, entry: tuple[str, int | None], name: str, port: int | None) -> bool:
        wanted, wanted_port = entry
        fits = name == wanted if self.exact else name.startswith(wanted)
        return fits and (wanted_port is None or port is None or wanted_port == port)


def parse_devices(text: str) -> DeviceList:
    """The list as NCCL reads it (NCCL src/misc/utils.cc, src/transport/net_ib/init.cc)."""
    exclude = text.startswith("^")
    rest = text[1:] if exclude else text
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    entries = []
    for item in filter(None, rest.split(",")):
        name, colon, port = item.partition(":")
        entries.append((name, int(port) if colon and port.isdecimal() else None))
    return DeviceList(exclude, exact, tuple(entries))
