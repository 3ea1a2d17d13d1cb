"""A template's node with the cores and device names that a real node has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from railweave import fabric
from railweave.advise.host import Core, Host, Numa, read_host


def furnish(host: Host, cores: int = 16, smt: int = 2, parts: int = 1) -> Host:
    """Gives each socket `cores` cores of `smt` threads, numbered as Linux does: first threads of all cores, then second ones.

    `parts` > 1 is sub-NUMA clustering: each socket is that many NUMA nodes, and its devices hang from the first of them.
    """
    total = cores * len(host.numas)
    numas = []
    for package in range(len(host.numas)):
        all_cores = [Core(tuple(package * cores + i + total * thread for thread in range(smt))) for i in range(cores)]
        for part in range(parts):
            own = all_cores[part * cores // parts : (part + 1) * cores // parts]
            numas.append(Numa(package * parts + part, package, tuple(own)))
    nics = tuple(replace(nic, device=f"mlx5_{i}:1") for i, nic in enumerate(host.nics))
    gpus = tuple(replace(gpu, minor=gpu.rank, numa=None if gpu.numa is None else gpu.numa * parts) for gpu in host.gpus)
    return replace(host, nics=nics, gpus=gpus, numas=tuple(numas))


@pytest.fixture
def furnished() -> Callable[..., Host]:
    """`furnished("xe9680-4hca", cores=36)`."""

    def make(name: str, nodes: int | None = None, **options: int) -> Host:
        return furnish(read_host(fabric.load(name, nodes)), **options)

    return make
