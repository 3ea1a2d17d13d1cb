"""`railweave matrix`: makes traffic matrices."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from railweave.matrix import GENERATORS, load, write
from railweave.size import format_size


def _generators() -> str:
    rows = [f"  {generator.usage}\n      {generator.help}" for generator in GENERATORS.values()]
    return "\b\nGenerators (sizes as 4096, 64KiB, 16MiB; BYTES and SIZE alike):\n" + "\n".join(rows)


@click.command(name="matrix", epilog=_generators())
@click.argument("generator", metavar="GEN|FILE")
@click.option("--ranks", type=click.IntRange(1, 65536), required=True, help="Rows and columns.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write; by default standard output.")
def command(generator: str, ranks: int, output: Path | None) -> None:
    """Make a traffic matrix in nccl-tests' format: rows send, columns receive, entries are bytes."""
    matrix = load(generator, ranks)
    text = write(matrix)
    if output is None:
        sys.stdout.write(text)
        return
    if not output.name:
        raise click.BadParameter("an empty name; expected a file to write")
    partial = output.with_name(f".{output.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise click.FileError(str(output), error.strerror) from error
    click.echo(f"{output}: {ranks} ranks, {format_size(int(matrix.sum()))} bytes in all")
