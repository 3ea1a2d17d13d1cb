"""Processor time of a process's threads."""

from __future__ import annotations

import threading
import time

from railweave.bench.gpus.threads import cpu_of_others

_SECONDS = 0.1


def _work() -> None:
    end = time.thread_time() + _SECONDS
    while time.thread_time() < end:
        pass


def test_what_other_threads_run_counts_and_what_this_one_runs_does_not() -> None:
    leave = threading.Event()
    worked = threading.Event()

    def body() -> None:
        _work()
        worked.set()
        leave.wait(60)

    before = cpu_of_others()
    _work()
    alone = cpu_of_others()
    other = threading.Thread(target=body)
    other.start()
    try:
        assert worked.wait(60)
        after = cpu_of_others()
    finally:
        leave.set()
        other.join()
    assert alone - before < _SECONDS / 2
    assert _SECONDS <= after - alone < 2 * _SECONDS


def test_threads_that_have_ended_are_no_error() -> None:
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            threading.Thread(target=int).start()

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert all(cpu_of_others() >= 0 for _ in range(200))
    finally:
        stop.set()
        other.join()
