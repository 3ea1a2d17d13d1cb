"""`torch.distributed.all_to_all_single` over Railweave."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.forward_ad import unpack_dual
from torch.autograd.graph import increment_version

from railweave.errors import Error
from railweave.torch.ranks import Pending, _DeviceRanks, close, made_ranks_of, ranks_of, world_of

__all__ = ["Work", "all_to_all_single", "close", "deregister", "register"]


class Work:
    """A started exchange. Neither tensor may be written, nor the output read, before wait()."""

    def __init__(self, pending: Pending, output: Any, input_: Any) -> None:
        self._pending: Pending | None = pending
        self._output = output
        self._input = input_  # kept until the exchange has ended

    @torch.compiler.disable
    def wait(self) -> Any:
        """The output. For CUDA tensors the current stream waits, not the host."""
        if self._pending is not None:
            self._pending.wait()
        self._pending = self._input = None
        return self._output


def _refuse_what_has_no_rows_in_memory(tensor: Any, role: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise Error(f"{role} is a {type(tensor).__name__}; expected a tensor")
    if tensor.layout != torch.strided:
        raise Error(f"{role} has layout {tensor.layout}; expected a dense tensor")


def _row_sizes(tensor: Any, splits: Sequence[int] | None, world: int, role: str) -> list[int]:
    """Rows for each rank."""
    if not tensor.dim():
        raise Error(f"{role} has no dimension; expected rows to split")
    rows = tensor.shape[0]
    try:
        sizes = [operator.index(size) for size in (() if splits is None else splits)]
    except TypeError as error:
        raise Error(f"{role}_split_sizes: {error}; expected whole numbers of rows") from None
    if not sizes:  # torch.distributed takes an empty list for None
        if rows % world:
            raise Error(f"{role} has {rows} rows for {world} ranks; expected a multiple, or {role}_split_sizes")
        return [rows // world] * world
    if len(sizes) != world or sum(sizes) != rows or any(size < 0 for size in sizes):
        raise Error(f"{role}_split_sizes {sizes} for {rows} rows; expected {world} sizes that add up to the rows")
    return sizes


def _address(tensor: Any, role: str) -> int:
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:  # under some of torch.func's transforms
        address = 0
    if not address and tensor.nbytes:
        raise Error(f"{role} is a {type(tensor).__name__} on {tensor.device} without memory of its own; expected cpu or cuda memory")
    return address


def _overlap(output: Any, input_: Any) -> bool:
    into, out_of, written, read = _address(output, "output"), _address(input_, "input"), output.nbytes, input_.nbytes
    return bool(written and read) and into < out_of + read and out_of < into + written


def _sizes_in_bytes(output: Any, input_: Any, output_rows: list[int], input_rows: list[int], rank: int) -> list[list[int]]:
    if _overlap(output, input_):
        raise Error("output and input overlap; an exchange does not work in place")
    sizes = []
    for tensor, rows, role in ((output, output_rows, "output"), (input_, input_rows, "input")):
        if not tensor.is_contiguous():
            raise Error(f"{role} of shape {tuple(tensor.shape)} is not contiguous; pass tensor.contiguous()")
        if tensor.is_conj() or tensor.is_neg():  # memory holds other values than the tensor's
            raise Error(f"{role} is a conjugate or negative view; pass tensor.resolve_conj().resolve_neg()")
        row_bytes = tensor.nbytes // max(1, len(tensor))
        sizes.append([count * row_bytes for count in rows])
    received, sent = sizes[0][rank], sizes[1][rank]
    if received != sent:
        raise Error(f"this rank sends itself {sent} bytes and receives {received} of itself; expected as many")
    return sizes


def _wants_gradients(output: Any, input_: Any) -> bool:
    """Whether the exchange is to be part of a graph: as a function it takes the host 5 us more, 8 where it waits after each (2 x H200)."""
    if torch.is_grad_enabled() and (input_.requires_grad or output.requires_grad):
        return True
    # Forward mode, which the function refuses.
    return unpack_dual(input_).tangent is not None or unpack_dual(output).tangent is not None


class _Exchange(torch.autograd.Function):
    """The place of an exchange in the graph: gradients go back the way the rows come."""

    @staticmethod
    def forward(context: Any, output: Any, input_: Any, output_rows: list[int], input_rows: list[int], group: Any) -> Any:
        context.rows = (output_rows, input_rows)
        context.input_shape = input_.shape
        context.group = group
        context.mark_dirty(output)
        return output

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        output_rows, input_rows = context.rows
        gradient = gradients[0].resolve_conj().resolve_neg().contiguous()
        # Differentiable itself, for gradients of gradients (create_graph).
        result = all_to_all_single(gradient.new_empty(context.input_shape), gradient, input_rows, output_rows, context.group)
        # What was in the output is gone: a gradient of zeros, and not none, which autograd would take for that of all that it is a view of.
        overwritten = torch.zeros_like(gradients[0]) if context.needs_input_grad[0] else None
        return overwritten, result, None, None, None


@torch.compiler.disable  # memory addresses, and other ranks to ask: what the compiler traces of it fails, or is compiled for one call
def all_to_all_single(
    output: Any,
    input: Any,  # noqa: A002 - the name that torch.distributed uses
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Sends rows of `input` to each rank of `group` and receives rows of `output` from each, as torch.distributed.all_to_all_single does.

    Returns the output, through which gradients flow to `input`; with `async_op` a Work whose wait() returns it. Both tensors are
    contiguous and on one device, cpu or cuda. Without split sizes rows are split evenly. For CUDA tensors the exchange runs in the
    current stream (with `async_op`: beside it) and the host does not wait.
    """
    for tensor, role in ((output, "output"), (input, "input")):
        _refuse_what_has_no_rows_in_memory(tensor, role)
    if output.device != input.device or output.dtype != input.dtype:
        raise Error(f"output is {output.dtype} on {output.device}, input {input.dtype} on {input.device}; expected the same")
    if output.requires_grad and torch.is_grad_enabled() and (output if output._base is None else output._base).is_leaf:
        raise Error("output is a leaf that requires grad, or a view of one, and is written in place; pass torch.empty(...) of the shape")
    # All that is wrong here is told before ranks_of(), in which the others take part: they would wait for a rank that has left.
    ranks = made_ranks_of(group, input.device)
    world, rank = (world_of(group), torch.distributed.get_rank(group)) if ranks is None else (ranks.world, ranks.rank)
    output_rows = _row_sizes(output, output_split_sizes, world, "output")
    input_rows = _row_sizes(input, input_split_sizes, world, "input")
    output_sizes, input_sizes = _sizes_in_bytes(output, input, output_rows, input_rows, rank)
    result: Any = output
    if _wants_gradients(output, input):
        result = _Exchange.apply(output, input, output_rows, input_rows, group)  # some outputs autograd refuses
    elif not output.is_inference():
        increment_version(output)  # whoever has kept it for its own gradients is told
    pending = (ranks or ranks_of(group, input.device)).start(output, input, output_sizes, input_sizes, own_stream=async_op)
    if async_op:
        return Work(pending, result, input)
    pending.wait()
    return result


