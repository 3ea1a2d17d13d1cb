"""Programs of a job whose lines say which rank wrote them, as `srun --label` has it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import selectors
import sys
import threading
from collections.abc import Iterator, Sequence
from io import FileIO
from typing import BinaryIO

from railweave.lab.errors import LabError
from railweave.lab.lab import Job, Lab
from railweave.lab.program import Program

_LONGEST_B = 1 << 16  # what a line may have before it is written in parts, so that one without end takes no memory


class _Lines:
    """What one program writes to one of its streams, which is a pipe from there."""

    def __init__(self, label: bytes, pipe: FileIO, to: BinaryIO) -> None:
        self.pipe, self._label, self._to, self._rest = pipe, label, to, b""

    def write(self, data: bytes) -> None:
        """Lines that are whole go out at once, so that none has another in it; no data: the last one, too."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > _LONGEST_B):
            lines.append(self._rest)
            self._rest = b""
        self._to.write(b"".join(self._label + line + b"\n" for line in lines))
        self._to.flush()


@contextlib.contextmanager
def start_labelled(lab: Lab, programs: Sequence[Program]) -> Iterator[Job]:
    """As `Lab.start` with this process's terminal, but output comes here through pipes and goes out in whole lines, each with the
    program's rank before it. At the end of the block the job is closed and all that it wrote is out.

    Raises LabError where that takes more descriptors than there may be, and OSError where standard output or error cannot be written.
    """
    width = len(str(max(program.rank or 0 for program in programs)))
    streams = {there: stream.buffer for there, stream in ((1, sys.stdout), (2, sys.stderr)) if stream is not None}
    with contextlib.ExitStack() as reading:
        selector = reading.enter_context(selectors.DefaultSelector())
        with contextlib.ExitStack() as writing:
            try:
                piped = []
                for program in programs:
                    label = f"{program.rank:{width}}: ".encode()
                    fds = {}
                    for there, stream in streams.items():
                        ours, fds[there] = os.pipe()
                        writing.callback(os.close, fds[there])
                        pipe = reading.enter_context(FileIO(ours))
                        selector.register(pipe, selectors.EVENT_READ, _Lines(label, pipe, stream))
                    piped.append(dataclasses.replace(program, fds=fds))
            except OSError as error:
                most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise LabError(f"labels take four open files a rank; there may be {most}: raise the limit (ulimit -n)") from error
            job = lab.start(piped, new_session=False)
        failed: list[OSError] = []
        copying = threading.Thread(target=_copy, args=(selector, failed))
        copying.start()
        try:
            with job:
                yield job
        finally:
            copying.join()  # the kernel has closed the other ends of the pipes, with all that had them
        if failed:
            raise failed[0]


def _copy(selector: selectors.BaseSelector, failed: list[OSError]) -> None:
    """Until all pipes have ended. What cannot be written ends them: the programs hear of it as if they wrote it themselves."""
    while selector.get_map():
        for key, _ in selector.select():
            data = key.data.pipe.read(1 << 16)
            try:
                key.data.write(data)
            except OSError as error:
                failed.append(error)
                data = b""
            if not data:
                selector.unregister(key.data.pipe)
                key.data.pipe.close()
