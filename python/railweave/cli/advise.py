"""`railweave advise`: which cores, memory, NICs and settings each rank of a node should use."""

from __future__ import annotations

import json
from pathlib import Path

import click

FORMATS = ("text", "json", "shell", "rankfile", "slurm", "torchrun", "kubernetes")


@click.command("advise")
@click.argument("source", metavar="FILE|TEMPLATE")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to make of a template or topology file, to judge the network too.")
@click.option("--node", type=click.IntRange(min=0), default=0, show_default=True, help="Which node of a cluster to advise.")
@click.option(
    "--for", "workload", type=click.Choice(["bandwidth", "latency"]), default="bandwidth", show_default=True, help="What the job waits for."
)
@click.option("--size", "size_text", metavar="SIZE", help="Message size that matters, such as 64KiB. [default: 4MiB, for latency 8KiB]")
@click.option(
    "--measured",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="CSV",
    help="Runs with GDR and GDRCopy on and off; they replace the rules.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def command(source: str, nodes: int | None, node: int, workload: str, size_text: str | None, measured: Path | None, form: str) -> None:
    """Which GPU, cores, memory and NICs each rank of a node should use, when GPUDirect RDMA and GDRCopy help, and the settings that
    differ from their defaults.

    \b
    railweave advise xe9680-4hca
    railweave advise charisma-ab --for latency
    railweave advise --format slurm > prolog.sh
    """
    from railweave import fabric as fabrics
    from railweave.advise.advice import advise
    from railweave.advise.gdr import read_measurements
    from railweave.advise.host import read_host
    from railweave.advise.mapping import Workload
    from railweave.matrix import parse_size

    host = read_host(fabrics.load(source, nodes), node)
    advice = advise(
        host,
        Workload(workload),
        None if size_text is None else parse_size(size_text),
        read_measurements(measured) if measured else (),
        str(measured or ""),
    )
    if form == "json":
        from railweave.advise.document import document

        click.echo(json.dumps(document(advice), indent=1))
    elif form == "text":
        from railweave.advise.text import render

        click.echo(render(advice), nl=False)
    else:
        from railweave.advise import formats

        click.echo(formats.render(advice, form), nl=False)
