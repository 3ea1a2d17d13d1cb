"""Advice for machines from their facts: joined by PCI address, from a recording, and on a machine without GPUs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from railweave import fabric
from railweave.advise import live
from railweave.advise.advice import advise
from railweave.advise.facts import with_machine
from railweave.advise.host import Distance, Host, read_host
from railweave.advise.mapping import Workload
from railweave.launch.errors import NoAdviceError
from railweave.launch.placement import read
from railweave.machine.discovery import discover
from railweave.machine.fabric import fabric_of
from railweave.machine.facts import Known, Machine, Unknown, known
from railweave.machine.nccl_topology import fabric_ports
from railweave.machine.paths import WAYS, nic_way
from railweave.machine.recording import RecordedSource, write_recording
from railweave.machine.source import Reason, Source
from railweave.machine.wiring import DRIVER

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
from crafted import Crafted, Switch, craft
from template_machine import TemplateMachine


def machine_of(crafted: Crafted) -> Machine:
    return discover(RecordedSource(crafted.recording))


def host_of(crafted: Crafted) -> Host:
    return live.host_of(machine_of(crafted))[0]


def test_crafted_machine_is_known_to_the_core() -> None:
    host = host_of(craft())
    assert [gpu.bus_id for gpu in host.gpus] == craft().gpus
    assert [nic.device for nic in host.nics] == [f"mlx5_{i}:1" for i in range(8)]
    assert {gpu.sm for gpu in host.gpus} == {90}
    advice = advise(host)
    assert advice.missing == ()
    assert [binding.cpus for binding in advice.bindings[:2]] == [(0, 1), (2, 3)]
    assert advice.environment(5)["UCX_NET_DEVICES"] == "mlx5_5:1"


def test_isolated_cpus_are_not_dealt() -> None:
    made = TemplateMachine("xe9680-4hca")
    made.files["/sys/devices/system/cpu/isolated"] = "0-3,15\n"
    bindings = advise(live.host_of(made.machine())[0]).bindings
    assert sorted(cpu for binding in bindings for cpu in binding.cpus or ()) == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]


def test_gpus_below_one_switch_do_not_take_the_same_nic() -> None:
    """What openucx/ucx issue 11680 saw: nearest-only leaves half of the NICs idle."""
    mapping = advise(host_of(craft())).mapping
    assert mapping is not None
    assert sorted(nic.name for nics in mapping.nics for nic in nics) == [f"nic{i}" for i in range(8)]
    assert mapping.nearest_seconds_per_byte == pytest.approx(2 * mapping.seconds_per_byte)


def test_unknown_facts_stay_unknown() -> None:
    machine = machine_of(craft())
    blind = Machine(origin="x", pci=machine.pci, gpus=machine.gpus)
    wired, _ = fabric_of(machine)
    host = with_machine(read_host(wired), blind)
    assert (host.gdrcopy, host.virtual) == (None, None)
    assert all(nic.device is None for nic in host.nics)
    assert not any(numa.threads_known for numa in host.numas)  # the fabric has masks, and no more


@pytest.mark.parametrize(
    ("driver", "loaded"),
    [
        (Known("2.4", "/sys/module/gdrdrv/version"), True),
        (Unknown(Reason.absent, "/sys/module/gdrdrv/version"), False),
        (Unknown(Reason.permission, "/sys/module/gdrdrv/version"), None),
    ],
)
def test_a_driver_that_cannot_be_read_is_not_called_missing(driver: Known[str] | Unknown, loaded: bool | None) -> None:
    machine = machine_of(craft())
    wired, _ = fabric_of(machine)
    host = with_machine(read_host(wired), replace(machine, kernel=replace(machine.kernel, gdrcopy=driver)))
    assert host.gdrcopy == loaded


def test_switches_without_nics_leave_their_gpus_to_others() -> None:
    advice = advise(host_of(craft((Switch(0, 2, 1), Switch(0, 2, 0), Switch(1, 2, 1), Switch(1, 2, 0)))))
    assert [way.name for way in advice.distances] == ["PIX", "PIX", "NODE", "NODE"] * 2
    assert any("4 of 8 GPUs" in note for note in advice.notes)


def test_recording_through_the_command(tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    path = tmp_path / "node.tar.zst"
    write_recording(craft().recording, path)
    done = cli("advise", "--from", str(path), "--format", "slurm")
    assert done.returncode == 0, done.stderr
    assert "--cpu-bind=mask_cpu:0x3,0xc,0x30,0xc0,0x300,0xc00,0x3000,0xc000" in done.stdout
    both = cli("advise", "--from", str(path), "hgx-h100")
    assert both.returncode == 2
    path.write_bytes(path.read_bytes()[:40])
    cut = cli("advise", "--from", str(path))
    assert cut.returncode == 1
    assert cut.stderr.startswith("railweave: ")


@pytest.mark.parametrize("name", fabric.templates())
def test_a_recording_of_a_templates_machine_is_advised_as_the_template(name: str, tmp_path: Path) -> None:
    recorded, _ = live.recorded_host(TemplateMachine(name).record(tmp_path / "node.tar.zst"))
    found, expected = advise(recorded), advise(read_host(fabric.load(name)))
    assert found.mapping is not None
    assert expected.mapping is not None
    assert [[nic.name for nic in nics] for nics in found.mapping.nics] == [[nic.name for nic in nics] for nics in expected.mapping.nics]
    assert found.mapping.seconds_per_byte == pytest.approx(expected.mapping.seconds_per_byte)
    as_fabric = {Distance.NODE: Distance.PHB}  # a fabric does not tell PCIe roots apart
    assert [as_fabric.get(way, way) for way in found.distances if way is not None] == list(expected.distances)
    assert [binding.memory for binding in found.bindings] == [binding.memory for binding in expected.bindings]
    assert found.decisions == expected.decisions
    machine = TemplateMachine(name).machine()
    ways = {
        (f"gpu{gpu.index}", port.name): nic_way(machine, gpu, port) for gpu in known(machine.gpus) or () for port in fabric_ports(machine)
    }
    for gpu, nics, way in zip(recorded.gpus, found.mapping.nics, found.distances, strict=True):
        names = [recorded.fabric.vertex(nic.vertex).attributes["net.name"] for nic in nics]
        assert max((ways[gpu.name, nic] for nic in names), key=WAYS.index) == way.name  # the same word as `topo` and `doctor`
    assert found.missing == ()
    assert all(binding.cpus for binding in found.bindings)


class FilesOf(Source):
    """A recording's files, as `railweave run` reads them: no libraries, no programs; and the driver's folder of GPUs."""

    def __init__(self, source: Source, gpus: Sequence[str]) -> None:
        self.of = source
        self.gpus = tuple(gpus)

    def read_bytes(self, path: str) -> bytes:
        return self.of.read_bytes(path)

    def listdir(self, path: str) -> tuple[str, ...]:
        return self.gpus if path == DRIVER else self.of.listdir(path)

    def readlink(self, path: str) -> str:
        return self.of.readlink(path)

    command = live._Files.command  # type: ignore[assignment]
    library = live._Files.library  # type: ignore[assignment]


@pytest.mark.parametrize("workload", ["bandwidth", "latency"])
@pytest.mark.parametrize("name", fabric.templates())
def test_files_alone_place_ranks_as_all_facts_do(name: str, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = TemplateMachine(name)
    machine = made.machine()
    addresses = [known(gpu.bus_id) or "" for gpu in known(machine.gpus) or ()]
    for gpu in known(machine.gpus) or ():
        about = tmp_path / (known(gpu.bus_id) or "") / "information"
        about.parent.mkdir()
        about.write_text(f"Model: \t\t {known(gpu.name)}\nGPU UUID: \t {known(gpu.uuid)}\nDevice Minor: \t {gpu.index}\n")
    monkeypatch.setattr(live, "_DRIVER", str(tmp_path))
    monkeypatch.setattr(live, "LiveSource", lambda: made.source)
    monkeypatch.setattr(live, "_Files", lambda: FilesOf(made.source, ()))
    assert live._host_by_files() is None  # the driver's folder is not there: all facts are asked
    by_facts = live.placement_text(workload)
    monkeypatch.setattr(live, "_Files", lambda: FilesOf(made.source, addresses))
    host = live._host_by_files()
    assert host is not None
    assert advise(host, Workload(workload)).mapping == advise(live.host_of(machine)[0], Workload(workload)).mapping
    by_files = live.placement_text(workload)
    assert by_files == by_facts and by_files.count("\nuuid GPU-") == len(addresses)


def test_a_first_start_imports_little(tmp_path: Path) -> None:
    """Not those parts of the standard library that take longer to import than a machine's wiring to read (docs/run.md)."""
    from railweave import _native

    TemplateMachine("hgx-h100").lay_out(tmp_path / "machine")
    code = f"""if True:
        import sys
        sys.path.insert(0, {str(Path(live.__file__).parents[2])!r})
        import railweave
        railweave.__path__.append({str(Path(_native.__file__).parent)!r})
        before = set(sys.modules)
        import railweave.launch.start
        from railweave.advise import live
        files = live._Files({str(tmp_path / "machine")!r})
        live._Files, live._DRIVER = lambda: files, {str(tmp_path / "machine")!r} + live._DRIVER
        assert live.placement_text("bandwidth").count("uuid GPU-") == 8
        print(*sorted(set(sys.modules) - before))
    """
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert "railweave.advise.live" in imported
    assert not imported & {"collections", "contextlib", "dataclasses", "enum", "functools", "json", "pathlib", "re", "types", "typing"}


