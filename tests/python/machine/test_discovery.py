"""What discovery makes of a crafted machine, of one with parts missing, and of this one."""

from __future__ import annotations

import json

import pytest
from crafted import Crafted, Switch, craft, host
from template_machine import TemplateMachine, WholeSource, config_space

from railweave import fabric as fabrics
from railweave.advise.binding import notes
from railweave.advise.live import host_of
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer
from railweave.machine import pci_config
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Known, Machine, PciLink, Unknown, known
from railweave.machine.paths import pci_way
from railweave.machine.processors import nodes_per_package, read_cores
from railweave.machine.source import LiveSource, Reason
from railweave.machine.text import render_machine


def machine_of(crafted: Crafted) -> Machine:
    return discover(WholeSource(crafted.recording))


def reason_of(fact: object) -> Reason:
    assert isinstance(fact, Unknown)
    return fact.reason


def test_crafted_machine() -> None:
    crafted = craft()
    machine = machine_of(crafted)
    gpus, nics = known(machine.gpus), known(machine.nics)
    assert gpus is not None and nics is not None
    assert [known(gpu.bus_id) for gpu in gpus] == crafted.gpus
    assert {known(gpu.sm) for gpu in gpus} == {90}
    assert {len(known(gpu.nvlinks) or ()) for gpu in gpus} == {18}
    assert known(gpus[0].peers) == dict.fromkeys(range(1, 8), "NV18")
    assert known(gpus[0].link) == PciLink(2.5, 16) and known(gpus[0].link_max) == PciLink(32.0, 16)
    assert [nic.name for nic in nics] == [f"mlx5_{number}" for number in range(8)]
    assert [known(nic.bus_id) for nic in nics] == crafted.nics
    assert {known(nic.rate_bps) for nic in nics} == {400_000_000_000}
    assert {known(nic.state) for nic in nics} == {"active"}
    assert [len(known(nic.gids) or ()) for nic in nics] == [1] * 8
    device = machine.pci_device(crafted.gpus[0])
    assert device is not None
    assert known(device.numa) == 0 and known(device.iommu_group) is None and isinstance(device.iommu_group, Known)
    assert [bridge.bus_id for bridge in machine.ancestors(device.bus_id)] == [crafted.ports[0], "0000:12:00.0", "0000:11:01.0"]
    assert [len(core.cpus) for core in known(machine.cpus.cores) or ()] == [1] * 16
    assert known(machine.kernel.peermem) == ("nvidia_peermem",)
    assert known(machine.host.fabric_manager) == "active"
    assert known(machine.kernel.irqbalance) is False


@pytest.mark.parametrize(
    ("a", "b", "way"),
    [(0, 1, "PIX"), (0, 2, "NODE"), (0, 4, "SYS")],
    ids=["one switch", "two root ports of a socket", "two sockets"],
)
def test_ways_between_gpus(a: int, b: int, way: str) -> None:
    crafted = craft()
    assert known(pci_way(machine_of(crafted), crafted.gpus[a], crafted.gpus[b])) == way


def test_fabric_of_the_machine() -> None:
    fabric, notes = fabric_of(machine_of(craft()))
    assert notes == ()
    assert (fabric.gpu_count, len(fabric.nics_of(0))) == (8, 8)
    switches = [vertex for vertex in fabric.vertices if vertex.kind.name == "pcie_switch"]
    assert [switch.bus_id for switch in switches] == ["0000:12:00.0", "0000:15:00.0", "0000:18:00.0", "0000:1b:00.0"]
    rates = {(edge.kind.name, edge.capacity_Bps) for edge in fabric.edges}
    assert ("nvlink", 450_000_000_000) in rates and ("pcie", 63_015_384_615) in rates and ("rail", 50_000_000_000) in rates
    assert all(fabric.vertex(gpu).gdr and fabric.vertex(gpu).model == "H100 SXM5 80GB" for gpu in fabric.gpus_of(0))
    assert not any("topology file" in edge.source for edge in fabric.edges)


