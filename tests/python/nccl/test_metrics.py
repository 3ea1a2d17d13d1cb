"""Counters of the shim: the text that the C++ side writes, rates, what Prometheus gets, and the command."""

from __future__ import annotations

import os
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from railweave.cli import top
from railweave.nccl import ShimError
from railweave.nccl.metrics import merged, nic_rates, parse, rates, read

LABELS = 'host="n1",pid="7",communicator="ab",rank="{rank}",world="2",device="0"'


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


def test_rates_come_from_two_looks_busiest_first() -> None:
    before, after = parse(text(0, 100)), parse(text(0, 300))
    before.add(parse(text(1, 0)))
    after.add(parse(text(1, 1000, completed=4)))
    found = rates(before, after, 2.0)
    assert [(row.counters.rank, row.sent, row.by_path["direct"], row.by_path["rail"], row.waiting) for row in found] == [
        (1, 500.0, 500.0, 0.0, 0),
        (0, 100.0, 100.0, 0.0, 1),
    ]


def nics(rank: int, sent: int, down: int = 0) -> str:
    """Of a rank that serves mlx5_<rank>, and sends over mlx5_0 too."""
    labels = LABELS.format(rank=rank)
    own = f'{labels},nic="mlx5_{rank}"'
    lines = [
        f'railweave_nic_bytes_total{{{labels},nic="mlx5_0"}} {sent}',
        f"railweave_nic_bytes_total{{{own}}} {sent}",
        f"railweave_nic_bytes_per_second{{{own}}} 1000",
        f"railweave_nic_links{{{own}}} 4",
        f"railweave_nic_links_down{{{own}}} {down}",
        *(f'railweave_link_down{{{own},peer="mlx5_{peer} of rank 8"}} 1' for peer in range(down)),
    ]
    return text(rank, sent) + "".join(f"{line}\n" for line in lines)


def unserved(rank: int, reason: str, why: str) -> str:
    process = 'host="n1",pid="8"'
    return (
        f'railweave_communicators{{{process},state="nccl",reason="{reason}"}} 1\n'
        f'# communicator {{{process},communicator="cd",rank="{rank}",world="2",state="nccl",reason="{reason}",text="{why}"}}\n'
    )


def test_nics_are_those_of_a_host_whoever_sends_over_them() -> None:
    before, after = parse(nics(0, 0)), parse(nics(0, 300, down=1))
    before.add(parse(nics(1, 0)))
    after.add(parse(nics(1, 100, down=2)))
    first, second = nic_rates(before, after, 2.0)
    assert (first.name, first.sent, first.by_rank) == ("mlx5_0", 200.0, {("ab", 0): 150.0, ("ab", 1): 50.0})
    assert (first.rate, first.links, first.down, first.peers_down) == (1000, 4, 1, ("mlx5_0 of rank 8",))
    assert (second.name, second.sent, second.down, len(second.peers_down)) == ("mlx5_1", 50.0, 2, 2)


def test_the_command_shows_nics_links_that_are_down_and_why_communicators_are_left_to_nccl(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(nics(0, 5, down=1))
    (tmp_path / "railweave-n1-2.prom").write_text(unserved(0, "one_rank", "it has one rank"))
    shown = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"n1 +mlx5_0 .* 1 of 4", shown.output), shown.output
    assert "links down: mlx5_0 of n1 to mlx5_0 of rank 8" in shown.output
    assert "left to NCCL: it has one rank (communicator cd, 1 rank)" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 100


def test_where_nothing_is_served_the_command_says_why(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"railweave-n1-{rank}.prom").write_text(unserved(rank, "refused", "rank 0: device 0 is a MIG slice"))
    shown = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert "no rank that Railweave serves: all communicators of 2 processes are left to NCCL or failed (refused)" in shown.output
    assert "left to NCCL: rank 0: device 0 is a MIG slice (communicator cd, 2 ranks)" in shown.output


def test_prometheus_gets_counts_and_no_texts_without_end(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(nics(0, 5) + unserved(0, "refused", "rank 0: device 0 is a MIG slice"))
    joined = merged(tmp_path, pytest.fail)
    assert 'state="nccl",reason="refused"} 1' in joined
    assert "MIG" not in joined


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        '# communicator {host="n1",communicator="ab",rank="x",world="2"}',
        'railweave_sent_bytes_total{rank="0"} 1',
        *(text(0, 1).replace('rank="0"', f'rank="{rank}"') for rank in ("x", "²", "٣", "-1", "", "1" * 5000)),
        *(text(0, 1).replace('world="2"', f'world="{world}"') for world in ("²", "1" * 5000)),
        *(text(0, 1).replace("} 4", f"}} {value}") for value in ("²", "٣", "-1", "1" * 5000)),
    ],
    ids=lambda _: "line",  # of thousands of characters
)
def test_what_is_no_counter_is_named(line: str) -> None:
    with pytest.raises(ShimError, match=r"here:\d+: "):
        parse(line, "here")


