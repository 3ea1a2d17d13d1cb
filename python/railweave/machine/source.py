"""Where facts about a machine are read from: the machine itself, or a recording of one.

Everything that discovery learns passes through a `Source`, so that a recording replays exactly what was there, and so that what could not
be read is known by its reason instead of being guessed.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod

from railweave.errors import Error
from railweave.records import Enum, dataclass

# No file that is read here is larger than some 100 KiB (/proc/interrupts of a large host); what is larger is not what it seems to be.
FILE_LIMIT_B = 4 << 20
# /proc/sys allocates what is asked for at once, and refuses megabytes with ENOMEM; a file of sysfs has 4 KiB at most.
_READ_B = 4 << 10
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
# A tool that has not answered by then waits for hardware that does not answer (nvidia-smi on a lost GPU).
COMMAND_TIMEOUT_S = 5.0
LIBRARY_TIMEOUT_S = 10.0

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import TypeVar

    T = TypeVar("T")


class Reason(Enum):
    """Why something is not known."""

    absent = "absent"
    """No such file, device or entry."""
    permission = "permission"
    """It is there, and this user may not read it."""
    vanished = "vanished"
    """It was there and went away between two reads, as a GPU does that falls off the bus."""
    not_given = "not_given"
    """It can be read and says nothing: a speed of `Unknown`, NUMA node -1, a format without that field."""
    not_recorded = "not_recorded"
    """The recording does not have it, or was cut before it."""
    tool_missing = "tool_missing"
    """The program or library that knows is not installed."""
    timed_out = "timed_out"
    unsupported = "unsupported"
    """The driver or the device has no such thing."""
    error = "error"
    """Anything else; the detail has the text."""


class Unreadable(Error):  # noqa: N818 - named for what it says
    """Something could not be read; `path` is a file, a command line, or `library:NAME`."""

    def __init__(self, path: str, reason: Reason, detail: str = "") -> None:
        super().__init__(path, reason, detail)
        self.path = path
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:  # when asked for: what is absent is no error to show
        return f"{self.path}: {self.reason.value.replace('_', ' ')}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True)
class CommandOutput:
    """What a program wrote, and its exit status. A status other than 0 is an answer, not an error of the source."""

    stdout: str
    stderr: str
    returncode: int


class Source(ABC):
    """A machine's files, links, programs and libraries. Each method raises `Unreadable`, and nothing else, when it cannot answer."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """A file's content, at most FILE_LIMIT_B of it."""

    @abstractmethod
    def listdir(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted."""

    @abstractmethod
    def readlink(self, path: str) -> str:
        """A link's target, as written in it."""

    @abstractmethod
    def command(self, argv: Sequence[str]) -> CommandOutput:
        """A program's output."""

    @abstractmethod
    def library(self, name: str) -> str:
        """What a library says, as text: `hwloc` its XML, `nvml` the JSON of `railweave.machine.nvml`."""

    def read_text(self, path: str) -> str:
        """A file's text without the newline at its end; bytes that are not UTF-8 show as U+FFFD."""
        return self.read_bytes(path).decode("utf-8", "replace").rstrip("\n")


_REASONS = {
    errno.ENOENT: Reason.absent,
    errno.ENOTDIR: Reason.absent,
    errno.EACCES: Reason.permission,
    errno.EPERM: Reason.permission,
    errno.ENODEV: Reason.vanished,
    errno.ENXIO: Reason.vanished,
    errno.ESRCH: Reason.vanished,
    errno.EOPNOTSUPP: Reason.unsupported,
    errno.ENOSYS: Reason.unsupported,
}


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(path, _REASONS.get(error.errno or 0, Reason.error), error.strerror or str(error))


class LiveSource(Source):
    """The machine this runs on. With another `root`, the files of a tree that was copied from a machine; programs and libraries then
    cannot be asked."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = os.fspath(root).rstrip("/")
        self._is_this_machine = not self._root

    def _at(self, path: str) -> str:
        return self._root + path if path.startswith("/") else f"{self._root}/{path}"

    def read_bytes(self, path: str) -> bytes:
        return self._read(path)

    def _read(self, path: str, until: bytes | None = None) -> bytes:
        """A file; with `until`, as much of it as has that."""
        try:
            # Without what `open` asks of each of thousands of files: whether it is a folder, how large it is, where it stands.
            file = os.open(self._at(path), _FLAGS)
            try:
                content = os.read(file, _READ_B)
                # A file of sysfs comes whole, so a short answer is the end of it.
                if len(content) == _READ_B or not path.startswith("/sys/"):
                    content = self._whole(path, file, content, until)
            finally:
                os.close(file)
        except OSError as error:
            raise _unreadable(path, error) from error
        return content

    def _whole(self, path: str, file: int, begin: bytes, until: bytes | None) -> bytes:
        content = bytearray(begin)
        while (until is None or until not in content) and (part := os.read(file, _READ_B)):
            content += part
            if len(content) > FILE_LIMIT_B:
                raise Unreadable(path, Reason.error, f"more than {FILE_LIMIT_B} bytes")
        return bytes(content)

    def listdir(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self._at(path))))
        except OSError as error:
            raise _unreadable(path, error) from error

    def readlink(self, path: str) -> str:
        try:
            return os.readlink(self._at(path))
        except OSError as error:
            raise _unreadable(path, error) from error

    def command(self, argv: Sequence[str]) -> CommandOutput:
        import shutil  # not for those who read a recording
        import subprocess

        line = " ".join(argv)
        program = shutil.which(argv[0]) if self._is_this_machine else None
        if program is None:
            raise Unreadable(line, Reason.tool_missing, f"no program {argv[0]}" if self._is_this_machine else "not this machine's files")
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMMAND_TIMEOUT_S,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unreadable(line, Reason.timed_out, f"no answer in {COMMAND_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise _unreadable(line, error) from error
        return CommandOutput(_text(done.stdout), _text(done.stderr), done.returncode)

    def library(self, name: str) -> str:
        if not self._is_this_machine:
            raise Unreadable(f"library:{name}", Reason.tool_missing, "not this machine's files")
        from railweave.machine import hwloc_library, nvml

        readers: dict[str, Callable[[], str]] = {"hwloc": hwloc_library.export_xml, "nvml": nvml.read_json}
        return _within(LIBRARY_TIMEOUT_S, f"library:{name}", readers[name])


def _text(output: bytes) -> str:
    return output[:FILE_LIMIT_B].decode("utf-8", errors="replace")


def _within(seconds: float, path: str, call: Callable[[], T]) -> T:
    """The call's result, or `Unreadable` when it takes too long: a driver with a lost GPU may not return at all."""
    import threading

    results: list[T] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # handed on to the caller
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures and isinstance(failures[0], Exception) and not isinstance(failures[0], Unreadable):
        # A binding that does not fit its library: what it could have told is unknown, with its words.
        raise Unreadable(path, Reason.error, f"{type(failures[0]).__name__}: {failures[0]}"[:200]) from failures[0]
    if failures:
        raise failures[0]
    if not results:
        raise Unreadable(path, Reason.timed_out, f"no answer in {seconds:g} s")
    return results[0]
