"""What `railweave doctor` does, without click: whose import takes a third of the time in which the whole answers for a recording.

`railweave.cli.doctor` has the options, their help and their errors. `plainly` reads command lines in which nothing is wrong, so that those
need not load it; for all others it leaves the word to click.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from railweave.errors import Error
from railweave.records import dataclass

if TYPE_CHECKING:
    from railweave.doctor.compare import Comparison
    from railweave.doctor.examination import Examination
    from railweave.doctor.probe import Probes
    from railweave.doctor.rails import Rails
    from railweave.machine.facts import Machine

LEFT_OUT = 1
FOUND = 3
LEVELS = ("info", "warning", "error")


class UsageError(Error):
    """Options or files that do not go together, or that this machine has not."""


@dataclass(frozen=True)
class Arguments:
    """A command line. Files are absent where the machine itself is examined."""

    files: tuple[str, ...] = ()
    as_json: bool = False
    html: str | None = None
    prometheus: str | None = None
    fail_on: str | None = None
    probe: bool = False
    pid: int | None = None
    nics: str | None = None
    rails: str | None = None


_FLAGS = {"--json": "as_json", "--probe": "probe"}
_VALUES = {"--" + name.replace("_", "-"): name for name in ("html", "prometheus", "fail_on", "pid", "nics", "rails")}


def plainly(words: Sequence[str]) -> Arguments | None:
    """The arguments, or None where click has something to say: help, an error, a way of writing that is less usual."""
    found: dict[str, Any] = {}
    files: list[str] = []
    more: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in _FLAGS:
            found[_FLAGS[word]] = True
        elif name in _VALUES or name == "--from":
            value = value if equals else next(rest, "")
            if not value or value.startswith("-"):
                return None
            if name == "--from":
                more.append(value)
            else:
                found[_VALUES[name]] = value
        elif word.startswith("-") or not word:
            return None
        else:
            files.append(word)
    files += more
    pid = found.get("pid", "1")
    if not (pid.isascii() and pid.isdigit() and len(pid) < 20 and int(pid) > 0) or found.get("fail_on", LEVELS[0]) not in LEVELS:
        return None
    return Arguments(files=tuple(files), **({**found, "pid": int(pid)} if "pid" in found else found))


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def start(words: Sequence[str]) -> int | None:
    """The exit status; None where click has something to say."""
    arguments = plainly(words)
    if arguments is None:
        return None
    try:
        return run(arguments)
    except UsageError as error:
        from railweave.cli.doctor import refuse

        return refuse(error)


def run(arguments: Arguments) -> int:
    """Examines, writes and prints; the exit status. Raises UsageError before it has written anything."""
    from railweave.machine.fabric_nics import UnknownNicError, named_nics

    try:
        named = named_nics(arguments.nics)
    except UnknownNicError as error:
        raise UsageError(f"--nics: {error}.") from error
    if arguments.rails is not None and arguments.files:
        raise UsageError("--rails: recordings have stand-ins for the names of switches; several with one salt are compared instead.")
    if arguments.probe and arguments.files:
        raise UsageError("--probe loads the GPUs of this machine; recordings have none to load.")
    outputs = [path for path in (arguments.html, arguments.prometheus) if path is not None]
    if outputs:
        from pathlib import Path

        from railweave.output import check_writable

        check_writable(*map(Path, outputs))
    pid = arguments.pid
    inputs = _recorded(arguments.files, pid) if arguments.files else [_Input("this machine", _live(pid), None)]
    examined = LEFT_OUT if len(inputs) < len(arguments.files) else 0
    for each in inputs:
        _check_names(each, named)
    references = _rails(inputs, named, arguments.rails)
    probes = _probe() if arguments.probe else None
    from railweave.doctor.examine import examine

    examinations = [
        examine(each.machine, each.name, named, probes, reference, each.salt) for each, reference in zip(inputs, references, strict=True)
    ]
    comparison = _compared(examinations) if len(examinations) > 1 else None
    _write_files(arguments, [each.machine for each in inputs], examinations, comparison)
    _show(_json(examinations, comparison) if arguments.as_json else _text(examinations, comparison))
    if arguments.fail_on is None:
        return examined
    from railweave.doctor.finding import Severity

    return FOUND if any(examination.reaches(Severity(arguments.fail_on)) for examination in examinations) else examined


@dataclass(frozen=True)
class _Input:
    """A machine to examine; `salt` tells which recordings have the same stand-ins."""

    name: str
    machine: Machine
    salt: str | None


def _live(pid: int | None) -> Machine:
    from railweave.machine.discovery import discover
    from railweave.machine.source import LiveSource

    if pid is not None and not _is_folder(f"/proc/{pid}"):
        raise UsageError(f"--pid {pid}: no such process.")
    return discover(LiveSource(), pid)


def _recorded(files: Sequence[str], pid: int | None) -> list[_Input]:
    """Machines of recordings, each with the process that was recorded with it; damage is told, and what was read before it is used. Of
    several files those that are no recordings are told and left out. Raises RecordingError where none is left."""
    from railweave.machine.discovery import discover
    from railweave.machine.recording import RecordedSource, RecordingError

    names = [os.path.basename(file).removesuffix(".zst").removesuffix(".tar") for file in files]
    if len(files) > 1:
        from railweave.doctor.compare import names_of

        names = names_of(files)
        if len(set(names)) < len(names):
            raise UsageError(f"{next(file for file, name in zip(files, names, strict=True) if names.count(name) > 1)} is named twice.")
    found: list[_Input] = []
    for place, (file, name) in enumerate(zip(files, names, strict=True)):
        try:
            source = RecordedSource(file)
        except RecordingError as error:
            if not found and place == len(files) - 1:
                raise
            print(f"railweave: {error}", file=sys.stderr)
            continue
        if source.recording.damage:
            print(f"railweave: {source.recording.damage}; what it lacks is unknown", file=sys.stderr)
        about = source.recording.about
        recorded = int(about["pid"]) if about.get("pid", "").isdecimal() else None
        if pid not in (None, recorded):
            has = "without a process" if recorded is None else f"with process {recorded}"
            raise UsageError(f"--pid {pid}: {name} was recorded {has}; railweave topo --record FILE --pid {pid} records it.")
        found.append(_Input(name, discover(source, recorded), about.get("salt")))
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
        raise UsageError(f"--nics: {each.name} has no NIC {', '.join(missing)}; it has {there}.")


def _rails(inputs: Sequence[_Input], named: Sequence[str], pattern: str | None) -> list[Rails | None]:
    """What each machine's cables are judged by: a pattern of names, or the machines that were recorded with the same salt."""
    if pattern is not None:
        from railweave.doctor.rails import NamedRails

        try:
            return [NamedRails(pattern)] * len(inputs)
        except ValueError as error:
            raise UsageError(f"--rails: {error}.") from error
    if len(inputs) == 1:
        return [None]
    from railweave.doctor.check import MissingError
    from railweave.doctor.checks.nics import counted_cables
    from railweave.doctor.patient import Patient
    from railweave.doctor.rails import Cables, FleetRails

    cables: list[Cables] = []
    for each in inputs:
        try:
            cables.append(counted_cables(Patient(each.machine, named)))
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


def _compared(examinations: Sequence[Examination]) -> Comparison:
    from railweave.doctor.compare import compare

    return compare(examinations)


def _write_files(
    arguments: Arguments, machines: Sequence[Machine], examinations: Sequence[Examination], comparison: Comparison | None
) -> None:
    if arguments.html is None and arguments.prometheus is None:
        return
    from pathlib import Path

    from railweave.output import write_whole

    if arguments.html is not None:
        write_whole(Path(arguments.html), _page(machines, examinations, comparison))
    if arguments.prometheus is not None:
        from railweave.doctor.document import prometheus as textfile

        write_whole(Path(arguments.prometheus), textfile(examinations))


def _show(text: str) -> None:
    """On standard output, at once, so that a full disk is an error of this command; a closed one (`>&-`) is told nothing."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:  # in another encoding, or of a file's name that is not in this one
        sys.stdout.write(text.encode(sys.stdout.encoding, errors="backslashreplace").decode(sys.stdout.encoding))
    sys.stdout.flush()


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
    from railweave.machine.fabric import fabric_of
    from railweave.machine.text import titled
    from railweave.topo.picture import render_svg

    try:
        return render_svg(fabric_of(machine)[0], marks(examination, machine), titled(machine, examination.name))
    except Error:
        return None
