"""GPUs from NVML's answers and, where it cannot answer, from the PCI bus."""

from __future__ import annotations

from collections.abc import Mapping

from railweave.machine.facts import Fact, Gpu, Known, NvLink, PciDevice, PciLink, Unknown, known
from railweave.machine.pci import canonical_bus_id, gpus_on_the_bus
from railweave.machine.source import Reason, Source, Unreadable
from railweave.records import field_names, replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from typing import Any

_PATH = "library:nvml"
_REMOTES = {0: "gpu", 1: "cpu", 2: "switch", 255: "unknown"}  # nvmlIntNvLinkDeviceType_t: GPU, IBMNPU, SWITCH
# nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0.
_NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}
_FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
_GENERATIONS_GTPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# nvmlClocksThrottleReasons: bits of nvml.h.
_THROTTLE = {
    0x0001: "idle",
    0x0002: "applications_clocks",
    0x0004: "sw_power_cap",
    0x0008: "hw_slowdown",
    0x0010: "sync_boost",
    0x0020: "sw_thermal",
    0x0040: "hw_thermal",
    0x0080: "hw_power_brake",
    0x0100: "display_clocks",
}
# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read_gpus(source: Source, pci: Fact[tuple[PciDevice, ...]]) -> tuple[Fact[tuple[Gpu, ...]], Fact[str]]:
    """The GPUs in the driver's order, and the driver's version."""
    try:
        document = parse_nvml(source.library("nvml"))
    except Unreadable as error:
        missing = Unknown(error.reason, error.path, error.detail)
        return _gpus_on_the_bus(pci, missing), missing
    except ValueError as error:
        missing = Unknown(Reason.error, _PATH, str(error)[:200])
        return _gpus_on_the_bus(pci, missing), missing
    gpus = _with_addresses(tuple(_gpu(entry) for entry in document["gpus"]), pci)
    return Known(_with_peers(gpus, document["gpus"]), _PATH), _answer(document, "driver", str)


def parse_nvml(text: str) -> dict[str, Any]:
    """NVML's answers from their JSON form. Raises ValueError."""
    import json  # not for those who only start ranks

    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    gpus = document.get("gpus") if isinstance(document, dict) else None
    if not isinstance(gpus, list) or not all(isinstance(gpu, dict) and isinstance(gpu.get("index"), int) for gpu in gpus):
        raise ValueError("no list of GPUs with their indices")
    assert isinstance(document, dict)
    return document


def _gpus_on_the_bus(pci: Fact[tuple[PciDevice, ...]], missing: Unknown) -> Fact[tuple[Gpu, ...]]:
    """Without NVML: NVIDIA's display and 3D controllers, which the driver would number by address."""
    if isinstance(pci, Unknown):
        return missing
    unsure = next((fact for device in pci.value for fact in _kind(device) if isinstance(fact, Unknown)), None)
    if unsure is not None:
        return unsure
    found = gpus_on_the_bus(pci.value)
    rest = dict.fromkeys(_ASKED, missing)
    gpus = (
        Gpu(index, Known(device.bus_id, pci.evidence), **{**rest, "link": device.link, "link_max": device.link_max})  # type: ignore[arg-type]
        for index, device in enumerate(found)
    )
    return Known(tuple(gpus), pci.evidence)


def _kind(device: PciDevice) -> tuple[Fact[int], ...]:
    """What tells whether a function is a GPU: its class and, of a display controller, its vendor."""
    return (device.pci_class, device.vendor) if device.is_class(0x03, 2) else (device.pci_class,)


def _with_addresses(gpus: tuple[Gpu, ...], pci: Fact[tuple[PciDevice, ...]]) -> tuple[Gpu, ...]:
    """Of a GPU that no longer answers, the address that the others leave: NVML numbers the GPUs on the bus by address."""
    lost = [gpu for gpu in gpus if isinstance(gpu.bus_id, Unknown)]
    bus = [device.bus_id for device in gpus_on_the_bus(known(pci) or ())]
    if not lost or len(bus) != len(gpus) or any(known(gpu.bus_id) not in (None, bus_id) for gpu, bus_id in zip(gpus, bus, strict=True)):
        return gpus
    how = "the address that NVML's other GPUs leave"
    return tuple(
        replace(gpu, bus_id=Known(bus_id, f"/sys/bus/pci/devices: {how}")) if gpu in lost else gpu
        for gpu, bus_id in zip(gpus, bus, strict=True)
    )


