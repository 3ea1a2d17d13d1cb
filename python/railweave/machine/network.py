"""Network ports from sysfs, and what switches and quality-of-service tools say about them."""

from __future__ import annotations

from railweave.machine.facts import Fact, Gid, Known, LldpNeighbour, Nic, Unknown, known
from railweave.machine.pci import last_address
from railweave.machine.reading import (
    NotGiven,
    attempt,
    decimal_before,
    folder,
    integer,
    link_name,
    or_else,
    or_none,
    parsed,
    ran,
    text_fact,
)
from railweave.machine.source import Reason, Source, Unreadable
from railweave.records import dataclass, replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

RDMA = "/sys/class/infiniband"
NETDEVS = "/sys/class/net"
# Tables have 256 entries, most of them empty; the addresses in use are the first.
_GIDS = 16
_EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_STATISTICS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors")
_PRIORITIES = range(8)
LLDP = ("lldpcli", "-f", "json", "show", "neighbors")


@dataclass(frozen=True)
class _Netdev:
    name: str
    bus_id: str
    subfunction: str | None
    port: int
    """Of the device, from 1."""


def read_nics(source: Source) -> Fact[tuple[Nic, ...]]:
    """RDMA ports, then netdevices on the PCI bus that are no RDMA device's, with all that is known of them."""
    ports = read_ports(source)
    if isinstance(ports, Unknown):
        return ports
    in_full = (_rdma_nic(source, port) if known(port.rdma) else _ethernet_nic(source, port) for port in ports.value)
    return Known(tuple(in_full), ports.evidence)


def read_ports(source: Source) -> Fact[tuple[Nic, ...]]:
    """The same ports: where they are, their rate and state."""
    try:
        names = source.listdir(NETDEVS)
    except Unreadable as error:
        return Unknown(error.reason, error.path, error.detail)
    netdevs = [netdev for name in names if (netdev := _netdev(source, name)) is not None]
    found: list[Nic] = []
    claimed: set[str] = set()
    devices = or_else(attempt(RDMA, lambda: source.listdir(RDMA)), ())
    if isinstance(devices, Unknown):
        return devices
    for device in devices.value:
        place = _place(source, f"{RDMA}/{device}")
        at = tuple(map(known, place))
        ports = _port_numbers(source, device)
        for port in ports:
            own = tuple(n.name for n in netdevs if (n.bus_id, n.subfunction) == at and (len(ports) == 1 or n.port == port))
            claimed.update(own)
            found.append(_rdma_port(source, device, port, place, own))
    found += [_ethernet_port(source, netdev) for netdev in netdevs if netdev.name not in claimed]
    return Known(tuple(found), f"{RDMA}, {NETDEVS}")


def _port_numbers(source: Source, device: str) -> list[int]:
    """From 1. A device that went away, or whose ports a cut recording lacks, stays: its first port, of which nothing is known."""
    try:
        return sorted(int(port) for port in source.listdir(f"{RDMA}/{device}/ports") if port.isdigit())
    except Unreadable:
        return [1]


def _place(source: Source, path: str) -> tuple[Fact[str | None], Fact[str | None]]:
    """The PCI function that a device hangs from, and the sub-function between both."""
    target = attempt(path, lambda: source.readlink(path))
    if isinstance(target, Unknown):
        return target, target
    return Known(last_address(target.value), path), Known(_subfunction(target.value), path)


def _subfunction(target: str) -> str | None:
    """`mlx5_core.sf.4` of such a path: auxiliary devices are called DRIVER.KIND.NUMBER (Linux driver-api/auxiliary_bus)."""
    return next((part for part in target.split("/") if ".sf." in part), None)


def _netdev(source: Source, name: str) -> _Netdev | None:
    bus_id, subfunction = _place(source, f"{NETDEVS}/{name}")
    if isinstance(bus_id, Unknown) or bus_id.value is None:
        return None
    port_name = text_fact(source, f"{NETDEVS}/{name}/phys_port_name")
    if isinstance(port_name, Known) and _is_representor(port_name.value):
        return None
    port = integer(source, f"{NETDEVS}/{name}/dev_port")
    return _Netdev(name, bus_id.value, known(subfunction), port.value + 1 if isinstance(port, Known) else 1)


