"""Advice in the words of launchers: shell, OpenMPI rankfile, Slurm, torchrun, Kubernetes. Each text says how it is used."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from railweave.advise.advice import Advice
from railweave.advise.binding import bare_nodes
from railweave.advise.cpulist import to_mask
from railweave.advise.errors import AdviceError
from railweave.advise.text import headline
from railweave.launch.placement import cpu_text

# Innermost launcher first, as in railweave.launch.rank.
# As `railweave run` finds it: a batch script has SLURM_LOCALID too, but no step, and is no rank.
_LOCAL_RANK = "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_STEP_ID:+${SLURM_LOCALID:-}}}}}"


def render(advice: Advice, name: str, override: bool = False) -> str:
    """The text of a format; `name` is one of FORMATS. `override` replaces what the user set, in formats that run beside it (OVERRIDABLE).
    Raises AdviceError where the format needs what is not known."""
    return OVERRIDABLE[name](advice, override) if name in OVERRIDABLE else FORMATS[name](advice)


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
        bare = bare_nodes(advice.host)
        if bare:
            raise AdviceError(f"--format {form} binds ranks to cores, and {bare}; `shell` and `torchrun` leave the ranks there unbound")
        raise AdviceError(
            f"--format {form} binds ranks to cores, and the cores of '{advice.host.fabric.name}' are not known; run it on the "
            "node, or give a recording of the node (railweave topo --record)"
        )
    return known


def unbound_ranks(advice: Advice) -> list[int]:
    """Those whose cores are not known."""
    return [rank for rank, binding in enumerate(advice.bindings) if not binding.cpus]


def unbound_text(advice: Advice) -> str:
    """What a format that does more than bind leaves out for them."""
    unbound, bare = unbound_ranks(advice), bare_nodes(advice.host)
    if len(unbound) == len(advice.bindings):
        return f"{bare or 'cores not known'}: nothing is bound"
    names = f"ranks {', '.join(map(str, unbound))}" if len(unbound) > 1 else f"rank {unbound[0]}"
    return f"{bare}: {names} not bound" if bare else f"cores of {names} not known: not bound"


def _ranks(advice: Advice) -> range:
    return range(len(advice.bindings))


def _exports(advice: Advice, rank: int | None, override: bool) -> list[str]:
    """Of one rank, or those that all ranks share."""
    shared = {setting.name for setting in advice.settings if not setting.per_rank}
    values = advice.environment(rank or 0)
    return [_export(name, value, override) for name, value in values.items() if (name in shared) == (rank is None)]


def _export(name: str, value: str, override: bool) -> str:
    """What is set already stays, also when it is set to nothing."""
    export = f"export {name}={shlex.quote(value)}"
    return export if override else f'[ -n "${{{name}+set}}" ] || {export}'


# In a subshell, which is why the caller gets no variables; $$ is the caller's number there too. The kernel narrows any set of CPUs to the
# cpuset, so asking for all shows whether somebody has chosen cores before. Of those that isolcpus keeps from the scheduler a process has
# none by itself, but all of its container's.
_BIND = """\
railweave_bind() (
  command -v taskset >/dev/null || { echo "railweave: taskset is not installed; not bound" >&2; exit 0; }
  override=%s
  each() { tr , '\\n' | while IFS=- read -r first last; do [ -z "$first" ] || seq "$first" "${last:-$first}"; done; }
  isolated=$(cat /sys/devices/system/cpu/isolated 2>/dev/null | each) || :
  free() { each | grep -vxF "$isolated" | paste -sd , -; }
  all=0-$(($(getconf _NPROCESSORS_CONF) - 1))
  wanted=$(echo "$1" | free) || :
  before=$(taskset -p $$) && before=${before##*: }
  taskset -pc "$all" $$ >/dev/null
  whole=$(taskset -p $$) && whole=${whole##*: }
  taskset -pc "$(echo "$all" | free)" $$ >/dev/null 2>&1 || :
  allowed=$(taskset -p $$) && allowed=${allowed##*: }
  if [ "$before" != "$allowed" ] && [ "$before" != "$whole" ] && [ -z "$override" ]; then
    echo "railweave: CPU affinity was set before and is kept (advice: $1)" >&2
    taskset -p "$before" $$ >/dev/null
  elif ! taskset -pc "$wanted" $$ >/dev/null; then
    echo "railweave: none of the advised cores $1 is in this cpuset; not bound" >&2
    taskset -p "$before" $$ >/dev/null
  fi
)"""


def _by_rank(advice: Advice, override: bool, of_rank: Callable[[int], list[str]], without: str) -> list[str]:
    """Variables and cores of the rank that reads this; `without` is what is done when there is none."""
    unbound = unbound_ranks(advice)
    binds = len(unbound) < len(advice.bindings)
    function = (_BIND % ("yes" if override else "")).splitlines() if binds else []
    forget = ["unset -f railweave_bind"] if binds else []
    remark = [f"# {unbound_text(advice)}"] if unbound else []
    lines = [*remark, *_exports(advice, None, override), *function, f'case "{_LOCAL_RANK}" in']
    for rank in _ranks(advice):
        cpus = advice.bindings[rank].cpus
        bind = [f"railweave_bind {cpu_text(cpus)}"] if cpus else []
        lines += [f"  {rank}) {'; '.join([*_exports(advice, rank, override), *bind, *of_rank(rank), *forget]) or ':'} ;;"]
    complaint = f'echo "railweave: no local rank from 0 to {len(advice.bindings) - 1} in the environment" >&2'
    return [*lines, f"  *) {'; '.join([*forget, complaint, without])} ;;", "esac"]


def shell(advice: Advice, override: bool) -> str:
    """To be sourced by each rank: variables and cores, for scripts that cannot put another program before theirs. Never ends the shell."""
    usage = [
        "Source it in each rank's script: . advice.sh. Its status is 64 where there is no rank. What was set before stays.",
        "A sourced file cannot set the memory policy; `railweave run` does.",
    ]
    return "\n".join([*_head(advice, *usage), *_by_rank(advice, override, lambda rank: [], "(exit 64)")]) + "\n"


def torchrun(advice: Advice, override: bool) -> str:
    """A program that torchrun starts instead of Python."""

    def memory(rank: int) -> list[str]:
        nodes = advice.bindings[rank].memory
        if nodes is None or len(nodes) != 1:
            return []
        return [f'! command -v numactl >/dev/null || set -- numactl --preferred={nodes[0]} "$@"']

    usage = [
        f"chmod +x advice.sh; torchrun --no-python --nproc-per-node={len(advice.bindings)} ./advice.sh python train.py",
        "What was set before stays. Memory is placed where numactl is installed.",
    ]
    return "\n".join(["#!/bin/sh", *_head(advice, *usage), *_by_rank(advice, override, memory, "exit 64"), 'exec "$@"']) + "\n"


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
        f"rank {rank}: hwloc-bind --physical pu:{' pu:'.join(cpu_text(of_rank).split(','))} -- CMD" for rank, of_rank in enumerate(cpus)
    ]
    slots = [f"rank {rank}={name} slot={cpu_text(of_rank)}" for rank, of_rank in enumerate(cpus)]
    return "\n".join([*_head(advice, *usage, "the same for hwloc:", *hwloc), *slots]) + "\n"


def _shared(advice: Advice, name: str) -> bool:
    return any(setting.name == name and not setting.per_rank for setting in advice.settings)


def slurm(advice: Advice, override: bool) -> str:
    """A task prolog, which sets variables, and in its head the options that bind."""
    cpus = _cpus(advice, "slurm")
    homes = [binding.memory[0] if binding.memory else 0 for binding in advice.bindings]
    options = (
        f"srun --ntasks-per-node={len(cpus)} --cpu-bind=mask_cpu:{','.join(to_mask(of_rank) for of_rank in cpus)} "
        f"--mem-bind=prefer,map_mem:{','.join(str(home) for home in homes)} --task-prolog=THIS CMD"
    )

    def of_rank(rank: int) -> list[str]:
        return _printed(advice, rank, override)

    lines = _printed(advice, None, override)
    case = ['case "$SLURM_LOCALID" in', *(f"  {rank}) {'; '.join(of_rank(rank) or [':'])} ;;" for rank in _ranks(advice)), "esac"]
    usage = [
        options,
        "The job needs whole nodes (--exclusive), or Slurm has already narrowed the cores. Slurm sets what this prints, and this prints",
        "nothing that the task has already." if not override else "it also where the task has it already.",
    ]
    return "\n".join(["#!/bin/sh", *_head(advice, *usage), *lines, *case]) + "\n"


def _printed(advice: Advice, rank: int | None, override: bool) -> list[str]:
    """Lines that Slurm takes for the task's environment."""
    shared = {setting.name for setting in advice.settings if not setting.per_rank}
    lines = []
    for name, value in advice.environment(rank or 0).items():
        if (name in shared) == (rank is None):
            echo = f"echo {shlex.quote(f'export {name}={value}')}"
            lines.append(echo if override else f'[ -n "${{{name}+set}}" ] || {echo}')
    return lines


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


FORMATS: dict[str, Callable[[Advice], str]] = {"rankfile": rankfile, "kubernetes": kubernetes}
BINDING = ("shell", "torchrun")
"""Formats that bind where cores are known and do the rest where they are not; `slurm` and `rankfile` refuse."""
OVERRIDABLE: dict[str, Callable[[Advice, bool], str]] = {"shell": shell, "slurm": slurm, "torchrun": torchrun}