_ASKED = tuple(name for name in field_names(Gpu) if name not in {"index", "bus_id", "nic_paths", "numa"})


def reason_of(name: str) -> Reason:
    """Why, of the name of an error of NVML."""
    return {
        "NVML_ERROR_NOT_SUPPORTED": Reason.unsupported,
        "NVML_ERROR_FUNCTION_NOT_FOUND": Reason.unsupported,
        "NVML_ERROR_NO_PERMISSION": Reason.permission,
        "NVML_ERROR_GPU_IS_LOST": Reason.vanished,
        "NVML_ERROR_DRIVER_NOT_LOADED": Reason.absent,
        "NVML_ERROR_NOT_FOUND": Reason.absent,
        "NVML_ERROR_TIMEOUT": Reason.timed_out,
    }.get(name, Reason.error)


def _answer(entry: Mapping[str, Any], key: str, kind: Any) -> Fact[Any]:
    """An answer of NVML, converted by `kind`."""
    path = f"{_PATH}: gpu {entry['index']} {key}" if "index" in entry else f"{_PATH}: {key}"
    if "error" in entry:
        return Unknown(reason_of(str(entry["error"])), path, str(entry["error"])[:80])
    answer = entry.get(key)
    if not isinstance(answer, dict):
        return Unknown(Reason.not_recorded, path)
    if "error" in answer:
        return Unknown(reason_of(str(answer["error"])), path, str(answer["error"])[:80])

    if "value" not in answer:
        return Unknown(Reason.error, path, "neither value nor error")
    try:
        return Known(kind(answer["value"]), path)
    except (TypeError, LookupError, AttributeError, ValueError, OverflowError):  # the value is of another kind
        return Unknown(Reason.error, path, f"not understood: {answer['value']!r:.60}")


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    def ask(key: str, kind: Any) -> Fact[Any]:
        return _answer(entry, key, kind)

    return Gpu(
        index=entry["index"],
        bus_id=ask("bus_id", canonical_bus_id),
        name=ask("name", str),
        uuid=ask("uuid", str),
        minor=ask("minor", int),
        sm=ask("compute_capability", lambda value: int(value[0]) * 10 + int(value[1])),
        memory_B=ask("memory_B", int),
        nvlinks=_nvlinks(entry),
        nvlink_slots=_slots(entry),
        affinity=ask("cpu_affinity", _affinity),
        link=_link(entry, ""),
        link_max=_link(entry, "_max"),
        sm_clock_MHz=ask("sm_clock_MHz", int),
        sm_clock_max_MHz=ask("sm_clock_max_MHz", int),
        throttle=ask("throttle_reasons", lambda bits: tuple(name for bit, name in _THROTTLE.items() if int(bits) & bit)),
        persistence=ask("persistence", bool),
        mig=ask("mig", bool),
        fabric_state=ask("fabric_state", lambda state: _FABRIC_STATES[int(state)]),
    )


def _affinity(words: list[int]) -> tuple[int, ...]:
    return tuple(number * 64 + bit for number, word in enumerate(words[:1024]) for bit in range(64) if int(word) >> bit & 1)


def _link(entry: Mapping[str, Any], suffix: str) -> Fact[PciLink]:
    generation = _answer(entry, f"pcie_generation{suffix}", lambda value: _GENERATIONS_GTPS[int(value)])
    width = _answer(entry, f"pcie_width{suffix}", int)
    if isinstance(generation, Unknown):
        return generation
    if isinstance(width, Unknown):
        return width
    if not 1 <= width.value <= 32:
        return Unknown(Reason.not_given, width.evidence, f"{width.value} lanes")
    return Known(PciLink(generation.value, width.value), f"{generation.evidence}, pcie_width{suffix}")


