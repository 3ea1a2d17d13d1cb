"""Reads a whole machine from a source: live, or from a recording; and makes recordings."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from railweave.errors import ParseError
from railweave.machine.facts import Cpus, Fact, Known, Machine, Unknown, known
from railweave.machine.gpus import read_gpus
from railweave.machine.network import read_lldp, read_nics
from railweave.machine.pci import read_pci
from railweave.machine.process import kept, kept_names, may_keep_link, read_process
from railweave.machine.processors import read_cpus, read_numa
from railweave.machine.source import LiveSource, Source, Unreadable
from railweave.machine.system import read_host, read_kernel
from railweave.records import field_names, replace

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.machine.recording import Recorder, Recording

# What a recording holds beyond what discovery reads: tools' own views, to compare with, and what people ask for next.
_EXTRA_COMMANDS = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "topo", "-p2p", "n"),
    ("nvidia-smi", "nvlink", "-s"),
    ("lspci", "-tv"),
    ("ibdev2netdev",),
)
_EXTRA_FILES = ("/proc/meminfo", "/etc/os-release")


def discover(source: Source, pid: int | None = None) -> Machine:
    """Everything about a machine that the source has; of a process too, if one is named. Never raises for what cannot be read."""
    pci = read_pci(source)
    gpus, driver = read_gpus(source, pci)
    machine = Machine(
        origin="this machine" if isinstance(source, LiveSource) else "a recording",
        pci=pci,
        gpus=gpus,
        nics=read_nics(source),
        numa=read_numa(source),
        cpus=read_cpus(source),
        kernel=read_kernel(source, driver, pci),
        host=read_host(source),
        lldp=read_lldp(source),
        process=None if pid is None else read_process(source, pid),
    )
    machine = _filled(machine, source)
    if machine.hidden_tree is None:
        return machine
    from railweave.machine.topology_file import read_topology

    return replace(machine, topology=read_topology(source, machine))


def _filled(machine: Machine, source: Source) -> Machine:
    """What sysfs hides here, as hwloc knows it, which may have been given a description of the machine (HWLOC_XMLFILE)."""
    cpus = machine.cpus
    if not any(isinstance(fact, Unknown) for fact in (machine.pci, machine.numa, cpus.online, cpus.cores)):
        return machine
    from railweave.machine.hwloc import parse_hwloc

    try:
        seen = parse_hwloc(source.library("hwloc"), "library:hwloc")
    except (Unreadable, ParseError):
        return machine
    better = {name: fact for name in ("pci", "numa", "gpus", "nics") if _is_better(getattr(machine, name), fact := getattr(seen, name))}
    of_cpus = {name: fact for name in field_names(Cpus) if _is_better(getattr(cpus, name), fact := getattr(seen.cpus, name))}
    return replace(machine, **better, cpus=replace(cpus, **of_cpus))


def _is_better(fact: Fact[Any], other: Fact[Any]) -> bool:
    return isinstance(fact, Unknown) and isinstance(other, Known)


def record(path: Path, source: Source | None = None, salt: str | None = None, pid: int | None = None) -> Recording:
    """Discovers through a recorder, and writes what it read to `path` (.tar.zst), with stand-ins for what identifies the machine.

    Recordings made with one `salt` use the same stand-ins, so that machines can be compared. Raises RecordingError.
    """
    # What only recording needs takes longer to import than a machine takes to read.
    import secrets
    from datetime import datetime, timezone

    from railweave import __version__
    from railweave.machine.recording import Recorder, redacted, write_recording
    from railweave.machine.redaction import Redactor

    recorder = Recorder(source or LiveSource())
    machine = discover(recorder, pid)
    for argv in _EXTRA_COMMANDS:
        try:
            recorder.command(argv)
        except Unreadable:
            continue
    with contextlib.suppress(Unreadable):
        recorder.library("hwloc")
    for file in _EXTRA_FILES:
        try:
            recorder.read_bytes(file)
        except Unreadable:
            continue
    for file, content in recorder.recording.files.items():
        if file.startswith("/proc/"):
            recorder.recording.files[file] = kept(file, content)
    for folder, names in recorder.recording.folders.items():
        recorder.recording.folders[folder] = kept_names(folder, names)
    links = recorder.recording.links
    recorder.recording.links = {link: target for link, target in links.items() if may_keep_link(link, target)}
    redactor = Redactor((salt or secrets.token_hex(16)).encode())
    for name, kind in _names(recorder, machine):
        redactor.add_name(name, kind)
    recording = redacted(recorder.recording, redactor)
    recording.about = {
        "recorded": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "railweave": __version__,
        "user": "root" if os.geteuid() == 0 else "not root",
        "salt": redactor.fingerprint,
        **({} if pid is None else {"pid": str(pid)}),
    }
    write_recording(recording, path)
    return recording


def _names(recorder: Recorder, machine: Machine) -> list[tuple[str, str]]:
    """The host's own name, and those of the switches it is wired to."""
    names = []
    for path in ("/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname"):
        try:
            names.append((recorder.read_text(path), "host"))
        except Unreadable:
            continue
    return names + [(neighbour.switch, "switch") for neighbour in known(machine.lldp) or ()]
