"""Copies between pinned memory and each GPU, and the export of GPU memory as dma-buf, with PyTorch: what --probe is compared with.

Prints JSON. `torch_copies.py load` only keeps the links busy: it names a GPU and loads its link until a line comes on standard input, GPU
by GPU. `torch_copies.py wait` loads NCCL and waits to be ended.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
import time

import torch

BYTES = 64 << 20


def rate(target: torch.Tensor, source: torch.Tensor, seconds: float) -> float:
    """Bytes/s."""
    target.copy_(source)
    torch.cuda.synchronize()
    begin, copied = time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < seconds:
        target.copy_(source)
        torch.cuda.synchronize()
        copied += BYTES
    return copied / now


def exports_dma_buf(tensor: torch.Tensor) -> bool:
    """Tries it: cuMemGetHandleForAddressRange of 2 MiB inside the tensor, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD."""
    cuda, file = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
    at = -(-tensor.data_ptr() // (2 << 20)) * (2 << 20)
    call = cuda.cuMemGetHandleForAddressRange
    return call(ctypes.byref(file), ctypes.c_uint64(at), ctypes.c_size_t(2 << 20), ctypes.c_int(1), ctypes.c_uint64(0)) == 0


def buffers(gpu: int) -> tuple[torch.Tensor, torch.Tensor]:
    """On the GPU, and pinned on the host."""
    torch.cuda.set_device(gpu)
    return torch.empty(BYTES, dtype=torch.uint8, device=f"cuda:{gpu}"), torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)


def load_links() -> None:
    """GPU by GPU, as long as whoever reads wants it."""
    for gpu in range(torch.cuda.device_count()):
        there, here = buffers(gpu)
        print(gpu, flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            rate(there, here, 0.05)
        sys.stdin.readline()


def main() -> None:
    """See above."""
    if sys.argv[1:2] == ["wait"]:
        print(json.dumps({"nccl": torch.cuda.nccl.version()}), flush=True)
        time.sleep(60)
        return
    if sys.argv[1:2] == ["load"]:
        load_links()
        return
    found = {}
    for gpu in range(torch.cuda.device_count()):
        there, here = buffers(gpu)
        found[gpu] = {"to": rate(there, here, 0.5), "from": rate(here, there, 0.5), "dma_buf": exports_dma_buf(there)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
