"""Cores: what the kernel gives a process, what somebody chose, what isolcpus keeps from the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from railweave.launch import bind


class Kernel:
    """Eight CPUs, of which 6 and 7 are isolated, and a cpuset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, affinity: set[int], cpuset: set[int]) -> None:
        self.affinity, self.cpuset, self.said = affinity, cpuset, list[str]()
        monkeypatch.setattr(bind.os, "sched_getaffinity", lambda pid: set(self.affinity))
        monkeypatch.setattr(bind.os, "sched_setaffinity", self.set_affinity)
        monkeypatch.setattr(bind.os, "sysconf", lambda name: 8)
        monkeypatch.setattr(bind, "_read", lambda path: "6-7" if path == "/sys/devices/system/cpu/isolated" else "")

    def set_affinity(self, pid: int, cpus: Iterable[int]) -> None:
        self.affinity = self.cpuset & set(cpus)
        assert self.affinity


WHOLE = set(range(8))


@pytest.mark.parametrize(
    ("affinity", "cpuset", "advice", "bound"),
    [
        ({0, 1, 2, 3, 4, 5}, WHOLE, {4, 5}, {4, 5}),  # as a process begins: nobody chose
        (WHOLE, WHOLE, {4, 5, 6, 7}, {4, 5}),  # as one begins that was put into a cpuset
        ({2, 3, 4, 5, 6}, {2, 3, 4, 5, 6}, {4, 6}, {4}),
        ({6, 7}, {6, 7}, {6}, {6}),  # a cpuset of nothing else
        ({6}, WHOLE, {4, 5}, None),  # somebody chose
        ({0, 1}, WHOLE, {4, 5}, None),
        ({0, 1, 2, 3, 4, 5}, WHOLE, {6, 7}, None),
    ],
)
def test_isolated_cpus(
    affinity: set[int], cpuset: set[int], advice: set[int], bound: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(monkeypatch, affinity, cpuset)
    done = bind.bind_cpus(frozenset(advice), False, kernel.said.append, kernel.said.append)
    assert done == (bound is not None), kernel.said
    assert kernel.affinity == (affinity if bound is None else bound)
