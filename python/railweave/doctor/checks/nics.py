"""NICs of the GPU network: state, MTU, bonds, errors, lossless settings, firmware, cabling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from railweave.doctor.check import Check, MissingError, Subject, Verdict, clear, fires, unknown
from railweave.doctor.effect import rail_down
from railweave.doctor.finding import Answer, Severity
from railweave.doctor.patient import Patient, bus_ids, evidence, label, need
from railweave.doctor.rails import Cables
from railweave.machine.facts import Fact, Known, Nic, Unknown, known
from railweave.machine.network import switches_at
from railweave.machine.source import Reason

# A verbs MTU of 4096 with RoCE v2 headers and tags, rounded up: NVIDIA's RoCE guides ask for 4200 or 9000.
ROCE_MTU_B = 4200

# Counters that grow when something goes wrong on the cable or in the switch, with how many are a fault. Of PortCounters (InfiniBand
# specification 1.7; Linux Documentation/ABI/stable/sysfs-class-infiniband) those that infiniband-diags proposes (error_thresholds); of
# netdevices and of mlx5's end-to-end counters (NVIDIA, understanding mlx5 counters) those of what they correspond to.
ERROR_COUNTERS = {
    "symbol_error": 10,
    "link_error_recovery": 10,
    "port_rcv_errors": 10,
    "port_rcv_remote_physical_errors": 100,
    "port_xmit_discards": 100,
    "local_link_integrity_errors": 10,
    "excessive_buffer_overrun_errors": 10,
    "rx_icrc_encapsulated": 10,
    "local_ack_timeout_err": 10,
    "packet_seq_err": 10,
    "rx_errors": 10,
    "rx_crc_errors": 10,
    "tx_errors": 100,
}
# When a switch is serviced the links of all NICs on it go down; one that did so more often than its siblings, by this, flaps.
FLAPS_ABOVE_SIBLINGS = 2


def _nics(patient: Patient) -> Sequence[Subject]:
    return [Subject(label(nic), (nic,), bus_ids(nic)) for nic in patient.fabric_nics]


def _roce_nics(patient: Patient) -> Sequence[Subject]:
    """Ports on Ethernet of RDMA devices; one of which that is not known stays among them and is unknown."""

    def is_other(nic: Nic) -> bool:
        on_other = isinstance(nic.link_layer, Known) and need(nic.link_layer) != "Ethernet"
        return on_other or (isinstance(nic.rdma, Known) and nic.rdma.value is None)

    return [subject for subject in _nics(patient) if not is_other(_nic(subject))]


def _nic(subject: Subject) -> Nic:
    nic = subject.facts[0]
    assert isinstance(nic, Nic)
    return nic


def _judge_down(patient: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    state = need(nic.state)
    if patient.is_up(nic):
        return clear(f"the port is {state}", evidence(nic.state))
    return fires(f"the port is {state}", evidence(nic.state), evidence(nic.physical_state), effect=rail_down(patient, subject.devices))


def _judge_mtu(_: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    need(nic.link_layer)
    mtu = need(nic.mtu)
    if mtu >= ROCE_MTU_B:
        return clear(f"MTU {mtu}", evidence(nic.mtu))
    verbs = max(size for size in (256, 512, 1024, 2048, 4096) if size <= max(mtu - 100, 256))
    text = f"MTU {mtu}, so that RoCE sends packets of {verbs} instead of 4096 bytes"
    return fires(text, evidence(nic.mtu), fix=f"ip link set {_netdev(nic)} mtu 9000, on both ends and the switches between.")


def _netdev(nic: Nic) -> str:
    netdevs = nic.netdevs.value if isinstance(nic.netdevs, Known) else ()
    return netdevs[0] if netdevs else nic.name


def _judge_bond(patient: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    bond = need(nic.bond)
    if bond is None:
        return clear("not part of a bond", evidence(nic.bond, "none"))
    if patient.machine.process is not None:
        queues = patient.environ.get("NCCL_IB_QPS_PER_CONNECTION", "")
        if queues.isdecimal() and int(queues) > 1:
            return clear(f"part of {bond}, and the job spreads over it", evidence(nic.bond), f"NCCL_IB_QPS_PER_CONNECTION={queues}")
    return fires(f"part of {bond}", evidence(nic.bond))


def _judge_errors(_: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    sources = [fact for fact in (nic.counters, nic.statistics) if isinstance(fact, Known)]
    counted = {name: (count, fact) for fact in sources for name, count in fact.value.items() if name in ERROR_COUNTERS and count}
    bad = {name: count for name, (count, _) in counted.items() if count >= ERROR_COUNTERS[name]}
    lines = [evidence(fact, f"{name} {count}") for name, (count, fact) in counted.items()]
    if bad:
        return fires(", ".join(f"{name} {count} (a fault from {ERROR_COUNTERS[name]})" for name, count in bad.items()), *lines)
    need(nic.counters)
    if not (isinstance(nic.statistics, Unknown) and nic.statistics.reason is Reason.absent):
        need(nic.statistics)
    few = ", ".join(f"{name} {count}" for name, (count, _) in counted.items())
    return clear(f"{few}: fewer than a fault makes" if few else "no error counter has counted", *(lines or map(_read, sources)))


def _read(fact: Known[Mapping[str, int]]) -> str:
    """Counters that were read."""
    return evidence(fact, f"{len(fact.value)} counters")


def _downs(nic: Nic) -> tuple[int, Fact[Mapping[str, int]] | Fact[int]]:
    """How often a link went down, and the fact that says so."""
    if isinstance(nic.counters, Known) and "link_downed" in nic.counters.value:
        return nic.counters.value["link_downed"], nic.counters
    if isinstance(nic.counters, Unknown) and nic.counters.reason is not Reason.absent:
        raise MissingError(str(nic.counters))  # what the netdevice counts may be less
    return need(nic.carrier_changes) // 2, nic.carrier_changes


def _known_downs(nic: Nic) -> int | None:
    try:
        return _downs(nic)[0]
    except MissingError:
        return None


def _judge_flaps(patient: Patient, subject: Subject) -> Verdict:
    downs, fact = _downs(_nic(subject))
    known_downs = (_known_downs(other) for other in patient.fabric_nics if other is not _nic(subject))
    siblings = [count for count in known_downs if count is not None]
    least = min(siblings, default=0)
    line = evidence(fact, f"went down {downs} times")
    if downs - least < FLAPS_ABOVE_SIBLINGS:
        return clear(f"the link went down {downs} times", line)
    compared = f"; another fabric NIC {least} times" if siblings else ""
    return fires(f"the link went down {downs} times{compared}", line)


def _judge_lossless(patient: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    need(nic.link_layer)
    trust, pfc, ecn = known(nic.trust), known(nic.pfc), known(nic.ecn)
    lines = [evidence(nic.trust), evidence(nic.pfc, _priorities(pfc)), evidence(nic.ecn, _priorities(ecn))]
    faults = []
    if trust not in (None, "dscp"):
        faults.append(f"priorities come from {trust}, which routed RoCE packets do not carry")
    off = [name for name, priorities in (("PFC", pfc), ("ECN", ecn)) if priorities == ()]
    if off:
        faults.append(f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} on for no priority")
    own = _settings(nic)
    settings = Counter(found for other in patient.fabric_nics if (found := _settings(other)) is not None)
    unlike = [label(other) for other in patient.fabric_nics if _settings(other) not in (None, own)]
    if own is not None and settings[own] < max(settings.values()):
        faults.append(f"set otherwise than {', '.join(unlike)}")
    if faults:
        return fires("; ".join(faults), *lines)
    need(nic.trust), need(nic.pfc), need(nic.ecn)
    return clear("DSCP is trusted, PFC and ECN are on", *lines)


def _settings(nic: Nic) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    if isinstance(nic.trust, Known) and isinstance(nic.pfc, Known) and isinstance(nic.ecn, Known):
        return nic.trust.value, nic.pfc.value, nic.ecn.value
    return None


def _priorities(priorities: Sequence[int] | None) -> str:
    return f"priorities {', '.join(map(str, priorities))}" if priorities else "no priority"


def _judge_firmware(patient: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    own, board = need(nic.firmware), need(nic.board)
    others = [other for other in patient.fabric_nics if isinstance(other.board, Known) and other.board.value == board]
    versions = Counter(other.firmware.value for other in others if isinstance(other.firmware, Known))
    count = max(versions.values())
    # Where no release is the most common one, nobody is the odd one: all are named.
    if versions[own] == count and list(versions.values()).count(count) == 1:
        return clear(f"firmware {own}", evidence(nic.firmware))
    listed = ", ".join(f"{version} on {number}" for version, number in sorted(versions.items()))
    return fires(f"firmware {own}; boards {board} here have {listed}", evidence(nic.firmware), evidence(nic.board))


def cables_of(patient: Patient) -> dict[str, str | None]:
    """The switch at the end of each fabric NIC's cable, by address as rails are counted; MissingError where there is no LLDP."""
    neighbours = need(patient.machine.lldp)
    ordered = sorted(patient.fabric_nics, key=lambda nic: (bus_ids(nic), nic.port))
    ends = {label(nic): switches_at(neighbours, _netdev(nic)) for nic in ordered}
    return {name: switches[0].switch if len(switches) == 1 else None for name, switches in ends.items()}


