"""`railweave doctor`: what is wrong with a machine, or with many."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from railweave.records import dataclass

if TYPE_CHECKING:
    from railweave.doctor.compare import Comparison
    from railweave.doctor.examination import Examination
    from railweave.doctor.probe import Probes
    from railweave.doctor.rails import Rails
    from railweave.machine.facts import Machine

_FOUND = 3


@click.command("doctor")
@click.argument("recordings", nargs=-1, type=click.Path(dir_okay=False, path_type=Path), metavar="[FILE.tar.zst]...")
@click.option(
    "--from", "more", multiple=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="The same as naming FILE."
)
@click.option("--json", "as_json", is_flag=True, help="Print every answer as JSON (schema/doctor.schema.json).")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write a page.")
@click.option("--prometheus", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Also write a node_exporter textfile.")
@click.option(
    "--fail-on",
    type=click.Choice(["info", "warning", "error"]),
    metavar="LEVEL",
    help="Exit with status 3 when a finding of this level (info, warning, error) or a worse one fires.",
)
@click.option("--probe", is_flag=True, help="Load the GPUs of this machine briefly, for what only that shows.")
@click.option("--pid", type=click.IntRange(min=1), help="Judge this process of a job, too: environment, limits, cores.")
@click.option("--nics", metavar="LIST", help="The NICs of the GPU network (mlx5_0,mlx5_1); else inferred, and shown.")
@click.option(
    "--rails", metavar="PATTERN", help="Where switch names have their rail's number, to judge cables by: 'leaf(\\d+)'. Not of recordings."
)
def command(
    recordings: tuple[Path, ...],
    more: tuple[Path, ...],
    as_json: bool,
    html: Path | None,
    prometheus: Path | None,
    fail_on: str | None,
    probe: bool,
    pid: int | None,
    nics: str | None,
    rails: str | None,
) -> None:
    """Examine this machine, or recordings made by `railweave topo --record`; several are compared, and the odd one is named.

    Exit status: 0 done, 1 an input cannot be read or an output not be written, 2 wrong use, 3 a finding reaches --fail-on.

    \b
    railweave doctor
    railweave doctor --pid $(pgrep -n -f train.py) --fail-on error
    railweave doctor node*.tar.zst --html fleet.html
    """
    files = (*recordings, *more)
    if rails is not None and files:
        raise click.UsageError("--rails: recordings have stand-ins for the names of switches; several with one salt are compared instead.")
    if probe and files:
        raise click.UsageError("--probe loads the GPUs of this machine; recordings have none to load.")
    inputs = _recorded(files, pid) if files else [_Input("this machine", _live(pid), None)]
    named = [word for word in (nics or "").split(",") if word]
    for each in inputs:
        _check_names(each, named)
    references = _rails(inputs, named, rails)
    probes = _probe() if probe else None
    examinations = [_examine(each, named, probes, reference) for each, reference in zip(inputs, references, strict=True)]
    comparison = _compared(examinations) if len(examinations) > 1 else None
    from railweave.output import write_whole

    if html is not None:
        write_whole(html, _page([each.machine for each in inputs], examinations, comparison))
    if prometheus is not None:
        from railweave.doctor.document import prometheus as textfile

        write_whole(prometheus, textfile(examinations))
    click.echo(_json(examinations, comparison) if as_json else _text(examinations, comparison), nl=False)
    if fail_on is not None:
        from railweave.doctor.finding import Severity

        if any(examination.reaches(Severity(fail_on)) for examination in examinations):
            sys.exit(_FOUND)


@dataclass(frozen=True)
class _Input:
    """A machine to examine; `salt` tells which recordings have the same stand-ins."""

    name: str
    machine: Machine
    salt: str | None


def _live(pid: int | None) -> Machine:
    from railweave.machine.discovery import discover
    from railweave.machine.source import LiveSource

    if pid is not None and not Path(f"/proc/{pid}").is_dir():
        raise click.UsageError(f"--pid {pid}: no such process.")
    return discover(LiveSource(), pid)


def _recorded(files: Sequence[Path], pid: int | None) -> list[_Input]:
    """Machines of recordings, each with the process that was recorded with it; damage is told, and what was read before it is used."""
    from railweave.machine.discovery import discover
    from railweave.machine.recording import RecordedSource

    names = [file.name.removesuffix(".zst").removesuffix(".tar") for file in files]
    if len(files) > 1:
        from railweave.doctor.compare import names_of

        names = names_of(files)
        if len(set(names)) < len(names):
            raise click.UsageError(f"{next(name for name in names if names.count(name) > 1)} is named twice.")
    found = []
    for file, name in zip(files, names, strict=True):
        source = RecordedSource(file)
        if source.recording.damage:
            click.echo(f"railweave: {source.recording.damage}; what it lacks is unknown", err=True)
        about = source.recording.about
        recorded = about.get("pid", "")
        found.append(_Input(name, discover(source, pid or (int(recorded) if recorded.isdecimal() else None)), about.get("salt")))
    return found


def _check_names(each: _Input, named: Sequence[str]) -> None:
    """Of --nics, where the machine's NICs are known: a misspelt one would be judged by nobody."""
    from railweave.machine.facts import Known

    if not named or not isinstance(each.machine.nics, Known):
        return
    nics = each.machine.nics.value
    missing = sorted(set(named) - {nic.name for nic in nics} - {f"{nic.name}:{nic.port}" for nic in nics})
    if missing:
        there = ", ".join(dict.fromkeys(nic.name for nic in nics)) or "none"
        raise click.UsageError(f"--nics: {each.name} has no NIC {', '.join(missing)}; it has {there}.")