def test_threads_that_ask_the_core_for_more_at_once_all_get_it() -> None:
    code = """if True:
        import threading
        from railweave import _native
        assert "Planner" not in dir(_native)
        names, found = ["Planner", "VertexKind", "Exchange", "Flows", "Demand", "LinkState"] * 2, []
        together = threading.Barrier(len(names))
        def ask(name):
            together.wait()
            found.append(getattr(_native, name).__name__)
        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        assert sorted(found) == sorted(names), found
        assert not hasattr(_native, "Nothing")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_of_the_processors_files_alone_read_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    first = "processor\t: 0\nflags\t\t: " + "x" * 5000 + " hypervisor\n\n"
    (tmp_path / "proc/cpuinfo").write_text(first + "processor\t: 1\n\n" * 10_000)
    files = live._Files()
    monkeypatch.setattr(files, "_root", str(tmp_path))
    read = files.read_bytes("/proc/cpuinfo")
    assert read.startswith(first.encode()) and len(read) < 10_000


def test_a_machine_without_gpus_is_placed_as_such() -> None:
    if any(Path("/proc/driver/nvidia").glob("gpus/*")):
        pytest.skip("this machine has GPUs")
    with pytest.raises(NoAdviceError, match="no GPU"):
        read(live.placement_text("bandwidth"), "here")


def test_nccl_topology_is_a_setting_for_all(tmp_path: Path) -> None:
    [setting] = [s for s in advise(host_of(craft()), nccl_topology="/etc/topology.xml").settings if s.name == "NCCL_TOPO_FILE"]
    assert setting.values == ("/etc/topology.xml",)


def test_a_topology_file_that_is_not_there_is_said(tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    missing = str(tmp_path / "topology.xml")
    here = cli("advise", "--nccl-topology", missing)
    assert here.returncode == 2 and "is no file here" in here.stderr
    elsewhere = cli("advise", "xe9680-4hca", "--nccl-topology", missing)
    assert elsewhere.returncode == 0 and "no such file here" in elsewhere.stderr
    assert missing in elsewhere.stdout


@pytest.mark.parametrize("size", ["0", "banana", "-1"])
def test_a_size_that_no_message_has_is_wrong_use(size: str, cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = cli("advise", "xe9680-4hca", f"--size={size}")
    assert done.returncode == 2
    assert "--size" in done.stderr
