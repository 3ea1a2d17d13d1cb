"""What the evaluation on GPUs measures, for each number of them. A section is a table of its results; a task is what it runs."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from railweave.bench.gpus.compare import rows_of
from railweave.bench.gpus.mesh import MOST_GPUS
from railweave.matrix import Matrix, load, write
from railweave.size import parse_size

MESH_GBPS = 120  # of a link, as the boards of the NIMBLE paper have
RATE_GBPS = 1.0  # of a rail of the lab, 8 Gbit/s


@dataclasses.dataclass(frozen=True)
class Section:
    """Cases of `railweave bench`: matrices, or skews × what experts take, or kinds of other work. Sections of equal `group` run as one
    command, as starting PyTorch on all ranks takes as long as measuring some matrices."""

    name: str
    title: str
    group: str
    cases: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Group:
    """A command of `railweave bench`."""

    name: str
    words: tuple[str, ...]  # the subcommand and where it runs
    option: str  # that names a case
    needs: int  # results of a case
    ranks: int
    gpus_a_node: int = 0  # of a lab


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that says right or wrong; seconds as four GPUs should take, and may take."""

    name: str
    title: str
    seconds: int
    limit: int
    needs_exchange: bool = False


_LARGE = ("16MiB", "64MiB", "256MiB")
_SMALL_HOT = (("1KiB", "64"), ("16KiB", "1KiB"), ("64KiB", "4KiB"), ("256KiB", "16KiB"), ("1MiB", "64KiB"), ("2MiB", "128KiB"))
_OTHERS = ("incast:{}", "outcast:{}", "zipf:{}:1.0", "rotating-hotspot:{}", "two-pairs-{}", "all-to-all:{}")
_SMALL = ("16", "1KiB", "4KiB", "16KiB", "64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB")
_OVER_RAILS = ("hot-pair:64MiB", "incast:16MiB", "bidir-pair:64MiB", "hot-pair:64MiB:512KiB", "balanced:4MiB")
ON_ONE_NODE = ("exchanges", "small")  # groups of one node's matrices, which their names tell apart
# Single calls of small messages are nothing but latency, which starts of a system differ in by more than systems do.
_STARTS = ("--starts", "5", "--repeat", "10")
_TUNED_SYSTEMS = ("--systems", "nccl,nccl-tuned,railweave")
_INTERFACES = ("--systems", "nccl,railweave,railweave-torch,railweave-torch-registered,railweave-torch-async")
_WATCHED = ("--systems", "railweave,railweave-counters,railweave-checksums,railweave-nvtx")
_FROM_SMALL_TO_LARGE = ("balanced:1KiB", "balanced:1MiB", "hot-pair:64MiB:4MiB")
_WITH_SHIM_OFF = ("--systems", "nccl,nccl-shim-off,railweave")
_SMALL_OVER_RAILS = tuple(f"balanced:{size}" for size in ("1MiB", "256KiB", "64KiB", "16KiB", "1KiB"))
_INSIDE = ("inside-pair-256MiB", "inside-both-ways-256MiB", "inside-all-to-all-256MiB", "mostly-inside-64MiB")

# What the exchanges go by.
_CHECKS = (Check("calibrate", "Calibration", 50, 120),)
# After them, as a lease may end, and they check their bytes as well. The most telling first; `kernels` begins no step
# that would not end in its time.
_LATE_CHECKS = (
    Check("check-random_groups", "10,000 random groups", 60, 240),
    Check("check-ordering", "Operations on several streams, and replays between them", 30, 120),
    Check("check-collectives", "PyTorch's collectives", 80, 300),
    Check("check-death", "A rank dies", 15, 60),
    Check("check-goodbye", "A rank's program ends without destroying anything", 20, 90),
    Check("check-elastic", "Ranks that come and die", 30, 120),
    Check("check-aborted_receive", "A receive that is aborted", 40, 130),
    Check("rail-down", "A rail that goes down in the middle of an exchange", 90, 240),
    Check("planning", "Planning and the exchange of rows, 8 ranks on rails", 20, 90),
    Check("check-memory", "Memory of a communicator", 20, 90),
    Check("kernels", "The exchange without PyTorch", 300, 420, needs_exchange=True),
    Check("check-freed", "Receive buffers that a program frees", 45, 180),
    Check("check-wrong_groups", "Groups with a wrong message", 25, 120),
    Check("check-contexts", "CUDA contexts of a rank", 25, 120),
    Check("check-parts", "Streams with a part of the GPU", 30, 120),
    Check("check-random_ways", "Random groups in other ways of running PyTorch", 60, 240),
    Check("check-graphs", "Captured graphs", 30, 120),
    Check("check-torch_interface", "railweave.torch", 20, 90),
    Check("check-mps", "Under MPS", 40, 120),
    Check("check-stall", "A receive that comes late", 15, 60),
    Check("check-lives", "Communicators that come and go", 20, 90),
    Check("check-buffers", "Calls into many buffers in turn", 30, 150),
    Check("check-host_cost", "What queueing takes the host", 30, 120),
)


