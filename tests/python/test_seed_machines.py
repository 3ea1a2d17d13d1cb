"""Every machine of the five documents that started Railweave: what doctor and advise say of it (docs/doctor.md, docs/advise.md)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from template_machine import TemplateMachine

from railweave import fabric
from railweave.advise.advice import advise
from railweave.advise.host import read_host
from railweave.advise.mapping import Workload
from railweave.doctor.examine import examine
from railweave.doctor.finding import Answer, Finding


@dataclass(frozen=True)
class Seed:
    """A machine, and the conclusions about it. NICs and ways are those of each rank, for bandwidth."""

    template: str
    far: tuple[int, ...]  # GPUs that reach no NIC below a PCIe switch
    ratio: str  # in words of nic.ratio; nothing where each GPU has a NIC
    nics: str
    ways: str
    gdr: str  # for bandwidth, of each rank: y or n
    imbalance: bool = False


PIX4, PIX8 = "PIX " * 4, "PIX " * 8
SEEDS = [
    Seed("xe9680-4hca", (), "share 200 GB/s", "00112233", PIX8, "yyyyyyyy"),
    # Measured in the document: 90 GB/s of rings, 20 GB/s of all-to-all.
    Seed(
        "kisti-a100-8gpu",
        (),
        "share 100 GB/s: rings reach at most that busbw, all-to-all over two such nodes 12.5 x 15/8 = 23.4 GB/s",
        "00112233",
        PIX8,
        "yyyyyyyy",
    ),
    Seed("kisti-v100-8gpu", (2, 3, 6, 7), "share 25 GB/s", "00001111", "PIX PIX PHB PHB PIX PIX PHB PHB", "yynnyynn"),
    Seed("kisti-v100-4gpu", (0, 1, 2, 3), "share 12.5 GB/s", "0000", "PHB PHB SYS SYS", "nnnn"),
    Seed("kisti-v100-2gpu", (0, 1), "share 12.5 GB/s", "00", "PHB SYS", "nn"),
    Seed("lineyahoo-2nic", (1, 2, 3, 5, 6, 7), "share 100 GB/s", "00001111", "PIX PHB PHB PHB PIX PHB PHB PHB", "yyyyyyyy"),
    # "Is 400 Gbit/s reasonable?": 46.9 GB/s is 375 Gbit/s.
    Seed("lineyahoo-4nic", (1, 3, 5, 7), "25 x 15/8 = 46.9 GB/s", "00112233", "PIX PHB " * 4, "yyyyyyyy"),
    Seed("lineyahoo-4nic-rewired", (), "25 x 15/8 = 46.9 GB/s", "00112233", PIX8, "yyyyyyyy"),
    Seed("charisma-ab", (0, 1, 2, 3), "share 25 GB/s", "0011", "PHB PHB SYS SYS", "nnnn", imbalance=True),
    Seed("charisma-c", (0, 1, 2, 3), "share 25 GB/s", "0011", "PHB PHB PHB PHB", "nnnn"),
    Seed("charisma-e", (2, 3, 6, 7), "share 25 GB/s", "00001111", "PIX PIX PHB PHB PIX PIX PHB PHB", "yyyyyyyy"),
    Seed("h100-4gpu-ndr", (), "", "0123", PIX4, "yyyy"),
]


def fired(machine: TemplateMachine) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in examine(machine.machine(), "seed").with_answer(Answer.fires):
        found.setdefault(finding.check, []).append(finding)
    return found


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.template)
def test_doctor_reaches_the_seeds_conclusions(seed: Seed) -> None:
    found = fired(TemplateMachine(seed.template))
    assert [finding.subject for finding in found.pop("gdr.distance", [])] == [f"GPU {gpu}" for gpu in seed.far]
    ratio = found.pop("nic.ratio", [])
    assert bool(ratio) == bool(seed.ratio)
    assert all(seed.ratio in finding.effect for finding in ratio)
    assert bool(found.pop("nic.imbalance", [])) == seed.imbalance
    assert found == {}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.template)
def test_advise_reaches_the_seeds_conclusions(seed: Seed) -> None:
    advice = advise(read_host(fabric.load(seed.template)))
    assert advice.mapping is not None
    assert "".join("".join(nic.name.removeprefix("nic") for nic in nics) for nics in advice.mapping.nics) == seed.nics
    assert [way.name for way in advice.distances] == seed.ways.split()
    latency, bandwidth = (
        [next(each for each in of_rank if each.covers(workload, size)) for of_rank in advice.decisions]
        for workload, size in ((Workload.latency, 8192), (Workload.bandwidth, 4 << 20))
    )
    assert "".join("y" if decision.gdr else "n" for decision in bandwidth) == seed.gdr
    assert all(decision.gdrcopy for decision in bandwidth)
    assert all(decision.gdr and decision.gdrcopy for decision in latency)


def test_every_template_of_a_seed_is_here() -> None:
    reference = {"dgx-1v", "hgx-h100", "hgx-h200"}  # NVIDIA's own, of no seed
    assert {seed.template for seed in SEEDS} == set(fabric.templates()) - reference


def test_lineyahoo_in_a_virtual_machine() -> None:
    """The document: a guest's tree is not the host's, ACS stays on there, ATS mends it, and a dump of the tree is given to NCCL."""
    machine = TemplateMachine("lineyahoo-2nic")
    machine.virtual()
    machine.ats(0, False)
    machine.ats(1, False)
    found = fired(machine)
    assert [finding.subject for finding in found["pcie.ats"]] == ["mlx5_0", "mlx5_1"]
    assert "ATS_ENABLED=1" in found["pcie.ats"][0].fix
    assert "railweave topo --nccl-xml" in found["vm.topology-file"][0].fix
    assert "pcie.acs-redirect" not in found  # a guest cannot see it


def test_kisti_without_gpudirect() -> None:
    """The document measured 2.7 (rings) and 4.6 times (all-to-all) less; the model, which has ceilings only, says 1.6."""
    machine = TemplateMachine("kisti-a100-8gpu")
    machine.files = {path: content for path, content in machine.files.items() if "peermem" not in path and "memory_peers" not in path}
    machine.files["/proc/modules"] = "nvidia 1 0 - Live\n"
    machine.files["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"
    (finding,) = fired(machine)["gdr.unavailable"]
    assert "63.0 GB/s a machine through host memory, 100.0 GB/s otherwise" in finding.effect