def _rdma_port(source: Source, device: str, port: int, place: tuple[Fact[str | None], Fact[str | None]], netdevs: tuple[str, ...]) -> Nic:
    at = f"{RDMA}/{device}/ports/{port}"
    return Nic(
        name=device,
        port=port,
        bus_id=place[0],
        subfunction=place[1],
        rdma=Known(device, f"{RDMA}/{device}"),
        netdevs=Known(netdevs, f"{NETDEVS}/*"),
        link_layer=text_fact(source, f"{at}/link_layer"),
        rate_bps=parsed(source, f"{at}/rate", _rate),
        state=parsed(source, f"{at}/state", _state),
    )


def _rdma_nic(source: Source, nic: Nic) -> Nic:
    at = f"{RDMA}/{nic.name}"
    port_at = f"{at}/ports/{nic.port}"
    netdevs = known(nic.netdevs) or ()
    netdev = netdevs[0] if netdevs else None
    roce = known(nic.link_layer) == "Ethernet"
    none = Unknown(Reason.absent, f"{NETDEVS}/*", f"{nic.name} has no netdevice here")
    not_roce = Unknown(Reason.unsupported, f"{port_at}/link_layer", "of RoCE only")
    trust, pfc = _priorities(source, netdev) if roce and netdev else (not_roce, not_roce)
    return replace(
        nic,
        physical_state=parsed(source, f"{port_at}/phys_state", _state),
        mtu=integer(source, f"{NETDEVS}/{netdev}/mtu") if netdev else none,
        firmware=text_fact(source, f"{at}/fw_ver"),
        board=text_fact(source, f"{at}/board_id"),
        guid=text_fact(source, f"{at}/node_guid"),
        gids=_gids(source, port_at),
        counters=_counters(source, (f"{port_at}/counters", f"{port_at}/hw_counters")),
        statistics=_statistics(source, netdevs) if netdevs else none,
        carrier_changes=integer(source, f"{NETDEVS}/{netdev}/carrier_changes") if netdev else none,
        bond=_bond(source, netdev) if netdev else none,
        trust=trust,
        pfc=pfc,
        ecn=_ecn(source, netdev) if roce and netdev else not_roce,
        traffic_class=_traffic_class(source, nic.name, nic.port) if roce else not_roce,
    )


def _ethernet_port(source: Source, netdev: _Netdev) -> Nic:
    at = f"{NETDEVS}/{netdev.name}"
    return Nic(
        name=netdev.name,
        port=netdev.port,
        bus_id=Known(netdev.bus_id, at),
        subfunction=Known(netdev.subfunction, at),
        rdma=Known(None, f"{RDMA}: no device on {netdev.bus_id}"),
        netdevs=Known((netdev.name,), NETDEVS),
        link_layer=parsed(source, f"{at}/type", _hardware_type),
        rate_bps=parsed(source, f"{at}/speed", _speed),
        state=text_fact(source, f"{at}/operstate"),
    )


def _ethernet_nic(source: Source, nic: Nic) -> Nic:
    at = f"{NETDEVS}/{nic.name}"
    no_rdma = Unknown(Reason.absent, RDMA, f"{nic.name} has no RDMA device")
    return replace(
        nic,
        physical_state=parsed(source, f"{at}/carrier", lambda text: "linkup" if int(text) else "no carrier"),
        mtu=integer(source, f"{at}/mtu"),
        firmware=no_rdma,
        board=no_rdma,
        guid=no_rdma,
        gids=no_rdma,
        counters=no_rdma,
        statistics=_statistics(source, (nic.name,)),
        carrier_changes=integer(source, f"{at}/carrier_changes"),
        bond=_bond(source, nic.name),
        trust=no_rdma,
        pfc=no_rdma,
        ecn=no_rdma,
        traffic_class=no_rdma,
    )


