"""The `railweave` command line. Each command lives in a module of its own, `railweave.cli.<name>`, loaded when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

# One line each for `railweave --help`, in the order a newcomer meets them; the command itself is loaded only when asked for,
# so that `railweave --help` stays instant.
COMMANDS = {
    "topo": "Show a fabric: a topology file, a cluster file, or a node template.",
    "doctor": "Find what is wrong with this machine, or with recorded ones, and how to mend it.",
    "advise": "Which cores, memory, NICs and settings each rank of a node should use, and why.",
    "run": "Run a command as one rank of a job, bound and set as `advise` says.",
    "matrix": "Make a traffic matrix with one of the generators.",
    "plan": "Plan a matrix on a fabric: which bytes take which path, and what bounds them.",
    "simulate": "Predict how long a matrix takes under one or several policies.",
    "lab": "Emulated rails on this machine: network namespaces with shaped links.",
    "top": "What a running job moves, by rank and kind of path.",
    "bench": "Run an exchange for real and compare policies and peers, every byte checked.",
}


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"railweave.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="railweave")
def root() -> None:
    """Railweave moves data between GPUs over all paths at once, and shows, measures and predicts what a fabric can carry."""


def main(argv: list[str] | None = None) -> Any:
    """Entry point. Known errors (bad input, missing permission) end with one line on stderr and exit status 1."""
    from railweave.errors import Error

    try:
        return root.main(args=argv, prog_name="railweave")
    except Error as error:
        click.echo(f"railweave: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        # What is still in the buffer would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        click.echo(f"railweave: {error.filename or 'standard output'}: cannot be written: {error.strerror}", err=True)
        sys.exit(1)
