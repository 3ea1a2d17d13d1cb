"""The NCCL shim from Python: where it is, what environment loads it, and the counters that it keeps (docs/nccl.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from railweave.errors import Error

__all__ = ["ShimError", "library", "preloaded", "why_no_device_library"]

_DEVICE_LIBRARY = "librailweave_cuda.so"


class ShimError(Error):
    """The shim is not installed, or what it left cannot be read."""


def library() -> Path:
    """The shim, librailweave_nccl.so. Raises ShimError where this build has none."""
    # Beside the extension module, which in an editable installation is not where the Python files are; found without loading it.
    module = find_spec("railweave._native")
    if module is None or module.origin is None:
        raise ShimError("this installation of Railweave has no C++ parts; install it with them (make setup)")
    path = Path(module.origin).parent / "librailweave_nccl.so"
    if not path.exists():
        raise ShimError(f"{path} does not exist; install Railweave with its C++ parts (make setup)")
    return path


def why_no_device_library(environment: Mapping[str, str]) -> str:
    """Why the shim will find no device library, without which it leaves all to NCCL; empty: there is one. A file is not tried, as that
    takes longer than all else before a program's start, and the shim tells."""
    named = environment.get("RAILWEAVE_CUDA_LIBRARY", "")
    path = Path(named) if named else library().parent / _DEVICE_LIBRARY
    if (not named or "/" in named) and os.access(path, os.R_OK):
        return ""
    from _ctypes import dlopen  # of `ctypes`, which brings much more; as the shim, wherever the loader finds it

    try:
        dlopen(named or _DEVICE_LIBRARY, os.RTLD_LAZY)
    except OSError as error:
        return str(error)
    return ""


def preloaded(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment (default: this process's) with the shim before what is preloaded already; twice is as good as once."""
    result = dict(os.environ if environment is None else environment)
    shim = str(library())
    if " " in shim or ":" in shim:
        raise ShimError(f"{shim}: LD_PRELOAD takes no path with a space or a colon; install Railweave elsewhere")
    others = [entry for entry in result.get("LD_PRELOAD", "").replace(":", " ").split() if entry != shim]
    result["LD_PRELOAD"] = ":".join([shim, *others])
    return result
