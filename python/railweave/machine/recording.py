"""Recordings of machines: one `.tar.zst` file with everything that discovery read, in the form in which it was read.

`manifest.json` comes first (format, date, versions, links, folder listings, what could not be read and why), then the files at their paths
under `root/`, then what programs and libraries answered. A recording is read in memory within bounds; nothing of it is written to disk.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from railweave.errors import Error
from railweave.machine import archive
from railweave.machine.source import FILE_LIMIT_B, CommandOutput, Reason, Source, Unreadable
from railweave.records import dataclass, field

if TYPE_CHECKING:
    from pathlib import Path

    from railweave.machine.redaction import Redactor

FORMAT, VERSION = "railweave-machine", 1
# A recording of a host with 8 GPUs and 10 NICs has some 4,000 files and 2 MB; ten times that is still a recording.
ARCHIVE_LIMIT_B = 64 << 20
MEMBER_LIMIT = 100_000
_BLOCK_B = 32 << 10
_WINDOW_LIMIT_B = 32 << 20  # the writer's level needs 2 to 4 MiB
_MANIFEST = "manifest.json"
ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""What a compressed file begins with."""


class RecordingError(Error):
    """A file that is no recording. The text names the file and what was expected."""


@dataclass
class Recording:
    """What was read of a machine, in memory."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: dict[tuple[str, ...], CommandOutput] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, tuple[Reason, str]] = field(default_factory=dict)
    """By path, command line or `library:NAME`."""
    about: dict[str, str] = field(default_factory=dict)
    """Date and versions, for people."""
    damage: str = ""
    """What is wrong with the file that this was read from; empty if nothing is."""


class RecordedSource(Source):
    """Replays a recording. What it does not hold is unknown, by the reason that was recorded or as not recorded."""

    def __init__(self, recording: Recording | str | Path) -> None:
        self.recording = recording if isinstance(recording, Recording) else read_recording(recording)

    def _missing(self, path: str) -> Unreadable:
        reason, detail = self.recording.unreadable.get(path, (Reason.not_recorded, self.recording.damage))
        return Unreadable(path, reason, detail)

    def read_bytes(self, path: str) -> bytes:
        content = self.recording.files.get(path)
        if content is None:
            raise self._missing(path)
        return content

    def listdir(self, path: str) -> tuple[str, ...]:
        names = self.recording.folders.get(path)
        if names is None:
            raise self._missing(path)
        return names

    def readlink(self, path: str) -> str:
        target = self.recording.links.get(path)
        if target is None:
            raise self._missing(path)
        return target

    def command(self, argv: Sequence[str]) -> CommandOutput:
        output = self.recording.commands.get(tuple(argv))
        if output is None:
            raise self._missing(" ".join(argv))
        return output

    def library(self, name: str) -> str:
        text = self.recording.libraries.get(name)
        if text is None:
            raise self._missing(f"library:{name}")
        return text


class Recorder(Source):
    """Passes everything through to another source and remembers it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.recording = Recording()

    def _fail(self, error: Unreadable) -> None:
        self.recording.unreadable[error.path] = (error.reason, error.detail)

    def read_bytes(self, path: str) -> bytes:
        try:
            content = self._source.read_bytes(path)
        except Unreadable as error:
            self._fail(error)
            raise
        self.recording.files[path] = content
        return content

    def listdir(self, path: str) -> tuple[str, ...]:
        try:
            names = self._source.listdir(path)
        except Unreadable as error:
            self._fail(error)
            raise
        self.recording.folders[path] = names
        return names

    def readlink(self, path: str) -> str:
        try:
            target = self._source.readlink(path)
        except Unreadable as error:
            self._fail(error)
            raise
        self.recording.links[path] = target
        return target

    def command(self, argv: Sequence[str]) -> CommandOutput:
        try:
            output = self._source.command(argv)
        except Unreadable as error:
            self._fail(error)
            raise
        self.recording.commands[tuple(argv)] = output
        return output

    def library(self, name: str) -> str:
        try:
            text = self._source.library(name)
        except Unreadable as error:
            self._fail(error)
            raise
        self.recording.libraries[name] = text
        return text