def ranks(gpus: int) -> int:
    """Of checks. On one GPU all share it."""
    return gpus if gpus > 1 else 4


def checks(gpus: int) -> tuple[Check, ...]:
    """What the exchanges go by; on one GPU there is nothing to calibrate."""
    return _CHECKS if gpus > 1 else ()


def late_checks(gpus: int) -> tuple[Check, ...]:
    """After the exchanges. On one GPU all but deaths are under MPS; communicators that ranks come to need four."""
    without = {*(["check-mps"] if gpus == 1 else []), *(["check-elastic"] if ranks(gpus) < 4 else [])}
    return tuple(check for check in _LATE_CHECKS if check.name not in without)


def groups(gpus: int) -> dict[str, Group]:
    """By name. Labs with as many ranks as GPUs, and with several ranks a GPU where there are fewer than eight; on one GPU nothing else."""
    here = ("--gpus", str(gpus))
    found = []
    if gpus > 1:
        found = [
            Group("exchanges", ("alltoallv", *here), "--matrix", 1, gpus),
            Group("small", ("alltoallv", *here, *_STARTS), "--matrix", 1, gpus),
            Group("small-shim-off", ("alltoallv", *here, *_STARTS, *_WITH_SHIM_OFF), "--matrix", 1, gpus),
            Group("interfaces", ("alltoallv", *here, *_INTERFACES), "--matrix", 1, gpus),
            Group("watched", ("alltoallv", *here, *_WATCHED), "--matrix", 1, gpus),
            Group("tuned", ("alltoallv", *here, *_TUNED_SYSTEMS), "--matrix", 1, gpus),
            Group("moe", ("moe", *here), "--compute", 5, gpus),
            Group("beside", ("beside", *here), "--work", 2, gpus),
        ]
    if 3 <= gpus <= MOST_GPUS:
        found.append(Group("mesh", ("alltoallv", *here, "--emulate-mesh", str(MESH_GBPS)), "--matrix", 1, gpus))
    for name, nodes, a_node, rails in _labs(gpus):
        lab = ("--lab", f"{nodes}x{a_node}", "--rails", str(rails), "--rate", "8gbit")
        found.append(Group(name, ("alltoallv", *lab, "--gpus"), "--matrix", 1, nodes * a_node, a_node))
        if name == "rails" or (name == "nodes" and a_node > 1):
            found.append(Group(f"tuned-{name}", ("alltoallv", *lab, "--gpus", *_TUNED_SYSTEMS), "--matrix", 1, nodes * a_node, a_node))
    # Nodes of several ranks, or no byte stays inside them; of four where each has a GPU of its own in its node, as two let Zipf 1.0 gain
    # 1.19 at most (layer_limit.py), and where none has one, for eight-way expert parallelism.
    a_node = 2 if 1 < gpus < 4 else 4
    lab = ("--lab", f"2x{a_node}", "--rails", str(_rails(a_node)), "--rate", "8gbit")
    # 16 MiB a rank and dispatch: what four rails carry within some milliseconds.
    layer = ("--tokens", "2048", "--width", "4096", "--iterations", "4", "--repeat", "5")
    for name, skews in (("moe-rails", ("none", "zipf:1.0", "rotating")), ("moe-rails-zipf", ("zipf:0.6", "zipf:1.2"))):
        words = ("moe", *lab, *layer, *(word for skew in skews for word in ("--skew", skew)))
        found.append(Group(name, words, "--compute", len(skews), 2 * a_node, a_node))
    return {group.name: group for group in found}


