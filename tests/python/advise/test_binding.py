"""Cores and memory by rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from railweave import fabric
from railweave.advise.binding import bind, notes
from railweave.advise.cpulist import from_list, to_mask
from railweave.advise.host import Core, Host, Numa, read_host
from railweave.launch.placement import cpu_text

Furnished = Callable[..., Host]


def test_ranks_get_equal_blocks_of_whole_cores_on_their_gpus_socket(furnished: Furnished) -> None:
    bindings = bind(furnished("xe9680-4hca", cores=36))
    assert [cpu_text(binding.cpus or ()) for binding in bindings[:2]] == ["0-8,72-80", "9-17,81-89"]
    assert [binding.memory for binding in bindings] == [(0,)] * 4 + [(1,)] * 4
    taken = [cpu for binding in bindings for cpu in binding.cpus or ()]
    assert sorted(taken) == list(range(144)), "each thread of each core serves one rank"


@pytest.mark.parametrize("cores", range(4, 14))
def test_uneven_cores_differ_by_one_at_most(furnished: Furnished, cores: int) -> None:
    sizes = [len(binding.cpus or ()) for binding in bind(furnished("xe9680-4hca", cores=cores, smt=1))]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 2 * cores


def test_a_small_sub_numa_node_borrows_from_its_package_only(furnished: Furnished) -> None:
    """NPS4 with 2 cores a part and 4 ranks on the first part of each socket."""
    bindings = bind(furnished("lineyahoo-2nic", cores=8, smt=1, parts=4))
    assert [binding.cpus for binding in bindings] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13), (14, 15)]
    assert bindings[3].memory == (3,)


def test_sub_numa_nodes_that_borrow_from_the_same_ones_get_a_part_each(furnished: Furnished) -> None:
    """Three ranks on the first part of each socket, one on the second, whose cores are isolated."""
    host = furnished("lineyahoo-2nic", cores=8, smt=1, parts=4)
    gpus = tuple(replace(gpu, numa=0 if gpu.rank < 3 else 1) for gpu in host.gpus[:4])
    numas = tuple(replace(numa, cores=()) if numa.number == 1 else numa for numa in host.numas)
    bindings = bind(replace(host, gpus=gpus, numas=numas))
    assert [binding.cpus for binding in bindings] == [(0,), (1, 4), (5, 6), (7,)]
    assert bindings[3].memory == (3,)


def test_a_node_that_lends_its_cores_is_not_said_to_leave_them_to_others(furnished: Furnished) -> None:
    said = notes(furnished("lineyahoo-2nic", cores=8, smt=1, parts=4))
    assert not any("left to other work" in note for note in said)
    said = notes(furnished("lineyahoo-2nic", cores=32, smt=1, parts=4))
    assert any("no GPU hangs from NUMA node 1, 2, 3, 5, 6, 7: " in note for note in said)


def test_a_sub_numa_node_that_suffices_is_not_left(furnished: Furnished) -> None:
    bindings = bind(furnished("lineyahoo-2nic", cores=32, smt=1, parts=4))
    assert [binding.cpus for binding in bindings[:4]] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert any("NPS" in note for note in notes(furnished("lineyahoo-2nic", cores=32, parts=4)))


def test_memory_without_cores_leaves_none_to_other_work(furnished: Furnished) -> None:
    """A node of CXL memory, or of a Grace GPU's."""
    host = furnished("xe9680-4hca")
    with_memory = replace(host, numas=(*host.numas, Numa(2, cores=())))
    assert notes(with_memory) == notes(host) and bind(with_memory) == bind(host)
    idle = replace(host, numas=(*with_memory.numas, Numa(3, cores=(Core((99,)),))))
    assert any("no GPU hangs from NUMA node 3: " in note for note in notes(idle))


def test_a_gpu_of_unknown_place_may_hang_from_any_node(furnished: Furnished) -> None:
    host = furnished("xe9680-4hca")
    for hidden in ((0, 1, 2, 3, 4, 5, 6, 7), (4, 5, 6, 7)):
        said = notes(replace(host, gpus=tuple(replace(gpu, numa=None) if gpu.rank in hidden else gpu for gpu in host.gpus)))
        assert any("is not known" in note for note in said) and not any("no GPU hangs from" in note for note in said)


def test_more_ranks_than_cores_share(furnished: Furnished) -> None:
    assert [binding.cpus for binding in bind(furnished("charisma-ab", cores=2, smt=1))] == [(0,), (0,), (1,), (1,)]


def test_nothing_is_guessed_without_facts() -> None:
    host = read_host(fabric.load("xe9680-4hca"))
    assert all(binding.cpus is None for binding in bind(host))
    hidden = replace(host, gpus=tuple(replace(gpu, numa=None) for gpu in host.gpus))
    assert all(binding.memory is None for binding in bind(hidden))
    assert any("not bound" in note for note in notes(hidden))


def test_cpu_sets_are_written_as_linux_and_slurm_do() -> None:
    assert cpu_text([3, 1, 2, 8]) == "1-3,8"
    assert from_list("1-3,8\n") == (1, 2, 3, 8)
    assert from_list("") == ()
    assert to_mask([0, 1, 2, 3, 8]) == "0x10f"
    for text in ("3-1", "x", "-1", "1-999999"):
        with pytest.raises(ValueError):
            from_list(text)
