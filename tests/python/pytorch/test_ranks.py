"""Where the ranks of a group meet, and on which device they say so. Needs PyTorch: `make test-torch`, not CI."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import torch

from railweave.torch import ranks


class FakeDistributed:
    """A group as its rank 0 sees it, whose ranks call themselves by `addresses`."""

    ProcessGroup = object

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.current_gpu: int | None = None
        self.used_gpus: list[int | None] = []

    def get_rank(self, group: Any) -> int:
        return 0

    def get_world_size(self, group: Any) -> int:
        return len(self.addresses)

    def get_global_rank(self, group: Any, rank: int) -> int:
        return rank

    def all_gather_object(self, objects: list[Any], own: Any, group: Any) -> None:
        self.used_gpus.append(self.current_gpu)
        objects[:] = [own, *self.addresses[1:]]

    def broadcast_object_list(self, objects: list[Any], src: int, group: Any) -> None:
        self.used_gpus.append(self.current_gpu)

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.current_gpu, before = device.index, self.current_gpu
        yield
        self.current_gpu = before


def rendezvous(monkeypatch: pytest.MonkeyPatch, addresses: list[str], device: str) -> tuple[str, list[int | None]]:
    """What rank 0 says, and the current GPU each time that the ranks say something."""
    group = FakeDistributed(addresses)
    said = []

    class Made:
        def __init__(self, rank: int, world: int, *others: Any) -> None:
            said.append(others[-1])

    monkeypatch.setattr(ranks, "dist", group)
    monkeypatch.setattr(ranks, "_made", {})
    monkeypatch.setattr(ranks, "_own_address", lambda: addresses[0])
    monkeypatch.setattr(ranks, "_address_towards", {"10.99.0.2": "10.99.0.1", "127.0.1.1": "127.0.0.1", "alias": "127.0.0.1"}.get)
    for name in ("_HostRanks", "_DeviceRanks"):
        monkeypatch.setattr(ranks, name, Made)
    monkeypatch.setattr(torch.cuda, "device", group.device)
    ranks.ranks_of(object(), torch.device(device))
    return said[0].rpartition(":")[0], group.used_gpus


@pytest.mark.parametrize(
    ("addresses", "announced"),
    [
        (["127.0.0.1", "10.99.0.2"], "10.99.0.1"),
        (["127.0.0.1", "127.0.0.1", "10.99.0.2"], "10.99.0.1"),
        (["127.0.0.1", "alias", "10.99.0.2"], "10.99.0.1"),
        (["127.0.0.1", "127.0.0.1"], "127.0.0.1"),
        (["127.0.0.1", "nowhere"], "127.0.0.1"),
        (["10.98.0.1", "10.99.0.2"], "10.98.0.1"),
        (["node-a", "10.99.0.2"], "node-a"),
        (["127.0.0.1"], "127.0.0.1"),
    ],
)
def test_a_loopback_address_is_announced_to_its_own_host_alone(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], announced: str
) -> None:
    assert rendezvous(monkeypatch, addresses, "cpu")[0] == f"tcp://{announced}"


def test_the_ranks_agree_on_the_tensors_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous(monkeypatch, ["10.98.0.1", "10.99.0.2"], "cuda:1")[1] == [1, 1]
    assert rendezvous(monkeypatch, ["10.98.0.1", "10.99.0.2"], "cpu")[1] == [None, None]
