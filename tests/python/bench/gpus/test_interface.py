"""What ranks of a system call, with a stand-in for railweave.torch. Needs no PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

_INTERFACE = "railweave.bench.gpus.interface"


class RailweaveTorch(ModuleType):
    """Says what it was asked for."""

    def __init__(self) -> None:
        super().__init__("railweave.torch")
        self.said: list[Any] = []

    def all_to_all_single(self, output: Any, input_: Any, output_rows: Any = None, input_rows: Any = None, async_op: bool = False) -> Any:
        self.said.append((input_, output_rows, input_rows, async_op))

        def wait() -> Any:
            self.said.append("waited")
            return f"{output} of {input_}"

        return SimpleNamespace(wait=wait) if async_op else f"{output} of {input_}"

    def register(self, tensor: Any) -> int:
        self.said.append(f"register {tensor.numel()}")
        return int(tensor.numel())

    def deregister(self, registration: int, device: Any) -> None:
        self.said.append(f"deregister {registration} of {device}")

    def close(self) -> None:
        self.said.append("close")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, RailweaveTorch]]:
    torch, distributed, functional = (ModuleType(f"torch{rest}") for rest in ("", ".distributed", ".distributed.nn.functional"))
    vars(torch).update(zeros=lambda count, device: f"{count} on {device}", empty_like=lambda tensor: tensor, distributed=distributed)
    vars(distributed).update(get_world_size=lambda: 3)
    vars(functional).update(all_to_all_single=None)
    ours = RailweaveTorch()
    for each in (torch, distributed, ModuleType("torch.distributed.nn"), functional, ours):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    monkeypatch.delitem(sys.modules, _INTERFACE, raising=False)
    yield importlib.import_module(_INTERFACE), ours
    sys.modules.pop(_INTERFACE, None)


def tensor(count: int) -> Any:
    return SimpleNamespace(numel=lambda: count, device="cuda:1")


@pytest.mark.parametrize("form", ["plain", "async", "registered"])
def test_every_form_of_railweave_torch(form: str, module: tuple[ModuleType, RailweaveTorch], monkeypatch: pytest.MonkeyPatch) -> None:
    interface, ours = module
    monkeypatch.setenv("BENCH_INTERFACE", form)
    chosen = interface.chosen()
    assert ours.said == [("3 on cuda", None, None, False)], "all ranks make the communicator before one of them may have nothing to say"
    ours.said.clear()
    assert chosen.differentiable("output", "input", [1, 2], [2, 1]) == "output of input"
    chosen.exchange("output", "input", [1, 2], [2, 1])
    call = [("input", [1, 2], [2, 1], form == "async"), *(["waited"] if form == "async" else [])]
    assert ours.said == 2 * call
    ours.said.clear()
    chosen.hold(tensor(5), tensor(0))
    chosen.hold(tensor(7))
    chosen.close()
    held = ["register 5", "deregister 5 of cuda:1", "register 7", "deregister 7 of cuda:1"]
    assert ours.said == [*(held if form == "registered" else []), "close"], "nothing is freed that others have mapped, and nothing is empty"


def test_without_a_word_it_is_torch_distributed(module: tuple[ModuleType, RailweaveTorch], monkeypatch: pytest.MonkeyPatch) -> None:
    interface, ours = module
    monkeypatch.delenv("BENCH_INTERFACE", raising=False)
    called: list[Any] = []
    monkeypatch.setattr(interface.dist, "all_to_all_single", lambda *arguments: called.append(arguments), raising=False)
    chosen = interface.chosen()
    chosen.hold(tensor(5))
    chosen.exchange("output", "input", [1], [2])
    chosen.close()
    assert (called, ours.said) == ([("output", "input", [1], [2])], [])
