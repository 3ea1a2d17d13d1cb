"""`railweave doctor`: live, recorded, compared; text, JSON, textfile, page; exit codes."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result
from template_machine import PCI, TemplateMachine

from railweave.cli.doctor import command
from railweave.doctor.catalogue import CHECKS
from railweave.doctor.compare import compare
from railweave.doctor.document import document as as_json
from railweave.doctor.document import prometheus
from railweave.doctor.examination import Examination
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding, Severity
from railweave.machine.discovery import record
from railweave.machine.fabric_nics import fabric_nics
from railweave.machine.facts import Known, Unknown
from railweave.machine.source import Reason
from railweave.output import OutputError
from railweave.records import replace

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "schema/doctor.schema.json").read_text())
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TemplateMachine("hgx-h100").record(tmp_path_factory.mktemp("recordings") / "healthy.tar.zst")


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    machine = TemplateMachine("hgx-h100")
    machine.netdev(1, "mtu", "1500")
    machine.acs(machine.parent(machine.nics[4]), "ReqRedir")
    machine.environ(NCCL_IB_HCA="mlx5_1")
    return machine.record(tmp_path_factory.mktemp("recordings") / "ill.tar.zst")


def test_this_machine_is_examined_whatever_it_is(cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, SCHEMA)
    assert document["machines"][0]["name"] == "this machine"
    judged = {finding["check"] for finding in document["machines"][0]["findings"]}
    assert judged == {check.id for check in CHECKS if not check.needs}


def test_a_process_is_judged_only_when_one_is_named(cli: Cli) -> None:
    document = json.loads(cli("doctor", "--json", "--pid", str(os.getpid())).stdout)
    judged = {finding["check"] for finding in document["machines"][0]["findings"]}
    assert judged == {check.id for check in CHECKS if check.needs != "probe"}
    refused = run("--pid", "4194304")
    assert refused.exit_code == 2
    assert "no such process" in refused.output


def test_a_recording_gives_what_the_machine_gave(healthy: Path, ill: Path) -> None:
    told = run(str(healthy)).output
    assert "0 error, 0 warning, 0 info; 8 unknown" in told, "which rail a cable belongs to, one recording does not tell"
    assert told.count("\n  nic.rail, mlx5_") == 1, "what is unknown for one reason is told once"
    text = run("--from", str(ill)).output
    for part in ("MTU too small for RoCE", "ReqRedir", "NCCL_IB_HCA=mlx5_1", "setpci -s", "sys/class/net/rail1/mtu: 1500"):
        assert part in text, part


def test_json_of_one_and_of_several_follows_the_schema(healthy: Path, ill: Path) -> None:
    for files in ([healthy], [healthy, ill]):
        document = json.loads(run("--json", *map(str, files)).output)
        jsonschema.validate(document, SCHEMA)
        assert [machine["name"] for machine in document["machines"]] == [file.name.split(".")[0] for file in files]
    assert document["machines"][1]["worst"] == "error"


@pytest.mark.parametrize(
    ("level", "file", "status"),
    [("info", "healthy", 0), ("error", "healthy", 0), ("info", "ill", 3), ("warning", "ill", 3), ("error", "ill", 3)],
)
def test_fail_on_decides_the_exit_status(level: str, file: str, status: int, request: pytest.FixtureRequest) -> None:
    assert run("--fail-on", level, str(request.getfixturevalue(file))).exit_code == status


@pytest.mark.parametrize(("file", "has"), [("healthy", "without a process"), ("ill", "with process 4242")])
def test_a_process_that_a_recording_does_not_have_is_wrong_use(file: str, has: str, request: pytest.FixtureRequest) -> None:
    recording = str(request.getfixturevalue(file))
    refused = run("--pid", "7", recording)
    assert refused.exit_code == 2
    assert f"--pid 7: {file} was recorded {has}" in refused.output
    if file == "ill":
        assert run("--pid", "4242", recording).output == run(recording).output


def test_fail_on_counts_what_fires_not_what_is_unknown() -> None:
    def examination(answer: Answer, severity: Severity) -> Examination:
        return Examination("m", (Finding("a.b", answer, severity, "machine", "text"),), "", {})

    assert not examination(Answer.unknown, Severity.error).reaches(Severity.info)
    assert examination(Answer.fires, Severity.warning).reaches(Severity.warning)
    assert not examination(Answer.fires, Severity.warning).reaches(Severity.error)


def test_several_machines_are_compared_and_the_odd_one_is_named(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b", "c", "d"):
        machine = TemplateMachine("xe9680-4hca")
        if name == "c":
            machine.infiniband(2, "fw_ver", "28.36.1010")
            machine.leaf({0: "leaf0", 1: "leaf1", 2: "leaf3", 3: "leaf2"})
        files.append(str(machine.record(tmp_path / f"{name}.tar.zst")))
    document = json.loads(run("--json", *files).output)
    comparison = document["comparison"]
    assert [entry["machine"] for entry in comparison["odd_ones"]] == ["c"]
    whats = {difference["what"] for difference in comparison["differences"]}
    assert {"firmware of mlx5_2", "nic.firmware, mlx5_2", "leaf at rail2", "leaf at rail3"} <= whats
    assert all(entry["machines"] == ["c"] for difference in comparison["differences"] for entry in difference["odd"])
    assert "Odd ones out: c" in run(*files).output
    assert "nothing differs" in run(files[0], files[1]).output


def test_two_different_machines_leave_open_which_is_odd() -> None:
    pair = [TemplateMachine("xe9680-4hca"), TemplateMachine("xe9680-4hca")]
    pair[1].files["/proc/sys/kernel/numa_balancing"] = "1"
    comparison = compare([examine(machine.machine(), name) for machine, name in zip(pair, "ab", strict=True)])
    assert comparison.odd_ones == ()
    (difference,) = comparison.differences
    assert difference.usual is None
    assert difference.odd == {"clear": ("a",), "fires": ("b",)}


def test_textfile_has_a_series_for_each_answer(ill: Path, tmp_path: Path) -> None:
    target = tmp_path / "railweave.prom"
    assert run(str(ill), "--prometheus", str(target)).exit_code == 0
    lines = target.read_text().splitlines()
    series = [line for line in lines if not line.startswith("#")]
    for line in series:
        assert re.fullmatch(r'railweave_doctor_(?:gpus|findings?\{(?:\w+="(?:[^"\\]|\\.)*",?)+\}) (?:NaN|\d+)', line), line
    assert len(set(series)) == len(series)
    assert 'railweave_doctor_finding{check="nic.mtu",severity="warning",subject="mlx5_1"} 1' in series
    assert 'railweave_doctor_finding{check="nic.mtu",severity="warning",subject="mlx5_0"} 0' in series
    assert "railweave_doctor_gpus 8" in series
    assert [path.name for path in tmp_path.iterdir()] == ["railweave.prom"]


def without_gpus() -> TemplateMachine:
    machine = TemplateMachine("hgx-h100")
    machine.nvml["gpus"] = []
    for gpu in machine.gpus:
        at = f"{PCI}/{gpu.bus_id}"
        del machine.links[at]
        machine.files = {path: content for path, content in machine.files.items() if not path.startswith(f"{at}/")}
    return machine


def test_a_machine_without_gpus_is_told_as_such_everywhere(healthy: Path, tmp_path: Path) -> None:
    bare = without_gpus().record(tmp_path / "bare.tar.zst")
    outputs = [str(tmp_path / name) for name in ("page.html", "railweave.prom")]
    told = run(str(bare), "--html", outputs[0], "--prometheus", outputs[1]).output
    assert told.splitlines()[:2] == ["bare", "GPUs: none on the PCI bus"]
    absent = [finding for finding in examine(without_gpus().machine(), "bare").findings if finding.absent]
    assert {"gpu.lost", "gpu.throttle", "gdr.distance", "nic.ratio"} <= {finding.check for finding in absent}
    assert {finding.answer for finding in absent} == {Answer.clear}
    assert told.endswith(f" clear, of which {len(absent)} had nothing to look at\n")
    page = (tmp_path / "page.html").read_text()
    assert "GPUs: none on the PCI bus. Fabric NICs: mlx5_0, " in page and "Nothing to look at" in page
    assert "railweave_doctor_gpus 0" in (tmp_path / "railweave.prom").read_text().splitlines()
    of_bare, of_healthy = json.loads(run(str(bare), str(healthy), "--json", "--prometheus", outputs[1]).output)["machines"]
    assert (of_bare["gpus"], of_bare["gpu_count"]) == ("none on the PCI bus", 0)
    assert [each["check"] for each in of_bare["findings"] if each["absent"]] == [finding.check for finding in absent]
    assert (of_healthy["gpus"], of_healthy["gpu_count"]) == ("8 x NVIDIA H100 SXM5 80GB", 8)
    series = (tmp_path / "railweave.prom").read_text().splitlines()
    assert {'railweave_doctor_gpus{machine="bare"} 0', 'railweave_doctor_gpus{machine="healthy"} 8'} <= set(series)
    assert "GPUs: 8 x NVIDIA H100" in run(str(healthy)).output


def test_gpus_that_are_not_listed_or_not_known_are_not_called_none() -> None:
    machine = TemplateMachine("hgx-h100")
    machine.nvml["gpus"] = []
    examined = examine(machine.machine(), "m")
    assert (examined.gpus, examined.gpu_count) == ("none that the driver lists, 8 on the PCI bus", 0)
    machine.nvml = {}
    examined = examine(machine.machine(), "m")
    assert (examined.gpus, examined.gpu_count) == ("8 of unknown name", 8)
    unread = replace(machine.machine(), gpus=Unknown(Reason.permission, "/sys/bus/pci/devices", "Permission denied"))
    examined = examine(unread, "m")
    assert examined.gpus.startswith("unknown: /sys/bus/pci/devices") and examined.gpu_count is None
    assert "railweave_doctor_gpus NaN\n" in prometheus([examined])
    told = as_json([examined], None)
    jsonschema.validate(told, SCHEMA)
    assert told["machines"][0]["gpu_count"] is None


class _Outside(HTMLParser):
    """References to anything outside of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")]


