"""Makes a communicator of all GPUs in this process, so that NCCL reads and dumps its topology. Needs libnccl.so.2 and a GPU."""

from __future__ import annotations

import ctypes
import glob
import sys


def load_nccl() -> ctypes.CDLL:
    """The system's library, else the one of a Python package."""
    packaged = [path for folder in sys.path for path in glob.glob(f"{folder}/nvidia/nccl/lib/libnccl.so.2")]  # noqa: PTH207
    for name in ["libnccl.so.2", *packaged]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    sys.exit("nccl_init: no libnccl.so.2; expected NCCL's library or the Python package nvidia-nccl-cu13")


def gpu_count() -> int:
    """As the driver counts."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        sys.exit("nccl_init: the CUDA driver does not start")
    return count.value


nccl, count = load_nccl(), gpu_count()
nccl.ncclGetErrorString.restype = ctypes.c_char_p
communicators = (ctypes.c_void_p * count)()
result = nccl.ncclCommInitAll(communicators, count, None)
if result != 0:
    sys.exit(f"nccl_init: ncclCommInitAll: {nccl.ncclGetErrorString(result).decode()}")
for communicator in communicators:
    nccl.ncclCommDestroy(ctypes.c_void_p(communicator))
print(f"nccl_init: {count} GPUs")
