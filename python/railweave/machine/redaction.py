"""Takes what identifies a machine or its owner out of a recording: names, addresses, serial numbers, secrets.

The same value always gets the same stand-in, so that what belongs together still does. A stand-in comes from value and salt;
recordings of several machines that were made with one salt can be compared (a switch seen by two of them has one name), and
without knowledge of the salt no value can be tried out.
"""

from __future__ import annotations

import hashlib
import hmac
import re

_HEX = "[0-9A-Fa-f]"
# IPv6 and GIDs, full form as sysfs writes them, and node and port GUIDs: 8 and 4 groups.
_GROUPS = re.compile(rf"(?<![0-9A-Fa-f:])(?:{_HEX}{{4}}:){{3}}(?:(?:{_HEX}{{4}}:){{4}})?{_HEX}{{4}}(?![0-9A-Fa-f:])")
# Ethernet (6 bytes), InfiniBand (20) and serial numbers as lspci writes them (8, with dashes).
_MAC = re.compile(
    rf"(?<![0-9A-Fa-f:-]){_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5}}(?:(?:[:-]{_HEX}{{2}}){{2}}|(?:[:-]{_HEX}{{2}}){{14}})?(?![0-9A-Fa-f:-])"
)
_UUID = re.compile(rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_IPV6 = re.compile(
    rf"(?<![\w:.])(?:{_HEX}{{1,4}}:){{1,6}}(?::{_HEX}{{1,4}}){{1,6}}(?![\w:.])|(?<![\w:.])(?!(?:{_HEX}{{4}}:){{7}}){_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{7}}(?![\w:.])"
)
_SECRET = re.compile(r"((?:pass(?:word|wd)?|passphrase|secret|token|api_?key|credentials?|auth)[\w.-]*=)([^\s\0\"',]+)", re.IGNORECASE)
# Boot parameters that name servers.
_SERVER = re.compile(r"\b((?:nfsroot|netroot|hostname|url)=)(\S+)")
# Boot parameters that name logical volumes, which installers name after the host (`rhel_node7/root`, `/dev/mapper/node7--vg-root`).
_VOLUME = re.compile(r"\b(rd\.lvm\.(?:lv|vg)=|(?:root|resume|cryptdevice)=(?=/dev/[^/\s]+/))(\S+)")
# hwloc's infos from the firmware tables.
_HWLOC_IDENTITY = re.compile(r"(name=\"DMI\w*(?:Serial|UUID|AssetTag)\" value=\")[^\"]*")
# NCCL topology files (of nvidia-topologyd, or named in nccl.conf): GUIDs of nets, hashes of the host's name.
_NCCL_IDENTITY = re.compile(r"(\b(?:guid|host_hash)=\"0x)([0-9a-fA-F]*[1-9a-fA-F][0-9a-fA-F]*)\"")


# Variables that name other hosts than this one, in an environment or in lines of nccl.conf: NCCL_COMM_ID, NCCL_RAS_ADDR, NCCL_HOSTID (NCCL
# user guide, environment variables), OMPI_MCA_orte_nodelist and orte_hnp_uri, MPICH_INTERFACE_HOSTNAME_R0, UCX_STATS_DEST,
# NVSHMEM_BOOTSTRAP_UID_SESSION_ID, RAILWEAVE_NODE_ID, and what other releases name alike. In an environment a value ends with the variable,
# which may have lines; elsewhere with the line.
def _variables(names: str) -> dict[bool, re.Pattern[str]]:
    """By whether the text has NULs: looking for one that is not there takes each variable to the end of the text."""
    name = r"((?:^[ \t#]*|(?<=\0))(?:NCCL|TORCH_NCCL|UCX|OMPI|MPICH|MV2|FI|NVSHMEM|RAILWEAVE)_(?:\w+_)?" + names + r"[ \t]*=)"
    ends = {True: r"([^\0]*(?=\0)|.*)", False: r"(.*)"}
    return {nuls: re.compile(name + value, re.IGNORECASE | re.MULTILINE) for nuls, value in ends.items()}


_HOSTS = _variables(
    r"(?:(?:COMM|SESSION|NODE|HOST)_?ID|HOSTS?|(?:HOST|NODE)_?(?:NAMES?|LIST)|NODE_?REGEX|URI|ADDR(?:ESS(?:ES)?|S)?|SERVERS?|STATS_DEST)"
    r"(?:_R?\d+)?"
)
# Arguments of the job's program, and variables that mpirun hands on, of whichever name: anything may stand there.
_ANYTHING = _variables(r"(?:ARGV|ENV_LIST\w*)")
# `host`, `host:port`, `tcp://host:port`, `udp:host:port` (UCX_STATS_DEST), `[IPv6]:port`.
_LABEL = r"\w(?:[\w-]*\w)?"
_END = re.compile(rf"((?:[A-Za-z][\w+.-]*://|udp:)?)(?:\[([^\[\]]*)\]|({_LABEL}(?:\.{_LABEL})*))((?::\d+)?)")
_SERIAL = re.compile(r"((?:serial(?:[ _]?(?:number|no))?|chassis_serial|board_serial)\"?\s*[:=]\s*\"?)([^\s\",]+)", re.IGNORECASE)

# Extended capability of the configuration space that holds a device's serial number, and the bytes of the number in it.
_DEVICE_SERIAL_NUMBER = 0x0003


class Redactor:
    """Replaces; `names` are the host's own, and others (switches) that stand in the recording."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._names: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    @property
    def fingerprint(self) -> str:
        """Tells recordings that were made with one salt from others, and not the salt."""
        return self._digest("railweave", 4).hex()

    def add_name(self, name: str, kind: str) -> None:
        """A name that is to be replaced wherever it stands as a word, as is the first label of a domain name."""
        for word in {name.strip(), name.strip().split(".")[0]}:
            if len(word) < 2 or word in {"localhost", "(none)"} or word.isdigit():
                continue
            self._names[word] = self._name(word, kind)
        words = sorted(self._names, key=lambda word: (-len(word), word))
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words))})(?![\w-])") if words else None

    def text(self, text: str) -> str:
        """The text with stand-ins."""
        # First, because a stand-in for an address, taken for a host, would get another stand-in.
        nuls = "\0" in text
        text = _ANYTHING[nuls].sub(lambda found: found[1] + "removed", text)
        text = _HOSTS[nuls].sub(lambda found: found[1] + self._hosts(found[2]), text)
        text = _SECRET.sub(lambda found: found[1] + "removed", text)
        text = _SERVER.sub(lambda found: found[1] + "removed", text)
        text = _VOLUME.sub(lambda found: found[1] + "removed", text)
        text = _HWLOC_IDENTITY.sub(lambda found: found[1] + "removed", text)
        text = _NCCL_IDENTITY.sub(lambda found: f'{found[1]}{self._digest(found[2], 8).hex()}"', text)
        text = _SERIAL.sub(lambda found: found[1] + "removed", text)
        text = _UUID.sub(lambda found: self._uuid(found[0]), text)
        text = _GROUPS.sub(lambda found: self._groups(found[0]), text)
        text = _MAC.sub(lambda found: self._mac(found[0]), text)
        text = _IPV6.sub(lambda found: self._ipv6(found[0]), text)
        text = _IPV4.sub(lambda found: self._ipv4(found[0]), text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._names[found[0]], text)
        return text

    def content(self, path: str, content: bytes) -> bytes:
        """A file's content with stand-ins. Of what is read only configuration spaces are binary, in which a device's serial number alone is
        replaced; elsewhere bytes that are not UTF-8 (Latin-1 in a comment) stay, and the rest of their file is no less telling."""
        if path.startswith("/sys/") and path.endswith("/config"):
            return without_serial_number(content)
        return self.text(content.decode("utf-8", errors="surrogateescape")).encode("utf-8", errors="surrogateescape")

    def _name(self, name: str, kind: str) -> str:
        """By the first label, so that a host with and without its domain is one."""
        return f"{kind}-{self._digest(name.split('.')[0], 3).hex()}"

    def _hosts(self, value: str) -> str:
        """A list of hosts with stand-ins for their names; addresses are left to what replaces them everywhere. A value of another form
        (`node[17-20]`) gets one stand-in as a whole: what cannot be taken apart cannot be shown in part."""
        parts = re.split(r"([\s,;]+)", value)
        told = [part if place % 2 or not part else self._end(part) for place, part in enumerate(parts)]
        known = [part for part in told if part is not None]
        return "".join(known) if len(known) == len(told) else f"hosts-{self._digest(value.strip(), 3).hex()}"

    def _end(self, text: str) -> str | None:
        """One host of a list, with a port or without; None for what is none."""
        if _is_ipv6(text):
            return text
        found = _END.fullmatch(text)
        if found is None:
            return None
        scheme, bracketed, name, port = found.groups()
        if bracketed is not None:
            return text if _is_ipv6(bracketed.split("%")[0]) else None
        # Digits are an address, a rank, or the number of a job (OMPI_MCA_orte_hnp_uri).
        if set(name) <= set("0123456789.") or name == "localhost":
            return text
        return f"{scheme}{self._names.get(name) or self._name(name, 'host')}{port}"

    def _digest(self, value: str, size: int) -> bytes:
        return hmac.new(self._salt, value.lower().encode("utf-8", errors="surrogateescape"), hashlib.sha256).digest()[:size]

    def _uuid(self, value: str) -> str:
        digits = self._digest(value, 16).hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"

    def _groups(self, value: str) -> str:
        """Keeps what tells kinds of GIDs apart: zero ones, the link-local prefix, an IPv4 address at the end."""
        groups = value.split(":")
        own = groups[-4:]
        if set("".join(own)) <= {"0"}:
            return value
        if groups[:5] == ["0000"] * 5 and groups[5].lower() == "ffff":
            digits = self._digest(":".join(groups[-2:]), 4).hex()
            return ":".join([*groups[:6], digits[:4], digits[4:]])
        digits = self._digest(":".join(own), 8).hex()
        prefix = groups[:-4]
        if prefix and prefix[0].lower() not in {"fe80", "0000"}:
            longer = self._digest(":".join(prefix), 6).hex()
            prefix = ["fd00", longer[:4], longer[4:8], longer[8:]]
        return ":".join([*prefix, *(digits[i : i + 4] for i in range(0, 16, 4))])

    def _mac(self, value: str) -> str:
        separator = value[2]
        octets = value.split(separator)
        if set(value) <= {"0", separator} or set(value.lower()) <= {"f", separator}:
            return value
        # 02: a locally administered address, which no vendor gives out.
        stand_in = self._digest(value, len(octets))
        return separator.join(["02", *(f"{octet:02x}" for octet in stand_in[1:])])

    def _ipv4(self, value: str) -> str:
        octets = [int(octet) for octet in value.split(".")]
        if max(octets) > 255 or octets[0] in {0, 127, 255}:
            return value
        return "10." + ".".join(str(octet) for octet in self._digest(value, 3))

    def _ipv6(self, value: str) -> str:
        if ":" not in value.replace("::", "", 1) and value in {"::", "::1"}:
            return value
        digits = self._digest(value, 8).hex()
        prefix = "fe80::" if value.lower().startswith("fe80") else "fd00::"
        return prefix + ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def _is_ipv6(text: str) -> bool:
    return text in {"::", "::1"} or any(form.fullmatch(text) for form in (_IPV6, _GROUPS))


def without_serial_number(config: bytes) -> bytes:
    """A PCI configuration space with the number of its serial number capability zeroed."""
    from railweave.machine.pci_config import extended_capability

    offset = extended_capability(config, _DEVICE_SERIAL_NUMBER)
    if offset is None or offset + 12 > len(config):
        return config
    return config[: offset + 4] + bytes(8) + config[offset + 12 :]