def _links(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    links = entry.get("nvlinks")
    return [link for link in links if isinstance(link, dict)] if isinstance(links, list) else []


def _state(entry: Mapping[str, Any], link: Mapping[str, Any], number: int) -> Fact[int]:
    return _answer({"index": f"{entry['index']} link {number}", "state": link.get("state")}, "state", int)


def _slots(entry: Mapping[str, Any]) -> Fact[int]:
    """Links that NVML has a state of; a GPU without NVLink answers "not supported" for all."""
    path = f"{_PATH}: gpu {entry['index']} nvlinks"
    if "error" in entry:
        return _answer(entry, "nvlinks", int)
    if not _links(entry):
        return Unknown(Reason.not_recorded, path)
    states = [_state(entry, link, number) for number, link in enumerate(_links(entry))]
    lost = next(
        (
            state
            for state in states
            if isinstance(state, Unknown) and state.reason is not Reason.unsupported and "INVALID" not in state.detail
        ),
        None,
    )
    return lost if lost is not None else Known(sum(isinstance(state, Known) for state in states), path)


def _nvlinks(entry: Mapping[str, Any]) -> Fact[tuple[NvLink, ...]]:
    """Active links."""
    slots = _slots(entry)
    if isinstance(slots, Unknown):
        return slots
    found = []
    for number, link in enumerate(_links(entry)):
        state = _state(entry, link, number)
        if not isinstance(state, Known) or state.value != 1:
            continue
        at = {"index": f"{entry['index']} link {number}", **link}
        remote = _answer(at, "remote_type", lambda value: _REMOTES.get(int(value), "unknown"))
        found.append(
            NvLink(
                link=number,
                version=_answer(at, "version", lambda value: _NVLINK_GENERATIONS[int(value)]),
                remote=remote.value if isinstance(remote, Known) else "unknown",
                remote_bus_id=_answer(at, "remote_bus_id", canonical_bus_id),
                errors=_errors(at),
            )
        )
    return Known(tuple(found), f"{_PATH}: gpu {entry['index']} nvlinks")


def _errors(link: Mapping[str, Any]) -> Fact[Mapping[str, int]]:
    """The counters that the driver has; which ones a part counts differs."""
    listed = link.get("errors")
    if not isinstance(listed, dict) or not listed:
        return Unknown(Reason.not_recorded, f"{_PATH}: gpu {link['index']} errors")
    counts: dict[str, int] = {}
    missing: list[Unknown] = []
    for name, answer in listed.items():
        count = answer.get("value") if isinstance(answer, dict) else None
        if type(count) is int:
            counts[str(name)] = count
        else:
            told = _answer({"index": link["index"], str(name): answer}, str(name), int)
            missing += [told] if isinstance(told, Unknown) else []
    unread = next((told for told in missing if not counts or told.reason is not Reason.unsupported), None)
    return unread if unread is not None else Known(counts, f"{_PATH}: gpu {link['index']} errors")


def _with_peers(gpus: tuple[Gpu, ...], entries: list[Mapping[str, Any]]) -> tuple[Gpu, ...]:
    """Ways between GPUs as `nvidia-smi topo -m` shows them: NVLinks where there are any, else the common ancestor on the PCI bus."""
    return tuple(replace(gpu, peers=_peers(gpu, gpus, entry)) for gpu, entry in zip(gpus, entries, strict=True))


def _peers(gpu: Gpu, gpus: tuple[Gpu, ...], entry: Mapping[str, Any]) -> Fact[Mapping[int, str]]:
    path = f"{_PATH}: gpu {gpu.index} peers"
    if isinstance(gpu.nvlinks, Unknown):
        return gpu.nvlinks
    ancestors = entry.get("common_ancestor")
    if not isinstance(ancestors, dict):
        return Unknown(Reason.not_recorded, path)
    switched = sum(link.remote == "switch" for link in gpu.nvlinks.value)
    ways: dict[int, str] = {}
    for other in gpus:
        if other.index == gpu.index:
            continue
        direct = sum(known(link.remote_bus_id) == known(other.bus_id) for link in gpu.nvlinks.value if link.remote == "gpu")
        peer_switched = sum(link.remote == "switch" for link in known(other.nvlinks) or ())
        links = direct or min(switched, peer_switched)
        if links:
            ways[other.index] = f"NV{links}"
            continue
        level = _answer({"index": gpu.index, "level": ancestors.get(str(other.index))}, "level", lambda value: _LEVELS[int(value)])
        if isinstance(level, Known):
            ways[other.index] = level.value
        elif other.lost is None:  # of a GPU that fell off the bus only the way to it is unknown
            return level
    return Known(ways, path)
