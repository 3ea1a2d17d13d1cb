"""Files that commands write: all of one or nothing of it."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from pathlib import Path

from railweave.errors import Error


class OutputError(Error):
    """A file that cannot be written. The text names it and says why."""


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """All of it or, on any failure, nothing: written beside the target and renamed over it, through symbolic links.

    What is no regular file (a pipe, `/dev/stdout`, `/dev/null`) is written to and stays what it is. `mode` is by default what
    the umask leaves. Raises OutputError.
    """
    # What the command line could not decode comes back in titles; a page with a `?` there is better than no page.
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        if _is_regular_or_new(path):
            _replace(path.resolve(), data, 0o666 & ~_umask() if mode is None else mode)
        else:
            with path.open("wb") as file:
                file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def is_standard_output(path: Path) -> bool:
    """As `/dev/stdout` is. What else a command says there would end in the file."""
    try:
        return sys.stdout is not None and os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except OSError:  # a standard output that is no file, as tests have
        return False


def name_files(**written: Path | None) -> None:
    """Says on standard error where what was asked for lies, but for what is there already."""
    for what, path in written.items():
        if path is not None and not is_standard_output(path):
            print(f"{what}: {path}", file=sys.stderr)


def check_writable(*paths: Path | None) -> None:
    """To be told before a long job rather than after it: raises the OutputError that `write_whole` would raise now, and one where a file
    would be written over another output."""
    files: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        try:
            if not _is_regular_or_new(path):
                continue
            with tempfile.TemporaryFile(dir=path.resolve().parent):
                pass
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
        if path.resolve() in files:
            raise OutputError(f"{path}: named for two outputs; expected a file for each")
        files.add(path.resolve())


def _is_regular_or_new(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "it is a directory; expected the name of a file")
    return stat.S_ISREG(kind)


def _replace(path: Path, data: bytes, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".railweave-")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        partial.chmod(mode)
        partial.replace(path)
    except BaseException:
        partial.unlink()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