def _bond(source: Source, netdev: str) -> Fact[str | None]:
    """The bond above a netdevice. Bridges, Open vSwitch and VRFs are masters, too, and join no ports to one (Linux
    Documentation/networking/bonding.rst: `bonding` is a folder of bonds alone)."""
    master = or_none(link_name(source, f"{NETDEVS}/{netdev}/master"))
    if isinstance(master, Unknown) or master.value is None:
        return master
    mode = or_none(text_fact(source, f"{NETDEVS}/{master.value}/bonding/mode"))
    if isinstance(mode, Unknown):
        return mode
    return master if mode.value is not None else Known(None, f"{master.evidence}: {master.value}, no bond")


def _is_representor(port_name: str) -> bool:
    """Of ports that a NIC in switch mode shows for the virtual functions behind it, and for its uplink's other half: not to the network."""
    if "pf" not in port_name:
        return False
    import re  # most NICs are in no switch mode, and those who only start ranks need it for nothing else

    return re.fullmatch(r"(?:c\d+)?pf\d+(?:vf|sf)\d+|c\d+pf\d+.*", port_name) is not None


def _rate(text: str) -> int:
    """`400 Gb/sec (4X NDR)` in bit/s."""
    rate = decimal_before(text, " Gb/sec")
    if rate is None:
        raise ValueError(f"{text[:40]!r}, expected a rate in Gb/sec")
    return round(rate * 1e9)


def _state(text: str) -> str:
    """`4: ACTIVE` as `active`."""
    state = text.rpartition(":")[2].strip().lower()
    if not state:
        raise NotGiven("empty")
    return state


def _hardware_type(text: str) -> str:
    """ARPHRD numbers of include/uapi/linux/if_arp.h."""
    return {1: "Ethernet", 32: "InfiniBand"}.get(int(text), f"type {text}")


def _speed(text: str) -> int:
    Mbps = int(text)
    if Mbps <= 0:
        raise NotGiven(f"{Mbps}: the driver does not say")
    return Mbps * 1_000_000


def _gids(source: Source, port_at: str) -> Fact[tuple[Gid, ...]]:
    def read() -> tuple[Gid, ...]:
        found = []
        for name in sorted((name for name in source.listdir(f"{port_at}/gids") if name.isdigit()), key=int)[:_GIDS]:
            gid = source.read_text(f"{port_at}/gids/{name}").strip()
            if gid != _EMPTY_GID:
                found.append(Gid(int(name), gid, text_fact(source, f"{port_at}/gid_attrs/types/{name}")))
        return tuple(found)

    return attempt(f"{port_at}/gids", read)


def _counters(source: Source, folders: Sequence[str]) -> Fact[Mapping[str, int]]:
    """All counters that can be read; drivers refuse some of those they list. What a cut recording lacks may have counted."""
    counts: dict[str, int] = {}
    for at in folders:
        for name in folder(source, at):
            value = integer(source, f"{at}/{name}")
            if isinstance(value, Known):
                counts[name] = value.value
            elif value.reason is Reason.not_recorded:
                return value
    if not counts:
        return Unknown(Reason.absent, " and ".join(folders), "no counters")
    return Known(counts, " and ".join(folders))


def _statistics(source: Source, netdevs: Sequence[str]) -> Fact[Mapping[str, int]]:
    path = f"{NETDEVS}/{'|'.join(netdevs)}/statistics"
    return attempt(
        path, lambda: {name: sum(int(source.read_text(f"{NETDEVS}/{n}/statistics/{name}")) for n in netdevs) for name in _STATISTICS}
    )


# ---- quality of service of RoCE ----


def _priorities(source: Source, netdev: str) -> tuple[Fact[str], Fact[tuple[int, ...]]]:
    """Trust and flow control by the vendor's tool, which needs no daemon; flow control also by iproute2's."""
    argv = ("mlnx_qos", "-i", netdev)
    trust: Fact[str] = attempt(" ".join(argv), lambda: parse_mlnx_trust(ran(source, argv).stdout))
    pfc: Fact[tuple[int, ...]] = attempt(" ".join(argv), lambda: parse_mlnx_pfc(ran(source, argv).stdout))
    if isinstance(pfc, Unknown):
        dcb = ("dcb", "-j", "pfc", "show", "dev", netdev)
        by_dcb: Fact[tuple[int, ...]] = attempt(" ".join(dcb), lambda: parse_dcb_pfc(ran(source, dcb).stdout))
        pfc = by_dcb if isinstance(by_dcb, Known) else pfc
    return trust, pfc


