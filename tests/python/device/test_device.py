"""The device interface from Python, on the device library that the C++ tests build over host memory."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from railweave import device
from railweave.device import DeviceCommunicator, Transfer
from railweave.errors import Error
from railweave.exchange import BootstrapError, ExchangeError, SettingsError, TransportError

LIBRARY = Path(__file__).resolve().parents[3] / "build/dev/tests/cpp/nccl/librailweave_cuda.so"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built (make build)")
    monkeypatch.setenv("RAILWEAVE_CUDA_LIBRARY", str(LIBRARY))


def on_ranks(world: int, body: Callable[[int, str], None]) -> None:
    """Runs the body on a thread a rank; raises the first error."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        rendezvous = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                body(rank, rendezvous)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("library")
def test_transfers_arrive_and_are_counted() -> None:
    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 3, rank, rendezvous)  # a default stream each
        send = np.arange(3 * 100_000, dtype=np.int32) + 1_000_000 * rank
        receive = np.zeros_like(send)
        registration = communicator.register(send.ctypes.data, send.nbytes)
        transfers = []
        for peer in range(3):
            offset = peer * 400_000
            transfers.append(Transfer(True, peer, send.ctypes.data + offset, 400_000))
            transfers.append(Transfer(False, peer, receive.ctypes.data + offset, 400_000))
        communicator.enqueue([], 0)
        communicator.enqueue(transfers, 0)
        while communicator.counters().completed < 6:
            communicator.check()
            time.sleep(0.005)
        for peer in range(3):
            wanted = np.arange(rank * 100_000, (rank + 1) * 100_000) + 1_000_000 * peer
            assert np.array_equal(receive[peer * 100_000 : (peer + 1) * 100_000], wanted)
        assert communicator.counters()[:4] == (6, 6, 1_200_000, 1_200_000)
        communicator.deregister(registration)
        communicator.close()
        communicator.close()

    on_ranks(3, body)


@pytest.mark.usefixtures("library")
def test_all_to_all_v_takes_its_sizes_in_the_order_of_ranks() -> None:
    def elements(source: int, destination: int) -> int:
        return 100 * ((source + 2 * destination) % 3)  # none for some

    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 3, rank, rendezvous)
        send = np.concatenate([np.arange(elements(rank, peer)) + 1000 * rank + peer for peer in range(3)])
        wanted = np.concatenate([np.arange(elements(peer, rank)) + 1000 * peer + rank for peer in range(3)])
        receive = np.zeros_like(wanted)
        sizes = [[8 * elements(peer, rank) for peer in range(3)], [8 * elements(rank, peer) for peer in range(3)]]
        communicator.all_to_all_v(receive.ctypes.data, sizes[0], send.ctypes.data, sizes[1], 0)
        messages = sum(size != 0 for role in sizes for size in role)
        while communicator.counters().completed < messages:
            communicator.check()
            time.sleep(0.005)
        assert np.array_equal(receive, wanted)
        assert communicator.counters()[:4] == (messages, messages, send.nbytes, receive.nbytes)
        communicator.close()

    on_ranks(3, body)


@pytest.mark.usefixtures("library")
def test_all_to_all_v_wants_a_size_for_each_rank() -> None:
    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 1, rank, rendezvous, {"drain_ms": "100"})
        for output_sizes, input_sizes, wrong in (([], [8], "output_sizes has 0"), ([8], [8, 8], "input_sizes has 2")):
            with pytest.raises(ExchangeError, match=f"{wrong} entries; expected one for each of 1 ranks"):
                communicator.all_to_all_v(8, output_sizes, 8, input_sizes, 0)
        communicator.close()

    on_ranks(1, body)


@pytest.mark.usefixtures("library")
def test_a_failed_communicator_says_so_at_the_next_call() -> None:
    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 2, rank, rendezvous, {"drain_ms": "100"})
        memory = np.zeros(1, dtype=np.int64)
        if rank == 0:
            communicator.enqueue([Transfer(False, 1, memory.ctypes.data, 8)], 0)
            with pytest.raises(ExchangeError, match="rank 1"):  # which leaves without
                while True:
                    communicator.check()
                    time.sleep(0.005)
            with pytest.raises(ExchangeError, match="rank 1"):
                communicator.all_to_all_v(memory.ctypes.data, [0, 0], memory.ctypes.data, [0, 0], 0)
        communicator.close()

    on_ranks(2, body)


