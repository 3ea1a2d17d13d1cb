"""The `railweave` command line. Each command lives in a module of its own, `railweave.cli.<name>`, loaded when it is called."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

import click

from railweave.ending import interrupted, or_told

# One line each for `railweave --help`, in the order a newcomer meets them; the command itself is loaded only when asked for,
# so that `railweave --help` stays instant.
COMMANDS = {
    "topo": "Show this machine and its fabric, or the fabric of a file or node template.",
    "doctor": "Find what is wrong with this machine, or with recorded ones, and how to mend it.",
    "advise": "Which cores, memory, NICs and settings each rank of a node should use, and why.",
    "run": "Run a command as one rank of a job, bound and set as `advise` says.",
    "calibrate": "Measure what this machine's GPUs do, for the GPU exchange and for plans.",
    "matrix": "Make a traffic matrix with one of the generators.",
    "plan": "Plan a matrix on a fabric: which bytes take which path, and what bounds them.",
    "simulate": "Predict how long a matrix takes under one or several policies.",
    "lab": "Emulated rails on this machine: network namespaces with shaped links.",
    "top": "What a running job moves, by rank and kind of path.",
    "bench": "Run an exchange for real and compare policies and peers, every byte checked.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"railweave.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # for which click has exit status 1
            interrupted()

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="railweave")
def root() -> None:
    """Railweave moves data between GPUs over all paths at once, and shows, measures and predicts what a fabric can carry."""


def main(argv: list[str] | None = None) -> Any:
    """Entry point. Known errors (bad input, missing permission) end with one line on stderr and exit status 1."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        # A `?` for what its encoding lacks, rather than no table of what was measured for minutes. Standard error has escapes already.
        # In the C locale Python keeps bytes that are no text as they are, and has no more than strict for all else.
        sys.stdout.reconfigure(errors="replace")
    return or_told(lambda: root.main(args=argv, prog_name="railweave"))
