"""`railweave top`: what a running job moves, by rank and kind of path."""

from __future__ import annotations

import contextlib
import http.server
import math
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from railweave.errors import Error
from railweave.nccl import ShimError
from railweave.nccl.metrics import PATHS, Rates, merged, rates, read

# Tenths, as counters are written once a second anyway; a day, far beyond what anybody watches by and within what sleep() takes.
_INTERVAL_S = (0.1, 86_400)


def _table(rows: list[Rates], left_out: list[str]) -> Table:
    notes = [*([] if rows else ["no rank that Railweave serves, yet"]), *(f"left out: {escape(why)}" for why in left_out)]
    table = Table(title="GB/s of each rank", caption="\n".join(notes) or None)
    for name in ("communicator", "rank", "host"):
        table.add_column(name)
    for name in ("sent", "received", *PATHS, "messages waiting"):
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        figures = (row.sent, row.received, *(row.by_path[path] for path in PATHS))
        who = (row.counters.communicator, f"{row.counters.rank} of {row.counters.world}", row.counters.host)
        table.add_row(*who, *(f"{figure / 1e9:.2f}" for figure in figures), str(row.waiting))
    return table


def _seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if math.isnan(value):  # neither below a range nor above it, so that click lets it pass
        raise click.BadParameter(f"{value} is not in the range {_INTERVAL_S[0]}<=x<={_INTERVAL_S[1]}.")
    return value


def _endpoint(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Where to listen: an address, empty for all of this machine, and a port. Without an address it is for this machine alone, as what is
    served names hosts, processes and what they move to whoever asks; `:PORT` is all, as in the node agent's `metricsListen`."""
    if value is None:
        return None
    match = re.fullmatch(r"(?:\[([^][]+)\]:|([^][:]*):)?([0-9]{1,5})", value)
    if match is None or int(match[3]) > 65535:
        raise click.BadParameter(f"'{value}': expected PORT, ADDRESS:PORT, [IPV6]:PORT or :PORT, with a port up to 65535")
    address = match[1] or match[2]
    return "127.0.0.1" if address is None else address, int(match[3])


def _server(directory: Path, address: str, port: int) -> http.server.ThreadingHTTPServer:
    told: set[str] = set()

    def left_out(why: str) -> None:
        if why not in told:
            told.add(why)
            click.echo(f"railweave: left out: {why}", err=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if urlsplit(self.path).path != "/metrics":
                self.send_error(404, "only /metrics")
                return
            try:
                body = merged(directory, left_out).encode()
            except Error as error:
                self.send_error(500, explain=str(error))  # in the page: the status line takes Latin-1 alone
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a reader that leaves before it has its answer
                super().handle()

        def log_message(self, *arguments: object) -> None:
            """Scrapes are not logged."""

    bound = address or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in bound else socket.AF_INET

    try:
        return Server((bound, port), Handler)
    except OSError as error:
        where = f"port {port} of {address or 'all addresses'}: {error.strerror}"
        raise ShimError(f"{where}; expected an address of this machine and a free port to serve /metrics on (0: any)") from error


@click.command(name="top")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=click.FloatRange(*_INTERVAL_S),
    callback=_seconds,
    metavar="SECONDS",
    help="Between two looks.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after so many tables; by default on Ctrl-C.")
@click.option(
    "--listen",
    callback=_endpoint,
    metavar="[ADDRESS:]PORT",
    help="Serve the counters to Prometheus instead, at /metrics; to this machine alone where no address is named, to all for :PORT.",
)
def command(directory: Path, interval: float, count: int | None, listen: tuple[str, int] | None) -> None:
    """Show what a running job moves. DIRECTORY is what RAILWEAVE_METRICS names in the job (docs/nccl.md)."""
    if listen is not None:
        with _server(directory, *listen) as server:
            host, port = str(server.server_address[0]), server.server_address[1]
            click.echo(f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
            server.serve_forever()
    console = Console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            _look(directory, interval, count, lambda table: live.update(table, refresh=True))
    else:
        console.width = 130  # all columns in full, for files and pipes, which get one table after another
        _look(directory, interval, count, console.print)


def _look(directory: Path, interval: float, count: int | None, show: Callable[[Table], None]) -> None:
    before, began, shown = read(directory, lambda _: None), time.monotonic(), 0
    while not count or shown < count:
        time.sleep(interval)
        left_out: list[str] = []
        after, now = read(directory, left_out.append), time.monotonic()
        show(_table(rates(before, after, now - began), left_out))
        before, began, shown = after, now, shown + 1
