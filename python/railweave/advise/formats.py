"""Advice in the words of launchers: shell, OpenMPI rankfile, Slurm, torchrun, Kubernetes. Each text says how it is used."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from railweave.advise.advice import Advice
from railweave.advise.cpulist import to_list, to_mask
from railweave.advise.errors import AdviceError
from railweave.advise.text import headline

# Innermost launcher first, as in railweave.launch.rank.
_LOCAL_RANK = "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-}}}}"


def render(advice: Advice, name: str) -> str:
    """The text of a format; `name` is one of FORMATS. Raises AdviceError where the format needs what is not known."""
    return FORMATS[name](advice)


def _head(advice: Advice, *usage: str) -> list[str]:
    host = advice.host
    return [
        f"# {host.fabric.name}, {host.fabric.node_names[host.node]}: railweave advise, {headline(advice.workload, advice.size_B)}",
        *(f"# {line}" for line in usage),
    ]


def _cpus(advice: Advice, form: str) -> list[tuple[int, ...]]:
    """Of all ranks; for formats that are about nothing else."""
    cpus = [binding.cpus for binding in advice.bindings]
    known = [of_rank for of_rank in cpus if of_rank is not None]
    if len(known) < len(cpus):
        raise AdviceError(
            f"--format {form} binds ranks to cores, and the cores of '{advice.host.fabric.name}' are not known; run it on the "
            "node, or give a recording of the node (railweave topo --record)"
        )
    return known


def _ranks(advice: Advice) -> range:
    return range(len(advice.bindings))


def _exports(advice: Advice, rank: int | None) -> list[str]:
    """Of one rank, or those that all ranks share."""
    shared = {setting.name for setting in advice.settings if not setting.per_rank}
    values = advice.environment(rank or 0)
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items() if (name in shared) == (rank is None)]


def _case(advice: Advice, of_rank: Callable[[int], list[str]]) -> list[str]:
    lines = [f'case "{_LOCAL_RANK}" in']
    for rank in _ranks(advice):
        lines += [f"  {rank}) {'; '.join(of_rank(rank) or [':'])} ;;"]
    return [*lines, f'  *) echo "railweave: no local rank from 0 to {len(advice.bindings) - 1} in the environment" >&2; exit 64 ;;', "esac"]


def shell(advice: Advice) -> str:
    """To be sourced by each rank: variables and cores, for scripts that cannot put another program before theirs."""

    def of_rank(rank: int) -> list[str]:
        cpus = advice.bindings[rank].cpus
        return _exports(advice, rank) + ([f"taskset -pc {to_list(cpus)} $$ >/dev/null"] if cpus else [])

    usage = "Source it in each rank's script: . advice.sh. A sourced file cannot set the memory policy; `railweave run` does."
    return "\n".join([*_head(advice, usage), *_exports(advice, None), *_case(advice, of_rank)]) + "\n"


def torchrun(advice: Advice) -> str:
    """A program that torchrun starts instead of Python."""

    def of_rank(rank: int) -> list[str]:
        binding = advice.bindings[rank]
        if binding.cpus is None:
            return _exports(advice, rank)
        memory = f" --preferred={binding.memory[0]}" if binding.memory and len(binding.memory) == 1 else ""
        return [*_exports(advice, rank), f'set -- numactl --physcpubind={to_list(binding.cpus)}{memory} "$@"']

    usage = [
        f"chmod +x advice.sh; torchrun --no-python --nproc-per-node={len(advice.bindings)} ./advice.sh python train.py",
        "needs numactl",
    ]
    return "\n".join(["#!/bin/sh", *_head(advice, *usage), *_exports(advice, None), *_case(advice, of_rank), 'exec "$@"']) + "\n"


def rankfile(advice: Advice) -> str:
    """OpenMPI's rankfile for one node, with the processors' numbers of the operating system."""
    cpus = _cpus(advice, "rankfile")
    name = advice.host.fabric.node_names[advice.host.node]
    exported = [
        f"-x {name}={shlex.quote(value)}"
        for name, value in advice.environment(0).items()
        if _shared(advice, name) and not name.startswith("OMPI_")
    ]
    mca = [f"--mca pml {advice.environment(0)['OMPI_MCA_pml']}"] if "OMPI_MCA_pml" in advice.environment(0) else []
    command = [
        "mpirun",
        f"-np {len(cpus)}",
        "--rankfile THIS",
        "--mca rmaps_rank_file_physical 1",
        "--use-hwthread-cpus",
        *mca,
        *exported,
        "CMD",
    ]
    usage = [
        " ".join(command),
        f"Open MPI 4.1; {name} is the node's host name; further nodes: repeat the lines with the next ranks and their names",
    ]
    differing = [setting.name for setting in advice.settings if setting.per_rank]
    if differing:
        usage.append(f"A rankfile carries no variables: {', '.join(differing)} differ by rank; `mpirun ... railweave run -- CMD` sets them")
    hwloc = [
        f"rank {rank}: hwloc-bind --physical pu:{' pu:'.join(to_list(of_rank).split(','))} -- CMD" for rank, of_rank in enumerate(cpus)
    ]
    slots = [f"rank {rank}={name} slot={to_list(of_rank)}" for rank, of_rank in enumerate(cpus)]
    return "\n".join([*_head(advice, *usage, "the same for hwloc:", *hwloc), *slots]) + "\n"


def _shared(advice: Advice, name: str) -> bool:
    return any(setting.name == name and not setting.per_rank for setting in advice.settings)


def slurm(advice: Advice) -> str:
    """A task prolog, which sets variables, and in its head the options that bind."""
    cpus = _cpus(advice, "slurm")
    homes = [binding.memory[0] if binding.memory else 0 for binding in advice.bindings]
    options = (
        f"srun --ntasks-per-node={len(cpus)} --cpu-bind=mask_cpu:{','.join(to_mask(of_rank) for of_rank in cpus)} "
        f"--mem-bind=prefer,map_mem:{','.join(str(home) for home in homes)} --task-prolog=THIS CMD"
    )

    def of_rank(rank: int) -> list[str]:
        return [f"echo {shlex.quote(line)}" for line in _exports(advice, rank)]

    lines = [f"echo {shlex.quote(line)}" for line in _exports(advice, None)]
    case = ['case "$SLURM_LOCALID" in', *(f"  {rank}) {'; '.join(of_rank(rank) or [':'])} ;;" for rank in _ranks(advice)), "esac"]
    usage = [
        options,
        "The job needs whole nodes (--exclusive), or Slurm has already narrowed the cores. Slurm sets what this prints.",
    ]
    return "\n".join(["#!/bin/sh", *_head(advice, *usage), *lines, *case]) + "\n"


def kubernetes(advice: Advice) -> str:
    """The container's part of a pod that has a whole node; variables that differ by rank need `railweave run` in the container."""
    shared = {name: value for name, value in advice.environment(0).items() if _shared(advice, name)}
    differing = [setting.name for setting in advice.settings if setting.per_rank]
    usage = [
        "merge into the pod's container; what differs by rank ("
        + ", ".join(["cores", "memory", *differing])
        + ") is set by `railweave run`,"
    ]
    usage.append("which finds the rank that torchrun, mpirun or an indexed job gives it: command: [railweave, run, --, python, train.py]")
    lines = ["env:" if shared else "env: []"]
    for name, value in shared.items():
        quoted = value.replace("'", "''")
        lines += [f"  - name: {name}", f"    value: '{quoted}'"]
    return "\n".join([*_head(advice, *usage), *lines]) + "\n"


FORMATS: dict[str, Callable[[Advice], str]] = {
    "shell": shell,
    "rankfile": rankfile,
    "slurm": slurm,
    "torchrun": torchrun,
    "kubernetes": kubernetes,
}