@pytest.mark.usefixtures("library")
def test_threads_watch_a_communicator_that_another_closes_and_may_end_its_wait() -> None:
    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 1, rank, rendezvous, {"drain_ms": "100"})
        never_sent = np.zeros(1, dtype=np.int64)
        communicator.enqueue([Transfer(False, 0, never_sent.ctypes.data, 8)], 0)
        closing = threading.Thread(target=communicator.close, daemon=True)
        closing.start()
        for _ in range(20):  # also when the other has begun
            communicator.check()
            assert communicator.counters().completed == 0
            time.sleep(0.005)
        communicator.abort()
        closing.join()
        for call in (communicator.check, communicator.counters, communicator.abort):
            with pytest.raises(ExchangeError, match="closed"):
                call()

    on_ranks(1, body)


@pytest.mark.usefixtures("library")
def test_what_was_decided_goes_to_a_logger(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STAND_IN_TELLS", "a receive buffer is reached through slots")
    monkeypatch.setenv("STAND_IN_WARNS", "not as calibrated")
    caplog.set_level(logging.INFO, "railweave.device")
    on_ranks(2, lambda rank, rendezvous: DeviceCommunicator(rank, 2, rank, rendezvous).close())
    said = {(record.levelname, record.getMessage()) for record in caplog.records if record.name == "railweave.device"}
    for rank in range(2):
        assert ("INFO", f"rank {rank} of 2: a receive buffer is reached through slots") in said
        assert ("WARNING", f"rank {rank} of 2: not as calibrated") in said


@pytest.mark.usefixtures("library")
def test_whichever_call_is_next_logs_what_was_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STAND_IN_TELLS_BUFFERS", "1")
    caplog.set_level(logging.INFO, "railweave.device")

    def body(rank: int, rendezvous: str) -> None:
        communicator = DeviceCommunicator(rank, 1, rank, rendezvous, {"drain_ms": "100"})
        for call in (
            communicator.check,
            communicator.counters,
            lambda: communicator.deregister(1),
            lambda: communicator.enqueue([], 0),
            lambda: communicator.all_to_all_v(0, [0], 0, [0], 0),
            communicator.abort,
            communicator.close,
        ):
            communicator.register(1, 8)
            caplog.clear()
            call()
            assert "rank 0 of 1: maps 8 bytes ahead" in caplog.messages

    on_ranks(1, body)


@pytest.mark.usefixtures("library")
def test_what_a_communicator_told_before_it_failed_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STAND_IN_WARNS", "not as calibrated")
    monkeypatch.setenv("STAND_IN_LACKS_MEMORY", "0 untold")
    with pytest.raises(Error, match="out of memory"):
        DeviceCommunicator(0, 2, 0, "tcp://127.0.0.1:1")
    assert caplog.messages == ["rank 0 of 2: not as calibrated"]


@pytest.mark.usefixtures("library")
def test_errors_are_typed_and_say_what_was_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BootstrapError, match="rendezvous 'nowhere'"):
        DeviceCommunicator(0, 2, 0, "nowhere")
    with pytest.raises(SettingsError, match="chunk_bytes"):
        DeviceCommunicator(0, 2, 0, "tcp://127.0.0.1:1", {"chunk_bytes": "none", "bootstrap_ms": "100"})  # the other is told
    monkeypatch.setenv("STAND_IN_REFUSES_DEVICE", "3")
    with pytest.raises(Error, match="device 3 is refused"):
        DeviceCommunicator(0, 2, 3, "tcp://127.0.0.1:1")
    monkeypatch.setenv("RAILWEAVE_CUDA_LIBRARY", "/nowhere.so")
    with pytest.raises(TransportError, match="RAILWEAVE_CUDA_LIBRARY"):
        DeviceCommunicator(0, 1, 0, "tcp://127.0.0.1:1")


@pytest.mark.usefixtures("library")
def test_the_library_is_named_by_its_file_wherever_it_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.library() == str(LIBRARY)
    monkeypatch.delenv("RAILWEAVE_CUDA_LIBRARY")
    # On the loader's path, where none lies beside the extension module.
    ask = "from railweave import _native, device; _native.__file__ = '/nowhere/_native.so'; print(device.library())"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)}
    done = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{LIBRARY}\n"
