"""Checks of GPUs, GPUDirect RDMA and GDRCopy: each fires on its fault, is silent without it, unknown where its input is not readable."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Break, Case, answers, no_gdrcopy, probes, unread
from template_machine import TemplateMachine

from railweave.doctor.checks.gpus import expected_nvlinks
from railweave.doctor.finding import Answer
from railweave.doctor.probe import GpuProbe
from railweave.machine.facts import Known, Unknown
from railweave.machine.source import Reason


def fewer_nvlinks(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][5]["nvlinks"][3] = {"state": {"value": 0}}


def unregistered(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][2]["fabric_state"] = {"value": 2}


def service_down(machine: TemplateMachine) -> None:
    machine.commands["systemctl", "is-active", "nvidia-fabricmanager"] = "failed\n"


def no_gdr(machine: TemplateMachine) -> None:
    machine.files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Release Build\n"


def old_kernel(machine: TemplateMachine) -> None:
    machine.files["/proc/sys/kernel/osrelease"] = "5.4.0-150-generic"


def off_the_bus(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][5] = {"index": 5, "error": "NVML_ERROR_GPU_IS_LOST"}


def link_errors(**counts: int) -> Break:
    def fault(machine: TemplateMachine) -> None:
        machine.nvml["gpus"][2]["nvlinks"][7]["errors"].update({name: {"value": count} for name, count in counts.items()})

    return fault


CASES = [
    Case("gpu.lost", off_the_bus, ("GPU 5",), "the driver cannot reach it", "NVML_ERROR_GPU_IS_LOST", "error"),
    Case("gpu.nvlink-errors", link_errors(replay=3), ("GPU 2",), "replay 3", "gpu 2 link 7: replay 3", "warning"),
    Case("gpu.nvlink-errors", link_errors(recovery=1, crc_flit=9), ("GPU 2",), "recovery 1", "crc_flit 9", "warning", name="recovery"),
    Case("gpu.nvlink-errors", link_errors(crc_data=4), ("GPU 2",), "crc_data 4", "link 7: crc_data 4", "info", name="crc"),
    Case(
        "gdr.unavailable",
        no_gdr,
        ("machine",),
        "dma-buf needs the open kernel modules",
        "/proc/driver/nvidia/version",
        "error",
        effect="GB/s",
    ),
    Case("gdr.unavailable", old_kernel, ("machine",), "Linux 5.12", "/proc/sys/kernel/osrelease: 5.4.0", "error", name="kernel"),
    Case("gdr.gdrcopy", no_gdrcopy, ("machine",), "gdrdrv", "/proc/modules", "info"),
    Case("gpu.nvlinks", fewer_nvlinks, ("GPU 5",), "17 of 18 NVLinks", "17 active", "error", effect="25 GB/s less"),
    Case("gpu.fabric-manager", unregistered, ("machine",), "GPU 2 did not register", "fabric_state", "error"),
    Case("gpu.fabric-manager", service_down, ("machine",), "failed", "nvidia-fabricmanager: failed", "error", "charisma-e", name="service"),
    Case(
        "gpu.throttle",
        lambda machine: machine.nvml["gpus"][1].update(throttle_reasons={"value": 0x40}),
        ("GPU 1",),
        "hw_thermal",
        "hw_thermal",
        "error",
    ),
    Case(
        "gpu.throttle",
        lambda machine: machine.nvml["gpus"][1].update(throttle_reasons={"value": 0x4}),
        ("GPU 1",),
        "power limit",
        "sw_power_cap",
        "info",
        name="power",
    ),
    Case(
        "gdr.distance",
        lambda _: None,
        tuple(f"GPU {gpu}" for gpu in (1, 2, 3, 5, 6, 7)),
        "NODE away (mlx5_",
        "below pci0000:",
        "warning",
        "lineyahoo-2nic",
        effect="what it sends, PXN can take over NVLink and one of GPU 0, GPU 4, what it receives, it cannot",
    ),
]


def unread_errors(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][2]["nvlinks"][7]["errors"] = {"replay": {"error": "NVML_ERROR_UNKNOWN"}}


def peers_unread(machine: TemplateMachine) -> None:
    no_gdr(machine)
    machine.unreadable["/sys/kernel/mm/memory_peers"] = (Reason.permission, "Permission denied")


def unread_state(machine: TemplateMachine) -> None:
    machine.nvml["gpus"][3]["fabric_state"] = {"error": "NVML_ERROR_UNKNOWN"}


UNKNOWN: list[tuple[str, Break, str]] = [
    ("gdr.unavailable", peers_unread, "memory_peers"),
    ("gpu.lost", lambda machine: machine.nvml.clear(), "no list of GPUs"),
    ("gpu.nvlink-errors", unread_errors, "gpu 2 link 7 replay"),
    (
        "gpu.fabric-manager",
        lambda machine: machine.nvml["gpus"][3].update(fabric_state={"error": "NVML_ERROR_UNKNOWN"}),
        "gpu 3 fabric_state",
    ),
    ("gdr.unavailable", lambda machine: unread(machine, "/proc/driver/nvidia/version"), "permission"),
    ("gdr.gdrcopy", lambda machine: (no_gdrcopy(machine), unread(machine, "/proc/modules"))[0], "permission"),
    ("gdr.distance", TemplateMachine.virtual, "guest sees a flat tree"),
    ("gpu.nvlinks", lambda machine: machine.nvml["gpus"][0].update(nvlinks=None), "nvlinks"),
    ("gpu.throttle", lambda machine: machine.nvml["gpus"][0].update(throttle_reasons={"error": "NVML_ERROR_GPU_IS_LOST"}), "GPU_IS_LOST"),
]


def test_slow_copies_fire_for_the_gpu_that_is_slow() -> None:
    machine = TemplateMachine("xe9680-4hca")
    found = answers(machine, "gpu.copy-rate", probes(machine, slow=3))
    assert [subject for subject, finding in found.items() if finding.answer is Answer.fires] == ["GPU 3"]
    assert found["GPU 3"].text == "copies reach 27.0 GB/s to it, 54.0 GB/s from it; 32 GT/s x16 carries 63.0 GB/s"
    assert {finding.answer for finding in answers(machine, "gpu.copy-rate", probes(machine)).values()} == {Answer.clear}
    assert answers(machine, "gpu.copy-rate", None) == {}


def test_a_gpu_that_was_not_probed_or_refused_is_unknown() -> None:
    machine = TemplateMachine("xe9680-4hca")
    full = Unknown(Reason.error, "100 ms of copies", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
    probed = probes(machine)
    hidden, refusing = machine.gpus[0].bus_id, machine.gpus[1].bus_id
    del probed.gpus[hidden]
    probed.gpus[refusing] = GpuProbe(full, full, full, Known(True, ""))
    found = answers(machine, "gpu.copy-rate", probed)
    assert (found["GPU 0"].answer, found["GPU 1"].answer, found["GPU 2"].answer) == (Answer.unknown, Answer.unknown, Answer.clear)
    assert "CUDA_VISIBLE_DEVICES" in found["GPU 0"].text
    assert "OUT_OF_MEMORY" in found["GPU 1"].text


def test_the_module_before_the_drivers_own_serves_too() -> None:
    machine = TemplateMachine("xe9680-4hca")
    no_gdr(machine)
    assert answers(machine, "gdr.unavailable", None)["machine"].answer is Answer.fires
    machine.files["/proc/modules"] = str(machine.files["/proc/modules"]) + "nv_peer_mem 1 0 - Live 0x0\n"
    assert answers(machine, "gdr.unavailable", None)["machine"].text == "nv_peer_mem serves it"


def test_gpudirect_needs_a_cuda_that_exports_dma_buf() -> None:
    machine = TemplateMachine("xe9680-4hca")
    machine.files = {path: content for path, content in machine.files.items() if "peermem" not in path and "memory_peers" not in path}
    machine.files["/proc/modules"] = "nvidia 1 0 - Live\nmlx5_core 1 0 - Live\n"
    for dma_buf, answer in ((True, Answer.clear), (False, Answer.fires)):
        found = answers(machine, "gdr.unavailable", probes(machine, dma_buf=dma_buf))["machine"]
        assert found.answer is answer, found
        assert any(line.startswith("libcuda: ") for line in found.evidence)
    assert answers(machine, "gdr.unavailable", None)["machine"].answer is Answer.clear


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("NVIDIA H100 80GB HBM3", 18),
        ("NVIDIA H200", 18),
        ("NVIDIA H800", 8),
        ("NVIDIA A100-SXM4-80GB", 12),
        ("NVIDIA B200", 18),
        ("NVIDIA GH200 480GB", 18),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
    ],
)
def test_nvlinks_of_a_part_by_the_name_that_nvml_gives_it(name: str, links: int | None) -> None:
    assert expected_nvlinks(name) == links


def superchips(folder: Path, count: int) -> TemplateMachine:
    """Grace Hopper Superchips, each with a NIC beside its GPU, and without NVLinks to each other."""
    path = folder / "superchips.yaml"
    path.write_text(
        "format: railweave-node\nversion: 1\nname: superchips\ndescription: Grace Hopper\n"
        "links:\n  pcie5: {pcie: gen5 x16, latency: 250ns, source: test}\n  ndr: {capacity: 400Gbit/s, latency: 1us, source: test}\n"
        "  c2c: {capacity: 100GB/s, latency: 150ns, source: test}\n"
        f"numa: {{count: {count}{', socket: c2c' if count > 1 else ''}}}\n"
        f"gpus: [{', '.join(f'{{model: H200, link: pcie5, gdr: true, at: [numa{numa}]}}' for numa in range(count))}]\n"
        f"nics: [{', '.join(f'{{model: ConnectX-7, link: pcie5, port: ndr, at: [numa{numa}]}}' for numa in range(count))}]\n"
    )
    machine = TemplateMachine(str(path))
    for gpu in machine.nvml["gpus"]:
        gpu.update(name={"value": "NVIDIA GH200 480GB"}, nvlinks=[{"state": {"value": 0}}] * 18)
    return machine


def test_a_gpu_that_is_alone_has_nothing_to_link_to(tmp_path: Path) -> None:
    (alone,) = answers(superchips(tmp_path, 1), "gpu.nvlinks", None).values()
    assert alone.answer is Answer.unknown and "0 of 18 NVLinks are active; there is nothing to link to" in alone.text
    assert {finding.answer for finding in answers(superchips(tmp_path, 2), "gpu.nvlinks", None).values()} == {Answer.fires}
    registered = superchips(tmp_path, 1)
    registered.nvml["gpus"][0]["fabric_state"] = {"value": 3}
    assert {finding.answer for finding in answers(registered, "gpu.nvlinks", None).values()} == {Answer.fires}


def test_nics_beside_a_coherent_cpu_are_near(tmp_path: Path) -> None:
    machine = superchips(tmp_path, 2)
    found = answers(machine, "gdr.distance", None)
    assert {finding.answer for finding in found.values()} == {Answer.clear}
    assert found["GPU 1"].text == "NODE to mlx5_1; from NCCL 2.27.3 on they use GPUDirect RDMA over NVLink-C2C"
    for nic in (0, 1):
        machine.device(machine.nics[nic].bus_id, numa_node="0")
        machine.device(machine.parent(machine.nics[nic]), numa_node="0")
    found = answers(machine, "gdr.distance", None)
    assert (found["GPU 0"].answer, found["GPU 1"].answer) == (Answer.clear, Answer.fires)
    machine.nvml["gpus"][0]["name"] = {"value": "NVIDIA H200"}
    assert {finding.answer for finding in answers(machine, "gdr.distance", None).values()} == {Answer.fires}