def _labs(gpus: int) -> list[tuple[str, int, int, int]]:
    """Name, nodes, GPUs of a node, rails. `rails` is the 2 × 4 of the paper. On two GPUs its nodes have four ranks on two GPUs each, which
    NCCL takes for hosts of their own; `shared` are two nodes of two ranks there, whose GPUs only ranks of the other node share. On one GPU
    NCCL takes each rank for a host, so it has the same rails near in `hosts` only, and loses none in `rails-2`."""
    paper = [("rails", 2, 4, 4), ("rails-8", 2, 4, 8), ("rails-4x2", 4, 2, 4)]
    if gpus >= 8:
        return paper
    if gpus == 1:
        return [paper[0], ("shared", 2, 2, 4), ("hosts", 4, 1, 4), ("rails-2", 2, 2, 2), *paper[1:]]
    nodes = ("nodes", 2, gpus // 2, _rails(gpus // 2))
    return [nodes, *([("shared", 2, 2, 4)] if gpus < 4 else []), ("rails", 2, 4, 4)]


def _rails(gpus_a_node: int) -> int:
    """Four as the paper has, or one a GPU where four are not as many for each."""
    return 4 if 4 % gpus_a_node == 0 else gpus_a_node


def sections(gpus: int) -> tuple[Section, ...]:
    """In the order in which they are told and run."""
    title = "NCCL with more channels for messages and for peers of the other node, in the lab of 2 nodes × 4 GPUs"
    tuned_rails = Section("tuned-rails", title, "tuned-rails", ("hot-pair:64MiB:512KiB", "incast:16MiB", "balanced:4MiB"))
    title = "A mixture-of-experts layer over rails" + ("; each rank is a host to NCCL" if gpus == 1 else "")
    computes = ("0.5", "1", "2")
    layer = Section("moe-rails", title, "moe-rails", computes)
    other_layer = Section("moe-rails-zipf", f"{title}: other skews", "moe-rails-zipf", computes)
    if gpus == 1:
        return (*(_rails_section(gpus, *lab) for lab in _labs(gpus)), layer, other_layer, tuned_rails)
    title, where = "NCCL with more channels, inside nodes of several", "tuned-nodes" if gpus < 8 else "tuned-rails"
    tuned_nodes = [Section("tuned-nodes", title, where, _INSIDE)] if gpus > 2 else []
    hot = tuple(f"hot-pair:{size}:{rest}" for size, rest in (("4MiB", "256KiB"), ("16MiB", "1MiB"), ("64MiB", "4MiB"), ("256MiB", "16MiB")))
    gates = (*(f"moe:8192:4096:64:8:{s}" for s in ("0.6", "1.0", "1.2")), "trace:noaux:5:5:8192")
    found = [
        Section("hot", "A hot pair with 1/16 of it between all others", "exchanges", hot),
        Section("balanced", "Balanced", "exchanges", tuple(f"balanced:{size}" for size in ("4MiB", *_LARGE))),
        Section("pair", "One pair alone", "exchanges", tuple(f"hot-pair:{size}" for size in ("4MiB", *_LARGE, "1GiB"))),
        Section("both-ways", "Two pairs both ways", "exchanges", tuple(f"two-pairs-{size}" for size in _LARGE)),
        Section("small-balanced", "Small messages, balanced", "small", tuple(f"balanced:{size}" for size in _SMALL)),
        Section("small-hot", "Small messages, a hot pair with 1/16 back", "small", tuple(f"hot-pair:{a}:{b}" for a, b in _SMALL_HOT)),
        Section("fans", "Incast, outcast", "exchanges", tuple(f"{name}:{size}" for name in ("incast", "outcast") for size in _LARGE)),
        Section(
            "skewed",
            "Zipf, rotating hotspot",
            "exchanges",
            (*(f"zipf:{size}:1.0" for size in _LARGE), *(f"rotating-hotspot:{size}" for size in _LARGE)),
        ),
        Section("small-pair", "Small messages, one pair", "small", tuple(f"hot-pair:{size}" for size in _SMALL)),
        Section(
            "small-skewed",
            "Small messages, other patterns",
            "small",
            tuple(each.format(size) for size in ("64KiB", "1MiB") for each in _OTHERS),
        ),
        Section(
            "own",
            "All to all, with what ranks send themselves",
            "exchanges",
            tuple(f"all-to-all:{size}" for size in ("4MiB", *_LARGE)),
        ),
        Section("gates", "What gates send", "exchanges", gates if 64 % gpus == 0 else ()),  # experts
    ]
    labs = [_rails_section(gpus, *lab) for lab in _labs(gpus)]
    late = labs[1:] if gpus >= 8 else []  # other shapes than the paper's
    found += [each for each in labs if each not in late]
    if 3 <= gpus <= MOST_GPUS:
        title = f"EMULATED NVLink mesh of {MESH_GBPS} GB/s a link: with paths through other GPUs, and without"
        found.append(Section("mesh", title, "mesh", ("hot-pair:256MiB", "hot-pair:64MiB", "bidir-pair:256MiB", "balanced:64MiB")))
    found += [
        layer,
        Section("moe", "A mixture-of-experts layer", "moe", computes),
        Section("beside", "Other work beside exchanges", "beside", ("gemm", "all-reduce")),
        other_layer,
        Section("small-shim-off", "Small messages beside the shim switched off", "small-shim-off", ("balanced:16", "balanced:64KiB")),
        Section("interfaces", "railweave.torch beside torch.distributed, under NCCL and the shim", "interfaces", _FROM_SMALL_TO_LARGE),
        Section("watched", "What counters, checksums and a profiler of NVTX ranges take", "watched", _FROM_SMALL_TO_LARGE),
        *late,
        Section("tuned", "NCCL with more channels for messages", "tuned", ("hot-pair:64MiB:4MiB", "balanced:64MiB", "balanced:1MiB")),
        *tuned_nodes,
        tuned_rails,
    ]
    seen: dict[bytes, str] = {}
    return tuple(dataclasses.replace(each, cases=_once(each, gpus, seen)) for each in found)


def _rails_section(gpus: int, name: str, nodes: int, a_node: int, rails: int) -> Section:
    # Ranks that share a GPU say nothing about NVLink.
    alone = nodes * a_node <= gpus
    cases = (*(_INSIDE if alone and a_node > 1 else ()), *_OVER_RAILS, *_SMALL_OVER_RAILS)
    title = f"{nodes} nodes × {a_node} GPUs on {rails} rails of 8 Gbit/s"
    if not alone:
        title += "; ranks of different nodes share GPUs"
    if a_node > gpus:
        title += ", those of a node as well, and each is a host of its own to NCCL"
    return Section(name, title, name, cases)


def _once(section: Section, gpus: int, seen: dict[bytes, str]) -> tuple[str, ...]:
    """Cases that no section before has: on few GPUs many patterns are the same."""
    if section.group not in ON_ONE_NODE:
        return section.cases
    return tuple(case for case in section.cases if seen.setdefault(_bytes(case, gpus), case) == case)


@functools.cache
def _bytes(case: str, gpus: int) -> bytes:
    return rows_of(matrix_of(case, gpus, 0)).tobytes()


def matrix_of(case: str, ranks: int, gpus_a_node: int) -> Matrix:
    """Of a generator of `railweave matrix`, or one of those that need to know the nodes."""
    made = own_matrix(case, ranks, gpus_a_node)
    return load(case, ranks) if made is None else made


def own_matrix(case: str, ranks: int, gpus_a_node: int) -> Matrix | None:
    """Those that no generator makes; they go to `railweave bench` as files."""
    name, _, text = case.rpartition("-")
    if ":" in case or name not in ("two-pairs", "inside-pair", "inside-both-ways", "inside-all-to-all", "mostly-inside"):
        return None
    size, matrix = np.uint64(parse_size(text)), np.zeros((ranks, ranks), dtype=np.uint64)
    if name == "two-pairs":
        for a in range(min(2, ranks // 2)):
            matrix[a, a + ranks // 2] = matrix[a + ranks // 2, a] = size
        return matrix
    node = np.arange(ranks) // gpus_a_node
    inside = node[:, None] == node[None, :]
    np.fill_diagonal(inside, val=False)
    if name == "inside-pair":
        matrix[0, 1] = size
    elif name == "inside-both-ways":
        matrix[0, 1] = matrix[1, 0] = size
    elif name == "inside-all-to-all":
        matrix[inside] = size
    else:  # 90% of what a rank sends goes to its own node, equal shares to all on either side
        matrix[inside] = size * np.uint64(9) // np.uint64(10 * (gpus_a_node - 1))
        matrix[node[:, None] != node[None, :]] = size // np.uint64(10 * (ranks - gpus_a_node))
    return matrix


def argument_of(case: str, group: Group, folder: Path) -> str:
    """What `railweave bench` is given: the case's name, or a file of that name in the folder."""
    made = own_matrix(case, group.ranks, group.gpus_a_node) if group.option == "--matrix" else None
    if made is None:
        return case
    path = folder / group.name / case
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(write(made))
    return str(path)
