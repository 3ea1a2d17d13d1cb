"""PCI devices from sysfs."""

from __future__ import annotations

from railweave.machine import facts
from railweave.machine.facts import Fact, Known, Machine, PciDevice, PciLink, Unknown, known
from railweave.machine.reading import NotGiven, attempt, cpu_list, decimal_before, integer, link_name, or_none, parsed
from railweave.machine.source import Reason, Source, Unreadable
from railweave.records import dataclass, replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEVICES = "/sys/bus/pci/devices"
_LOWER_HEX = frozenset("0123456789abcdef")
# As Linux writes them; older releases wrote `8 GT/s`.
_SPEEDS = {f"{GTps} GT/s PCIe": GTps for GTps in (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)}
# Display, network and bridge; NVSwitch ("other bridge"). All others only show what they are.
_CLASSES_OF_INTEREST = {0x02, 0x03, 0x12}
_NVSWITCH = 0x0680
NVIDIA = 0x10DE


def read_pci(source: Source) -> Fact[tuple[PciDevice, ...]]:
    """All functions: GPUs, NICs, NVSwitches and the bridges above them in full, of the others only what they are and where."""
    try:
        names = [name for name in source.listdir(DEVICES) if _is_address(name)]
    except Unreadable as error:
        return Unknown(error.reason, error.path, error.detail)
    places = _places(source, names)
    classes = {name: integer(source, f"{DEVICES}/{name}/class") for name in names}
    in_full = {name for name in names if _is_of_interest(classes[name])}
    for name in sorted(in_full):
        parent = places[name].parent
        while parent is not None and parent in places and parent not in in_full:
            in_full.add(parent)
            parent = places[parent].parent
    devices = [_device(source, name, places[name], classes[name], name in in_full) for name in names]
    return Known(tuple(devices), DEVICES)


def read_wiring(source: Source, names: Sequence[str]) -> Fact[tuple[PciDevice, ...]]:
    """These functions, the first ones of their cards, and the bridges above them: where they hang, what their links can do, NUMA nodes."""
    places: dict[str, _Place] = {}
    for name in names:
        try:
            target = source.readlink(f"{DEVICES}/{name}")
        except Unreadable as error:
            return Unknown(error.reason, error.path, error.detail)
        root, way = path_root(target), path_addresses(target)
        places[name] = _Place(way[-2] if len(way) > 1 else None, root)
        places.update({address: _Place(way[depth - 1] if depth else None, root) for depth, address in enumerate(way)})
        card = name.rsplit(".", 1)[0] + ".0"
        if card not in places and isinstance(integer(source, f"{DEVICES}/{card}/class"), Known):
            places[card] = places[name]
    return Known(tuple(_wired(source, name, place, name in names) for name, place in sorted(places.items())), DEVICES)


def _wired(source: Source, name: str, place: _Place, is_end: bool) -> PciDevice:
    at = f"{DEVICES}/{name}"
    device = PciDevice(
        bus_id=name,
        parent=place.parent,
        root=place.root,
        pci_class=integer(source, f"{at}/class"),
        numa=parsed(source, f"{at}/numa_node", _numa),
        link_max=read_link(source, at, "max"),
    )
    if not is_end:
        return device
    return replace(
        device,
        vendor=integer(source, f"{at}/vendor"),
        device=integer(source, f"{at}/device"),
        physical_function=or_none(link_name(source, f"{at}/physfn")),
    )


def gpus_on_the_bus(devices: Iterable[PciDevice]) -> list[PciDevice]:
    """NVIDIA's display and 3D controllers, by address; not the virtual functions that guests get."""
    found = [device for device in devices if device.is_class(0x03, 2) and known(device.vendor) == NVIDIA]
    return sorted((device for device in found if known(device.physical_function) is None), key=lambda device: device.bus_id)


def unlisted_gpus(machine: Machine) -> tuple[PciDevice, ...]:
    """GPUs on the PCI bus that the driver does not list; none where it was not asked."""
    gpus = known(machine.gpus) or ()
    listed = {known(gpu.bus_id) for gpu in gpus}
    left = tuple(device for device in gpus_on_the_bus(known(machine.pci) or ()) if device.bus_id not in listed)
    unplaced = sum(isinstance(gpu.bus_id, Unknown) for gpu in gpus)
    return left if isinstance(machine.gpus, Known) and len(left) > unplaced else ()


