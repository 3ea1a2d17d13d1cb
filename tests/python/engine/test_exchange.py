"""Exchange from Python: arrays, groups, errors, settings and their page."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from railweave import _native
from railweave.exchange import Exchange, ExchangeError, SettingsError, settings


def run_ranks(directory: Path, world: int, body: Callable[[Exchange], None], **chosen: object) -> None:
    """Runs `body` on each rank in a thread; two nodes when the world is even. A busy machine may hold a thread up for seconds."""
    chosen = {"death_ms": 600_000, "bootstrap_ms": 120_000, **chosen}
    failures: list[BaseException] = []
    ended = threading.Barrier(world)

    def rank_main(rank: int) -> None:
        try:
            node = f"node{2 * rank // world}"
            with Exchange(rank, world, f"file://{directory}", node_id=node, nics="lo", **chosen) as exchange:
                body(exchange)
                ended.wait(240)
        except BaseException as error:
            failures.append(error)
            ended.abort()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
def test_all_to_all_v_moves_items_of_any_dtype(tmp_path: Path, dtype: Any) -> None:
    world = 4
    counts = np.array([[0, 5, 100_000, 7], [1, 2, 3, 300_000], [9, 9, 9, 9], [70_000, 0, 0, 1]])

    def body(exchange: Exchange) -> None:
        me = exchange.rank
        send = (np.arange(counts[me].sum()) % 251 + me).astype(dtype)
        recv = exchange.empty(int(counts[:, me].sum()), dtype)
        report = exchange.all_to_all_v(send, recv, counts[me].tolist(), counts[:, me].tolist())
        at = 0
        for source in range(world):
            start, count = int(counts[source, :me].sum()), int(counts[source, me])
            everything = (np.arange(counts[source].sum()) % 251 + source).astype(dtype)
            np.testing.assert_array_equal(recv[at : at + count], everything[start : start + count])
            at += count
        assert exchange.last_operation() == report
        assert report.bytes_sent == (counts[me].sum() - counts[me, me]) * np.dtype(dtype).itemsize

    run_ranks(tmp_path, world, body)


def test_groups_match_by_communicator_and_order(tmp_path: Path) -> None:
    def body(exchange: Exchange) -> None:
        peer = 1 - exchange.rank
        first, second = np.zeros(1000), np.zeros(1000)
        with exchange.group(communicator=5) as group:
            group.send(np.full(1000, exchange.rank + 10.0), peer)
            group.send(np.full(1000, exchange.rank + 20.0), peer)
            group.recv(first, peer)
            group.recv(second, peer)
        assert set(first) == {peer + 10.0}
        assert set(second) == {peer + 20.0}

    run_ranks(tmp_path, 2, body)


def test_what_cannot_be_sent_is_refused_with_a_reason(tmp_path: Path) -> None:
    def body(exchange: Exchange) -> None:
        group = exchange.group()
        with pytest.raises(ExchangeError, match="not C-contiguous"):
            group.send(np.zeros((4, 4))[:, 1], 0)
        with pytest.raises(ExchangeError, match="read-only"):
            frozen = np.zeros(4)
            frozen.flags.writeable = False
            group.recv(frozen, 0)
        with pytest.raises(ExchangeError, match="expected a NumPy array"):
            group.send([1, 2], 0)  # type: ignore[arg-type]
        with pytest.raises(ExchangeError, match="add up to 9 items"):
            exchange.all_to_all_v(np.zeros(8), np.zeros(8), [9], [8])
        with pytest.raises(ExchangeError, match="negative"):
            exchange.all_to_all_v(np.zeros(8), np.zeros(8), [-1], [8])
        with pytest.raises(ExchangeError, match="expected whole numbers of items"):
            exchange.all_to_all_v(np.zeros(8), np.zeros(8), [1.5], [1])  # type: ignore[list-item]
        with pytest.raises(ExchangeError, match="expected whole numbers of items"):
            exchange.all_to_all_v(np.zeros(8), np.zeros(8), None, [1])  # type: ignore[arg-type]
        with pytest.raises(ExchangeError, match="8 bytes from rank 0 to itself, which is to receive 0"):
            exchange.all_to_all_v(np.zeros(8), np.zeros(8), [1], [0])
        with pytest.raises(ExchangeError, match="peer -1; expected 0 to"):
            group.send(np.zeros(1), -1)
        with pytest.raises(ExchangeError, match="communicator 4294967296; expected 0 to"):
            exchange.group(communicator=1 << 32)

    run_ranks(tmp_path, 1, body)


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [(-1, np.uint8, "sizes from 0"), ((2, -2), np.uint8, "sizes from 0"), (2**62, np.float64, "2\\^63"), (3, object, "objects")],
)
def test_arrays_that_cannot_be_are_refused(tmp_path: Path, shape: Any, dtype: Any, says: str) -> None:
    with Exchange(0, 1, f"file://{tmp_path}", nics="lo") as exchange, pytest.raises(ExchangeError, match=says):
        exchange.empty(shape, dtype)


@pytest.mark.parametrize("shape", [6, np.int64(6), (2, 3), [np.int64(2), 3], np.array([2, 3])], ids=repr)
def test_shapes_of_arrays_are_numpys(tmp_path: Path, shape: Any) -> None:
    with Exchange(0, 1, f"file://{tmp_path}", nics="lo") as exchange:
        assert exchange.empty(shape, np.int16).shape == np.empty(shape).shape


def test_a_forked_child_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    """What it inherits of an exchange between nodes, sockets and all, stays its parent's however the child lets go of it."""

    def body(exchange: Exchange) -> None:
        peer = 1 - exchange.rank
        group = exchange.group()
        group.recv(late := np.zeros(100_000), peer)
        outstanding = group.end()
        reached.wait(60)
        if exchange.rank == 0:
            child = os.fork()
            if child == 0:
                told = []
                for use in (lambda: exchange.group().end(), outstanding.test, outstanding.wait, lambda: exchange.empty(8)):
                    try:
                        use()
                    except ExchangeError as error:
                        told.append("a forked child must create its own" in str(error))
                exchange.close()
                os._exit(0 if told == [True] * 4 and let_go(exchange) else 1)
            assert os.waitpid(child, 0)[1] == 0
        reached.wait(60)
        group = exchange.group()
        group.send(np.full(100_000, exchange.rank + 1.0), peer)
        group.end().wait()
        outstanding.wait()
        assert (late == peer + 1).all()

    def let_go(exchange: Exchange) -> bool:
        del exchange._native
        gc.collect()
        return True

    reached = threading.Barrier(2)
    run_ranks(tmp_path, 2, body)