def test_prometheus_gets_each_description_once(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    (tmp_path / "railweave-n1-2.prom").write_text(text(1, 6))
    joined = merged(tmp_path, pytest.fail)
    assert joined.count("# TYPE railweave_sent_bytes_total counter") == 1
    assert parse(joined).ranks == read(tmp_path, pytest.fail).ranks
    assert {counters.sent for counters in read(tmp_path, pytest.fail).ranks.values()} == {5, 6}
    with top._server(tmp_path, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_address[1]
            for path in ("/metrics", "/metrics?by=hand"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
                    assert answer.read().decode() == joined
            with pytest.raises(ShimError, match=f"port {port} of 127.0.0.1: Address already in use; expected an address of this machine"):
                top._server(tmp_path, "127.0.0.1", port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("endpoint", "url", "others"),
    [
        ("0", r"http://127\.0\.0\.1:\d+/metrics", False),
        ("[::1]:0", r"http://\[::1\]:\d+/metrics", False),
        ("localhost:0", r"http://(127\.0\.0\.1|\[::1\]):\d+/metrics", False),
        ("0.0.0.0:0", r"http://0\.0\.0\.0:\d+/metrics", True),
        (":0", r"http://(\[::\]|0\.0\.0\.0):\d+/metrics", True),
    ],
)
def test_only_who_is_meant_to_is_served(endpoint: str, url: str, others: bool, tmp_path: Path) -> None:
    if "::1" in endpoint:
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
            with urllib.request.urlopen(told, timeout=120) as answer:
                assert answer.status == 200
            # Any other address of this machine, of which its loopback has millions.
            with socket.socket() as other:
                assert (other.connect_ex(("127.0.0.2", int(told.split(":")[-1].split("/")[0]))) == 0) == others
        finally:
            serving.terminate()


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


@pytest.mark.parametrize("endpoint", ["", "x", "65536", "host:", "::1:9400", "[::1]", "[]:9400", "1:2:3", "-1"])
def test_what_is_no_endpoint_is_refused(endpoint: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path), "--listen", endpoint])
    assert (refused.exit_code, f"'{endpoint}': expected PORT, ADDRESS:PORT" in refused.output) == (2, True)


@pytest.mark.parametrize("interval", ["nan", "-nan", "inf", "-inf", "1e300", "86401", "0.05", "0", "-1", "x", ""])
def test_what_is_no_interval_is_refused(interval: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(top.command, [str(tmp_path / "none"), "--interval", interval])
    expected = "is not a valid float" if interval in ("x", "") else "is not in the range 0.1<=x<=86400."
    assert (refused.exit_code, expected in refused.output) == (2, True), refused.output


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
        *("1.prom: 'utf-8'", "2.prom: .*Is a directory", "3.prom: no file", r"4.prom:\d+: 'railweave", "5.prom:1: '# HELP'"),
        *("7.prom:3: 'railweave", r"8.prom:\d+: 'railweave", "9.prom: .*symbolic links"),
    )
    for reader in (read, merged):
        left_out: list[str] = []
        found = reader(tmp_path, left_out.append)
        assert (parse(found) if isinstance(found, str) else found).ranks.keys() == {("ab", 0)}
        for text_of, why in zip(left_out, expected, strict=True):
            assert re.search(why, text_of)
    shown = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert (shown.exit_code, "0 of 2" in shown.output, shown.output.count("left out:")) == (0, True, 8)


def test_a_reader_that_leaves_is_no_news(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    with top._server(tmp_path, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", server.server_address[1])) as leaving:
                    leaving.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                    leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
        finally:
            server.shutdown()
            thread.join()
    assert capfd.readouterr().err == ""


def test_processes_that_have_died_are_left_out(tmp_path: Path) -> None:
    for number, rank in ((1, 0), (2, 1)):
        (tmp_path / f"railweave-n1-{number}.prom").write_text(text(rank, 5))
    long_ago = (tmp_path / "railweave-n1-1.prom").stat().st_mtime - 60
    os.utime(tmp_path / "railweave-n1-1.prom", (long_ago, long_ago))
    assert [counters.rank for counters in read(tmp_path, pytest.fail).ranks.values()] == [1]
    assert 'rank="0"' not in merged(tmp_path, pytest.fail)


def test_the_command_shows_a_table_or_says_what_it_wanted(tmp_path: Path) -> None:
    (tmp_path / "railweave-n1-1.prom").write_text(text(0, 5))
    shown = CliRunner().invoke(top.command, [str(tmp_path), "--count", "2", "--interval", "0.1"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.count("0 of 2") == 2, "a pipe gets each table"
    (tmp_path / "railweave-n1-1.prom").unlink()
    nobody = CliRunner().invoke(top.command, [str(tmp_path), "--count", "1", "--interval", "0.1"])
    assert "no process keeps counters in" in nobody.output
    failed = CliRunner().invoke(top.command, [str(tmp_path / "none")])
    assert isinstance(failed.exception, ShimError)
