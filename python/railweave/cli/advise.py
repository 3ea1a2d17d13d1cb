"""`railweave advise`: which cores, memory, NICs and settings each rank of a node should use."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from railweave.advise.advice import Advice
    from railweave.advise.host import Host

FORMATS = ("text", "json", "shell", "rankfile", "slurm", "torchrun", "kubernetes")
OVERRIDING = ("shell", "slurm", "torchrun")


_FILE = click.Path(path_type=Path)


@click.command("advise")
@click.argument("source", required=False, metavar="[FILE|TEMPLATE]")
@click.option("--from", "recording", type=_FILE, metavar="FILE.tar.zst", help="Advise the machine of a recording.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to make of a template or topology file, to judge the network too.")
@click.option("--node", type=click.IntRange(min=0), default=0, show_default=True, help="Which node of a cluster to advise.")
@click.option(
    "--for", "workload", type=click.Choice(["bandwidth", "latency"]), default="bandwidth", show_default=True, help="What the job waits for."
)
@click.option("--size", "size_text", metavar="SIZE", help="Message size that matters, such as 64KiB. [default: 4MiB, for latency 8KiB]")
@click.option("--measured", type=_FILE, metavar="CSV", help="Runs with GPUDirect RDMA and GDRCopy on and off; they replace the rules.")
@click.option("--nics", metavar="LIST", help="The NICs of the GPU network (mlx5_0,mlx5_1); else inferred, and shown.")
@click.option("--nccl-topology", metavar="FILE", help="Topology file that NCCL is to read on the node (railweave topo --nccl-xml).")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--override", is_flag=True, help="With --format shell, slurm or torchrun: replace what the user has set.")
def command(
    source: str | None,
    recording: Path | None,
    nodes: int | None,
    node: int,
    workload: str,
    size_text: str | None,
    measured: Path | None,
    nics: str | None,
    nccl_topology: str | None,
    form: str,
    override: bool,
) -> None:
    """Which GPU, cores, memory and NICs each rank of a node should use, when GPUDirect RDMA and GDRCopy help, and the settings that
    differ from their defaults: of this machine, or of anything that `railweave topo` reads.

    \b
    railweave advise
    railweave advise xe9680-4hca
    railweave advise charisma-ab --for latency
    railweave advise --from node7.tar.zst --format slurm > prolog.sh
    """
    from railweave.advise.advice import advise
    from railweave.advise.mapping import Workload
    from railweave.advise.measured import read_measurements

    if source is not None and recording is not None:
        raise click.UsageError("A FILE or TEMPLATE and --from exclude each other.")
    if override and form not in OVERRIDING:
        raise click.UsageError(f"--override goes with --format {', '.join(OVERRIDING)}: {form} does not run where something is set.")
    if nccl_topology is not None and not os.path.isfile(nccl_topology):  # noqa: PTH113 - Path raises for some
        if source is None and recording is None:
            raise click.BadParameter(f"{nccl_topology} is no file here, where NCCL is to read it.", param_hint="--nccl-topology")
        click.echo(f"railweave: --nccl-topology {nccl_topology}: no such file here; NCCL goes without one where it is missing", err=True)
    advice = advise(
        _named_host(source, recording, nodes, node, nics),
        Workload(workload),
        None if size_text is None else _size(size_text),
        read_measurements(measured) if measured else (),
        str(measured or ""),
        nccl_topology,
    )
    if not any((source, recording, size_text, measured, nics, nccl_topology)):
        from railweave.advise.document import document
        from railweave.launch import cache
        from railweave.launch.placement import write

        cache.keep(workload, write(document(advice)))  # `railweave run` on this machine then need not work it out
    click.echo(_render(advice, form, override), nl=False)


def _size(text: str) -> int:
    from railweave.errors import DemandError
    from railweave.size import parse_size

    try:
        size = parse_size(text)
    except DemandError as error:
        raise click.BadParameter(f"{error}.", param_hint="--size") from error
    if size == 0:
        raise click.BadParameter("a message has at least 1 byte.", param_hint="--size")
    return size


def _named_host(source: str | None, recording: Path | None, nodes: int | None, node: int, nics: str | None) -> Host:
    from railweave.machine.fabric_nics import UnknownNicError, named_nics

    try:
        return _host(source, recording, nodes, node, named_nics(nics))
    except UnknownNicError as error:
        raise click.UsageError(f"--nics: {error}.") from error


def _host(source: str | None, recording: Path | None, nodes: int | None, node: int, nics: Sequence[str]) -> Host:
    from railweave.advise import live
    from railweave.advise.host import choose_network, read_host

    unknown: tuple[str, ...] = ()
    if recording is not None:
        host, unknown = live.recorded_host(recording, nics)
    elif source is None:
        host, unknown = live.this_host(nics)
    else:
        from railweave.machine.load import fabric_or_machine, machine_or_text

        machine, text = machine_or_text(source)
        if machine is None:
            host = read_host(fabric_or_machine(source, text, nodes), node)
            return choose_network(host, nics) if nics else host
        host, unknown = live.host_of(machine, nics)
    for note in unknown:
        click.echo(f"railweave: {note}", err=True)
    return host


def _render(advice: Advice, form: str, override: bool) -> str:
    if form == "json":
        from railweave.advise.document import document

        return json.dumps(document(advice), indent=1) + "\n"
    if form == "text":
        from railweave.advise.text import render

        return render(advice)
    from railweave.advise import binding, formats

    text = formats.render(advice, form, override)
    if form in formats.BINDING and formats.unbound_ranks(advice):
        known = binding.bare_nodes(advice.host)  # a recording would say the same
        told = "" if known else "; run it on the node, or give a recording of the node (railweave topo --record)"
        click.echo(f"railweave: --format {form}: {formats.unbound_text(advice)}{told}", err=True)
    return text