def register(tensor: Any, group: Any = None) -> int:
    """Has the group's other ranks map a CUDA tensor's memory ahead of its first exchange. The result goes to deregister().

    As a first exchange does, the first call of a group makes its communicator, together with the others' calls.
    """
    # All of this is told before ranks_of(), in which the others take part.
    _refuse_what_has_no_rows_in_memory(tensor, "what is registered")
    if tensor.device.type != "cuda":
        raise Error(f"only CUDA tensors are registered; this one is on {tensor.device}")
    if not tensor.is_contiguous():
        raise Error(f"the tensor of shape {tuple(tensor.shape)} is not contiguous; register what it is a view of")
    if not tensor.numel():
        raise Error(f"the tensor of shape {tuple(tensor.shape)} has no bytes to register")
    ranks = ranks_of(group, tensor.device)
    assert isinstance(ranks, _DeviceRanks)
    return ranks.communicator.register(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def deregister(registration: int, device: Any, group: Any = None) -> None:
    """Ends a registration, before its memory is freed. `device`: the tensor's. After close() there is nothing to end."""
    if not isinstance(registration, int):
        raise Error(f"registration is a {type(registration).__name__}; expected what register() returned")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        raise Error(f"device is {device!r}; expected the registered tensor's, as 'cuda:0'") from None
    if device.type != "cuda":
        raise Error(f"only CUDA tensors are registered; got {device}")
    ranks = made_ranks_of(group, device)
    if isinstance(ranks, _DeviceRanks):
        ranks.communicator.deregister(registration)
