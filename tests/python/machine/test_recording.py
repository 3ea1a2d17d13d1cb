"""Recordings: what is replayed is what was read, nothing that identifies a machine is in them, and damaged files keep what is readable."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import zstandard
from crafted import craft
from template_machine import JOB, PCI, SERIAL_NUMBER, TemplateMachine

from railweave.machine.discovery import discover, record
from railweave.machine.facts import Known
from railweave.machine.recording import RecordedSource, RecordingError, parse_recording, read_recording, write_recording
from railweave.machine.redaction import Redactor, without_serial_number
from railweave.machine.source import Reason, Source, Unreadable

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def source() -> Source:
    return RecordedSource(craft().recording)


def archive(members: list[tuple[str, bytes]], change: Callable[[tarfile.TarInfo], None] = lambda member: None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            change(member)
            tar.addfile(member, io.BytesIO(body) if member.isreg() else None)
    return zstandard.compress(stream.getvalue())


def manifest(**changes: object) -> bytes:
    document = {"format": "railweave-machine", "version": 1, "about": {}, "unreadable": [], "commands": [], "libraries": [], "files": 1}
    return json.dumps({**document, "folders": {}, "links": {}, **changes}).encode()


def test_replay_gives_the_same_machine(tmp_path: Path) -> None:
    crafted = craft()
    path = tmp_path / "crafted.tar.zst"
    write_recording(crafted.recording, path)
    assert discover(RecordedSource(path)) == discover(RecordedSource(crafted.recording))
    assert read_recording(path).damage == ""
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_recorded_is_unknown_for_that_reason() -> None:
    crafted = craft()
    crafted.absent(f"/sys/bus/pci/devices/{crafted.gpus[0]}/driver")
    source = RecordedSource(crafted.recording)
    with pytest.raises(Unreadable) as caught:
        source.read_bytes("/sys/class/net/eth7/mtu")
    assert caught.value.reason is Reason.not_recorded
    with pytest.raises(Unreadable) as caught:
        source.readlink(f"/sys/bus/pci/devices/{crafted.gpus[0]}/driver")
    assert caught.value.reason is Reason.absent


def test_recording_holds_nothing_that_identifies(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "node.tar.zst"
    recording = record(path, source)
    everything = zstandard.decompress(path.read_bytes(), max_output_size=64 << 20)
    for secret in (b"gpu-node-17", b"9c63:c003:00ab", b"1b4e28ba-2fa1", b"GPU-00000000-1111", (0x1122334455660001).to_bytes(8, "little")):
        assert secret not in everything
    guids = {recording.files[f"/sys/class/infiniband/mlx5_{number}/node_guid"] for number in range(8)}
    assert len(guids) == 8
    machine = discover(RecordedSource(path))
    assert machine.gpus != discover(source).gpus  # the UUIDs
    assert [gpu.bus_id for gpu in machine.gpus.value] == [gpu.bus_id for gpu in discover(source).gpus.value]  # type: ignore[union-attr]


def test_manifest_is_as_its_schema_says(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "node.tar.zst"
    record(path, source)
    content = zstandard.decompress(path.read_bytes(), max_output_size=64 << 20)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        first = tar.next()
        assert first is not None and first.name == "manifest.json"
        file = tar.extractfile(first)
        assert file is not None
        document = json.load(file)
    schema = json.loads((Path(__file__).parents[3] / "schema/recording.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert set(schema["properties"]["unreadable"]["items"]["properties"]["reason"]["enum"]) == {reason.value for reason in Reason}


def test_port_guid_and_gid_of_one_port_still_belong_together(source: Source, tmp_path: Path) -> None:
    recording = record(tmp_path / "node.tar.zst", source)
    guid = recording.files["/sys/class/infiniband/mlx5_3/node_guid"].decode().strip()
    assert recording.files["/sys/class/infiniband/mlx5_3/ports/1/gids/0"].decode().strip() == f"fe80:0000:0000:0000:{guid}"


def test_a_fingerprint_tells_which_recordings_have_one_salt(source: Source, tmp_path: Path) -> None:
    def fingerprint(salt: str | None) -> str:
        return record(tmp_path / "node.tar.zst", source, salt=salt).about["salt"]

    assert fingerprint("lab 3") == fingerprint("lab 3") != fingerprint("lab 4")
    assert fingerprint(None) != fingerprint(None)
    assert "lab" not in fingerprint("lab 3")


def test_a_process_is_recorded_by_its_number(tmp_path: Path, cli: Cli) -> None:
    environment = {**os.environ, "NCCL_IB_HCA": "mlx5", "SECRET_NAME": "x"}
    job = subprocess.Popen(["sleep", "1000"], env=environment)
    try:
        done = cli("topo", "--record", str(tmp_path / "node.tar.zst"), "--pid", str(job.pid))
        assert done.returncode == 0, done.stderr
        process = discover(RecordedSource(tmp_path / "node.tar.zst"), job.pid).process
        assert process is not None and isinstance(process.environ, Known)
        assert process.environ.value["NCCL_IB_HCA"] == "mlx5" and "SECRET_NAME" not in process.environ.value
        answers = json.loads(cli("doctor", "--json", str(tmp_path / "node.tar.zst")).stdout)["machines"][0]["findings"]
        assert {"job.memlock", "nccl.default"} <= {finding["check"] for finding in answers}
    finally:
        job.kill()
        job.wait()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hgx-h100", "--record", "x.tar.zst"), "--record and the FILE or TEMPLATE hgx-h100 exclude each other"),
        (("--from", "y.tar.zst", "--record", "x.tar.zst"), "--from and --record exclude each other"),
        (("--pid", "1"), "--pid goes with --record"),
        (("--record", "x.tar.zst", "--salt", ""), "--salt is empty"),
        (("--record", "x.tar.zst", "--pid", "4194304"), "no such process"),
    ],
)
def test_what_cannot_be_recorded_is_wrong_use(arguments: tuple[str, ...], said: str, tmp_path: Path, cli: Cli) -> None:
    done = cli("topo", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_topology_file_keeps_its_places_and_not_its_guids() -> None:
    text = '<cpu numaid="0" host_hash="0x2f17"><pci busid="0000:3b:00.0"><net guid="0x5c25730003a1e004"/><net guid="0x0"/>'
    told = Redactor(b"salt").text(text)
    assert "5c25730003a1e004" not in told and "2f17" not in told
    assert 'busid="0000:3b:00.0"' in told and 'guid="0x0"' in told and 'numaid="0"' in told


def test_a_byte_that_is_not_utf_8_hides_nothing_and_stays(tmp_path: Path) -> None:
    machine = TemplateMachine("h100-4gpu-ndr")
    machine.environ(NCCL_TOPO_FILE="/topo.xml", NCCL_CONF_FILE="/nccl/config", OMPI_MCA_mpi_banner="x")
    texts = {
        f"/proc/{JOB}/root/topo.xml": b'<system><!-- r\xe9seau -->\n<cpu host_hash="0x2f17"/><net guid="0x5c25730003a1e004"/></system>\n',
        f"/proc/{JOB}/root/nccl/config": b"# r\xe9seau\nNCCL_COMM_ID=10.20.30.40:9999\r\nNCCL_IB_HCA=mlx5\n",
        "/proc/cmdline": b"root=/dev/sda1 note=\xe9\xff token=hunter2 nfsroot=filer:/x iommu=pt\n",
        "/etc/nccl.conf": b"# \xe9 gpu-node-17\nNCCL_IB_HCA=mlx5\n",
    }
    machine.files |= texts
    environ = machine.files[f"/proc/{JOB}/environ"]
    assert isinstance(environ, str)
    machine.files[f"/proc/{JOB}/environ"] = environ.encode() + b"NCCL_DEBUG_FILE=/r\xe9seau/gpu-node-17\0"
    kept = read_recording(machine.record(tmp_path / "node.tar.zst")).files
    everything = b"\n".join(kept.values())
    for secret in (b"2f17", b"5c25730003a1e004", b"10.20.30.40", b"hunter2", b"filer", b"gpu-node-17"):
        assert secret not in everything
    form = {
        f"/proc/{JOB}/root/topo.xml": rb'<system><!-- r\xe9seau -->\n<cpu host_hash="0x\w{16}"/><net guid="0x\w{16}"/></system>\n',
        f"/proc/{JOB}/root/nccl/config": rb"# r\xe9seau\nNCCL_COMM_ID=10(\.\d+){3}:9999\r\nNCCL_IB_HCA=mlx5\n",
        "/proc/cmdline": rb"root=/dev/sda1 note=\xe9\xff token=removed nfsroot=removed iommu=pt\n",
        "/etc/nccl.conf": rb"# \xe9 host-[0-9a-f]{6}\nNCCL_IB_HCA=mlx5\n",
        f"/proc/{JOB}/environ": rb"LOCAL_RANK=0\0.*\0NCCL_DEBUG_FILE=/r\xe9seau/host-[0-9a-f]{6}\0",
    }
    for path, pattern in form.items():
        assert re.fullmatch(pattern, kept[path]), (path, kept[path])


def test_binary_files_stay_but_for_a_serial_number(tmp_path: Path) -> None:
    """Configuration spaces, in which anything that looks like an address is none."""
    machine = TemplateMachine("h100-4gpu-ndr")
    path = f"{PCI}/{machine.gpus[0].bus_id}/config"
    config = machine.files[path]
    assert isinstance(config, bytes)
    config = machine.files[path] = config[:0xC00] + b" 10.20.30.40 \xff" + config[0xC0F:]
    assert read_recording(machine.record(tmp_path / "node.tar.zst")).files[path] == without_serial_number(config)


HOST = "host-[0-9a-f]{6}"


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("NCCL_COMM_ID=gpunode-secret18:9999", f"NCCL_COMM_ID={HOST}:9999"),
        ("NCCL_COMM_ID=gpunode-secret18.example.org:9999", f"NCCL_COMM_ID={HOST}:9999"),
        ("NCCL_COMM_ID=192.168.7.9:9999", r"NCCL_COMM_ID=10(\.\d+){3}:9999"),
        ("NCCL_COMM_ID=[2001:db8::7334]:9999", r"NCCL_COMM_ID=\[fd00::[0-9a-f:]{19}\]:9999"),
        ("NCCL_COMM_ID=localhost:9999", "NCCL_COMM_ID=localhost:9999"),
        ("NCCL_RAS_ADDR=gpunode-secret18:28028", f"NCCL_RAS_ADDR={HOST}:28028"),
        ("NCCL_HOSTID=gpunode-secret18", f"NCCL_HOSTID={HOST}"),
        ("OMPI_MCA_orte_nodelist=gpunode-secret18,gpunode-secret19", f"OMPI_MCA_orte_nodelist={HOST},{HOST}"),
        ("OMPI_MCA_orte_nodelist=gpunode-secret[2:17-18]@0(2)", "OMPI_MCA_orte_nodelist=hosts-[0-9a-f]{6}"),
        ("OMPI_MCA_orte_nodelist=gpunode-secret17,gpunode-secret[18-19]", "OMPI_MCA_orte_nodelist=hosts-[0-9a-f]{6}"),
        ("OMPI_MCA_orte_hosts=gpunode-secret17\ngpunode-secret18", f"OMPI_MCA_orte_hosts={HOST}\n{HOST}"),
        (
            "OMPI_MCA_orte_hnp_uri=983040000.0;tcp://192.168.7.9:46833;tcp6://[2001:db8::7334]:53989;tcp://gpunode-secret18:1",
            rf"OMPI_MCA_orte_hnp_uri=983040000.0;tcp://10(\.\d+){{3}}:46833;tcp6://\[fd00::[0-9a-f:]{{19}}\]:53989;tcp://{HOST}:1",
        ),
        ("MPICH_INTERFACE_HOSTNAME_R0=gpunode-secret18", f"MPICH_INTERFACE_HOSTNAME_R0={HOST}"),
        ("UCX_STATS_DEST=udp:gpunode-secret18:37873", f"UCX_STATS_DEST=udp:{HOST}:37873"),
        ("NVSHMEM_BOOTSTRAP_UID_SESSION_ID=gpunode-secret18:4444", f"NVSHMEM_BOOTSTRAP_UID_SESSION_ID={HOST}:4444"),
        ("RAILWEAVE_NODE_ID=gpunode-secret18", f"RAILWEAVE_NODE_ID={HOST}"),
        ("OMPI_ARGV=-c 'import x\nx.run(\"gpunode-secret18\")'", "OMPI_ARGV=removed"),
        ("OMPI_MCA_mca_base_env_list=MASTER_ADDR=gpunode-secret18;WANDB=hunter2", "OMPI_MCA_mca_base_env_list=removed"),
    ],
)
def test_variables_that_name_hosts_have_stand_ins_for_them(variable: str, told: str) -> None:
    other = "NCCL_SOCKET_IFNAME=eth0,ib1\0NCCL_IB_ADDR_FAMILY=AF_INET\0OMPI_COMM_WORLD_LOCAL_RANK=0\0"
    redactor = Redactor(b"salt")
    redactor.add_name("gpu-node-17", "host")
    out = redactor.content("/proc/7/environ", f"{variable}\0{other}{variable}\0".encode()).decode()
    assert re.fullmatch(f"{told}\0{re.escape(other)}{told}\0", out), out
    for secret in ("secret1", "example.org", "192.168", "2001:db8", "hunter2"):
        assert secret not in out


def test_a_host_has_one_stand_in_wherever_it_is_named() -> None:
    """On the machine itself, and in variables of others."""
    itself, other = Redactor(b"salt"), Redactor(b"salt")
    itself.add_name("node7.example.org", "host")
    name = itself.text("node7")
    assert itself.text("NCCL_COMM_ID=node7:1") == f"NCCL_COMM_ID={name}:1"
    assert other.text("NCCL_COMM_ID=node7:1\nOMPI_MCA_orte_nodelist=node7.example.org,node8") == (
        f"NCCL_COMM_ID={name}:1\nOMPI_MCA_orte_nodelist={name},{other.text('NCCL_HOSTID=node8').split('=')[1]}"
    )
    lists = [other.text(f"OMPI_MCA_orte_nodelist=node[{numbers}]") for numbers in ("7-8", "7-8", "7-9")]
    assert lists[0] == lists[1] != lists[2]


def test_hosts_of_a_recorded_process_and_of_nccl_conf_are_replaced(tmp_path: Path) -> None:
    machine = TemplateMachine("h100-4gpu-ndr")
    machine.environ(NCCL_COMM_ID="gpunode-secret18:9999", OMPI_MCA_orte_nodelist="node0,node1", NCCL_IB_HCA="mlx5")
    machine.files["/etc/nccl.conf"] = "NCCL_RAS_ADDR=gpunode-secret19:28028\n#NCCL_COMM_ID=gpunode-secret18:9999 # was\nNCCL_DEBUG=WARN\n"
    path = machine.record(tmp_path / "node.tar.zst")
    everything = zstandard.decompress(path.read_bytes(), max_output_size=64 << 20)
    assert b"gpunode-secret" not in everything and b"node0,node1" not in everything
    replayed = discover(RecordedSource(path), JOB)
    assert replayed.numa == machine.machine().numa  # whose folders are called as those hosts are
    assert replayed.process is not None and isinstance(replayed.process.environ, Known)
    assert replayed.process.environ.value["NCCL_IB_HCA"] == "mlx5"
    assert read_recording(path).files["/etc/nccl.conf"].endswith(b"\nNCCL_DEBUG=WARN\n")


def test_of_devices_and_packages_those_that_are_judged_are_recorded(tmp_path: Path) -> None:
    machine = TemplateMachine("h100-4gpu-ndr")
    packages = "/venv/lib/python3.12/site-packages"
    machine.process("maps", f"x {packages}/nvidia/nccl/lib/libnccl.so.2\n")
    for path in ("nvidia_nccl_cu12-2.28.9.dist-info", "secret_project"):
        machine.files[f"/proc/{JOB}/root{packages}/{path}/RECORD"] = ""
    for dev in ("/dev", f"/proc/{JOB}/root/dev"):
        machine.files |= {f"{dev}/gpu-node-17-vg/root": "", f"{dev}/nvidia0": "", f"{dev}/gdrdrv": ""}
    path = machine.record(tmp_path / "node.tar.zst")
    everything = zstandard.decompress(path.read_bytes(), max_output_size=64 << 20)
    assert b"secret_project" not in everything and b"node-17" not in everything
    replayed, live = discover(RecordedSource(path), JOB), machine.machine()
    assert replayed.process == live.process and replayed.host == live.host


@pytest.mark.parametrize("name", ["node0", "rail1.example.org", "mlx5_2"])
def test_a_host_that_is_called_as_a_part_of_it_loses_none(name: str, tmp_path: Path) -> None:
    machine = TemplateMachine("h100-4gpu-ndr")
    machine.files["/proc/sys/kernel/hostname"] = name
    replayed = discover(RecordedSource(machine.record(tmp_path / "node.tar.zst")))
    assert isinstance(replayed.nics, Known) and isinstance(machine.machine().nics, Known)
    assert [nic.netdevs for nic in replayed.nics.value] == [nic.netdevs for nic in machine.machine().nics.value]
    assert replayed.numa == machine.machine().numa


def test_one_salt_gives_one_stand_in_and_another_another(source: Source, tmp_path: Path) -> None:
    def guid(salt: str | None) -> bytes:
        return record(tmp_path / "node.tar.zst", source, salt=salt).files["/sys/class/infiniband/mlx5_0/node_guid"]

    assert guid("one") == guid("one") != guid("two")
    assert guid(None) != guid(None)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ether a0:36:9f:12:34:56", "ether 02:"),
        ("addr 192.168.7.9/24", "/24"),
        ("2001:db8::8a2e:370:7334 dev eth0", "dev eth0"),
        ("token=hunter2 iommu=pt", "iommu=pt"),
        ("Device Serial Number b8-ce-f6-ff-ff-12-34-56", "Device Serial Number 02-"),
        ('"serial": "0324718000123"', '"serial":'),
        ('<info name="DMIProductSerial" value="CZJ1234"/>', '<info name="DMIProductSerial" value="removed"/>'),
        ("root=/dev/nfs nfsroot=filer.example.org:/boot ro", "root=/dev/nfs nfsroot=removed ro"),
        ("root=/dev/mapper/node7--vg-root ro", "root=removed ro"),
        ("root=/dev/node7-vg/root ro", "root=removed ro"),
        ("root=/dev/sda1 rd.lvm.lv=rhel_node7/root rd.lvm.lv=rhel_node7/swap", "root=/dev/sda1 rd.lvm.lv=removed rd.lvm.lv=removed"),
        ("host node7.example.org up", "up"),
        ("node7: link", ": link"),
    ],
)
def test_stand_ins(text: str, kept: str) -> None:
    redactor = Redactor(b"salt")
    redactor.add_name("node7.example.org", "host")
    out = redactor.text(text)
    assert kept in out
    for secret in (
        "a0:36:9f",
        "192.168",
        "2001:db8",
        "370:7334",
        "hunter2",
        "b8-ce",
        "0324718",
        "node7",
        "example.org",
        "CZJ1234",
        "filer",
    ):
        assert secret not in out


@pytest.mark.parametrize(
    "text",
    [
        "0000:1b:00.0",
        "driver 580.159.04, firmware 28.39.1002, vbios 96.00.99.00.01",
        "127.0.0.1 localhost, netmask 255.255.255.0",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "ff:ff:ff:ff:ff:ff",
        "00000000,00ffffff",
        "12:30:45 up 3 days",
        "pci0000:15/0000:15:01.0/0000:16:00.0",
    ],
)
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert Redactor(b"salt").text(text) == text


def test_serial_number_in_configuration_space() -> None:
    crafted = craft()
    config = crafted.recording.files[f"/sys/bus/pci/devices/{crafted.gpus[0]}/config"]
    cleaned = without_serial_number(config)
    first, last = SERIAL_NUMBER, SERIAL_NUMBER + 8
    assert cleaned[first:last] == bytes(8) and config[first:last] != bytes(8)
    assert cleaned[:first] == config[:first] and cleaned[last:] == config[last:]


# ---- bad files ----


def test_truncated_at_any_place_keeps_what_is_readable(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "node.tar.zst"
    record(path, source)
    whole = path.read_bytes()
    usable = 0
    for size in range(0, len(whole), max(1, len(whole) // 40)):
        try:
            recording = parse_recording(whole[:size], "cut.tar.zst")
        except RecordingError as error:
            assert "cut.tar.zst" in str(error) and "expected" in str(error)
            continue
        usable += 1
        assert recording.damage.startswith("cut.tar.zst: ")
        discover(RecordedSource(recording))
    assert usable


def test_cut_recording_says_why_a_fact_is_unknown() -> None:
    body = archive([("manifest.json", manifest(files=2)), ("root/proc/cmdline", b"quiet\n")])
    recording = parse_recording(body, "x.tar.zst")
    assert "1 of the 2 files" in recording.damage
    with pytest.raises(Unreadable, match=r"not recorded.*x\.tar\.zst"):
        RecordedSource(recording).read_text("/proc/version")


def test_a_recording_that_tar_packed_again_is_whole(tmp_path: Path) -> None:
    (tmp_path / "root/proc").mkdir(parents=True)
    (tmp_path / "manifest.json").write_bytes(manifest(files=1))
    for name in ("cmdline", "version"):
        (tmp_path / "root/proc" / name).write_text("quiet\n")
    packed = subprocess.run(["tar", "-C", tmp_path, "-c", "manifest.json", "root"], stdout=subprocess.PIPE, check=True).stdout
    recording = parse_recording(zstandard.compress(packed), "x.tar.zst")
    assert (recording.damage, sorted(recording.files)) == ("", ["/proc/cmdline", "/proc/version"])


def _as(kind: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        if member.name != "manifest.json":
            member.type, member.linkname, member.size = kind, target, 0

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("../../etc/passwd", _as(tarfile.REGTYPE)),
        ("/etc/passwd", _as(tarfile.REGTYPE)),
        ("root/./x", _as(tarfile.REGTYPE)),
        ("root/x", _as(tarfile.SYMTYPE, "/etc/passwd")),
        ("root/x", _as(tarfile.LNKTYPE, "/etc/passwd")),
        ("root/x", _as(tarfile.CHRTYPE)),
        ("root/x", _as(tarfile.FIFOTYPE)),
    ],
)
def test_path_tricks_end_the_reading(name: str, change: Callable[[tarfile.TarInfo], None]) -> None:
    body = archive([("manifest.json", manifest()), (name, b""), ("root/proc/cmdline", b"quiet\n")], change)
    recording = parse_recording(body, "x.tar.zst")
    assert "is not a plain file" in recording.damage
    assert recording.files == {}


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("railweave.machine.recording.ARCHIVE_LIMIT_B", 1 << 20)
    bomb = archive([("manifest.json", manifest()), ("root/zero", bytes(3 << 20))])
    assert len(bomb) < 10_000
    assert "more than 1048576 bytes when decompressed" in parse_recording(bomb, "x.tar.zst").damage


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not compressed"),
        (b"<system/>", "not compressed"),
        (zstandard.compress(b"hello"), "damaged"),
        (archive([("root/x", b"")]), "no manifest.json"),
        (archive([("manifest.json", b"[1]")]), "another format"),
        (archive([("manifest.json", b"{")]), "not JSON"),
        (archive([("manifest.json", manifest(version=2))]), "version 2"),
        (archive([("manifest.json", manifest(links=[]))]), "links is list"),
        (archive([("manifest.json", manifest(commands=[{"argv": 1}]))]), "commands[0] has no argv"),
        (archive([("manifest.json", manifest(folders={"/sys": 1}))]), "folders['/sys'] is int"),
        (archive([("manifest.json", b'{"format":' + b"[" * 100_000)]), "not JSON"),
    ],
)
def test_files_of_another_kind_are_named(content: bytes, found: str) -> None:
    with pytest.raises(RecordingError) as caught:
        parse_recording(content, "x.tar.zst")
    assert str(caught.value).startswith("x.tar.zst: ") and found in str(caught.value) and "; expected " in str(caught.value)


def test_command_line_records_and_replays(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    path = tmp_path / "here.tar.zst"
    made = cli("topo", "--record", str(path))
    assert made.returncode == 0, made.stderr
    shown = cli("topo", "--from", str(path))
    assert shown.returncode == 0 and shown.stdout.startswith("a recording: ")
    without = cli("topo", str(path))
    assert without.returncode == 1 and f"`--from {path}`" in without.stderr
    planned = cli("plan", "--fabric", str(path), "--matrix", "balanced:1KiB")
    assert planned.returncode == 1 and f"`railweave topo --from {path} --json` writes the fabric" in planned.stderr
    path.write_bytes(path.read_bytes()[:-100])
    cut = cli("topo", "--from", str(path))
    assert cut.returncode == 0 and "cut off" in cut.stderr and str(path) in cut.stderr
    path.write_bytes(b"no recording")
    bad = cli("topo", "--from", str(path))
    assert bad.returncode == 1 and bad.stdout == "" and bad.stderr.startswith(f"railweave: {path}: not compressed")


def test_a_recordings_picture_is_titled_by_file_and_model(cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    recording = craft().recording
    recording.files["/sys/class/dmi/id/sys_vendor"] = b"Dell Inc.\n"
    recording.files["/sys/class/dmi/id/product_name"] = b"PowerEdge XE9680\n"
    path, picture = tmp_path / "node7.tar.zst", tmp_path / "node7.svg"
    write_recording(recording, path)
    assert cli("topo", "--from", str(path), "--svg", str(picture)).returncode == 0
    assert "<title>node7.tar.zst: Dell Inc. PowerEdge XE9680</title>" in picture.read_text()
