"""A job's NCCL variables against the machine and against what its NCCL release reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from railweave.doctor.check import Check, MissingError, Subject, Verdict, clear, fires
from railweave.doctor.finding import Severity
from railweave.doctor.nccl_variables import LEVELS, DeviceList, Version, format_version, number_taken, parse_devices, table
from railweave.doctor.patient import Patient, label, need
from railweave.machine.facts import Known
from railweave.machine.paths import SWITCHED

# From this release on NCCL chooses the RoCE v2 address itself (NCCL release notes 2.21; NCCL_IB_GID_INDEX default -1).
_CHOOSES_GID: Version = (2, 21, 5)
# PyTorch sets or reads these, and plugins of other vendors theirs; NCCL does not, and nobody misspelt them.
_OTHERS = ("NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ROOT", "NCCL_HOME", "NCCL_VERSION")
_OTHER_PREFIXES = (
    "NCCL_FASTRAK_",
    "NCCL_GPUDIRECTTCPX_",
    "NCCL_TUNER_",
    "NCCL_PROFILE",
    "NCCL_INSPECTOR_",
    "NCCL_TESTS_",
    "NCCL_UCX_",
    "NCCL_SHARP_",
)


def _variables(patient: Patient) -> dict[str, str]:
    return {name: value for name, value in sorted(patient.environ.items()) if name.startswith("NCCL_")}


def _each_variable(patient: Patient) -> Sequence[Subject]:
    return [Subject(f"{name}={value}", (name, value)) for name, value in _variables(patient).items()]


def _device_lists(patient: Patient) -> Sequence[Subject]:
    """NCCL_IB_HCA and NCCL_SOCKET_IFNAME, where the job has them."""
    return [subject for subject in _each_variable(patient) if subject.facts[0] in ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")]


def _pair(subject: Subject) -> tuple[str, str]:
    name, value = subject.facts
    assert isinstance(name, str)
    assert isinstance(value, str)
    return name, value


def _line(patient: Patient, subject: Subject) -> str:
    environ = patient.job.environ
    return f"{environ.evidence if isinstance(environ, Known) else ''}: {subject.name}"


def _release(patient: Patient) -> Version:
    version = need(patient.job.nccl_version)
    covered = table()
    if not covered.first <= version <= covered.last:
        raise MissingError(
            f"NCCL {format_version(version)}: the table of variables covers {format_version(covered.first)} to "
            f"{format_version(covered.last)}"
        )
    return version


def _names(patient: Patient, variable: str) -> tuple[str, ...]:
    if variable == "NCCL_IB_HCA":
        return tuple(dict.fromkeys(nic.name for nic in patient.nics if isinstance(nic.rdma, Known) and nic.rdma.value is not None))
    return tuple(netdev for nic in patient.nics for netdev in need(nic.netdevs))


def _judge_prefix(patient: Patient, subject: Subject) -> Verdict:
    variable, value = _pair(subject)
    devices = parse_devices(value)
    trapped = devices.by_prefix(_names(patient, variable))
    if not trapped:
        return clear("each entry matches what it names", _line(patient, subject))
    text = "; ".join(f"{entry} also {'excludes' if devices.exclude else 'takes'} {', '.join(others)}" for entry, others in trapped.items())
    sign = "^" if devices.exclude else ""
    entries = ",".join(name if port is None else f"{name}:{port}" for name, port in devices.entries)
    return fires(text, _line(patient, subject), fix=f"{variable}={sign}={entries}: '=' once, before the list, makes all its names exact.")


Contradiction = Callable[[Patient, str, str], str | None]


def _hca_contradicts(patient: Patient, _: str, value: str) -> str | None:
    devices = parse_devices(value)
    names = _names(patient, "NCCL_IB_HCA")
    missing = devices.unmatched(names)
    taken = [name for name in names if devices.takes(name)]
    if not taken:
        return f"it leaves no RDMA device of {', '.join(names) or 'none'}: NCCL takes sockets, or fails where NCCL_NET=IB"
    if missing and not devices.exclude:
        return f"no device here matches {', '.join(missing)} (there are {', '.join(names)})"
    left = [label(nic) for nic in patient.fabric_nics if not _takes(devices, nic.name, nic.port)]
    if left:
        text = f"it leaves out fabric NICs {', '.join(left)}"
        if len(taken) == 1:
            return f"{text}; a list per rank hides NICs from PXN, which every rank of the node must see"
        return text
    slow = [name for name in taken if name not in {nic.name for nic in patient.fabric_nics}]
    return f"it takes {', '.join(slow)}, beside the fabric NICs {patient.fabric_nics_why}" if slow else None


def _takes(devices: DeviceList, name: str, port: int) -> bool:
    return devices.takes(name, port)


def _interface_contradicts(patient: Patient, _: str, value: str) -> str | None:
    names = _names(patient, "NCCL_SOCKET_IFNAME")
    devices = parse_devices(value)
    missing = devices.unmatched(names)
    # Interfaces that are not on the PCI bus (bond0, lo, eth0 of a container) are not among the names; only a list that matches nothing at
    # all and looks like a physical name is told.
    if devices.exclude or len(missing) < len(devices.entries) or not names:
        return None
    raise MissingError(f"no NIC on the PCI bus is called {', '.join(missing)}; whether a virtual interface is, is not known")


def _gid_contradicts(patient: Patient, _: str, value: str) -> str | None:
    if not any(need(nic.link_layer) == "Ethernet" for nic in patient.fabric_nics):
        return None
    if _release(patient) >= _CHOOSES_GID and value != "-1":
        return "NCCL chooses the RoCE v2 address itself since 2.21; a fixed index breaks when addresses are added or differ by node"
    return None


def _traffic_class_contradicts(patient: Patient, _: str, value: str) -> str | None:
    if not value.lstrip("-").isdecimal() or int(value) < 0:
        return None
    priority = int(value) >> 5  # traffic class = DSCP << 2 | ECN; DSCP >> 3 is the priority by default
    for nic in patient.fabric_nics:
        if need(nic.link_layer) != "Ethernet":
            continue
        lossless = need(nic.pfc)
        if lossless and priority not in lossless:
            served = ", ".join(map(str, lossless))
            return f"DSCP {int(value) >> 2} is priority {priority} by default, but {label(nic)} has flow control on {served} only"
    return None


def _level_contradicts(patient: Patient, variable: str, value: str) -> str | None:
    if value in LEVELS:
        return f"numbers are for old scripts; write {LEVELS[value]}"
    if variable == "NCCL_NET_GDR_LEVEL" and value == "LOC" and patient.fabric_nics:
        return "it switches GPUDirect RDMA off, so that every byte is copied through host memory"
    return None


def _switches_off(what: str) -> Contradiction:
    def contradicts(patient: Patient, _: str, value: str) -> str | None:
        return what if value == "1" and patient.fabric_nics else None

    return contradicts


def _net_contradicts(patient: Patient, _: str, value: str) -> str | None:
    return "sockets are chosen although RDMA NICs are there" if value.lower() == "socket" and patient.fabric_nics else None


def _file_contradicts(patient: Patient, variable: str, value: str) -> str | None:
    files = need(patient.job.missing_files)
    return f"there is no file {value}" if value in files else None


CONTRADICTIONS: dict[str, Contradiction] = {
    "NCCL_IB_HCA": _hca_contradicts,
    "NCCL_SOCKET_IFNAME": _interface_contradicts,
    "NCCL_IB_GID_INDEX": _gid_contradicts,
    "NCCL_IB_TC": _traffic_class_contradicts,
    "NCCL_NET_GDR_LEVEL": _level_contradicts,
    "NCCL_P2P_LEVEL": _level_contradicts,
    "NCCL_IB_DISABLE": _switches_off("RDMA is switched off although RDMA NICs are there"),
    "NCCL_NET": _net_contradicts,
    "NCCL_P2P_DISABLE": lambda patient, _, value: (
        "GPUs of this node exchange through host memory instead of NVLink" if _has_nvlink(patient, value) else None
    ),
    "NCCL_PXN_DISABLE": lambda patient, _, value: (
        "GPUs without a NIC on their switch send through the CPU" if _needs_pxn(patient, value) else None
    ),
    "NCCL_TOPO_FILE": _file_contradicts,
}


def _has_nvlink(patient: Patient, value: str) -> bool:
    return value == "1" and any(need(gpu.nvlinks) for gpu in patient.gpus)


def _needs_pxn(patient: Patient, value: str) -> bool:
    return value == "1" and any(patient.nearest_nics(gpu)[0] not in SWITCHED for gpu in patient.gpus)


def _contradictable(patient: Patient) -> Sequence[Subject]:
    return [subject for subject in _each_variable(patient) if subject.facts[0] in CONTRADICTIONS]


def _judge_contradiction(patient: Patient, subject: Subject) -> Verdict:
    variable, value = _pair(subject)
    found = CONTRADICTIONS[variable](patient, variable, value)
    return fires(found, _line(patient, subject)) if found else clear("fits this machine", _line(patient, subject))


def _why_ignored(variable: str, variables: dict[str, str], patient: Patient) -> str | None:
    """Which other setting, or what of the machine, keeps NCCL from looking at a variable it knows."""
    sockets = variables.get("NCCL_NET", "").lower() == "socket" or variables.get("NCCL_IB_DISABLE") == "1"
    if variable.startswith("NCCL_IB_") and variable != "NCCL_IB_DISABLE":
        if sockets:
            which = "NCCL_IB_DISABLE=1" if variables.get("NCCL_IB_DISABLE") == "1" else f"NCCL_NET={variables['NCCL_NET']}"
            return f"{which} takes sockets"
        if not any(isinstance(nic.rdma, Known) and nic.rdma.value is not None for nic in patient.nics):
            return "there is no RDMA device here"
    if variable in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD") and not sockets and patient.fabric_nics:
        return "data goes over RDMA, not over sockets"
    if variable == "NCCL_P2P_PXN_LEVEL" and variables.get("NCCL_PXN_DISABLE") == "1":
        return "NCCL_PXN_DISABLE=1 switches PXN off"
    if variable == "NCCL_IB_SPLIT_DATA_ON_QPS" and variables.get("NCCL_IB_QPS_PER_CONNECTION", "1") == "1":
        return "there is one queue pair a connection (NCCL_IB_QPS_PER_CONNECTION)"
    if variable == "NCCL_IB_GID_INDEX" and patient.fabric_nics and all(need(nic.link_layer) == "InfiniBand" for nic in patient.fabric_nics):
        return "it is for RoCE; on InfiniBand NCCL takes index 0, or that of a routable FLID"
    if variable in ("NCCL_CROSS_NIC", "NCCL_PXN_DISABLE") and len(patient.fabric_nics) == 1:
        return "it is for machines with several NICs"
    if (
        variable in ("NCCL_GDRCOPY_FIFO_ENABLE", "NCCL_GDRCOPY_FLUSH_ENABLE", "NCCL_GDRCOPY_SYNC_ENABLE")
        and variables.get("NCCL_GDRCOPY_ENABLE") != "1"
    ):
        return "NCCL_GDRCOPY_ENABLE is not 1"
    return None


def _judge_ignored(patient: Patient, subject: Subject) -> Verdict:
    variable, _ = _pair(subject)
    found = _why_ignored(variable, _variables(patient), patient)
    return fires(f"ignored: {found}", _line(patient, subject)) if found else clear("not ignored", _line(patient, subject))


def _numbers(patient: Patient) -> Sequence[Subject]:
    known = table().variables
    return [subject for subject in _each_variable(patient) if (found := known.get(str(subject.facts[0]))) is not None and found.is_number]


def _judge_value(patient: Patient, subject: Subject) -> Verdict:
    _, value = _pair(subject)
    line = _line(patient, subject)
    if not value:
        return clear("empty: as if it were not set", line)
    if re.fullmatch(r"\s*[+-]?(0|[1-9][0-9]*|0[xX][0-9a-fA-F]+)", value):
        return clear("a number", line)
    taken = number_taken(value)
    if taken is None:
        return fires("no number: NCCL 2.30.7 and releases before take 0 for it, later ones perhaps the default", line)
    why = "a leading 0 makes a number octal" if value.strip().lstrip("+-").isdecimal() else "it reads no further than the number"
    return fires(f"NCCL takes {taken}: {why}", line)


def _judge_default(patient: Patient, subject: Subject) -> Verdict:
    variable, value = _pair(subject)
    release = _release(patient)
    known = table().variables.get(variable)
    default = known.default(release) if known is not None else None
    if default is None:
        return clear("no fixed default", _line(patient, subject))
    if value.upper() != default.upper():
        return clear(f"differs from the default, {default}", _line(patient, subject))
    return fires(f"{default} is the default of NCCL {format_version(release)}", _line(patient, subject))


def _judge_unknown(patient: Patient, subject: Subject) -> Verdict:
    variable, _ = _pair(subject)
    if variable in _OTHERS or variable.startswith(_OTHER_PREFIXES):
        return clear("another program's variable", _line(patient, subject))
    known = table().variables.get(variable)
    if known is None:
        meant = table().close_to(variable)
        releases = f"{format_version(table().first)} to {format_version(table().last)}"
        return fires(
            f"no NCCL release from {releases} reads it{f'; {meant} is meant?' if meant else ''}",
            _line(patient, subject),
            fix=f"Write {meant}." if meant else "",
        )
    release = _release(patient)
    if known.read_by(release):
        return clear(f"NCCL {format_version(release)} reads it", _line(patient, subject))
    when = f"since {format_version(known.first)}" if release < known.first else f"until {format_version(known.last or known.first)}"
    return fires(f"NCCL {format_version(release)} does not read it; releases did {when}", _line(patient, subject))


_GUIDE = "NCCL user guide 2.30, environment variables"
_TABLE = "NCCL sources 2.8.3 to 2.30.7 and libraries 2.31.2, 2.32.3 (scripts/nccl-variables)"

CHECKS = (
    Check(
        "nccl.prefix",
        "Device list takes more than it names",
        Severity.warning,
        "NCCL_IB_HCA, NCCL_SOCKET_IFNAME of the process; names of NICs",
        "NCCL uses NICs that were not meant: of other rails, or of storage and management.",
        "",
        f"{_GUIDE}: NCCL_IB_HCA; NCCL src/misc/utils.cc (names are prefixes unless '=' stands first)",
        _judge_prefix,
        _device_lists,
        "the job sets neither NCCL_IB_HCA nor NCCL_SOCKET_IFNAME",
        "job",
    ),
    Check(
        "nccl.contradiction",
        "NCCL setting contradicts the machine",
        Severity.warning,
        "NCCL_* of the process; NICs, GPUs, flow control; NCCL release for NCCL_IB_GID_INDEX",
        "NCCL does what the variable says and leaves hardware unused, or fails.",
        "Unset it, or set it as `railweave advise` says for this machine.",
        _GUIDE,
        _judge_contradiction,
        _contradictable,
        "the job sets no NCCL variable that depends on the machine",
        "job",
    ),
    Check(
        "nccl.ignored",
        "NCCL setting without effect",
        Severity.warning,
        "NCCL_* of the process; NICs",
        "None: whoever set it believes that something is on or off that is not.",
        "Unset it, or the setting that overrules it.",
        f"{_GUIDE}; NCCL src/transport/net_ib",
        _judge_ignored,
        _each_variable,
        "the job sets no NCCL variable",
        "job",
    ),
    Check(
        "nccl.value",
        "NCCL takes another number than is written",
        Severity.warning,
        "NCCL_* of the process",
        "NCCL goes on with a number that nobody meant, and says so at most in its log.",
        "Write a plain number.",
        "NCCL src/misc/param.cc: strtoll with base 0",
        _judge_value,
        _numbers,
        "the job sets no NCCL variable that is a number",
        "job",
    ),
    Check(
        "nccl.default",
        "NCCL setting equals the default",
        Severity.info,
        "NCCL_* of the process; NCCL release",
        "None now; it stays behind when a later release has a better default.",
        "Unset it.",
        f"{_TABLE}; {_GUIDE} (tuning variables should not stay in production)",
        _judge_default,
        _each_variable,
        "the job sets no NCCL variable",
        "job",
    ),
    Check(
        "nccl.unknown",
        "NCCL does not know the variable",
        Severity.warning,
        "NCCL_* of the process; NCCL release",
        "None: NCCL does not read it.",
        "Unset it, or correct its name.",
        _TABLE,
        _judge_unknown,
        _each_variable,
        "the job sets no NCCL variable",
        "job",
    ),
)
