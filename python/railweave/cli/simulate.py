"""`railweave simulate`: predictions without running anything."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

_FILE_WIDTH = 160  # characters a line
DEFAULT_POLICIES = "single-path,nccl,railweave"


@click.command(name="simulate")
@click.option("--fabric", "source", required=True, metavar="FILE|TEMPLATE", help="A template, or any file that `railweave topo` reads.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to make of a template or topology file.")
@click.option("--matrix", "matrix_name", required=True, metavar="GEN|FILE", help="See `railweave matrix --help`.")
@click.option(
    "--policy", "policies", default=DEFAULT_POLICIES, show_default=True, metavar="P[,P…]",
    help="Of single-path, nccl (PXN 2; also nccl-pxn0, nccl-pxn1), ucx-rails, nimble, railweave.",
)  # fmt: skip
@click.option("--exact", is_flag=True, help="Also the exact optimum of the routing (a linear program; slow on large fabrics).")
@click.option("--json", "as_json", is_flag=True, help="JSON on standard output (schema/simulation.schema.json).")
@click.option("--report", type=click.Path(path_type=Path), help="Write a page with pictures (one HTML file).")
def command(source: str, nodes: int | None, matrix_name: str, policies: str, exact: bool, as_json: bool, report: Path | None) -> None:
    """Predict how long a matrix takes under each policy, how busy each link is, and who waits for what.

    \b
    railweave simulate --fabric hgx-h100 --nodes 2 --matrix zipf:64MiB:1.2 --report page.html
    """
    from rich.console import Console

    from railweave import matrix as matrices
    from railweave.machine.load import load_fabric
    from railweave.output import check_writable, json_text, write_whole
    from railweave.simulate import PolicyError, parse_policy, study
    from railweave.simulate.document import document
    from railweave.simulate.text import LEAST_WIDTH, render

    if report is not None:
        check_writable(report)
    try:
        chosen = [parse_policy(name.strip()) for name in policies.split(",")]
    except PolicyError as error:
        raise click.BadParameter(f"{error}.", param_hint="--policy") from error
    fabric, unknown = load_fabric(source, nodes)
    for note in unknown:
        click.echo(f"railweave: {note}", err=True)
    matrix = matrices.load(matrix_name, fabric.gpu_count)
    result = study(fabric, matrix, matrix_name, chosen, exact)
    if as_json:
        click.echo(json_text(document(result)))
    else:
        # Names of files and vertices are no markup, and no emoji.
        console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
        console.width = max(console.width, LEAST_WIDTH) if console.is_terminal else _FILE_WIDTH
        console.print(render(result, console.width))
    if report is not None:  # last: what was worked out is shown whatever becomes of the page
        from railweave.simulate.page import page

        write_whole(report, page(result, f"railweave {shlex.join(sys.argv[1:])}"))
        if not as_json:
            click.echo(f"page: {report}")
