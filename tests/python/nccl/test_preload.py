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


@pytest.mark.parametrize("path", ["/my lib/shim.so", "/a:b/shim.so"])
def test_a_path_that_the_loader_would_split_is_refused(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(nccl, "library", lambda: Path(path))
    with pytest.raises(nccl.ShimError, match="LD_PRELOAD"):
        nccl.preloaded({})


def test_where_the_device_library_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nccl, "library", lambda: tmp_path / "librailweave_nccl.so")
    missing = "librailweave_cuda.so: cannot open shared object file: No such file or directory"
    assert nccl.why_no_device_library({}) == missing
    assert nccl.why_no_device_library({"RAILWEAVE_CUDA_LIBRARY": ""}) == missing
    assert nccl.why_no_device_library({"RAILWEAVE_CUDA_LIBRARY": "other.so"}).startswith("other.so: cannot open")
    (tmp_path / "librailweave_cuda.so").touch()
    assert nccl.why_no_device_library({}) == ""
    assert nccl.why_no_device_library({"RAILWEAVE_CUDA_LIBRARY": f"{tmp_path}/librailweave_cuda.so"}) == ""
    assert nccl.why_no_device_library({"RAILWEAVE_CUDA_LIBRARY": "/nowhere.so"}).startswith("/nowhere.so: cannot open")


def test_this_build_has_it() -> None:
    assert nccl.library().name == "librailweave_nccl.so"
