"""The ranks of a process group as Railweave sees them: one communicator a group and kind of memory, made when first used."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from railweave.device import DeviceCommunicator
from railweave.errors import Error
from railweave.exchange import Exchange, Handle

__all__ = ["Pending", "Ranks", "close", "made_ranks_of", "ranks_of", "world_of"]


class Pending(Protocol):
    """A started exchange."""

    def wait(self) -> None:
        """Results may be used afterwards: by the host for CPU tensors, by the current stream for CUDA tensors."""


class Ranks(Protocol):
    """Where an exchange runs: this rank and how many there are."""

    rank: int
    world: int

    def start(self, output: Any, input_: Any, output_sizes: list[int], input_sizes: list[int], own_stream: bool) -> Pending:
        """Starts it; sizes in bytes, one for each rank. `own_stream`: beside the current stream instead of in it."""

    def close(self) -> None:
        """Ends it on all ranks."""


class _HostRanks:
    """CPU tensors: the engine's host backend."""

    def __init__(self, rank: int, world: int, rendezvous: str) -> None:
        self.rank, self.world = rank, world
        self._exchange = Exchange(rank, world, rendezvous)

    def start(self, output: Any, input_: Any, output_sizes: list[int], input_sizes: list[int], own_stream: bool) -> Pending:
        send, receive = (tensor.detach().reshape(-1).view(torch.uint8).numpy() for tensor in (input_, output))
        return _HostPending(self._exchange.all_to_all_v_async(send, receive, input_sizes, output_sizes))

    def close(self) -> None:
        self._exchange.close()


class _HostPending:
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def wait(self) -> None:
        self._handle.wait()


class _DeviceRanks:
    """CUDA tensors: the device library, in stream order."""

    def __init__(self, rank: int, world: int, device: int, rendezvous: str) -> None:
        self.rank, self.world = rank, world
        self.communicator = DeviceCommunicator(rank, world, device, rendezvous)
        self._stream = torch.cuda.Stream(device)

    def start(self, output: Any, input_: Any, output_sizes: list[int], input_sizes: list[int], own_stream: bool) -> Pending:
        stream = current = torch.cuda.current_stream(self.communicator.device)
        if own_stream:
            stream = self._stream
            stream.wait_stream(current)
            for tensor in (output, input_):
                tensor.record_stream(stream)
        self.communicator.all_to_all_v(output.data_ptr(), output_sizes, input_.data_ptr(), input_sizes, stream.cuda_stream)
        return _DevicePending(self.communicator.device, stream.record_event() if own_stream else None)

    def close(self) -> None:
        self.communicator.close()


class _DevicePending:
    def __init__(self, device: int, event: Any) -> None:
        self._device = device  # another one may be the current one
        self._event = event

    def wait(self) -> None:
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)


_made: dict[tuple[Any, Any], Ranks] = {}  # of a process group and a device


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    """A port that nobody is given while the block runs: bound and not listening, so that a listener with SO_REUSEADDR may take it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]


def _address_towards(host: str) -> str | None:
    """This host's address on the way to another one, None where there is no way."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, 9))  # sends nothing
        return str(way.getsockname()[0])
    return None


def _own_address() -> str:
    """This host as the others see it: the address of the way to the job's master, else the host's name."""
    master = os.environ.get("MASTER_ADDR")
    return (_address_towards(master) if master else None) or socket.gethostname()


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _announced(addresses: Sequence[str]) -> str:
    """Where all ranks find this one, which is rank 0, by what each calls its own address.

    The master's way to itself is loopback where its hosts file gives its name such an address; the way to a rank of another host is not.
    """
    own, *others = addresses
    if _is_loopback(own):
        for other in others:
            address = None if _is_loopback(other) else _address_towards(other)
            if address is not None and not _is_loopback(address):
                return address
    return own


def _agree_on_rendezvous(group: Any, rank: int, world: int, port: int) -> str:
    addresses: list[Any] = [None] * world
    dist.all_gather_object(addresses, _own_address(), group=group)
    rendezvous = [f"tcp://{_announced(addresses)}:{port}" if rank == 0 else None]
    dist.broadcast_object_list(rendezvous, src=dist.get_global_rank(group, 0), group=group)
    return str(rendezvous[0])


def _key_of(group: Any, device: Any) -> tuple[Any, Any]:
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return group if group is not None else dist.group.WORLD, device


def _refuse_what_is_no_group(group: Any) -> None:
    # new_group() returns the last one to a rank that is not in the group.
    if not (group is None or isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER):
        raise Error(f"group is a {type(group).__name__}; expected a process group of torch.distributed, or None for all ranks")


def world_of(group: Any) -> int:
    """Ranks of a group that this rank is in."""
    _refuse_what_is_no_group(group)
    world = int(dist.get_world_size(group))
    if world < 1:
        raise Error("this rank is not in the group; only its ranks exchange")
    return world


def made_ranks_of(group: Any, device: Any) -> Ranks | None:
    """As ranks_of(), where they are made already; asks nobody, and starts nothing: to ask for the current GPU would start CUDA."""
    _refuse_what_is_no_group(group)
    if device.type == "cuda" and device.index is None and not torch.cuda.is_initialized():
        return None
    return _made.get(_key_of(group, device))


def ranks_of(group: Any, device: Any) -> Ranks:
    """The communicator of a group for tensors of that device; all ranks of the group make it together, the first time."""
    _refuse_what_is_no_group(group)
    key = _key_of(group, device)
    if key in _made:
        return _made[key]
    if device.type not in ("cpu", "cuda"):
        raise Error(f"tensors are on {device}; expected cpu or cuda")
    rank, world = dist.get_rank(group), world_of(group)
    with _free_port() as port:
        # Objects travel as CPU or GPU tensors, whichever the group's backend takes; the latter on the current GPU, which may be that of
        # several ranks, where NCCL does not serve them.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            rendezvous = _agree_on_rendezvous(key[0], rank, world, port)
        made: Ranks = _HostRanks(rank, world, rendezvous) if device.type == "cpu" else _DeviceRanks(rank, world, device.index, rendezvous)
    _made[key] = made
    return made


def close() -> None:
    """Ends all communicators, on all ranks; before torch.distributed.destroy_process_group()."""
    while _made:
        _made.popitem()[1].close()
