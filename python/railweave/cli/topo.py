"""`railweave topo`: show a fabric."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from railweave import fabric as fabrics


@click.command("topo", no_args_is_help=True)
@click.argument("source", required=False, metavar="FILE|TEMPLATE")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to make of a template or topology file.")
@click.option("--json", "as_json", is_flag=True, help="Print the fabric's JSON form instead of the tree.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a picture instead of the tree.")
@click.option("--list", "as_list", is_flag=True, help="List the node templates.")
def command(source: str | None, nodes: int | None, as_json: bool, svg: Path | None, as_list: bool) -> None:
    """Show a fabric: an NCCL topology XML, a cluster file, fabric JSON, or a node template by name.

    \b
    railweave topo hgx-h100
    railweave topo examples/two-nodes.yaml --svg fabric.svg
    railweave topo topology.xml --nodes 2 --json > fabric.json
    """
    if as_list:
        for name, description in fabrics.templates().items():
            click.echo(f"{name:<24}{description}")
        return
    if source is None:
        raise click.UsageError("Missing argument 'FILE|TEMPLATE'; `railweave topo --list` shows the templates.")
    if as_json and svg is not None:
        raise click.UsageError("--json and --svg exclude each other.")
    fabric = fabrics.load(source, nodes)
    if as_json:
        click.echo(fabric.to_json(), nl=False)
    elif svg is not None:
        from railweave.topo.picture import render_svg

        _write_whole(svg, render_svg(fabric))
        click.echo(f"{svg}: {fabric.name}")
    else:
        from railweave.topo.tree import render_tree

        click.echo(render_tree(fabric), nl=False)


def _write_whole(path: Path, text: str) -> None:
    """All of the text or, on any failure, nothing: written beside the target and renamed."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