def counted_cables(patient: Patient) -> dict[str, str | None]:
    """The same for who goes by places: MissingError where an address, or whether a NIC is one of the GPU network, is not known."""
    for nic in patient.sure_fabric_nics:
        need(nic.bus_id)
    return cables_of(patient)


def _judge_rail(patient: Patient, subject: Subject) -> Verdict:
    nic = _nic(subject)
    cables = cables_of(patient)
    switches = switches_at(need(patient.machine.lldp), _netdev(nic))
    if not switches:
        return unknown(f"no LLDP neighbour is known at {_netdev(nic)}")
    if len(switches) > 1:
        names = ", ".join(neighbour.switch for neighbour in switches)
        return unknown(f"{_netdev(nic)} hears of {names}; which of them its cable leads to is not known", _lldp_evidence(patient))
    own = switches[0]
    line = f"{_lldp_evidence(patient)}: {_netdev(nic)} - {own.switch} {own.port}"
    verdict = _by_itself(label(nic), own.switch, cables)
    if patient.rails is not None and verdict.answer is Answer.unknown:
        verdict = patient.rails.judge(label(nic), own.switch, counted_cables(patient))
    return Verdict(verdict.answer, verdict.text, (line,))


def _by_itself(nic: str, switch: str, cables: Cables) -> Verdict:
    """What one machine tells: one leaf for all is a tree network, equal shares are rails or pairs of rails, whichever they are; a leaf with
    more NICs than another has a wrong cable."""
    counts = Counter(other for other in cables.values() if other is not None)
    if len(cables) == 1:
        return clear(f"goes to {switch}; there is one fabric NIC")
    if len(counts) == 1 and None not in cables.values():
        return clear(f"goes to {switch}, as all do")
    if counts[switch] > min(counts.values()):
        sharing = [name for name, other in cables.items() if other == switch and name != nic]
        return fires(f"goes to {switch}, as does {', '.join(sharing)}, while other leafs have fewer")
    return unknown("which rail a switch belongs to takes recordings of other machines with the same salt, or --rails")


