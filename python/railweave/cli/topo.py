"""`railweave topo`: show a fabric, or the machine that it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from railweave import fabric as fabrics
from railweave.output import is_standard_output, write_whole

if TYPE_CHECKING:
    from railweave.fabric import Fabric
    from railweave.machine.facts import Machine
    from railweave.topo.marks import Mark

_FILE = click.Path(path_type=Path)


@click.command("topo")
@click.argument("source", required=False, metavar="[FILE|TEMPLATE]")
@click.option("--from", "recording", type=_FILE, metavar="FILE.tar.zst", help="Show the machine of a recording.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes to make of a template, a topology file or a machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the fabric's JSON form instead of the text.")
@click.option("--svg", type=_FILE, metavar="FILE", help="Write a picture, with doctor's findings, instead of the text.")
@click.option("--nccl-xml", type=_FILE, metavar="FILE", help="Write NCCL's topology file (NCCL_TOPO_FILE) instead of the text.")
@click.option("--record", type=_FILE, metavar="FILE.tar.zst", help="Record this machine, to be looked at elsewhere.")
@click.option("--salt", help="With --record: recordings made with one salt use the same stand-ins, so that nodes can be compared.")
@click.option("--pid", type=click.IntRange(min=1), help="With --record: this process of a job, too (environment, limits, cores).")
@click.option("--lint", type=_FILE, metavar="FILE", help="Find contradictions in a topology file, also with this machine or --from.")
@click.option("--list", "as_list", is_flag=True, help="List the node templates.")
def command(
    source: str | None,
    recording: Path | None,
    nodes: int | None,
    as_json: bool,
    svg: Path | None,
    nccl_xml: Path | None,
    record: Path | None,
    salt: str | None,
    pid: int | None,
    lint: Path | None,
    as_list: bool,
) -> None:
    """Show this machine, or a fabric: an NCCL topology XML, hwloc XML, the text of `nvidia-smi topo -m` or `lspci -tv`, a cluster file,
    fabric JSON, or a node template by name.

    \b
    railweave topo
    railweave topo hgx-h100
    railweave topo examples/xe9680-pod.yaml --svg fabric.svg
    railweave topo --record node7.tar.zst, and elsewhere: railweave topo --from node7.tar.zst
    railweave topo --nccl-xml topology.xml, and then: railweave topo --lint topology.xml
    """
    ways = {"--json": as_json, "--svg": svg, "--nccl-xml": nccl_xml, "--record": record, "--lint": lint, "--list": as_list}
    chosen = [name for name, value in ways.items() if value]
    if len(chosen) > 1:
        raise click.UsageError(f"{chosen[0]} and {chosen[1]} exclude each other.")
    if source is not None and recording is not None:
        raise click.UsageError("A FILE or TEMPLATE and --from exclude each other.")
    for name, value in (("--lint", lint), ("--record", record), ("--list", as_list)):
        if value and source is not None:
            other = "it names its file itself" if name == "--lint" else "it is about no file"
            raise click.UsageError(f"{name} and the FILE or TEMPLATE {source} exclude each other: {other}.")
        if value and nodes is not None:
            raise click.UsageError(f"{name} and --nodes exclude each other.")
    if recording is not None and (record is not None or as_list):
        raise click.UsageError(f"--from and {chosen[0]} exclude each other.")
    for option, given in (("--salt", salt), ("--pid", pid)):
        if given is not None and record is None:
            raise click.UsageError(f"{option} goes with --record.")
    if salt == "":
        raise click.UsageError("--salt is empty, perhaps a variable that is not set; without --salt each recording has a new one.")
    if as_list:
        for name, description in fabrics.templates().items():
            click.echo(f"{name:<24}{description}")
    elif record is not None:
        _record(record, salt, pid)
    elif lint is not None:
        _lint(lint, recording)
    else:
        _show(source, recording, nodes, as_json, svg, nccl_xml)


def _record(path: Path, salt: str | None, pid: int | None) -> None:
    from railweave.machine.discovery import record

    if pid is not None and not Path(f"/proc/{pid}").is_dir():
        raise click.UsageError(f"--pid {pid}: no such process.")
    made = record(path, salt=salt, pid=pid)
    _say(path, f"{len(made.files)} files, {len(made.commands)} programs, {len(made.unreadable)} things that could not be read")


def _say(path: Path, written: str) -> None:
    if not is_standard_output(path):
        click.echo(f"{path}: {written}")


def _lint(path: Path, recording: Path | None) -> None:
    from railweave.machine.disagreement import not_compared
    from railweave.machine.lint import lint_file

    machine = _machine(recording)
    problems = lint_file(path, machine)
    skipped = not_compared(machine)
    if skipped:
        click.echo(f"railweave: {skipped}", err=True)
    for problem in problems:
        click.echo(str(problem))
    if not problems:
        click.echo(f"{path}: no contradiction found")
    if problems:
        raise click.exceptions.Exit(1)


def _machine(recording: Path | None) -> Machine:
    """The machine of a recording, or this host."""
    if recording is not None:
        from railweave.machine.discovery import discover
        from railweave.machine.recording import RecordedSource

        replay = RecordedSource(recording)
        if replay.recording.damage:
            click.echo(f"railweave: {replay.recording.damage}; what is left of it is used", err=True)
        return discover(replay)
    from railweave.machine.discovery import discover
    from railweave.machine.source import LiveSource

    return discover(LiveSource())


def _show(source: str | None, recording: Path | None, nodes: int | None, as_json: bool, svg: Path | None, nccl_xml: Path | None) -> None:
    from railweave.errors import FabricError, ParseError
    from railweave.machine.load import fabric_or_machine, machine_or_text

    machine, text = (_machine(recording), None) if source is None else machine_or_text(source)
    in_text = not (as_json or svg or nccl_xml)
    if machine is None:
        assert source is not None
        fabric: Fabric | None = fabric_or_machine(source, text, nodes)
        notes: tuple[str, ...] = ()
    else:
        from railweave.machine.fabric import fabric_of

        if in_text:
            from railweave.machine.text import render_machine

            click.echo(render_machine(machine), nl=False)
        try:
            fabric, notes = fabric_of(machine, nodes)
        except (FabricError, ParseError) as error:
            if not in_text:
                raise
            click.echo(f"\nno fabric: {error}")
            return
    assert fabric is not None
    for note in notes:
        click.echo(f"railweave: {note}", err=True)
    if as_json:
        click.echo(fabric.to_json().encode(), nl=False)  # JSON is UTF-8 whatever the terminal's encoding
    elif svg is not None:
        from railweave.topo.picture import render_svg

        title = fabric.name
        if machine is not None:
            from railweave.machine.text import titled

            title = titled(machine, recording.name if recording is not None else Path(source).name if source else machine.origin)
        write_whole(svg, render_svg(fabric, _findings(machine), title))
        _say(svg, title)
    elif nccl_xml is not None:
        _write_nccl_xml(nccl_xml, machine, fabric)
    else:
        from railweave.topo.tree import render_tree

        click.echo(("\n" if machine is not None else "") + render_tree(fabric), nl=False)


def _findings(machine: Machine | None) -> list[Mark]:
    """What doctor finds wrong, for the picture; a fabric that is no machine has no patient."""
    if machine is None:
        return []
    from railweave.doctor.examine import examine
    from railweave.doctor.page import marks

    return marks(examine(machine, machine.origin), machine)


def _write_nccl_xml(path: Path, machine: Machine | None, fabric: Fabric) -> None:
    from railweave.machine import fabric_export, nccl_topology

    exported = fabric_export.export(fabric) if machine is None else nccl_topology.export(machine, machine.origin)
    if machine is None:
        for note in exported.notes:
            click.echo(f"railweave: {note}", err=True)
    write_whole(path, exported.text)
    _say(path, fabric.name)