def parse_mlnx_trust(text: str) -> str:
    """`dscp` or `pcp` of mlnx_qos's output. Raises ValueError."""
    import re

    found = re.search(r"^Priority trust state:\s*(\w+)", text, re.MULTILINE)
    if found is None:
        raise ValueError("no line 'Priority trust state'")
    return found[1].lower()


def parse_mlnx_pfc(text: str) -> tuple[int, ...]:
    """Priorities with flow control of mlnx_qos's output. Raises ValueError."""
    import re

    found = re.search(r"^PFC configuration:.*?^\s*enabled\s+((?:[01]\s+)*[01])\s*$", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError("no line 'enabled' below 'PFC configuration'")
    return tuple(priority for priority, on in enumerate(found[1].split()) if on == "1")


def parse_dcb_pfc(text: str) -> tuple[int, ...]:
    """Priorities with flow control of `dcb -j pfc show`'s output. Raises ValueError."""
    import json

    document = json.loads(text)
    priorities = document.get("prio-pfc") if isinstance(document, dict) else None
    if not isinstance(priorities, dict):
        raise ValueError("no 'prio-pfc'")
    return tuple(sorted(int(priority) for priority, on in priorities.items() if on))


def _ecn(source: Source, netdev: str) -> Fact[tuple[int, ...]]:
    at = f"{NETDEVS}/{netdev}/ecn"

    def on(priority: int) -> bool:
        return all(int(source.read_text(f"{at}/{end}/enable/{priority}")) == 1 for end in ("roce_np", "roce_rp"))

    return attempt(f"{at}/roce_np, roce_rp/enable", lambda: tuple(priority for priority in _PRIORITIES if on(priority)))


def _traffic_class(source: Source, device: str, port: int) -> Fact[int]:
    def parse(text: str) -> int:
        import re

        found = re.search(r"Global tclass=(\d+)", text)
        return int(found[1]) if found else 0

    return parsed(source, f"{RDMA}/{device}/tc/{port}/traffic_class", parse)


# ---- LLDP ----


def read_lldp(source: Source) -> Fact[tuple[LldpNeighbour, ...]]:
    """What is at the other end of each cable, as lldpd knows."""
    return attempt(" ".join(LLDP), lambda: parse_lldp(ran(source, LLDP).stdout))


def parse_lldp(text: str) -> tuple[LldpNeighbour, ...]:
    """From lldpcli's JSON, which writes a list of one as its member. Raises ValueError."""
    import json

    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    found = []
    interfaces = _get(_get(document, "lldp"), "interface")
    for entry in _listed(interfaces):
        if not isinstance(entry, dict):
            continue
        for netdev, neighbour in entry.items():
            chassis = _get(neighbour, "chassis")
            name = next((name for name, body in chassis.items() if isinstance(body, dict)), "") if isinstance(chassis, dict) else ""
            about = chassis if name == "id" else _get(chassis, name)
            switch = str(_get(_get(chassis, "id"), "value") or "") if name == "id" else name
            port = _get(_get(neighbour, "port"), "id")
            found.append(LldpNeighbour(str(netdev), switch, str(_get(port, "value") or ""), _forwards(_get(about, "capability"))))
    return tuple(found)


def _forwards(capabilities: Any) -> bool | None:
    enabled = [_get(one, "type") for one in _listed(capabilities) if _get(one, "enabled") is True]
    return None if capabilities is None else "Bridge" in enabled or "Router" in enabled


def switches_at(neighbours: Sequence[LldpNeighbour], netdev: str) -> tuple[LldpNeighbour, ...]:
    """What may be the other end of a netdevice's cable, each by one entry: one switch alone, unless the neighbours do not tell."""
    here = [neighbour for neighbour in neighbours if neighbour.netdev == netdev]
    likely = [one for one in here if one.forwards] or [one for one in here if one.forwards is None] or here
    return tuple({one.switch: one for one in reversed(likely)}.values())[::-1]


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