@pytest.mark.parametrize("name", sorted(fabrics.templates()))
def test_machine_wired_like_a_template_has_its_fabric(name: str) -> None:
    """But for what the crafted machines do not follow their template in: the processor, GPUDirect RDMA, wiring without rails."""
    found, notes = fabric_of(TemplateMachine(name).machine())
    (parts, links), (parts_found, links_found) = host(fabrics.load(name)), host(found)
    assert notes == ()
    assert {part: one[:2] for part, one in parts_found.items()} == {part: one[:2] for part, one in parts.items()}  # type: ignore[index]
    assert [link for link in links_found if "socket" not in link] == [link for link in links if "socket" not in link]


def test_width_of_a_link_is_the_lesser_of_its_ends() -> None:
    crafted = craft()
    crafted.file(f"/sys/bus/pci/devices/{crafted.ports[0]}/max_link_width", "8")
    fabric, _ = fabric_of(machine_of(crafted))
    link = next(edge for edge in fabric.edges if edge.src == fabric.gpus_of(0)[0] and edge.kind.name == "pcie")
    assert link.capacity_Bps == 31_507_692_307


def test_lost_gpu_keeps_what_it_had_answered() -> None:
    crafted = craft()
    document = json.loads(crafted.recording.libraries["nvml"])
    for answer in ("name", "sm_clock_MHz", "fabric_state"):
        document["gpus"][3][answer] = {"error": "NVML_ERROR_GPU_IS_LOST"}
    document["gpus"][5] = {"index": 5, "error": "NVML_ERROR_GPU_IS_LOST"}
    crafted.recording.libraries["nvml"] = json.dumps(document)
    machine = machine_of(crafted)
    gpus = known(machine.gpus)
    assert gpus is not None and len(gpus) == 8
    assert reason_of(gpus[3].name) is Reason.vanished and known(gpus[3].sm) == 90
    assert reason_of(gpus[5].name) is Reason.vanished and known(gpus[5].bus_id) == crafted.gpus[5]
    assert [gpu.index for gpu in gpus if gpu.lost] == [3, 5]
    assert "vanished" in render_machine(machine)


def test_device_that_vanishes_between_two_reads() -> None:
    crafted = craft()
    at = f"/sys/bus/pci/devices/{crafted.gpus[0]}"
    for path in [
        path for path in crafted.recording.files if path.startswith(f"{at}/") and not path.endswith(("class", "vendor", "device"))
    ]:
        del crafted.recording.files[path]
        crafted.recording.unreadable[path] = (Reason.vanished, "No such device")
    machine = machine_of(crafted)
    device = machine.pci_device(crafted.gpus[0])
    assert device is not None and reason_of(device.config) is Reason.vanished and reason_of(device.link) is Reason.vanished
    assert len(known(machine.gpus) or ()) == 8


def test_without_the_driver_gpus_come_from_the_bus() -> None:
    crafted = craft()
    del crafted.recording.libraries["nvml"]
    crafted.recording.unreadable["library:nvml"] = (Reason.absent, "nvmlInit: NVML_ERROR_DRIVER_NOT_LOADED")
    machine = machine_of(crafted)
    gpus = known(machine.gpus)
    assert gpus is not None and [known(gpu.bus_id) for gpu in gpus] == sorted(crafted.gpus)
    assert reason_of(gpus[0].nvlinks) is Reason.absent
    _, notes = fabric_of(machine)
    assert any("NVLinks of GPU 0 are not known" in note for note in notes)


@pytest.mark.parametrize("path", ["/sys/bus/pci/devices", "/sys/class/net", "/sys/devices/system/node", "/proc/cpuinfo", "library:nvml"])
def test_one_thing_missing_leaves_the_rest(path: str) -> None:
    crafted = craft()
    for table in (crafted.recording.files, crafted.recording.folders, crafted.recording.libraries):
        table.pop(path.removeprefix("library:"), None)  # type: ignore[attr-defined]
    crafted.recording.unreadable[path] = (Reason.permission, "Permission denied")
    machine = machine_of(crafted)
    text = render_machine(machine)
    assert f"{path}: permission" in text or path == "library:nvml" or "not known" in text
    assert len([fact for fact in (machine.pci, machine.gpus, machine.nics, machine.numa) if isinstance(fact, Known)]) >= 3