def _rails(inputs: Sequence[_Input], named: Sequence[str], pattern: str | None) -> list[Rails | None]:
    """What each machine's cables are judged by: a pattern of names, or the machines that were recorded with the same salt."""
    if pattern is not None:
        from railweave.doctor.rails import NamedRails

        try:
            return [NamedRails(pattern)] * len(inputs)
        except ValueError as error:
            raise click.UsageError(f"--rails: {error}.") from error
    if len(inputs) == 1:
        return [None]
    from railweave.doctor.check import MissingError
    from railweave.doctor.checks.nics import cables_of
    from railweave.doctor.patient import Patient
    from railweave.doctor.rails import Cables, FleetRails

    cables: list[Cables] = []
    for each in inputs:
        try:
            cables.append(cables_of(Patient(each.machine, named)))
        except MissingError:
            cables.append({})
    return [
        FleetRails([cables[other] for other, it in enumerate(inputs) if other != place and each.salt is not None and it.salt == each.salt])
        for place, each in enumerate(inputs)
    ]


def _probe() -> Probes:
    from railweave.doctor.probe import cuda_gpus, measure
    from railweave.machine.source import LiveSource

    return measure(LiveSource(), cuda_gpus())


def _examine(each: _Input, nics: Sequence[str], probes: Probes | None, rails: Rails | None) -> Examination:
    from railweave.doctor.examine import examine

    return examine(each.machine, each.name, nics, probes, rails, each.salt)


def _compared(examinations: Sequence[Examination]) -> Comparison:
    from railweave.doctor.compare import compare

    return compare(examinations)


def _text(examinations: Sequence[Examination], comparison: Comparison | None) -> str:
    from railweave.doctor.text import render, render_comparison

    parts = [render(examination) for examination in examinations]
    return "\n".join([*parts, render_comparison(comparison)] if comparison is not None else parts)


def _json(examinations: Sequence[Examination], comparison: Comparison | None) -> str:
    import json

    from railweave.doctor.document import document

    return json.dumps(document(examinations, comparison), indent=1, ensure_ascii=False) + "\n"


def _page(machines: Sequence[Machine], examinations: Sequence[Examination], comparison: Comparison | None) -> str:
    from railweave.doctor.page import page

    pictures = [_picture(machine, examination) for machine, examination in zip(machines, examinations, strict=True)]
    return page(examinations, comparison, pictures, " ".join(["railweave", *sys.argv[1:]]))


def _picture(machine: Machine, examination: Examination) -> str | None:
    from railweave.doctor.page import marks
    from railweave.errors import Error
    from railweave.machine.fabric import fabric_of
    from railweave.topo.picture import render_svg

    try:
        return render_svg(fabric_of(machine)[0], marks(examination, machine))
    except Error:
        return None
