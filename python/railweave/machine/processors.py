"""Processors and NUMA nodes from sysfs and /proc/cpuinfo."""

from __future__ import annotations

from railweave.machine.facts import Core, Cpus, Fact, Known, NumaNode, Unknown, known
from railweave.machine.reading import NotGiven, attempt, cpu_list, parsed
from railweave.machine.source import Source, Unreadable
from railweave.records import replace

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Mapping

NODES = "/sys/devices/system/node"
CPUS = "/sys/devices/system/cpu"
CPUINFO = "/proc/cpuinfo"
# Where each CPU is a core of its own (Linux, Documentation/ABI/testing/sysfs-devices-system-cpu). `notimplemented` does not say so.
_NO_SMT = ("off", "forceoff", "notsupported")


def read_numa(source: Source) -> Fact[tuple[NumaNode, ...]]:
    """The NUMA nodes, ascending, with all that is known of them."""
    nodes = read_nodes(source)
    if isinstance(nodes, Unknown):
        return nodes
    numbers = [node.id for node in nodes.value]
    return Known(tuple(_node(source, node, numbers) for node in nodes.value), nodes.evidence)


def read_nodes(source: Source) -> Fact[tuple[NumaNode, ...]]:
    """The same nodes: which CPUs they have."""
    try:
        names = source.listdir(NODES)
    except Unreadable as error:
        return Unknown(error.reason, error.path, error.detail)
    numbers = sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdigit())
    return Known(tuple(NumaNode(number, parsed(source, f"{NODES}/node{number}/cpulist", cpu_list)) for number in numbers), NODES)


def _node(source: Source, node: NumaNode, numbers: list[int]) -> NumaNode:
    at = f"{NODES}/node{node.id}"
    return replace(
        node,
        memory_B=parsed(source, f"{at}/meminfo", _memory),
        distances=parsed(source, f"{at}/distance", lambda text: _distances(text, numbers)),
        hugepages=attempt(f"{at}/hugepages", lambda: _hugepages(source, f"{at}/hugepages")),
    )


def _memory(text: str) -> int:
    for line in text.splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) * 1024
    raise ValueError("no line MemTotal")


def _distances(text: str, numbers: list[int]) -> Mapping[int, int]:
    values = [int(word) for word in text.split()]
    if len(values) != len(numbers):
        raise ValueError(f"{len(values)} distances for {len(numbers)} nodes")
    return dict(zip(numbers, values, strict=True))


def _hugepages(source: Source, at: str) -> Mapping[int, int]:
    sizes = {}
    for name in source.listdir(at):
        kB = name.removeprefix("hugepages-").removesuffix("kB")
        sizes[int(kB) * 1024] = int(source.read_text(f"{at}/{name}/nr_hugepages"))
    return sizes


def read_cpus(source: Source) -> Cpus:
    """Kind, cores, caches, simultaneous multithreading, clock policies."""
    cpus = read_cores(source)
    return replace(
        cpus,
        l3=_caches(source, cpus.online),
        smt=parsed(source, f"{CPUS}/smt/active", lambda text: bool(int(text))),
        governors=_policies(source, "scaling_governor"),
        energy_preferences=_policies(source, "energy_performance_preference"),
    )


def read_cores(source: Source) -> Cpus:
    """Kind and cores."""
    info = attempt(CPUINFO, lambda: _cpuinfo(source.read_text(CPUINFO)))
    online = parsed(source, f"{CPUS}/online", cpu_list)
    return Cpus(
        arch=_arch(source, info),
        vendor=_field(info, "vendor_id"),
        model_name=_field(info, "model name"),
        family=_number(info, "cpu family"),
        model=_number(info, "model"),
        online=online,
        cores=_cores(source, online),
        isolated=parsed(source, f"{CPUS}/isolated", cpu_list),
    )


def has_hypervisor_flag(source: Source) -> Fact[bool]:
    """Whether the CPU says that a hypervisor runs it (x86; other CPUs do not say)."""
    info = attempt(CPUINFO, lambda: _cpuinfo(source.read_text(CPUINFO)))
    flags = _field(info, "flags")
    return flags if isinstance(flags, Unknown) else Known("hypervisor" in flags.value.split(), flags.evidence)


def _cpuinfo(text: str) -> dict[str, str]:
    """The first processor's entry; all are of one kind."""
    entry: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not colon and entry:
            break
        entry[key.strip()] = value.strip()
    if not entry:
        raise NotGiven("empty")
    return entry


