"""Counters of the shim: the text that the C++ side writes, rates, what Prometheus gets, and the command."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from railweave.cli import top
from railweave.nccl import ShimError
from railweave.nccl.metrics import Look, counted_from, merged, nic_rates, parse, rates, read, traffic

PROCESS = 'host="n1",pid_namespace="4026531836",pid="7"'
LABELS = PROCESS + ',communicator="ab",rank="{rank}",world="2",device="0"'


def text(rank: int, sent: int, completed: int = 3) -> str:
    """As tests/cpp/nccl/parts_test.cpp (Metrics) holds the C++ side to."""
    labels = LABELS.format(rank=rank)
    return (
        "# HELP railweave_messages_enqueued_total Messages handed to Railweave.\n"
        "# TYPE railweave_messages_enqueued_total counter\n"
        f"railweave_messages_enqueued_total{{{labels}}} 4\n"
        "# HELP railweave_messages_completed_total Messages that have ended.\n"
        "# TYPE railweave_messages_completed_total counter\n"
        f"railweave_messages_completed_total{{{labels}}} {completed}\n"
        "# HELP railweave_sent_bytes_total Bytes of sends that have ended.\n"
        "# TYPE railweave_sent_bytes_total counter\n"
        f"railweave_sent_bytes_total{{{labels}}} {sent}\n"
        "# HELP railweave_path_bytes_total Bytes sent so far by kind of path, repeated ones included.\n"
        "# TYPE railweave_path_bytes_total counter\n"
        f'railweave_path_bytes_total{{{labels},path="direct"}} {sent}\n'
    )


def nic_text(rank: int, sent: dict[str, int], own: str, down: tuple[str, ...] = (), communicator: str = "ab", host: str = "n1") -> str:
    """As the same test does; `sent` by NIC, `down`: what the links of the own one that are down lead to."""
    labels = LABELS.format(rank=rank).replace('"ab"', f'"{communicator}"').replace('"n1"', f'"{host}"')
    return (
        "".join(f'railweave_nic_bytes_total{{{labels},nic="{name}"}} {bytes_}\n' for name, bytes_ in sent.items())
        + f'railweave_nic_bytes_per_second{{{labels},nic="{own}"}} 1000\n'
        f'railweave_nic_links{{{labels},nic="{own}"}} 4\n'
        f'railweave_nic_links_down{{{labels},nic="{own}"}} {len(down)}\n'
        + "".join(f'railweave_link_down{{{labels},nic="{own}",peer="{peer}"}} 1\n' for peer in down)
    )


def peer_text(rank: int, moved: dict[int, tuple[int, int]], communicator: str = "ab") -> str:
    """As the same test does: by peer what was sent and received."""
    labels = LABELS.format(rank=rank).replace('"ab"', f'"{communicator}"')
    return "".join(
        f'railweave_peer_bytes_total{{{labels},peer="{peer}",direction="{direction}"}} {bytes_}\n'
        for peer, both in moved.items()
        for direction, bytes_ in zip(("sent", "received"), both, strict=True)
    )


def left(text_: str, reason: str, communicator: str = "cd", rank: int = 0, world: int = 4, state: str = "nccl") -> str:
    return (
        f'railweave_communicators{{{PROCESS},state="{state}",reason="{reason}"}} 1\n'
        f'# communicator {{{PROCESS},communicator="{communicator}",rank="{rank}",world="{world}",state="{state}",'
        f'reason="{reason}",text="{text_}"}}\n'
    )


def look_at(*texts: str, written: float = 0) -> Look:
    look = Look()
    for each in texts:
        look.add(parse(each, written=written))
    return look


def write(directory: Path, texts: dict[str, str], when: float) -> None:
    for name, content in texts.items():
        path = directory / f"railweave-{name}.prom"
        path.write_text(content)
        os.utime(path, (when, when))


def shown(directory: Path, before: dict[str, str], after: dict[str, str] | None = None) -> str:
    """What the command prints for files of that text, by name, at the first look and at the second, a second later."""
    now = time.time()
    write(directory, before, now - 1)
    first = read(directory, pytest.fail)
    write(directory, after or before, now)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(top._view(first, read(directory, pytest.fail), directory, []))
    found = console.export_text()
    assert max(map(len, found.splitlines())) <= 100
    return found


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[int]:
    """The port at which its counters are served."""
    with top._server(directory, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def idle(port: int, readers: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Readers that do not get to the end of their request."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 120)) for _ in range(readers)]
        for reader in opened:
            with contextlib.suppress(ConnectionError):  # closed already
                reader.sendall(sent)
        yield opened


def test_rates_come_from_two_looks_busiest_first() -> None:
    before = look_at(text(0, 100), text(1, 0), written=1)
    after = look_at(text(0, 300), text(1, 1000, completed=4), written=3)
    found = rates(before, after)
    assert [(row.counters.rank, row.sent, row.by_path["direct"], row.by_path["rail"], row.waiting) for row in found] == [
        (1, 500.0, 500.0, 0.0, 0),
        (0, 100.0, 100.0, 0.0, 1),
    ]


@pytest.mark.parametrize("interval", [0.3, 1.0, 1.5, 2.0])
def test_rates_are_between_writings_however_often_one_looks(interval: float, tmp_path: Path) -> None:
    """A rank and a NIC that move 1000 bytes a second, in a file that is written each second."""
    start, before, last = time.time(), Look(), Look()
    seen = []
    for look in range(20):
        second = int(0.45 + look * interval)
        write(tmp_path, {"n1-1": text(0, 1000 * second) + nic_text(0, {"mlx5_0": 1000 * second}, "mlx5_0")}, start + second)
        after = read(tmp_path, pytest.fail)
        before = counted_from(before, last, after)
        for row, nic in zip(rates(before, after), nic_rates(before, after), strict=True):
            assert (row.known, row.by_path["direct"], nic.sent) == (nic.known, row.sent, row.sent)
            seen.append((row.known, round(row.sent)))
        last = after
    unknown = seen.count((False, 0))
    assert seen == [(False, 0)] * unknown + [(True, 1000)] * (19 - unknown)
    assert unknown == sum(int(0.45 + look * interval) == 0 for look in range(1, 20)), "until the file is written again"


def test_counters_that_begin_anew_have_no_negative_rates() -> None:
    before = look_at(text(0, 5000) + nic_text(0, {"mlx5_0": 5000}, "mlx5_0"), written=1)
    after = look_at(text(0, 100) + nic_text(0, {"mlx5_0": 100}, "mlx5_0"), written=2)
    assert [(row.sent, row.by_path["direct"]) for row in rates(before, after)] == [(0, 0)]
    assert [nic.sent for nic in nic_rates(before, after)] == [0]


def test_a_rate_that_is_not_known_yet_is_no_zero(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5) + nic_text(0, {"mlx5_0": 5}, "mlx5_0"))
    once = read(tmp_path, pytest.fail)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(top._view(once, once, tmp_path, []))
    assert re.search(r"0 of 2 +n1 +- +- .*\n", console.export_text(clear=False))
    assert re.search(r"mlx5_0 +- +<0\.01 +0 of 4", console.export_text())


def test_a_slow_job_is_told_from_one_that_stands_still(tmp_path: Path) -> None:
    def at(sent: int) -> dict[str, str]:
        rate = nic_text(0, {"mlx5_0": sent}, "mlx5_0").replace(" 1000\n", " 1250000000\n")
        return {"n1-1": text(0, sent) + rate, "n1-2": text(1, 0)}

    found = shown(tmp_path, at(0), at(2_000_000))
    assert re.search(r"0 of 2 +n1 +<0\.01 +0\.00 +<0\.01 +0\.00", found), found
    assert re.search(r"1 of 2 +n1 +0\.00 +0\.00 +0\.00", found), found
    assert re.search(r"mlx5_0 +<0\.01 +1\.25 +<1% +0 of 4 +0: <0\.01", found), found


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        'railweave_sent_bytes_total{rank="0"} 1',
        "# communicator {",
        left("x", "one_rank").replace('rank="0"', 'rank="²"'),
        left("x", "one_rank").replace('communicator="cd",', ""),
        *(text(0, 1).replace('rank="0"', f'rank="{rank}"') for rank in ("x", "²", "٣", "-1", "", "1" * 5000)),
        *(peer_text(0, {1: (5, 6)}).replace('peer="1"', peer) for peer in ('peer="²"', 'peer="-1"', 'peer=""', 'nic="1"')),
        peer_text(0, {1: (5, 6)}).replace('"received"', '"written"'),
        *(text(0, 1).replace('world="2"', f'world="{world}"') for world in ("²", "1" * 5000)),
        *(text(0, 1).replace("} 4", f"}} {value}") for value in ("²", "٣", "-1", "1" * 5000)),
        *(text(0, 1).replace('host="n1",', host) for host in ('host="n1"', 'host="n\\",', 'hôst="",host="n1",')),  # nor Prometheus' text
        text(0, 1).replace("total counter", "total count"),
        "# HELP railweave_sent_bytes_total",
        "a page of text",
    ],
    ids=lambda _: "line",  # of thousands of characters
)
def test_what_is_no_counter_is_named(line: str) -> None:
    with pytest.raises(ShimError, match=r"here:\d+: "):
        parse(line, "here")


@pytest.mark.parametrize("odd", ["\u0085", "\u2028", "\u2029", "\r", "\x0b"])
def test_a_line_ends_where_the_shim_ends_it(odd: str) -> None:
    found = parse(text(0, 5).replace('"n1"', f'"n{odd}1"') + left(f"no {odd} driver", "refused"))
    assert [each.text for each in found.unserved] == [f"no {odd} driver"]
    assert [counters.host for counters in found.ranks.values()] == [f"n{odd}1"]


def test_an_odd_byte_hides_no_counter(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_bytes((text(0, 5) + left("no \udcff, é driver", "refused")).encode(errors="surrogateescape"))
    found = read(tmp_path, pytest.fail)
    assert ([counters.sent for counters in found.ranks.values()], found.unserved[0].text) == ([5], "no \ufffd, é driver")
    assert parse(merged(tmp_path, pytest.fail)).ranks == found.ranks


def test_what_only_a_newer_shim_writes_is_passed_over(tmp_path: Path) -> None:
    newer = (
        "# HELP railweave_wait_seconds How long.\n"
        "# TYPE railweave_wait_seconds histogram\n"
        f'railweave_wait_seconds_bucket{{{LABELS.format(rank=0)},le="+Inf"}} 7 # {{trace="x"}} 0.67\n'
        f"railweave_wait_seconds_sum{{{LABELS.format(rank=0)}}} 1.5e-3\n"
        "# HELP railweave_start\n"
        "railweave_start NaN\n"
        f"railweave_sent_bytes_total_of_late{{{PROCESS}}} -Inf 1700000000\n"
        f'railweave_nic_speed{{{LABELS.format(rank=0)},nic="mlx5_0"}} 5\n'
        "# written by version 7\n"
        "#\n"
        "# EOF\n"
    )
    assert parse(newer + text(0, 5)) == parse(text(0, 5))
    (tmp_path / "railweave-n1-1.prom").write_text(newer + text(0, 5))
    assert merged(tmp_path, pytest.fail) == text(0, 5), "nobody has looked whether the rest is as Prometheus wants it"


def test_of_two_builds_the_first_ones_descriptions_count(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    other = (
        text(1, 6).replace("Bytes of sends that have ended.", "Bytes of ended sends.").replace("bytes_total counter", "bytes_total gauge")
    )
    (tmp_path / "railweave-n1-2.prom").write_text(other)
    heads = [line for line in merged(tmp_path, pytest.fail).splitlines() if line.startswith("#")]
    assert heads == [line for line in text(0, 5).splitlines() if line.startswith("#")]


def test_prometheus_gets_each_description_once(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    (tmp_path / "railweave-n1-2.prom").write_text(text(1, 6) + left("rank 2: no shim there", "rank_missing"))
    joined = merged(tmp_path, pytest.fail)
    assert joined.count("# TYPE railweave_sent_bytes_total counter") == 1
    assert (joined.count('reason="rank_missing"} 1'), "no shim there" in joined) == (1, False), "texts have no end"
    assert parse(joined).ranks == read(tmp_path, pytest.fail).ranks
    assert {counters.sent for counters in read(tmp_path, pytest.fail).ranks.values()} == {5, 6}
    with serving(tmp_path) as port:
        for path in ("/metrics", "/metrics?by=hand"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
                assert answer.read().decode() == joined
        with pytest.raises(ShimError, match=f"port {port} of 127.0.0.1: Address already in use; expected an address of this machine"):
            top._server(tmp_path, "127.0.0.1", port)


@pytest.mark.parametrize(
    ("endpoint", "url", "others"),
    [
        ("0", r"http://127\.0\.0\.1:\d+/metrics", False),
        ("[::1]:0", r"http://\[::1\]:\d+/metrics", False),
        ("localhost:0", r"http://(127\.0\.0\.1|\[::1\]):\d+/metrics", False),
        ("0.0.0.0:0", rf"http://{re.escape(socket.gethostname())}:\d+/metrics", True),
        ("[::]:0", rf"http://{re.escape(socket.gethostname())}:\d+/metrics", None),
        (":0", rf"http://{re.escape(socket.gethostname())}:\d+/metrics", True),
    ],
)
def test_only_who_is_meant_to_is_served(endpoint: str, url: str, others: bool | None, tmp_path: Path) -> None:
    if "::" in endpoint:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"no IPv6: {error}")
    command = [sys.executable, "-u", "-m", "railweave", "top", str(tmp_path), "--listen", endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        try:
            told = serving.stdout.readline().strip()
            assert re.fullmatch(url, told)
            port = int(told.split(":")[-1].split("/")[0])
            if others is not False:  # the host's name need not be known to itself
                told = f"http://{'[::1]' if others is None else '127.0.0.1'}:{port}/metrics"
            for method in ("GET", "HEAD"):
                with urllib.request.urlopen(urllib.request.Request(told, method=method), timeout=120) as answer:
                    assert (answer.status, answer.read()) == (200, b"")
            # Any other address of this machine, of which its loopback has millions.
            with socket.socket() as other:
                assert others is None or (other.connect_ex(("127.0.0.2", port)) == 0) == others
        finally:
            serving.terminate()


@pytest.mark.root
def test_all_addresses_are_those_of_ipv4_too_whatever_the_system_says(tmp_path: Path) -> None:
    serve = (
        "import sys, socket, pathlib; from railweave.cli import top\n"
        "with top._server(pathlib.Path(sys.argv[1]), '', 0) as server: socket.create_connection(('127.0.0.1', server.server_address[1]))"
    )
    inside = 'ip link set lo up && { [ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/bindv6only; } || exit 77; exec "$@"'
    command = ["unshare", "--net", "sh", "-c", inside, "sh", sys.executable, "-c", serve, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode == 77:
        pytest.skip(f"bindv6only cannot be set: {done.stderr}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--count", "1000"), 130), (("--listen", "0"), 0)])
def test_ctrl_c_is_how_it_ends(options: tuple[str, ...], status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "railweave", "top", str(tmp_path), "--interval", "0.1", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None and shown.stderr is not None
        try:
            assert shown.stdout.readline()
            shown.send_signal(signal.SIGINT)
            _, told = shown.communicate(timeout=500)
        finally:
            shown.kill()
        assert (shown.returncode, told) == (status, "" if status == 0 else "railweave: interrupted\n")


def test_a_directory_that_has_gone_is_told_whatever_its_name(tmp_path: Path) -> None:
    directory = tmp_path / "日本"
    directory.mkdir()
    command = [sys.executable, "-u", "-m", "railweave", "top", str(directory), "--listen", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        try:
            told = serving.stdout.readline().strip()
            directory.rmdir()
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(told, timeout=120)
            assert (caught.value.code, "日本" in caught.value.read().decode()) == (500, True)
        finally:
            serving.terminate()


def test_what_is_no_url_is_a_bad_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path) as port, idle(port, 1, b"GET http://[x/metrics HTTP/1.0\r\n\r\n") as [reader]:
        assert reader.makefile("rb").readline() == b"HTTP/1.0 400 no URL\r\n"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("sent", [b"", b"GET /metr"])
def test_a_reader_that_asks_nothing_is_not_kept(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "_PATIENCE_S", 0.2)
    with serving(tmp_path) as port, idle(port, 1, sent) as [reader]:
        assert reader.recv(1) == b""
    assert capfd.readouterr().err == ""


def test_readers_that_ask_nothing_keep_no_other_out_and_few_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(top, "_PATIENCE_S", 600.0)
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    before = threading.active_count()
    with serving(tmp_path) as port, idle(port, 3 * top._MOST_READERS) as readers:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            assert answer.read().decode() == text(0, 5)
        assert readers[0].recv(1) == b"", "it came first"
        deadline = time.monotonic() + 120
        while (threads := threading.active_count() - before) > top._MOST_READERS + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads <= top._MOST_READERS + 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("endpoint", ["caf\udce9:9400", "a..b:9400", f"{'a' * 64}:9400"])
def test_what_is_no_name_of_a_host_is_refused(endpoint: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path), "--listen", endpoint])
    assert (refused.exit_code, "Invalid value for '--listen'" in refused.output, "is no name of a host" in refused.output) == (
        2,
        True,
        True,
    )


@pytest.mark.parametrize("endpoint", ["", "x", "65536", "host:", "::1:9400", "[::1]", "[]:9400", "1:2:3", "-1"])
def test_what_is_no_endpoint_is_refused(endpoint: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path), "--listen", endpoint])
    assert (refused.exit_code, f"'{endpoint}': expected PORT, ADDRESS:PORT" in refused.output) == (2, True)


@pytest.mark.parametrize("interval", ["nan", "-nan", "inf", "-inf", "1e300", "86401", "0.05", "0", "-1", "x", ""])
def test_what_is_no_interval_is_refused(interval: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path / "none"), "--interval", interval])
    expected = "is not a valid float" if interval in ("x", "") else "is not in the range 0.1<=x<=86400."
    assert (refused.exit_code, expected in refused.output) == (2, True), refused.output


def test_an_endpoint_shows_no_tables_to_count(tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path), "--listen", "192.0.2.1:0", "--count", "1"])
    assert (refused.exit_code, "--count is of tables, and --listen shows none" in refused.output) == (2, True)


def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    failed = CliRunner().invoke(top.command, [str(tmp_path), "--listen", "192.0.2.1:0"])
    assert str(failed.exception).startswith("port 0 of 192.0.2.1: Cannot assign requested address; expected an address of this machine")


def test_a_file_that_is_none_of_the_shims_is_named_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_bytes(b"\xff\xfe")
    (tmp_path / "railweave-n1-2.prom").mkdir()
    os.mkfifo(tmp_path / "railweave-n1-3.prom")
    (tmp_path / "railweave-n1-4.prom").write_text(text(1, 7)[:-20])
    (tmp_path / "railweave-n1-5.prom").write_text("# HELP\n")
    (tmp_path / "railweave-n1-6.prom").write_text(text(0, 5))
    (tmp_path / "railweave-n1-7.prom").write_text(text(1, 7).replace('rank="1"', 'rank="²"'))
    (tmp_path / "railweave-n1-8.prom").write_text(text(1, 7).replace("} 7\n", f"}} {'7' * 5000}\n"))
    (tmp_path / "railweave-n1-9.prom").symlink_to("railweave-n1-9.prom")
    expected = (
        *("1.prom:1: '\ufffd\ufffd'", "2.prom: cannot be read: Is a directory;", "3.prom: no file", r"4.prom:\d+: 'railweave"),
        *("5.prom:1: '# HELP'", "7.prom:3: 'railweave", r"8.prom:\d+: 'railweave", "9.prom: cannot be read: .*symbolic links;"),
    )
    for reader in (read, merged):
        left_out: list[str] = []
        found = reader(tmp_path, left_out.append)
        assert (parse(found) if isinstance(found, str) else found).ranks.keys() == {("ab", 0)}
        for text_of, why in zip(left_out, expected, strict=True):
            assert re.search(why, text_of)
    answer = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert (answer.exit_code, "0 of 2" in answer.output, answer.output.count("left out:")) == (0, True, 8)


def test_a_file_that_no_process_writes_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    with (tmp_path / "railweave-n1-2.prom").open("w") as file:
        file.truncate(300 << 30)
    left_out: list[str] = []
    assert read(tmp_path, left_out.append).ranks.keys() == {("ab", 0)}
    assert left_out == [f"{tmp_path / 'railweave-n1-2.prom'}: more than 134217728 bytes; expected counters as the shim writes them"]


def test_a_reader_that_leaves_is_no_news(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    with serving(tmp_path) as port:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port)) as leaving:
                leaving.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
    assert capfd.readouterr().err == ""


def test_processes_that_have_died_are_left_out(tmp_path: Path) -> None:
    for number, rank in ((1, 0), (2, 1)):
        (tmp_path / f"railweave-n1-{number}.prom").write_text(text(rank, 5))
    long_ago = (tmp_path / "railweave-n1-1.prom").stat().st_mtime - 60
    os.utime(tmp_path / "railweave-n1-1.prom", (long_ago, long_ago))
    for reader in (read, merged):
        left_out: list[str] = []
        found = reader(tmp_path, left_out.append)
        assert [counters.rank for counters in (parse(found) if isinstance(found, str) else found).ranks.values()] == [1]
        assert left_out == [
            "1 file that has not been written for 15 s, of processes that were killed or of hosts whose clocks differ from this one's"
        ]
    os.utime(tmp_path / "railweave-n1-2.prom", (long_ago, long_ago))
    nobody = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    found = " ".join(nobody.output.split())
    assert "no process keeps counters in" in found
    assert "left out: 2 files that have not been written for 15 s" in found


def test_the_command_shows_a_table_or_says_what_it_wanted(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    answer = CliRunner().invoke(top.command, [str(tmp_path), "--count", "2", "--interval", "0.1"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.count("0 of 2") == 2, "a pipe gets each table"
    (tmp_path / "railweave-n1-1.prom").unlink()
    nobody = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert "no process keeps counters in" in nobody.output
    failed = CliRunner().invoke(top.command, [str(tmp_path / "none")])
    assert isinstance(failed.exception, ShimError)


def test_what_went_through_a_nic_is_of_all_ranks_and_its_links_of_the_one_that_serves_it() -> None:
    before = look_at(nic_text(0, {"mlx5_0": 0, "mlx5_10": 0}, "mlx5_10"), nic_text(1, {"mlx5_0": 7, "mlx5_10": 7}, "mlx5_0"), written=1)
    after = look_at(
        nic_text(0, {"mlx5_0": 100, "mlx5_10": 600}, "mlx5_10", ("mlx5_3 of rank 9",)),
        nic_text(1, {"mlx5_0": 7, "mlx5_10": 207}, "mlx5_0"),
        nic_text(2, {"mlx5_0": 5000}, "mlx5_2"),  # not there at the first look
        written=3,
    )
    first, second = nic_rates(before, after)
    assert (first.name, first.sent, first.rate, first.links, first.down) == ("mlx5_0", 50.0, 1000, 4, 0)
    assert first.by_rank == {("ab", 0): 50.0}, "the other sent nothing"
    assert (second.name, second.sent, second.peers_down) == ("mlx5_10", 400.0, ("mlx5_3 of rank 9",))
    assert second.by_rank == {("ab", 0): 300.0, ("ab", 1): 100.0}


def test_communicators_share_the_nics_of_a_host_and_not_those_of_another() -> None:
    def look(scale: int) -> Look:
        texts = [nic_text(0, {"mlx5_0": 100 * scale}, "mlx5_0", communicator=name) for name in ("ab", "cd")]
        return look_at(*texts, nic_text(1, {"mlx5_0": 900 * scale}, "mlx5_0", host="n2"), written=scale)

    assert [(nic.host, nic.sent, nic.links) for nic in nic_rates(look(0), look(1))] == [("n1", 200.0, 4), ("n2", 900.0, 4)]


def test_nics_are_shown_with_their_use_and_the_links_that_are_down(tmp_path: Path) -> None:
    def files(seconds: int) -> dict[str, str]:
        down = tuple(f"mlx5_0 of rank {rank}" for rank in range(9, 15))
        fast = nic_text(0, {"mlx5_0": 25 * seconds * 10**9, "mlx5_1": 10**9 * seconds}, "mlx5_0", down)
        return {"n1-1": text(0, seconds * 26 * 10**9) + fast.replace("} 1000\n", "} 50000000000\n")}

    found = shown(tmp_path, files(0), files(1))
    assert re.search(r"n1 +mlx5_0 +25\.00 +50\.00 +50% +6 of 4 +0: 25\.00", found)
    assert re.search(r"n1 +mlx5_1 +1\.00 +0: 1\.00", found), "nobody knows its rate"
    listed = re.sub(r"\s+", " ", found)
    assert "links down: mlx5_0 of n1 to mlx5_0 of rank 9, mlx5_0 of rank 10, mlx5_0 of rank 11, mlx5_0 of rank 12 and 2 more" in listed


def test_what_a_pair_moves_is_told_by_its_source_where_that_is_here() -> None:
    before = look_at(peer_text(0, {0: (8, 8), 1: (0, 0)}), peer_text(1, {0: (0, 0)}), written=1)
    after = look_at(
        peer_text(0, {0: (8, 8), 1: (100, 60), 7: (40, 20)}),
        peer_text(1, {0: (50, 90)}),  # as of another moment
        peer_text(2, {0: (5000, 5000)}),  # not there at the first look
        written=3,
    )
    [found] = traffic(before, after)
    assert found.by_pair == {(0, 1): 50.0, (1, 0): 25.0, (0, 7): 20.0, (7, 0): 10.0}
    assert found.told == {0, 1}
    assert traffic(after, after) == [], "no rate is known of one writing"
    before.ranks["ab", 1].written = 3
    [found] = traffic(before, after)
    assert (found.by_pair[1, 0], found.told) == (30.0, {0}), "nor of a source whose file was written once"
    assert traffic(after, look_at(peer_text(0, {1: (3, 4)}), written=4)) == [], "a counter that went back"


def test_a_peer_that_comes_among_the_busiest_has_no_rate_yet() -> None:
    many = dict.fromkeys(range(64), (1000, 1000))
    came = {peer: moved for peer, moved in many.items() if peer != 5} | {99: (10**13, 10**13), 6: (1500, 1000)}
    [found] = traffic(look_at(peer_text(0, many), written=1), look_at(peer_text(0, came), written=2))
    assert found.by_pair == {(0, 6): 500.0}


def test_communicators_have_their_own_pairs_the_busiest_first() -> None:
    def look(scale: int) -> Look:
        return look_at(*(peer_text(0, {1: (scale * sent, 0)}, name) for name, sent in (("ab", 5), ("cd", 9), ("ef", 0))), written=scale)

    assert [(each.communicator, each.by_pair) for each in traffic(look(0), look(1))] == [("cd", {(0, 1): 9.0}), ("ab", {(0, 1): 5.0})]


def gigabytes(moved: dict[int, dict[int, tuple[int, int]]], seconds: int, communicator: str = "ab") -> dict[str, str]:
    """A file of each rank that moves so many GB/s with each peer."""
    return {
        f"{communicator}-{rank}": text(rank, 0).replace('"ab"', f'"{communicator}"')
        + peer_text(rank, {peer: (seconds * sent * 10**9, seconds * got * 10**9) for peer, (sent, got) in peers.items()}, communicator)
        for rank, peers in moved.items()
    }


def test_few_ranks_are_shown_as_a_matrix(tmp_path: Path) -> None:
    moved = {0: {0: (1, 1), 1: (40, 30), 9: (25, 12)}, 1: {0: (30, 40)}}
    found = shown(tmp_path, gigabytes(moved, 0), gigabytes(moved, 1))
    lines = [line.rstrip() for line in found.splitlines()]
    at = lines.index(" GB/s from rank to rank of ab")
    assert lines[at + 2] == " from  to 0  to 1  to 9"
    assert lines[at + 4 : at + 7] == [
        "    0  1.00 40.00 25.00",
        "    1 30.00  0.00  0.00",
        "    9 12.00  0.00",  # what it sends itself nobody here knows
    ]
    assert "to rank" not in shown(tmp_path, gigabytes(moved, 1)), "nothing moves any more"
    assert "to rank" not in shown(tmp_path, {name: text(0, 5) for name in gigabytes(moved, 0)}), "a shim that does not tell"


@pytest.mark.parametrize("ranks", [8, 9])
def test_of_many_ranks_the_busiest_pairs_are_shown(ranks: int, tmp_path: Path) -> None:
    moved = {rank: {peer: (10 * rank + peer, 0) for peer in range(ranks)} for rank in range(ranks)}
    found = shown(tmp_path, gigabytes(moved, 0), gigabytes(moved, 1))
    if ranks == 8:
        assert re.search(r" from +to 0 +to 1 .* to 7 *\n", found)
        assert re.search(r"\n +7 70\.00 71\.00 .* 77\.00 *\n", found)
        return
    assert f"GB/s from rank to rank of ab, the busiest 12 of {ranks * ranks - 1} pairs" in found
    pairs = re.findall(r"(?m)^ +(\d+) +(\d+) +(\d+)\.00 *$", found)
    expected = [(8, peer) for peer in range(8, -1, -1)] + [(7, 8), (7, 7), (7, 6)]
    assert pairs == [(str(rank), str(peer), str(10 * rank + peer)) for rank, peer in expected]


def test_of_many_communicators_the_busiest_are_shown_from_rank_to_rank(tmp_path: Path) -> None:
    def files(seconds: int) -> dict[str, str]:
        of_all = (gigabytes({0: {1: (number, 1)}}, seconds, f"c{number}") for number in range(1, 7))
        return {name: content for files in of_all for name, content in files.items()}

    found = shown(tmp_path, files(0), files(1))
    assert re.findall(r"to rank of (c\d)", found) == ["c6", "c5", "c4", "c3"]
    assert "not shown from rank to rank: 2 more communicators, in which less moves" in found


def test_what_is_left_to_nccl_is_told_below_with_the_reason(tmp_path: Path) -> None:
    missing = "rank 2: no shim there, or too late"
    found = shown(
        tmp_path,
        {
            "n1-1": text(0, 5)
            + left(missing, "rank_missing", "0123456789abcdef/split0.1", rank=0)
            + left("it has one rank", "one_rank", "")
            + left("no driver", "refused", "grown-0123456789abcdef/shrink0-3"),
            "n1-2": left(missing, "rank_missing", "0123456789abcdef/split0.1", rank=1) + left("", "remote_error", "ef", state="failed"),
        },
    )
    assert "GB/s of each rank" in found
    for line in (
        "failed: remote_error (communicator ef, 1 rank)",
        f"left to NCCL: {missing} (communicator 01234567/split0.1, 2 ranks)",
        "left to NCCL: it has one rank (1 rank)",
        "left to NCCL: no driver (communicator grown-01234567/shrink0-3, 1 rank)",
    ):
        assert line in found


def test_where_nothing_is_served_the_reason_is_told(tmp_path: Path) -> None:
    assert f"RAILWEAVE_METRICS={tmp_path}" in shown(tmp_path, {}).replace("\n", "")
    assert "no rank that Railweave serves, yet" in shown(tmp_path, {"n1-1": 'railweave_communicators{state="served",reason=""} 0\n'})
    found = re.sub(r"\s+", " ", shown(tmp_path, {"n1-1": left("it spans 2 nodes, and [why]", "several_nodes")}))
    assert "no rank that Railweave serves: all communicators of 1 process are left to NCCL or failed (several_nodes)" in found
    assert "left to NCCL: it spans 2 nodes, and [why] (communicator cd, 1 rank)" in found
    many = "".join(left(f"reason {number}", "refused") for number in range(10))
    assert "and 2 more reasons" in shown(tmp_path, {"n1-1": many})


def test_a_directory_that_is_missing_is_told_before_anybody_is_served(tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path / "none"), "--listen", "192.0.2.1:0"])
    assert str(refused.exception) == f"{tmp_path / 'none'} is no directory; expected what RAILWEAVE_METRICS names in the job"


LISTENING: tuple[tuple[str, ...], ...] = ((), ("--listen", "0"))


@pytest.mark.parametrize("options", LISTENING)
def test_a_directory_that_cannot_be_looked_at_is_told(options: tuple[str, ...], tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path / ("a" * 300)), *options])
    assert re.fullmatch(
        r"/.*a: cannot be read: File name too long; expected what RAILWEAVE_METRICS names in the job", str(refused.exception)
    )


@pytest.mark.root
@pytest.mark.parametrize("options", LISTENING)
@pytest.mark.parametrize("shut", ["outer", "outer/job"])
def test_a_directory_of_another_user_is_told(shut: str, options: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:  # a folder above tmp_path is for its owner alone
        job = Path(name) / "outer" / "job"
        job.mkdir(parents=True)
        (Path(name) / shut).chmod(0o700)
        Path(name).chmod(0o755)
        "".encode("idna")  # Python may lie where that user cannot read it, and looks for this when it is first used
        os.seteuid(65534)
        try:
            refused = CliRunner().invoke(top.command, [str(job), *options])
        finally:
            os.seteuid(0)
    assert isinstance(refused.exception, ShimError)
    assert str(refused.exception).startswith(f"{job}: cannot be read: Permission denied; expected what RAILWEAVE_METRICS names")


@pytest.mark.parametrize("width", [20, 50, 79, 80])
def test_a_narrow_terminal_gets_all_that_a_wide_one_gets(width: int, tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    ours, its = pty.openpty()
    run = [sys.executable, "-m", "railweave", "top", str(tmp_path), "--count", "1", "--interval", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "LINES": "40"}
    with subprocess.Popen(run, stdout=its, env=environment), os.fdopen(ours, "rb") as terminal:
        os.close(its)
        drawn = b""
        with contextlib.suppress(OSError):  # how a terminal ends whose last program has gone
            while block := terminal.read1():
                drawn += block
    last = drawn.decode().rpartition("\x1b[2K")[2]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= width
    whole = "".join(line.ljust(width) for line in lines)  # those that go on below
    for wanted in (" rank +host +sent +received +direct +relay +host +rail +cross rail +waiting ", " ab +0 of 2 +n1 +(- +){7}1 "):
        assert re.search(wanted, whole), last


def test_names_of_hosts_are_text(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5).replace('host="n1"', 'host="a[/b]:m:"'))
    answer = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert (answer.exit_code, "a[/b]:m:" in answer.output) == (0, True), answer.output