def test_page_is_one_file_that_tells_everything(ill: Path, healthy: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert run(str(ill), str(healthy), "--html", str(target)).exit_code == 0
    text = target.read_text()
    outside = _Outside()
    outside.feed(text)
    assert outside.found == []
    assert text.count("<svg") == 2
    first, second = text.split("<svg")[1:]
    assert "<circle" in first.split("</svg>")[0], "findings stand on the picture of the machine that has them"
    assert "<title>error:" not in second.split("</svg>")[0]
    for part in ("ACS redirects", "MTU too small", "setpci", "What differs", "nccl.contradiction", "Findings: ill", "Clear: healthy"):
        assert part in text, part


def test_what_a_recording_says_is_text_on_the_page(tmp_path: Path) -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.environ(NCCL_TOPO_FILE="/<script>alert(1)</script>")
    recording = machine.record(tmp_path / "hostile.tar.zst")
    run(str(recording), "--html", str(tmp_path / "page.html"))
    assert "<script>" not in (tmp_path / "page.html").read_text()


def test_bad_input_is_one_line_and_status_1(cli: Cli, healthy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tar.zst"
    other.write_text("no recording")
    for file in (other, tmp_path / "missing.tar.zst"):
        done = cli("doctor", str(file))
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert file.name in done.stderr
    failed = run(str(healthy), "--html", str(tmp_path / "no" / "page.html"))
    assert failed.exit_code == 1
    assert isinstance(failed.exception, OutputError)
    assert run("--probe", str(healthy)).exit_code == 2


def test_a_file_that_is_no_recording_leaves_the_others_examined(healthy: Path, ill: Path, tmp_path: Path, cli: Cli) -> None:
    other = tmp_path / "other.tar.zst"
    other.write_text("no recording")
    done = cli("doctor", "--json", str(healthy), str(other), str(ill))
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and other.name in done.stderr
    assert len(document["machines"]) == 2 and document["comparison"] is not None
    assert cli("doctor", "--fail-on", "error", str(other), str(ill)).returncode == 3
    for files in ((other, healthy), (healthy, other)):
        assert cli("doctor", *map(str, files)).returncode == 1
    none = cli("doctor", str(other), str(tmp_path / "missing.tar.zst"))
    assert (none.returncode, none.stdout, none.stderr.count("\n")) == (1, "", 2)


def test_a_truncated_recording_is_used_as_far_as_it_goes(ill: Path, tmp_path: Path, cli: Cli) -> None:
    whole = ill.read_bytes()
    cut = tmp_path / "cut.tar.zst"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    done = cli("doctor", "--json", str(cut))
    assert done.returncode in (0, 1), done.stderr
    assert "cut off" in done.stderr
    if done.returncode == 0:
        findings = json.loads(done.stdout)["machines"][0]["findings"]
        before = json.loads(run("--json", str(ill)).output)["machines"][0]["findings"]
        fired = {(finding["check"], finding["subject"]) for finding in before if finding["answer"] == "fires"}
        assert {(finding["check"], finding["subject"]) for finding in findings if finding["answer"] == "fires"} <= fired


def test_a_nic_that_is_not_there_is_wrong_use_and_the_known_ones_are_named(ill: Path, healthy: Path) -> None:
    refused = run("--nics", "mlx5_0,mlx5_99", str(ill))
    assert refused.exit_code == 2
    assert "ill has no NIC mlx5_99; it has mlx5_0, mlx5_1," in refused.output
    assert run("--nics", "mlx5_0:1, mlx5_1", str(ill), str(healthy)).exit_code == 0
    for empty in ("", ","):
        refused = run("--nics", empty, str(ill))
        assert refused.exit_code == 2 and f"--nics: '{empty}' names no NIC; expected a list such as mlx5_0,mlx5_1." in refused.output


def test_every_answer_says_what_it_was_read_from_and_where_the_rule_comes_from(ill: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    document = json.loads(run("--json", "--html", str(target), str(ill)).output)
    page = html.unescape(target.read_text())
    catalogue = {check.id: check for check in CHECKS}
    for finding in document["machines"][0]["findings"]:
        check = catalogue[finding["check"]]
        assert (finding["inputs"], finding["source"]) == (check.inputs, check.source)
        assert finding["source"] in page and finding["inputs"] in page


def test_files_of_one_name_are_told_apart_by_their_folders(healthy: Path, ill: Path, tmp_path: Path) -> None:
    files = []
    for folder, file in (("rack1/a", healthy), ("rack2/a", healthy), ("rack2/b", ill)):
        (tmp_path / folder).mkdir(parents=True)
        files.append(tmp_path / folder / "node.tar.zst")
        files[-1].write_bytes(file.read_bytes())
    target = tmp_path / "railweave.prom"
    document = json.loads(run("--json", "--prometheus", str(target), *map(str, files)).output)
    assert [machine["name"] for machine in document["machines"]] == ["rack1/a/node", "rack2/a/node", "b/node"]
    assert document["comparison"]["odd_ones"][0]["machine"] == "b/node"
    series = [line.rpartition(" ")[0] for line in target.read_text().splitlines() if not line.startswith("#")]
    assert len(set(series)) == len(series)
    again = run(str(files[0]), str(files[0]))
    assert again.exit_code == 2 and f"Error: {files[0]} is named twice." in again.output


def test_recordings_with_different_salts_are_compared_without_their_stand_ins(tmp_path: Path) -> None:
    files = []
    for name, salt in (("a", "one"), ("b", "one"), ("c", "another")):
        machine = TemplateMachine("xe9680-4hca")
        machine.files["/proc/cmdline"] = "ro iommu=pt ip=192.168.7.9 netdev=00:11:22:33:44:55"
        files.append(str(tmp_path / f"{name}.tar.zst"))
        record(Path(files[-1]), machine.source, salt=salt)
    same = json.loads(run("--json", *files[:2]).output)["comparison"]
    assert same["differences"] == [] and same["notes"] == []
    other = json.loads(run("--json", *files).output)["comparison"]
    assert other["differences"] == [] and other["odd_ones"] == []
    assert "different salts" in other["notes"][0]
    assert "different salts" in run(*files).output


def test_named_nics_are_the_ones_that_are_judged() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.netdev(3, "mtu", "1500")
    judged = examine(machine.machine(), "m", nics=("mlx5_0", "mlx5_1"))
    assert {finding.subject for finding in judged.findings if finding.check == "nic.mtu"} == {"mlx5_0", "mlx5_1"}
    assert judged.fabric_nics == "mlx5_0, mlx5_1: named"


def test_a_nic_without_rdma_is_not_judged_by_what_roce_needs() -> None:
    crafted = TemplateMachine("xe9680-4hca", ethernet=True)
    crafted.netdev(0, "mtu", "1500")
    crafted.netdev(1, "mtu", "1500")
    machine = crafted.machine()
    assert isinstance(machine.nics, Known)
    first, *others = machine.nics.value
    plain = replace(machine, nics=replace(machine.nics, value=(replace(first, rdma=Known(None, "no device/infiniband")), *others)))
    judged = examine(plain, "m", nics=("mlx5_0", "mlx5_1"))
    for check in ("nic.mtu", "nic.lossless"):
        assert {finding.subject for finding in judged.findings if finding.check == check} == {"mlx5_1"}


@pytest.mark.parametrize("named", [["mlx5_0", "mlx5_0"], ["mlx5_0:1", "mlx5_0"], ["mlx5_0", "mlx5_0:1", "mlx5_0"]])
def test_a_nic_that_is_named_twice_counts_once(named: list[str]) -> None:
    machine = TemplateMachine("xe9680-4hca").machine()
    once, judged = examine(machine, "m", nics=("mlx5_0",)), examine(machine, "m", nics=named)
    assert judged.fabric_nics == "mlx5_0: named"
    assert judged.findings == once.findings
    ratio = next(finding for finding in judged.findings if finding.check == "nic.ratio")
    assert "1 fabric NIC" in ratio.text and "50 GB/s" in ratio.text + ratio.effect


def test_ports_of_one_nic_are_named_by_number_and_the_first_without() -> None:
    machine = TemplateMachine("xe9680-4hca").machine()
    assert isinstance(machine.nics, Known)
    nics = machine.nics.value
    second = replace(nics[0], port=2)
    machine = replace(machine, nics=replace(machine.nics, value=(nics[0], second, *nics[1:])))
    assert fabric_nics(machine, ["mlx5_0:1", "mlx5_0"])[0] == (nics[0],)
    assert fabric_nics(machine, ["mlx5_0:2", "mlx5_0"])[0] == (second, nics[0])


def test_slower_nics_are_left_out_and_a_dead_one_is_not() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.infiniband(0, "port/rate", "25 Gb/sec (1X EDR)")
    machine.infiniband(3, "port/state", "1: DOWN")
    machine.infiniband(3, "port/rate", "10 Gb/sec (4X SDR)")
    fabric_nics = examine(machine.machine(), "m").fabric_nics
    assert fabric_nics.startswith("mlx5_1, mlx5_2, mlx5_3: RDMA ports of the fastest rate, 400 Gbit/s; 1 slower")


def catalogue_table() -> str:
    """The catalogue as docs/doctor.md shows it."""
    rows = ["| check | finds | severity | needs | source |", "|---|---|---|---|---|"]
    for check in CHECKS:
        kind = {"job": " (a job)", "probe": " (`--probe`)"}.get(check.needs, "")
        cells = (f"`{check.id}`", check.title + kind, check.severity.value, check.inputs, check.source)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def test_the_documented_catalogue_is_the_real_one() -> None:
    """RAILWEAVE_UPDATE_GOLDENS=1 writes it again."""
    page = ROOT / "docs/doctor.md"
    text = page.read_text()
    begin, end = "<!-- catalogue -->\n", "<!-- end of catalogue -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    wanted = f"{before}{begin}{catalogue_table()}{end}{after}"
    if os.environ.get("RAILWEAVE_UPDATE_GOLDENS"):
        page.write_text(wanted)
    assert page.read_text() == wanted
