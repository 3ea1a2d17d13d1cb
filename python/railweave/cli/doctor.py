"""`railweave doctor`: what is wrong with a machine, or with many. Options, help and errors; `railweave.doctor.command` does it."""

from __future__ import annotations

import sys
from typing import Any

import click

from railweave.doctor.command import LEVELS, Arguments, UsageError, run


@click.command("doctor")
@click.argument("recordings", nargs=-1, type=click.Path(), metavar="[FILE.tar.zst]...")
@click.option("--from", "more", multiple=True, type=click.Path(), metavar="FILE", help="The same as naming FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print every answer as JSON (schema/doctor.schema.json).")
@click.option("--html", type=click.Path(), metavar="FILE", help="Also write a page.")
@click.option("--prometheus", type=click.Path(), metavar="FILE", help="Also write a node_exporter textfile.")
@click.option(
    "--fail-on",
    type=click.Choice(LEVELS),
    metavar="LEVEL",
    help="Exit with status 3 when a finding of this level (info, warning, error) or a worse one fires.",
)
@click.option("--probe", is_flag=True, help="Load the GPUs of this machine briefly, for what only that shows.")
@click.option("--pid", type=click.IntRange(min=1), help="Judge this process of a job, too: environment, limits, cores.")
@click.option("--nics", metavar="LIST", help="The NICs of the GPU network (mlx5_0,mlx5_1); else inferred, and shown.")
@click.option(
    "--rails", metavar="PATTERN", help="Where switch names have their rail's number, to judge cables by: 'leaf(\\d+)'. Not of recordings."
)
def command(recordings: tuple[str, ...], more: tuple[str, ...], **options: Any) -> None:
    """Examine this machine, or recordings made by `railweave topo --record`; several are compared, and the odd one is named.

    Exit status: 0 done, 1 an input cannot be read (others are examined) or an output not be written, 2 wrong use, 3 a finding reaches
    --fail-on.

    \b
    railweave doctor
    railweave doctor --pid $(pgrep -n -f train.py) --fail-on error
    railweave doctor node*.tar.zst --html fleet.html
    """
    try:
        sys.exit(run(Arguments(files=(*recordings, *more), **options)))
    except UsageError as error:
        raise click.UsageError(str(error)) from error


def refuse(error: UsageError) -> int:
    """Says of wrong use what click says, and with which exit status, where `run` was called without click: it cannot be called again, as
    what it has read may be pipes."""
    from railweave.cli import root

    above = click.Context(root, info_name="railweave", **root.context_settings)
    refused = click.UsageError(str(error), click.Context(command, info_name="doctor", parent=above))
    refused.show()
    return refused.exit_code
