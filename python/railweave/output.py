"""Files that commands write: all of one or nothing of it."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from railweave.errors import Error


class OutputError(Error):
    """A file that cannot be written. The text names it and says why."""


def write_whole(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """All of it or, on any failure, nothing: written beside the target and renamed over it, through symbolic links.

    What is no regular file (a pipe, `/dev/stdout`, `/dev/null`) is written to and stays what it is; so is a file that may be written but
    not replaced (mounted into a container, another user's in a shared folder, in a folder that is read-only), of which a failure in the
    middle leaves a part. `mode` is by default that of the file that is there, else what the umask leaves. Raises OutputError.
    """
    # What the command line could not decode comes back in titles; a page with a `?` there is better than no page.
    data = content.encode(errors="replace") if isinstance(content, str) else content
    try:
        if _is_regular_or_new(path):
            _write_file(path.resolve(), data, mode)
        else:
            with path.open("wb") as file:
                file.write(data)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def json_text(value: Any, indent: int | None = None) -> str:
    """As JSON, which has no place for what the command line could not decode: `\\udce9` stands there for a byte 0xe9."""
    return json.dumps(_decoded(value), indent=indent)


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_decoded(key): _decoded(each) for key, each in value.items()}
    return [_decoded(each) for each in value] if isinstance(value, list | tuple) else value


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
            _try_writing(path.resolve())
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


# What renaming over a file, or making one beside it, says where the file itself can perhaps be written.
_NOT_REPLACED = (errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS)


def _write_file(path: Path, data: bytes, mode: int | None) -> None:
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    try:
        _replace(path, data, mode)
    except OSError as error:
        if error.errno not in _NOT_REPLACED or not _writable(path):
            raise
        with path.open("r+b") as file:
            if data:
                os.posix_fallocate(file.fileno(), 0, len(data))  # a full disk is told while what was there is whole
            file.write(data)
            file.truncate()


def _try_writing(path: Path) -> None:
    """Raises the OSError that `_write_file` would raise now."""
    if _writable(path):
        return
    with tempfile.TemporaryFile(dir=path.parent):
        pass
    if not path.exists():
        return
    folder, file = path.parent.stat(), path.stat()
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, file.st_uid):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    if _mount(path) != _mount(path.parent):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _writable(path: Path) -> bool:
    """A file that is there."""
    return os.access(path, os.W_OK, effective_ids=True)


def _mount(path: Path) -> str | None:
    """Which mount it is of, as a file may be one of its own; None without /proc."""
    handle = os.open(path, os.O_PATH)
    try:
        lines = Path(f"/proc/self/fdinfo/{handle}").read_text().splitlines()
        return next((line for line in lines if line.startswith("mnt_id:")), None)
    except OSError:
        return None
    finally:
        os.close(handle)


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