def test_sub_numa_of_devices_is_their_own_not_their_sockets() -> None:
    machine = machine_of(craft((Switch(0, 1, 1), Switch(1, 1, 0))))
    fabric, _ = fabric_of(machine)
    assert [vertex.name for vertex in fabric.vertices if vertex.kind.name == "numa"] == ["node0/numa0", "node0/numa1"]
    assert known(machine.numa) is not None and len(known(machine.numa) or ()) == 2


def test_sockets_that_the_system_does_not_number_are_not_counted() -> None:
    """Linux says -1 where firmware has no table of them, as in guests on Arm; two NUMA nodes are then no sub-NUMA clustering."""
    template = TemplateMachine("hgx-h100")
    template.files.update({path: "-1\n" for path in template.files if path.endswith("/physical_package_id")})
    machine = template.machine()
    assert {core.package for core in known(machine.cpus.cores) or ()} == {None}
    assert nodes_per_package(machine.cpus, machine.numa) == {}
    assert "16 cores" in render_machine(machine) and "socket," not in render_machine(machine)
    [answer] = [finding for finding in examine(machine, "crafted").findings if finding.check == "cpu.sub-numa"]
    assert answer.answer is Answer.unknown and "does not number sockets" in answer.text
    host, _ = host_of(machine)
    assert {numa.package for numa in host.numas} == {None} and not any("sub-NUMA" in note for note in notes(host))


def test_registers() -> None:
    space = bytearray(config_space(6, 0x060400, 32.0))
    space[0x14E] = 0x1D
    redirecting = bytes(space)
    acs = pci_config.acs(redirecting)
    assert acs is not None
    assert acs.on == {"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"} and acs.offset == 0x14E
    express = pci_config.express(redirecting)
    assert express is not None and (express.type, express.speed_max_GTps, express.width_max) == ("downstream port", 32.0, 16)
    assert pci_config.acs(redirecting[:256]) is None and not pci_config.has_extended_space(redirecting[:64])
    assert pci_config.ats(redirecting) is None


def test_capability_list_in_a_circle_ends() -> None:
    space = bytearray(config_space(4, 0x060400, 32.0))
    space[0x41] = 0x40
    assert pci_config.capability(bytes(space), 0x11) is None
    space[0x102:0x104] = b"\x02\x10"  # next extended capability is this one
    assert pci_config.extended_capability(bytes(space), 0x000D) is None


def test_this_machine() -> None:
    machine = discover(LiveSource())
    assert isinstance(machine.numa, Known) and isinstance(machine.cpus.online, Known)
    assert render_machine(machine).startswith("this machine: ")


def test_a_copied_tree_is_read_below_its_root(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("5.15.0\n")
    machine = discover(LiveSource(tmp_path))
    assert known(machine.kernel.release) == "5.15.0"
    assert reason_of(machine.pci) is Reason.absent
    assert isinstance(machine.gpus, Unknown)


@pytest.mark.parametrize(("control", "of_cores"), [("notsupported", 0), ("forceoff", 0), ("on", 1), ("notimplemented", 1), (None, 1)])
@pytest.mark.parametrize(("listed", "of_packages"), [(True, 0), (False, 1)])
def test_cores_are_known_from_few_files_where_the_kernel_lists_them(
    control: str | None, of_cores: int, listed: bool, of_packages: int
) -> None:
    machine = TemplateMachine("hgx-h100")
    cpus = sum(path.endswith("/thread_siblings_list") for path in machine.files)
    if not listed:
        machine.files = {path: content for path, content in machine.files.items() if not path.endswith("/core_siblings_list")}
    machine.files["/sys/devices/system/cpu/smt/control"] = control or ""
    asked: list[str] = []

    class Asked(WholeSource):
        def read_bytes(self, path: str) -> bytes:
            asked.append(path.rsplit("/", 1)[1])
            return super().read_bytes(path)

    cores = known(read_cores(Asked(machine.source.recording)).cores)
    assert cores is not None and [core.cpus for core in cores] == [(cpu,) for cpu in range(cpus)]
    assert [core.package for core in cores] == [cpu * 2 // cpus for cpu in range(cpus)]
    assert asked.count("thread_siblings_list") == of_cores * cpus
    assert asked.count("physical_package_id") == (cpus if of_packages else 2)
