"""`railweave matrix`: makes traffic matrices."""

from __future__ import annotations

from pathlib import Path

import click

from railweave.matrix import GENERATORS, MOST_RANKS, load, write
from railweave.output import is_standard_output, write_whole
from railweave.size import counted, size_text


def _generators() -> str:
    rows = [f"  {generator.usage}\n      {generator.help}" for generator in GENERATORS.values()]
    return "\b\nGenerators (sizes as 4096, 64KiB, 16MiB; BYTES and SIZE alike):\n" + "\n".join(rows)


@click.command(name="matrix", epilog=_generators())
@click.argument("generator", metavar="GEN|FILE")
@click.option("--ranks", type=click.IntRange(1, MOST_RANKS), required=True, help="Rows and columns.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; by default standard output.")
def command(generator: str, ranks: int, output: Path | None) -> None:
    """Make a traffic matrix in nccl-tests' format: rows send, columns receive, entries are bytes."""
    matrix = load(generator, ranks)
    text = write(matrix)
    if output is None:
        click.echo(text, nl=False)
        return
    write_whole(output, text)
    if not is_standard_output(output):
        click.echo(f"{output}: {counted(ranks, 'rank')}, {size_text(int(matrix.sum()))} in all")