def canonical_bus_id(text: str) -> str:
    """A PCI address as Linux writes it: NVML writes the domain with 8 digits and capitals. Raises ValueError."""
    import re

    found = re.fullmatch(r"(?:([0-9A-Fa-f]{1,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])", text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!r} is no PCI address")
    domain = int(found[1] or "0", 16)
    return f"{domain:04x}:{found[2].lower()}:{found[3].lower()}.{found[4]}"


def path_addresses(target: str) -> list[str]:
    """PCI addresses in the path of a sysfs link, from the root port down."""
    return [part for part in target.split("/") if _is_address(part)]


def last_address(target: str) -> str | None:
    """The last of them; None if there is none."""
    return next((part for part in reversed(target.split("/")) if _is_address(part)), None)


def path_root(target: str) -> str:
    """Root bus in such a path, `pci0000:00`; `pci` if there is none."""
    return next((part for part in target.split("/") if part.startswith("pci") and _is_bus(part[3:])), "pci")


def _is_address(text: str) -> bool:
    """`0000:1b:00.0`"""
    return (
        12 <= len(text) <= 16
        and text[-2] == "."
        and text[-5] == text[-8] == ":"
        and text[-1] in "01234567"
        and _LOWER_HEX.issuperset(text[:-8])
        and _LOWER_HEX.issuperset(text[-7:-5])
        and _LOWER_HEX.issuperset(text[-4:-2])
    )


def _is_bus(text: str) -> bool:
    """`0000:1b`; domains of virtual buses have more digits."""
    return 7 <= len(text) <= 11 and text[-3] == ":" and _LOWER_HEX.issuperset(text[:-3]) and _LOWER_HEX.issuperset(text[-2:])


def _is_of_interest(pci_class: Fact[int]) -> bool:
    if isinstance(pci_class, Unknown):
        return True
    return pci_class.value >> 16 in _CLASSES_OF_INTEREST or pci_class.value >> 8 == _NVSWITCH


@dataclass(frozen=True)
class _Place:
    parent: str | None
    root: str
    unplaced: Unknown | None = None


def _places(source: Source, names: Sequence[str]) -> dict[str, _Place]:
    """Where each function hangs, by its link; a bridge whose own cannot be read, by that of a function below it."""
    places: dict[str, _Place] = {}
    below: dict[str, _Place] = {}
    for name in names:
        target = attempt(f"{DEVICES}/{name}", lambda name=name: source.readlink(f"{DEVICES}/{name}"))  # type: ignore[misc]
        if isinstance(target, Unknown):
            places[name] = _Place(None, f"pci{name.rsplit(':', 1)[0]}", target)
            continue
        root, above = path_root(target.value), [address for address in path_addresses(target.value) if address != name]
        places[name] = _Place(above[-1] if above else None, root)
        below.update({address: _Place(above[depth - 1] if depth else None, root) for depth, address in enumerate(above)})
    return {name: place if place.unplaced is None else below.get(name, place) for name, place in places.items()}