def _lldp_evidence(patient: Patient) -> str:
    return patient.machine.lldp.evidence if isinstance(patient.machine.lldp, Known) else ""


CHECKS = (
    Check(
        "nic.down",
        "Fabric NIC is down",
        Severity.error,
        "/sys/class/infiniband/*/ports/*/state, phys_state",
        "",
        "Look at cable, transceiver and switch port; `rdma link`, `mlxlink -d DEVICE`.",
        "Linux Documentation/ABI/stable/sysfs-class-infiniband",
        _judge_down,
        _nics,
        "no fabric NIC",
    ),
    Check(
        "nic.mtu",
        "MTU too small for RoCE",
        Severity.warning,
        "/sys/class/net/*/mtu; link layer of the RDMA port",
        "Four times the packets for the same bytes: more headers on the wire and more work for NIC and switches.",
        "",
        "NVIDIA RoCE configuration guide: netdevice MTU of 4200 or more for a RoCE MTU of 4096",
        _judge_mtu,
        _roce_nics,
        "no fabric NIC with RDMA on Ethernet",
    ),
    Check(
        "nic.bond",
        "Fabric NIC is part of a bond",
        Severity.warning,
        "/sys/class/net/*/master, bonding; NCCL_IB_QPS_PER_CONNECTION of a job",
        "A connection keeps to one member of the bond, so that a few large flows load one port and leave the other idle.",
        "Take the ports apart and give each an address of its rail; or set NCCL_IB_QPS_PER_CONNECTION to 2 or more.",
        "NCCL user guide 2.30, NCCL_IB_QPS_PER_CONNECTION; ucx#9520",
        _judge_bond,
        _nics,
        "no fabric NIC",
    ),
    Check(
        "nic.errors",
        "Port counts errors",
        Severity.warning,
        "/sys/class/infiniband/*/ports/*/counters, hw_counters; netdevice statistics",
        "Lost or damaged packets are sent again; RDMA sends everything since the loss again, so a few cost much.",
        "Clean or replace cable and transceiver; on RoCE check PFC and ECN along the path. Counters start at driver load: see whether "
        "they still grow.",
        "InfiniBand specification 1.7, PortCounters; thresholds: infiniband-diags, error_thresholds",
        _judge_errors,
        _nics,
        "no fabric NIC",
    ),
    Check(
        "nic.flaps",
        "Link goes down again and again",
        Severity.error,
        "counters/link_downed, /sys/class/net/*/carrier_changes of all fabric NICs",
        "Each time, connections over it time out: jobs abort, or hang for NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT.",
        "Replace cable or transceiver; look at the switch's log for the port.",
        "InfiniBand specification 1.7, PortCounters LinkDownedCounter; Linux Documentation/ABI/testing/sysfs-class-net",
        _judge_flaps,
        _nics,
        "no fabric NIC",
    ),
    Check(
        "nic.lossless",
        "RoCE without DSCP trust, PFC or ECN",
        Severity.warning,
        "mlnx_qos or `dcb` output; /sys/class/net/*/ecn",
        "Under incast, as in all-to-all, switches drop packets instead of pausing or marking them, and RoCE slows down by far more "
        "than the loss.",
        "mlnx_qos -i NETDEV --trust dscp --pfc 0,0,0,1,0,0,0,0 and ECN on the same priority, as the switches have it.",
        "NVIDIA, Recommended network configuration examples for RoCE deployment",
        _judge_lossless,
        _roce_nics,
        "no fabric NIC with RDMA on Ethernet",
    ),
    Check(
        "nic.firmware",
        "Firmware differs between equal NICs",
        Severity.warning,
        "/sys/class/infiniband/*/fw_ver, board_id",
        "NICs of one job behave differently: congestion control, defaults and bugs are the firmware's.",
        "Update all boards of one id to the same release (mlxfwmanager).",
        "NVIDIA ConnectX firmware release notes, by release",
        _judge_firmware,
        _nics,
        "no fabric NIC",
    ),
    Check(
        "nic.rail",
        "Cable leads to the wrong rail",
        Severity.error,
        "LLDP neighbours of fabric NICs (lldpcli), here and on other machines; names of switches with --rails",
        "Traffic of this rail crosses the spine and meets that of another rail at one leaf port; rail-optimised collectives slow down "
        "for everybody.",
        "Plug the cable into the leaf of its rail.",
        "IEEE 802.1AB; NVIDIA DGX SuperPOD reference architecture, rail-optimised compute fabric",
        _judge_rail,
        _nics,
        "no fabric NIC",
    ),
)
