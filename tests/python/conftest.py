"""What tests of several rooms share: labs need root, and nothing may stay behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, to be drawn or to be tested, says how loaded the machine is, and nothing else.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A runner in the background of a shell ignores Ctrl-C, and so would every program that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() != 0:
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason="needs root and network namespaces"))


def _marked(mark: str) -> set[str]:
    """Processes that descend from this test, wherever they are now: they inherit its environment."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (directory / "environ").read_bytes():
                found.add((directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Fails if a process stays behind; call it to check within a test.

    Namespaces and links without a name, and shared memory in private mounts, exist only as long as a process that holds them.
    """
    mark = f"RAILWEAVE_TEST={uuid.uuid4()}"
    monkeypatch.setenv(*mark.split("="))

    def check() -> None:
        # The kernel has killed everything when a lab's supervisor is gone, but each of them needs a CPU to die.
        end = time.monotonic() + 120
        while (left := _marked(mark)) and time.monotonic() < end:
            time.sleep(0.05)
        assert left == set()
        assert not {"left", "note"} & {path.name for path in Path("/dev/shm").iterdir()}

    yield check
    check()


@pytest.fixture
def cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `railweave …` as a user would."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "railweave", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run
