"""The PCI configuration space: finds capabilities and decodes the registers that say how peer traffic may flow.

Offsets and bits: PCI Express Base Specification 6.0, chapter 7; names as in Linux `include/uapi/linux/pci_regs.h`.
"""

from __future__ import annotations

import struct

from railweave.records import dataclass

CAPABILITY_EXPRESS = 0x10
EXTENDED_AER, EXTENDED_ACS, EXTENDED_ATS = 0x0001, 0x000D, 0x000F
EXTENDED_SPACE = 0x100

# Bits of the ACS capability and control registers.
ACS_BITS = {
    "SrcValid": 0x01,
    "TransBlk": 0x02,
    "ReqRedir": 0x04,
    "CmpltRedir": 0x08,
    "UpstreamFwd": 0x10,
    "EgressCtrl": 0x20,
    "DirectTrans": 0x40,
}
EXPRESS_TYPES = {
    0: "endpoint",
    1: "legacy endpoint",
    4: "root port",
    5: "upstream port",
    6: "downstream port",
    7: "bridge",
    9: "integrated endpoint",
}
_SPEEDS_GTPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


@dataclass(frozen=True)
class Acs:
    """Access Control Services of a port: names of the bits that it can do, and of those that are on; `offset` of the control register."""

    can: frozenset[str]
    on: frozenset[str]
    offset: int


@dataclass(frozen=True)
class Ats:
    """Address Translation Services of an endpoint; `offset` of the control register."""

    enabled: bool
    offset: int


@dataclass(frozen=True)
class Express:
    """The PCI Express capability: kind of port, and what its link can do at most."""

    type: str
    speed_max_GTps: float | None
    width_max: int
    slot: bool
    offset: int


def _u16(config: bytes, offset: int) -> int:
    return int(struct.unpack_from("<H", config, offset)[0])


def _u32(config: bytes, offset: int) -> int:
    return int(struct.unpack_from("<I", config, offset)[0])


def capability(config: bytes, wanted: int) -> int | None:
    """Offset of a capability in the first 256 bytes, or None. Lists that turn in circles or point out of the space just end."""
    if len(config) < 256 or not _u16(config, 0x06) & 0x10:
        return None
    at, seen = config[0x34] & 0xFC, set[int]()
    while at >= 0x40 and at not in seen:
        seen.add(at)
        if config[at] == wanted:
            return at
        at = config[at + 1] & 0xFC
    return None


def extended_capability(config: bytes, wanted: int) -> int | None:
    """Offset of an extended capability, or None; needs more than 256 bytes, which only root may read."""
    at, seen = EXTENDED_SPACE, set[int]()
    while EXTENDED_SPACE <= at <= len(config) - 4 and at not in seen:
        seen.add(at)
        header = _u32(config, at)
        if header in {0, 0xFFFFFFFF}:
            return None
        if header & 0xFFFF == wanted:
            return at
        at = (header >> 20) & 0xFFC
    return None


def has_extended_space(config: bytes) -> bool:
    """Whether the extended capabilities were readable, so that their absence means something."""
    return len(config) >= 4096


def acs(config: bytes) -> Acs | None:
    """Access control of a port; None where it has none."""
    at = extended_capability(config, EXTENDED_ACS)
    if at is None or at + 8 > len(config):
        return None
    can, on = _u16(config, at + 4), _u16(config, at + 6)
    names = [frozenset(name for name, bit in ACS_BITS.items() if register & bit) for register in (can, on)]
    return Acs(names[0], names[1], at + 6)


def ats(config: bytes) -> Ats | None:
    """Address translation of an endpoint; None where it has none."""
    at = extended_capability(config, EXTENDED_ATS)
    if at is None or at + 8 > len(config):
        return None
    return Ats(bool(_u16(config, at + 6) & 0x8000), at + 6)


def express(config: bytes) -> Express | None:
    """The PCI Express capability; None for a conventional device."""
    at = capability(config, CAPABILITY_EXPRESS)
    if at is None or at + 0x10 > 256:
        return None
    flags, link = _u16(config, at + 2), _u32(config, at + 0x0C)
    kind = EXPRESS_TYPES.get((flags >> 4) & 0xF, "other")
    return Express(kind, _SPEEDS_GTPS.get(link & 0xF), (link >> 4) & 0x3F, bool(flags & 0x100), at)
