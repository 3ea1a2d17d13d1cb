"""The all-to-all that a system's ranks call: torch.distributed's, or railweave.torch's in one of its forms (session.INTERFACE)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single

from railweave.bench.gpus.session import INTERFACE


class Interface(Protocol):
    """Splits are of rows, as torch.distributed has them."""

    def exchange(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> None:
        """Into `output`, ahead of what is queued next."""

    def differentiable(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> Any:
        """The same with gradients, which flow through what it returns."""

    def hold(self, *tensors: Any) -> None:
        """These are exchanged from now on, those of the last call no more."""

    def close(self) -> None:
        """On all ranks, before their process group ends."""


class TorchDistributed:
    """Over the NCCL that the process has, or the shim."""

    def exchange(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> None:
        """As Interface has it."""
        dist.all_to_all_single(output, input_, output_rows, input_rows)

    def differentiable(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> Any:
        """As Interface has it."""
        return all_to_all_single(output, input_, output_rows, input_rows)

    def hold(self, *tensors: Any) -> None:
        """Nothing to be told."""

    def close(self) -> None:
        """Nothing of its own."""


class RailweaveTorch:
    """railweave.torch: in the current stream or, `async_op`, in its own one, and with `registers` buffers that others map beforehand."""

    def __init__(self, async_op: bool, registers: bool) -> None:
        from railweave import torch as module

        self._module = module
        self._async_op, self._registers = async_op, registers
        self._held: list[tuple[int, Any]] = []  # registrations with their devices
        # Makes the communicator: of a matrix some ranks may have nothing to register, and the others would wait for them.
        one = torch.zeros(dist.get_world_size(), device="cuda")
        self._module.all_to_all_single(torch.empty_like(one), one)

    def exchange(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> None:
        """As Interface has it."""
        self.differentiable(output, input_, output_rows, input_rows)

    def differentiable(self, output: Any, input_: Any, output_rows: Sequence[int], input_rows: Sequence[int]) -> Any:
        """As Interface has it."""
        result = self._module.all_to_all_single(output, input_, output_rows, input_rows, async_op=self._async_op)
        return result.wait() if self._async_op else result

    def hold(self, *tensors: Any) -> None:
        """As Interface has it."""
        while self._held:
            self._module.deregister(*self._held.pop())
        if self._registers:
            self._held = [(self._module.register(tensor), tensor.device) for tensor in tensors if tensor.numel()]

    def close(self) -> None:
        """As Interface has it."""
        self.hold()
        self._module.close()


def chosen() -> Interface:
    """The one that this process's environment names."""
    forms = os.environ.get(INTERFACE, "").split()
    return RailweaveTorch("async" in forms, "registered" in forms) if forms else TorchDistributed()
