"""What the threads of a process take of the machine's processors."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

_OF_A_THREAD = 6  # CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED of Linux's posix-timers.h; above them the thread's id, inverted


def cpu_of_others() -> float:
    """Seconds that this process's other threads have run, of those that have not ended.

    Each by its own clock: the process's counts what runs elsewhere at that processor's last tick, up to 4 ms ago, which is longer than
    fifty small exchanges take.
    """
    own, seconds = threading.get_native_id(), 0.0
    for entry in Path("/proc/self/task").iterdir():
        thread = int(entry.name)
        if thread != own:
            with contextlib.suppress(OSError):  # ended since
                seconds += time.clock_gettime((~thread << 3) | _OF_A_THREAD)
    return seconds