def redacted(recording: Recording, redactor: Redactor) -> Recording:
    """The recording with stand-ins for what identifies the machine."""
    text = redactor.text
    return Recording(
        files={path: redactor.content(path, content) for path, content in recording.files.items()},
        # Names in /sys are the kernel's, as in the paths of files below: NUMA node node0 of a host that is called so would be lost.
        folders={path: names if path.startswith("/sys/") else tuple(sorted(map(text, names))) for path, names in recording.folders.items()},
        links={path: text(target) for path, target in recording.links.items()},
        commands={
            argv: CommandOutput(text(output.stdout), text(output.stderr), output.returncode) for argv, output in recording.commands.items()
        },
        libraries={name: text(answer) for name, answer in recording.libraries.items()},
        unreadable={path: (reason, text(detail)) for path, (reason, detail) in recording.unreadable.items()},
        about=recording.about,
    )


# ---- writing ----


def write_recording(recording: Recording, path: Path) -> None:
    """All of it or, on any failure, nothing; for its owner alone. Raises OutputError."""
    from railweave.output import write_whole

    members = [(_MANIFEST, _manifest(recording)), *_members(recording)]
    write_whole(path, b"".join(_compressed(_tar(members))), mode=0o600)


def _tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    import tarfile

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            file.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _compressed(content: bytes) -> Iterator[bytes]:
    """In blocks that can be decompressed one by one, so that of a file that was cut off all but the last block can be read."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=10).compressobj(size=len(content))
    for at in range(0, len(content), _BLOCK_B):
        yield compressor.compress(content[at : at + _BLOCK_B])
        yield compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    yield compressor.flush()


def _manifest(recording: Recording) -> bytes:
    commands = [
        {"argv": list(argv), "returncode": output.returncode, "member": f"commands/{number:03}"}
        for number, (argv, output) in enumerate(sorted(recording.commands.items()))
    ]
    document = {
        "format": FORMAT,
        "version": VERSION,
        "about": recording.about,
        "unreadable": [
            {"path": path, "reason": reason.value, "detail": detail} for path, (reason, detail) in sorted(recording.unreadable.items())
        ],
        "commands": commands,
        "libraries": sorted(recording.libraries),
        "files": len(recording.files),
        "folders": {folder: list(names) for folder, names in sorted(recording.folders.items())},
        "links": dict(sorted(recording.links.items())),
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode("utf-8", errors="replace")


def _members(recording: Recording) -> list[tuple[str, bytes]]:
    def encoded(text: str) -> bytes:
        return text.encode("utf-8", errors="replace")

    members = [(f"root{path}", content) for path, content in sorted(recording.files.items())]
    for number, (_, output) in enumerate(sorted(recording.commands.items())):
        members += [(f"commands/{number:03}.stdout", encoded(output.stdout)), (f"commands/{number:03}.stderr", encoded(output.stderr))]
    return members + [(f"libraries/{name}", encoded(text)) for name, text in sorted(recording.libraries.items())]


# ---- reading ----


def read_recording(path: str | Path) -> Recording:
    """A recording from its file. One that was cut off, or is damaged behind its manifest, is read as far as it goes and says so in
    `damage`; raises RecordingError for what is no recording at all."""
    try:
        with open(path, "rb") as file:
            compressed = file.read(ARCHIVE_LIMIT_B + 1)
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {error.strerror}; expected a recording made by `railweave topo --record`") from error
    return parse_recording(compressed, str(path))


def parse_recording(compressed: bytes, source: str) -> Recording:
    """The same from the bytes of the file."""
    content, damage = _decompress(compressed, source)
    members, tar_damage = _untar(content)
    damage = damage or tar_damage
    if _MANIFEST not in members:
        raise RecordingError(f"{source}: {damage or f'no {_MANIFEST} in it'}; expected a recording made by `railweave topo --record`")
    manifest = _read_manifest(members[_MANIFEST], source)
    recording = Recording(
        files={name.removeprefix("root"): body for name, body in members.items() if name.startswith("root/")},
        folders={str(folder): tuple(map(str, names)) for folder, names in manifest["folders"].items()},
        links={str(link): str(target) for link, target in manifest["links"].items()},
        about={str(key): str(value) for key, value in manifest["about"].items()},
    )
    reasons = {reason.value: reason for reason in Reason}
    for entry in manifest["unreadable"]:
        recording.unreadable[str(entry["path"])] = (reasons.get(str(entry["reason"]), Reason.error), str(entry["detail"]))
    for entry in manifest["commands"]:
        output, errors = (members.get(f"{entry['member']}.{stream}") for stream in ("stdout", "stderr"))
        if output is not None and errors is not None:
            argv = tuple(map(str, entry["argv"]))
            recording.commands[argv] = CommandOutput(
                output.decode(errors="replace"), errors.decode(errors="replace"), int(entry["returncode"])
            )
    for name in map(str, manifest["libraries"]):
        if f"libraries/{name}" in members:
            recording.libraries[name] = members[f"libraries/{name}"].decode(errors="replace")
    missing = int(manifest["files"]) - len(recording.files)
    if not damage and missing > 0:
        damage = f"{missing} of the {manifest['files']} files that its manifest counts are not in it"
    recording.damage = f"{source}: {damage}" if damage else ""
    return recording


def _decompress(compressed: bytes, source: str) -> tuple[bytes, str]:
    import zstandard

    if not compressed.startswith(ZSTANDARD):
        raise RecordingError(f"{source}: not compressed by Zstandard; expected a recording made by `railweave topo --record`")
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_B).decompressobj()
    content, step = bytearray(), 64 << 10
    try:
        for at in range(0, len(compressed), step):
            content += reader.decompress(compressed[at : at + step])
            if len(content) > ARCHIVE_LIMIT_B:
                return bytes(content[:ARCHIVE_LIMIT_B]), f"more than {ARCHIVE_LIMIT_B} bytes when decompressed"
            if reader.eof:
                break
    except zstandard.ZstdError as error:
        return bytes(content), f"damaged: {error}"
    return bytes(content), "" if reader.eof else "cut off: the compressed data ends early"


def _untar(content: bytes) -> tuple[dict[str, bytes], str]:
    """Regular files by name. Links, devices and paths that lead out of the archive have no place in a recording."""
    members: dict[str, bytes] = {}
    try:
        for name, size, body in archive.members(content):
            if not _is_plain(name):
                return members, f"member {name[:80]!r} is not a plain file below the archive"
            limit = ARCHIVE_LIMIT_B if name == _MANIFEST else FILE_LIMIT_B
            if size > limit:
                return members, f"member {name[:80]!r} has {size} bytes, more than {limit}"
            if len(members) >= MEMBER_LIMIT:
                return members, f"more than {MEMBER_LIMIT} members"
            if len(body) != size:
                return members, f"cut off in member {name[:80]!r}"
            members[name] = body
    except archive.ArchiveError as error:
        return members, str(error)
    return members, ""


def _is_plain(name: str) -> bool:
    parts = f"/{name}/"
    return not ("//" in parts or "/./" in parts or "/../" in parts or "\0" in name)


_MANIFEST_KEYS: Mapping[str, type] = {
    "about": dict,
    "unreadable": list,
    "commands": list,
    "libraries": list,
    "files": int,
    "folders": dict,
    "links": dict,
}
_ENTRY_KEYS: Mapping[str, tuple[tuple[str, type], ...]] = {
    "unreadable": (("path", str), ("reason", str), ("detail", str)),
    "commands": (("argv", list), ("returncode", int), ("member", str)),
}


def _read_manifest(text: bytes, source: str) -> dict[str, Any]:
    def fail(found: str, expected: str) -> RecordingError:
        return RecordingError(f"{source}: {_MANIFEST}: {found}; expected {expected}")

    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise fail(f"not JSON: {error}", "the manifest of a recording") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise fail("another format", f'"format": "{FORMAT}"')
    if manifest.get("version") != VERSION:
        raise fail(f"version {manifest.get('version')!r:.40}", f"version {VERSION}")
    for key, kind in _MANIFEST_KEYS.items():
        if not isinstance(manifest.get(key), kind):
            raise fail(f"{key} is {type(manifest.get(key)).__name__}", kind.__name__)
    for key, fields in _ENTRY_KEYS.items():
        for number, entry in enumerate(manifest[key]):
            for name, kind in fields:
                if not isinstance(entry, dict) or not isinstance(entry.get(name), kind):
                    raise fail(f"{key}[{number}] has no {name}", kind.__name__)
    for folder, names in manifest["folders"].items():
        if not isinstance(names, list):
            raise fail(f"folders[{folder[:60]!r}] is {type(names).__name__}", "list")
    return manifest