def _device(source: Source, name: str, place: _Place, pci_class: Fact[int], in_full: bool) -> PciDevice:
    at = f"{DEVICES}/{name}"
    vendor, device = integer(source, f"{at}/vendor"), integer(source, f"{at}/device")
    if not in_full:
        not_read = Unknown(Reason.not_given, at, "read of GPUs, NICs, NVSwitches and the bridges above them only")
        empty = dict.fromkeys(_FULL_FIELDS, not_read)
        return PciDevice(name, place.parent, place.root, place.unplaced, vendor, device, pci_class, **empty)
    group = or_none(attempt(f"{at}/iommu_group", lambda: int(source.readlink(f"{at}/iommu_group").rsplit("/", 1)[-1])))
    return PciDevice(
        bus_id=name,
        parent=place.parent,
        root=place.root,
        unplaced=place.unplaced,
        vendor=vendor,
        device=device,
        pci_class=pci_class,
        subsystem_vendor=integer(source, f"{at}/subsystem_vendor"),
        subsystem_device=integer(source, f"{at}/subsystem_device"),
        numa=parsed(source, f"{at}/numa_node", _numa),
        local_cpus=parsed(source, f"{at}/local_cpulist", _local_cpus),
        link=read_link(source, at, "current"),
        link_max=read_link(source, at, "max"),
        driver=or_none(link_name(source, f"{at}/driver")),
        iommu_group=group,
        iommu_domain=_iommu_domain(source, group),
        config=attempt(f"{at}/config", lambda: source.read_bytes(f"{at}/config")),
        sriov=_sriov(source, at),
        physical_function=or_none(link_name(source, f"{at}/physfn")),
        aer=_aer(source, at),
        irqs=attempt(f"{at}/msi_irqs", lambda: tuple(int(number) for number in source.listdir(f"{at}/msi_irqs"))),
    )


_FULL_FIELDS = (
    "subsystem_vendor",
    "subsystem_device",
    "numa",
    "local_cpus",
    "link",
    "link_max",
    "driver",
    "iommu_group",
    "iommu_domain",
    "config",
    "sriov",
    "physical_function",
    "aer",
    "irqs",
)


def _numa(text: str) -> int:
    number = int(text)
    if number < 0:
        raise NotGiven(f"{number}: the firmware does not say")
    return number


def _local_cpus(text: str) -> tuple[int, ...]:
    cpus = cpu_list(text)
    if not cpus:
        raise NotGiven("empty: no CPU is said to be near")
    return cpus


def read_link(source: Source, at: str, which: str) -> Fact[PciLink]:
    """What a link runs at (`current`) or can do (`max`)."""
    speed = parsed(source, f"{at}/{which}_link_speed", link_speed)
    width = parsed(source, f"{at}/{which}_link_width", _width)
    if isinstance(speed, Unknown):
        return speed
    if isinstance(width, Unknown):
        return width
    return Known(PciLink(speed.value, width.value), f"{at}/{which}_link_speed, {which}_link_width")


def link_speed(text: str) -> float:
    """`32.0 GT/s PCIe` in GT/s. Raises ValueError."""
    speed = _SPEEDS.get(text) or decimal_before(text, " GT/s")
    if speed is None:
        raise NotGiven(f"{text[:40]!r}")
    return speed


def _width(text: str) -> int:
    width = int(text)
    if not 1 <= width <= 32:  # 0: a guest whose hypervisor shows no link; 63, 255: no link
        raise NotGiven(f"{width} lanes")
    return width


def _iommu_domain(source: Source, group: Fact[int | None]) -> Fact[str]:
    if isinstance(group, Unknown):
        return group
    if group.value is None:
        return Unknown(Reason.absent, group.evidence, "the device is in no IOMMU group")
    path = f"/sys/kernel/iommu_groups/{group.value}/type"
    return parsed(source, path, str)


def _sriov(source: Source, at: str) -> Fact[facts.Sriov | None]:
    total = or_none(integer(source, f"{at}/sriov_totalvfs"))
    if isinstance(total, Unknown):
        return total
    if total.value is None:
        return Known(None, total.evidence)
    enabled = integer(source, f"{at}/sriov_numvfs")
    if isinstance(enabled, Unknown):
        return enabled
    return Known(facts.Sriov(total.value, enabled.value), f"{at}/sriov_totalvfs, sriov_numvfs")


def _aer(source: Source, at: str) -> Fact[Mapping[str, int]]:
    counts: dict[str, int] = {}
    for kind in ("correctable", "nonfatal", "fatal"):
        count = parsed(source, f"{at}/aer_dev_{kind}", _aer_total)
        if isinstance(count, Unknown):
            return count
        counts[kind] = count.value
    return Known(counts, f"{at}/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal")


def _aer_total(text: str) -> int:
    for line in text.splitlines():
        name, _, number = line.rpartition(" ")
        if name.startswith("TOTAL_ERR"):
            return int(number)
    raise ValueError("no line TOTAL_ERR...")
