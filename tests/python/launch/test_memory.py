"""The memory policy: set for real on this machine's node 0, kept where one was set, refused in words."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence

import pytest

from railweave.launch import bind

pytestmark = pytest.mark.skipif(platform.machine() not in bind._SYSCALLS, reason="the memory policy is set on x86-64 and ARM64")

PROGRAM = """
import ctypes, os, sys
from railweave.launch import bind

bind._read = lambda path: "0-1"  # as on a machine with two nodes
said = []
for nodes, override in {steps}:
    bind.bind_memory(frozenset(nodes), override, lambda text: said.append("did: " + text), lambda text: said.append("warned: " + text))
mode = ctypes.c_int(-1)
get, _ = bind._SYSCALLS[os.uname().machine]
assert ctypes.CDLL(None).syscall(get, ctypes.byref(mode), None, 0, None, 0) == 0
print(mode.value)
print("\\n".join(said))
"""


def bind_in_a_process(steps: Sequence[tuple[list[int], bool]]) -> tuple[int, list[str]]:
    """The mode that is left, and what was said."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(steps=steps)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    mode, *said = done.stdout.splitlines()
    return int(mode), said


def allowed() -> bool:
    """Containers without CAP_SYS_NICE refuse it."""
    return bind_in_a_process([([0], False)])[0] == bind.MPOL_PREFERRED


def test_a_node_is_preferred() -> None:
    if not allowed():
        pytest.skip("set_mempolicy is refused here")
    assert bind_in_a_process([([0], False)]) == (bind.MPOL_PREFERRED, ["did: memory preferred on NUMA node 0"])


def test_a_policy_that_was_set_is_kept_unless_told() -> None:
    if not allowed():
        pytest.skip("set_mempolicy is refused here")
    _, said = bind_in_a_process([([0], False), ([0], False), ([0], True)])
    assert [text.split(":")[0] for text in said] == ["did", "warned", "did"]
    assert "--override" in said[1]


def test_a_refusal_is_a_warning() -> None:
    """Node 63 is on no machine that runs this."""
    mode, said = bind_in_a_process([([63], False)])
    assert mode == bind.MPOL_DEFAULT
    assert said[0].startswith("warned: memory policy: refused (")


def test_one_node_leaves_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "_read", lambda path: "0")
    said: list[str] = []
    bind.bind_memory(frozenset({0}), False, said.append, lambda text: pytest.fail(text))
    assert "nothing to choose" in said[0]


def test_an_affinity_that_cannot_be_set_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    said: list[str] = []
    assert not bind.bind_cpus(frozenset({0}), False, lambda text: pytest.fail(text), said.append)
    assert "Operation not permitted" in said[0]
