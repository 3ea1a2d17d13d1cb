"""The environment that loads the shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave import nccl


def test_the_shim_comes_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "library", lambda: Path("/lib/shim.so"))
    assert nccl.preloaded({"A": "b"}) == {"A": "b", "LD_PRELOAD": "/lib/shim.so"}
    twice = nccl.preloaded(nccl.preloaded({"LD_PRELOAD": "x.so:y.so"}))
    assert twice["LD_PRELOAD"] == "/lib/shim.so:x.so:y.so"


def test_this_build_has_it() -> None:
    assert nccl.library().name == "librailweave_nccl.so"
