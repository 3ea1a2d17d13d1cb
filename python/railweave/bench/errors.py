"""What can go wrong with a benchmark."""

from __future__ import annotations

import signal

from railweave.errors import Error


class BenchError(Error):
    """A benchmark could not run to its end; the text says which rank, policy or peer failed, and what it said."""


# A process that a signal ends says nothing: what it means, and where to look.
_KILLED = "by somebody, or by the kernel as memory ran out, which `dmesg` on the host tells"
_ASKED = "somebody asked it to end"
_FAULT = "a fault in the program; `dmesg` on the host tells where"
_MEANING = {
    signal.SIGKILL: _KILLED,
    **dict.fromkeys((signal.SIGHUP, signal.SIGINT, signal.SIGTERM), _ASKED),
    **dict.fromkeys((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE), _FAULT),
}


def how_it_ended(status: int) -> str:
    """Of a process with such an exit status, below 0 a signal's number, to be said behind its name."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        number = signal.Signals(-status)
    except ValueError:  # real-time ones have no names
        return f"was killed by signal {-status}"
    return f"was killed by signal {number:d} ({number.name}: {_MEANING.get(number) or signal.strsignal(number)})"