def _field(info: Fact[dict[str, str]], key: str) -> Fact[str]:
    if isinstance(info, Unknown):
        return info

    def read() -> str:
        if not info.value.get(key):
            raise NotGiven(f"no line {key!r}")
        return info.value[key]

    return attempt(f"{CPUINFO}: {key}", read)


def _number(info: Fact[dict[str, str]], key: str) -> Fact[int]:
    text = _field(info, key)
    return text if isinstance(text, Unknown) else attempt(text.evidence, lambda: int(text.value, 0))


def _arch(source: Source, info: Fact[dict[str, str]]) -> Fact[str]:
    path = "/proc/sys/kernel/arch"
    arch = parsed(source, path, str)  # since Linux 6.1
    if isinstance(arch, Known) or isinstance(info, Unknown):
        return arch
    for key, name in (("flags", "x86_64"), ("CPU implementer", "aarch64"), ("cpu", "ppc64le")):
        if key in info.value:
            return Known(name, f"{CPUINFO}: {key}")
    return arch


def _cores(source: Source, online: Fact[tuple[int, ...]]) -> Fact[tuple[Core, ...]]:
    if isinstance(online, Unknown):
        return online

    def read() -> tuple[Core, ...]:
        cores: dict[tuple[int, ...], Core] = {}
        seen: set[int] = set()
        packages: dict[int, int | None] = {}
        alone = known(parsed(source, f"{CPUS}/smt/control", str)) in _NO_SMT
        for cpu in online.value:
            if cpu in seen:
                continue
            at = f"{CPUS}/cpu{cpu}/topology"
            threads = (cpu,) if alone else cpu_list(source.read_text(f"{at}/thread_siblings_list"))
            seen.update(threads)
            if cpu not in packages:
                number = int(source.read_text(f"{at}/physical_package_id"))
                package = number if number >= 0 else None  # -1: not known, as of guests whose firmware has no such table
                mates = parsed(source, f"{at}/core_siblings_list", cpu_list)  # one file for all CPUs of a package instead of one for each
                packages.update(dict.fromkeys((cpu, *(known(mates) or ())), package))
            cores[threads] = Core(packages[cpu], threads)
        return tuple(cores[threads] for threads in sorted(cores))

    return attempt(f"{CPUS}/cpu*/topology", read)


def _caches(source: Source, online: Fact[tuple[int, ...]]) -> Fact[tuple[tuple[int, ...], ...]]:
    if isinstance(online, Unknown):
        return online

    def read() -> tuple[tuple[int, ...], ...]:
        caches: set[tuple[int, ...]] = set()
        seen: set[int] = set()
        for cpu in online.value:
            if cpu in seen:
                continue
            shared = cpu_list(source.read_text(f"{CPUS}/cpu{cpu}/cache/index3/shared_cpu_list"))
            seen.update(shared)
            caches.add(shared)
        return tuple(sorted(caches))

    return attempt(f"{CPUS}/cpu*/cache/index3/shared_cpu_list", read)


def _policies(source: Source, name: str) -> Fact[Mapping[str, tuple[int, ...]]]:
    """CPUs by a setting of their frequency policy. A policy covers CPUs whose clock goes together."""
    at = f"{CPUS}/cpufreq"

    def read() -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        policies = [policy for policy in source.listdir(at) if policy.startswith("policy")]
        if not policies:
            raise NotGiven("no frequency policy: firmware or hypervisor sets the clock")
        for policy in policies:
            setting = source.read_text(f"{at}/{policy}/{name}").strip()
            if not setting:
                raise NotGiven(f"{policy}: empty")
            found.setdefault(setting, []).extend(cpu_list(source.read_text(f"{at}/{policy}/affected_cpus").replace(" ", ",")))
        return {setting: tuple(sorted(cpus)) for setting, cpus in sorted(found.items())}

    return attempt(f"{at}/policy*/{name}", read)


def nodes_per_package(cpus: Cpus, numa: Fact[tuple[NumaNode, ...]]) -> dict[int, tuple[int, ...]]:
    """NUMA nodes with cores of each socket: more than one is sub-NUMA clustering (SNC, NPS). Empty where any of them is unknown."""
    package_of = {cpu: core.package for core in known(cpus.cores) or () if core.package is not None for cpu in core.cpus}
    found: dict[int, set[int]] = {}
    for node in known(numa) or ():
        for cpu in known(node.cpus) or ():
            if cpu in package_of:
                found.setdefault(package_of[cpu], set()).add(node.id)
    return {package: tuple(sorted(nodes)) for package, nodes in sorted(found.items())}
