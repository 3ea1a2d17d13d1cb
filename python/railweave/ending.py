"""How a command ends that fails: one line on standard error, and an exit status."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def open_what_is_closed() -> None:
    """As no file is to become standard output by chance: the next one that is opened gets the lowest free number, and `/dev/stdout` would
    be that file. Who closes it wants to hear nothing."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


class _AtOnce(io.BufferedWriter):
    """Holds nothing back, as a stream without a buffer, and yet writes all of it or raises."""

    def write(self, data: Buffer, /) -> int:
        written = super().write(data)
        self.flush()
        return written


def write_all_of_it() -> None:
    """With `PYTHONUNBUFFERED`, as containers often have it, Python takes a write that was cut short for a whole one: a table that the disk
    had no room for ended in its middle, with exit status 0."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and isinstance(stream.buffer, io.FileIO):
            whole = _AtOnce(io.FileIO(stream.fileno(), "wb", closefd=False))
            setattr(sys, name, io.TextIOWrapper(whole, stream.encoding, stream.errors, write_through=True))


def or_told(command: Callable[[], T]) -> T:
    """What the command returns. Known errors (bad input, missing permission, a full disk) end the process with one line on standard error
    and exit status 1; a reader that went away ends it in silence."""
    from railweave.errors import Error

    try:
        return command()
    except Error as error:
        print(f"railweave: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno not in (*_FULL, errno.EPIPE):
            raise
        # What is still in the buffer would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            what = error.filename or "standard output"
            print(f"railweave: {what}: cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def interrupted() -> NoReturn:
    """Ends the process as shells do for Ctrl-C."""
    print("railweave: interrupted", file=sys.stderr)
    sys.exit(130)


def at_once(status: int) -> NoReturn:
    """Ends the process without taking its objects apart, which for the facts of a machine takes 5 ms. What was written is out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # told where it was written
            if stream is not None:
                stream.flush()
    os._exit(status)
