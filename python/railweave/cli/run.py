"""`railweave run` for those who reach it through the command group; the command line itself takes the short way in `railweave.cli.main`."""

from __future__ import annotations

import sys

import click

from railweave.launch import start


@click.command("run", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run a command as one rank, bound and set as advised."""
    sys.exit(start.main(arguments))