def test_a_forked_child_that_lets_go_of_received_data_leaves_its_parent_the_data(tmp_path: Path) -> None:
    with Exchange(0, 1, f"file://{tmp_path}", nics="lo") as exchange:
        received = exchange.empty(100_000)
        received[:] = 7
        child = os.fork()
        if child == 0:
            del received
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert (received == 7).all()


def test_ranks_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for rank, world, says in ((-1, 2, "rank -1; expected 0 to"), (0, -2, "world -2"), (2, 2, "rank 2 of 2"), (1.0, 2, "rank 1.0: ")):
        with pytest.raises(ExchangeError, match=says):
            Exchange(rank, world, f"file://{tmp_path}")  # type: ignore[arg-type]


def test_arrays_live_also_where_threads_post_side_by_side(tmp_path: Path) -> None:
    many, size = 200, 100_000

    def post(communicator: int) -> None:
        for _ in range(many):
            Finalized()
            group = exchange.group(communicator=communicator)
            received = np.zeros(size, np.uint8)
            group.recv(received, 0)
            group.end()
            alive.append(weakref.ref(received))

    class Finalized:
        """Garbage whose end runs Python code, in the middle of whatever allocates."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            for _ in range(20):
                pass

    alive: list[weakref.ref[Any]] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with Exchange(0, 1, f"file://{tmp_path}", nics="lo") as exchange:
            threads = [threading.Thread(target=post, args=[communicator]) for communicator in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            gc.collect()
            assert [reference() is None for reference in alive] == [False] * 4 * many
            for communicator in range(4):
                with exchange.group(communicator=communicator) as group:
                    for _ in range(many):
                        group.send(np.ones(size, np.uint8), 0)
    finally:
        sys.setswitchinterval(before)


def test_threads_may_close_side_by_side(tmp_path: Path) -> None:
    def close(exchange: Exchange, together: threading.Barrier) -> None:
        together.wait(60)
        try:
            exchange.close()
        except RuntimeError as error:
            failures.append(error)

    failures: list[RuntimeError] = []
    for life in range(10):
        exchange = Exchange(0, 1, f"file://{tmp_path}/{life}", nics="lo")
        together = threading.Barrier(2)
        threads = [threading.Thread(target=close, args=[exchange, together], daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [thread.is_alive() for thread in threads] == [False, False]
    assert failures == []


def test_arrays_live_until_their_operation_has_ended_whoever_waits(tmp_path: Path) -> None:
    with Exchange(0, 1, f"file://{tmp_path}") as exchange:
        received = np.zeros(300_000)
        alive = weakref.ref(received)
        forgotten = exchange.group()
        forgotten.recv(received, 0)
        forgotten.end()
        del received, forgotten
        gc.collect()
        assert alive() is not None
        with exchange.group() as group:
            group.send(np.ones(300_000), 0)
        while alive() is not None:  # whoever comes next frees what has ended
            exchange.all_to_all_v(np.zeros(1), np.zeros(1), [1], [1])


def test_other_threads_go_on_while_an_exchange_that_was_let_go_of_ends(tmp_path: Path) -> None:
    begins = threading.Event()

    def rank_0() -> None:
        exchange = Exchange(0, 2, f"file://{tmp_path}", nics="lo", drain_ms=600_000)
        with contextlib.ExitStack() as stack:
            group = exchange.group()
            group.recv(np.zeros(1), 1)
            group.end()
            # Nobody is given this thread's turn but by its own will.
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(1000)
            begins.set()
            del group, exchange  # it waits for the receive

    def rank_1() -> None:
        with Exchange(1, 2, f"file://{tmp_path}", nics="lo") as exchange:
            begins.wait()
            with exchange.group() as group:
                group.send(np.zeros(1), 0)

    threads = [threading.Thread(target=rank, daemon=True) for rank in (rank_0, rank_1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_program_ends_well_whatever_its_daemon_threads_wait_for(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time\n"
        "import numpy as np\n"
        "from railweave.exchange import Exchange\n"
        "exchange = Exchange(0, 1, sys.argv[1], nics='lo', drain_ms=1)\n"
        "group = exchange.group()\n"
        "group.recv(np.zeros(1), 0)\n"
        "handle = group.end()\n"
        "for _ in range(20): threading.Thread(target=handle.wait, daemon=True).start()\n"
        "time.sleep(0.15)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, f"file://{tmp_path}"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_example_runs() -> None:
    example = Path(__file__).parents[3] / "examples" / "exchange.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["rank 0: 1000004 bytes received, all right", "rank 1: 4000004 bytes received, all right"],
    ), done.stderr


def test_a_closed_exchange_says_so(tmp_path: Path) -> None:
    exchange = Exchange(0, 1, f"file://{tmp_path}")
    exchange.close()
    with pytest.raises(ExchangeError, match="closed"):
        exchange.all_to_all_v(np.zeros(1), np.zeros(1), [1], [1])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("chunk_bytes", "1", "4096"),
        ("chunk_bytes", "64kb", "bytes"),
        ("gpu_direct", "auto", "from 0 to 3"),
        ("gpu_direct", "4", "from 0 to 3"),
        ("policy", "best", "single-path"),
        ("colour", "blue", "no setting"),
    ],
)
def test_settings_are_checked(tmp_path: Path, name: str, value: str, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Exchange(0, 1, f"file://{tmp_path}", **{name: value})


def test_a_variable_that_one_rank_cannot_read_is_told_to_all(tmp_path: Path) -> None:
    code = "import sys; from railweave.exchange import Exchange; Exchange(int(sys.argv[1]), 2, sys.argv[2])"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), f"file://{tmp_path}"],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | ({"RAILWEAVE_SPIN_US": "1ms"} if rank else {}),
        )
        for rank in (0, 1)
    ]
    texts = [rank.communicate(timeout=120)[1] for rank in ranks]
    reason = "setting spin_us (RAILWEAVE_SPIN_US): '1ms'; expected a number of us from 0 to 100000\n"
    assert texts[0].endswith("BootstrapError: rank 1: " + reason)
    assert texts[1].endswith("SettingsError: " + reason)


def test_a_fabric_that_one_rank_cannot_read_is_told_to_all(tmp_path: Path) -> None:
    code = (
        "import sys; from railweave.exchange import Exchange\n"
        "Exchange(int(sys.argv[1]), 2, sys.argv[2], fabric='{' if sys.argv[1] == '1' else None)"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), f"file://{tmp_path}"], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    told, own = (rank.communicate(timeout=120)[1].splitlines()[-1] for rank in ranks)
    assert told.startswith("railweave._native.BootstrapError: rank 1: fabric:1:")
    assert own.startswith("railweave._native.ParseError: fabric:1:")


Start = Callable[[int, int, str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Ranks that wait for others far longer than any test, and note that Ctrl-C got out of Exchange(). None outlives its test."""
    code = (
        "import signal, sys\n"
        "from railweave.exchange import Exchange\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: Exchange(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], nics='lo', bootstrap_ms=3_000_000)\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    started: list[subprocess.Popen[str]] = []

    def rank(rank: int, world: int, rendezvous: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code, str(rank), str(world), rendezvous]
        started.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield rank
    for process in started:
        process.kill()
        process.wait()


def _interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


def _until(true: Callable[[], object], process: subprocess.Popen[str]) -> None:
    while not true():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_the_wait_for_others_and_leaves_no_files(start: Start, tmp_path: Path, rank: int) -> None:
    process = start(rank, 2, f"file://{tmp_path}")
    _until(lambda: any(not path.name.endswith(".part") for path in tmp_path.iterdir()), process)
    assert _interrupted(process) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_the_wait_for_rank_0_over_tcp(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = start(1, 2, f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:
            assert _interrupted(process) == (130, "")


def test_others_hear_over_tcp_that_a_rank_was_interrupted(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = [start(rank, 3, f"tcp://127.0.0.1:{port}") for rank in (0, 1)]

    def introduced() -> bool:
        """Bytes of rank 1 wait for rank 0: its part of the first round, which nobody reads before rank 2 comes, or at least its name.

        A connection alone is not enough: whoever goes away before saying which rank it is was none.
        """
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return any(line[1].endswith(f":{port:04X}") and line[3] == "01" and int(line[4].split(":")[1], 16) > 0 for line in lines)

    _until(introduced, ranks[1])
    assert _interrupted(ranks[1]) == (130, "")
    assert "BootstrapError: rank 1 closed its connection" in ranks[0].communicate(timeout=120)[1]


def test_descriptors_that_rank_0_lacks_to_hear_others_are_named() -> None:
    code = (
        "import os, resource, sys\n"
        "from railweave.exchange import Exchange\n"
        "next = os.dup(0)\n"
        "os.close(next)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (next + 1, next + 1))\n"  # one socket, to listen
        "Exchange(0, 2, sys.argv[1], nics='lo', bootstrap_ms=100_000)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = free.getsockname()
    rank_0 = subprocess.Popen([sys.executable, "-c", code, f"tcp://127.0.0.1:{place[1]}"], stderr=subprocess.PIPE, text=True)
    with socket.socket() as comes:
        _until(lambda: comes.connect_ex(place) == 0, rank_0)
        said = rank_0.communicate(timeout=60)[1]
    assert "BootstrapError: rank 0 cannot accept connections at tcp://127.0.0.1" in said
    assert "Too many open files; raise the limit of open files (ulimit -n)" in said


def test_links_that_the_process_has_no_descriptors_for_are_refused(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from railweave.exchange import Exchange\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "Exchange(int(sys.argv[1]), 2, sys.argv[2], node_id=sys.argv[1], nics=','.join(['lo'] * 60))\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), f"file://{tmp_path}"], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for rank in ranks:
        text = rank.communicate(timeout=120)[1]
        assert "BootstrapError: rank 0: 60 links to NICs on other nodes need 120 descriptors; the process has " in text
        assert " of the 200 that it may have (raise ulimit -n)" in text


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "settings.md"
    assert _native.exchange_settings_markdown() in page.read_text()
    assert {row["environment"] for row in settings()} >= {"RAILWEAVE_POLICY", "RAILWEAVE_CHUNK_BYTES"}
