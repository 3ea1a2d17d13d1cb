"""`railweave top`: what a running job moves, by rank, kind of path, pair of ranks and NIC, and what is not served, and why."""

from __future__ import annotations

import contextlib
import http.server
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from railweave.errors import Error
from railweave.nccl import ShimError
from railweave.nccl.metrics import (
    PATHS,
    Look,
    NicRates,
    Rates,
    Traffic,
    Unserved,
    check_directory,
    counted_from,
    merged,
    nic_rates,
    rates,
    read,
    traffic,
)

# Tenths, as counters are written once a second anyway; a day, far beyond what anybody watches by and within what sleep() takes.
_INTERVAL_S = (0.1, 86_400)

_LEAST_WIDTH = 80
"""Characters a line that the tables need; in narrower terminals lines go on below."""

# Of the endpoint: how long a reader may keep it waiting, which is how long Prometheus waits by default, and how many of them there may be
# at once, each with a thread: a scrape is one request.
_PATIENCE_S, _MOST_READERS = 10.0, 64

# Of what is below the tables: reasons, and names in one of them.
_MOST_NOTES, _MOST_NAMES = 8, 4
# Of communicators whose ranks are shown pair by pair: of ranks in a matrix, which 80 columns hold; else of pairs; and of such tables.
_MOST_RANKS, _MOST_PAIRS, _MOST_TABLES = 8, 12, 4


def _short(communicator: str) -> str:
    """Enough of a communicator's name to find it in the log; a child's tells its own part, too."""
    return re.sub(r"^((?:grown-)?[0-9a-f]{8})[0-9a-f]+", r"\1", communicator)


def _listed(names: Sequence[str], total: int = 0) -> str:
    """The first ones; `total`: how many there are, where not all have a name."""
    more = max(total, len(names)) - len(names[:_MOST_NAMES])
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more else "")


def _rate(figure: float, known: bool = True) -> str:
    if not known:
        return "-"
    return "<0.01" if 0 < figure < 5e6 else f"{figure / 1e9:.2f}"  # no 0.00 of what moves


class _Wide:
    """A table in a terminal, however narrow that is: one that shrank further would lose its first columns, and most digits."""

    def __init__(self, table: Table | Group) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for line in console.render_lines(self._table, options.update_width(max(width, _LEAST_WIDTH)), pad=False):
            length = cell_len("".join(segment.text for segment in line).rstrip())  # what is blank needs no line of its own
            for part in Segment.divide(line, [*range(width, length, width), length]):
                yield from part
                yield Segment.line()


def _rank_table(rows: list[Rates]) -> Table:
    table = Table(title="GB/s of each rank", box=box.SIMPLE_HEAD, padding=0)
    for name in ("communicator", "rank", "host"):
        table.add_column(name, overflow="fold")
    for name in ("sent", "received", *PATHS, "waiting"):
        table.add_column(name.replace("_", " "), justify="right", no_wrap=name != "cross_rail")
    for row in rows:
        figures = (row.sent, row.received, *(row.by_path[path] for path in PATHS))
        who = (_short(row.counters.communicator), f"{row.counters.rank} of {row.counters.world}", row.counters.host)
        table.add_row(*who, *(_rate(figure, row.known) for figure in figures), str(row.waiting))
    return table


def _nic_table(nics: list[NicRates]) -> Table:
    several = len({communicator for nic in nics for communicator, _ in nic.by_rank}) > 1
    table = Table(title="GB/s sent by each NIC", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("host", overflow="fold")
    table.add_column("NIC", overflow="fold")
    for name in ("sent", "of", "used", "links down"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by rank", overflow="fold")
    for nic in nics:
        ranks = [
            f"{f'{_short(communicator)} ' if several else ''}{rank}: {_rate(sent)}"
            for (communicator, rank), sent in sorted(nic.by_rank.items(), key=lambda entry: (-entry[1], entry[0]))
        ]
        part = 100 * nic.sent / nic.rate if nic.rate else 0
        used = ("<1%" if 0 < part < 0.5 else f"{part:.0f}%") if nic.rate and nic.known else ""
        capacity = (_rate(nic.rate) if nic.rate else "", used)
        links = f"{nic.down} of {nic.links}" if nic.links else ""
        table.add_row(nic.host, nic.name, _rate(nic.sent, nic.known), *capacity, links, _listed(ranks), style="red" if nic.down else None)
    return table


def _traffic_view(of: Traffic) -> Group:
    """A matrix of the ranks that move anything, or the busiest pairs of many; blank where neither end of a pair is on a host that tells."""
    title = f" GB/s from rank to rank of {_short(of.communicator)}"  # above the table, whose own title would be no wider than that
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    ranks = sorted({rank for pair in of.by_pair for rank in pair})
    matrix = len(ranks) <= _MOST_RANKS
    for name in ("from", *(f"to {rank}" for rank in ranks)) if matrix else ("from", "to", "sent"):
        table.add_column(name, justify="right", no_wrap=True)
    if matrix:
        for source in ranks:
            figures = (_rate(of.by_pair.get((source, to), 0)) if of.told & {source, to} else "" for to in ranks)
            table.add_row(str(source), *figures)
    else:
        busiest = sorted(of.by_pair.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_PAIRS]
        title += f", the busiest {len(busiest)} of {len(of.by_pair)} pairs" if len(busiest) < len(of.by_pair) else ""
        for (source, to), rate in busiest:
            table.add_row(str(source), str(to), _rate(rate))
    return Group(Text(title, style="table.title"), table)


def _unserved(unserved: list[Unserved]) -> list[str]:
    """A line for each reason, of the most ranks first."""
    by_reason: dict[tuple[str, str], list[Unserved]] = {}
    for each in unserved:
        by_reason.setdefault((each.state, each.text or each.reason), []).append(each)
    lines = []
    for (state, why), ranks in sorted(by_reason.items(), key=lambda entry: (entry[0][0], -len(entry[1]), entry[0])):
        named = sorted({_short(each.communicator) for each in ranks if each.communicator})
        noun = "communicator" if len(named) == 1 else "communicators"
        who = f"{noun} {_listed(named)}, " if named else ""
        lines.append(f"{'left to NCCL' if state == 'nccl' else state}: {why} ({who}{len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'})")
    return lines[:_MOST_NOTES] + ([f"and {len(lines) - _MOST_NOTES} more reasons"] if len(lines) > _MOST_NOTES else [])


def _why_nothing(look: Look, directory: Path) -> str:
    if not look.processes:
        return f"no process keeps counters in {directory}; expected a job with the shim and RAILWEAVE_METRICS={directory}"
    if look.ranks or not look.unserved:
        return "no rank that Railweave serves, yet"
    reasons = _listed(sorted({each.reason for each in look.unserved}))
    processes = f"{look.processes} {'process' if look.processes == 1 else 'processes'}"
    return f"no rank that Railweave serves: all communicators of {processes} are left to NCCL or failed ({reasons})"


def _view(before: Look, after: Look, directory: Path, left_out: list[str]) -> Group:
    rows, nics, pairs = rates(before, after), nic_rates(before, after), traffic(before, after)
    notes = [] if rows else [_why_nothing(after, directory)]
    for nic in nics:
        if nic.down:
            notes.append(f"links down: {nic.name} of {nic.host} to {_listed(nic.peers_down, nic.down)}")
    notes += [*_unserved(after.unserved), *(f"left out: {why}" for why in left_out)]
    if (more := len(pairs) - _MOST_TABLES) > 0:
        notes.append(f"not shown from rank to rank: {more} more {'communicator' if more == 1 else 'communicators'}, in which less moves")
    tables: list[Table | Group] = [
        *([_rank_table(rows)] if rows else []),
        *(_traffic_view(each) for each in pairs[:_MOST_TABLES]),
        *([_nic_table(nics)] if nics else []),
    ]
    return Group(*map(_Wide, tables), *(Text(note) for note in notes))


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
    expected = "expected PORT, ADDRESS:PORT, [IPV6]:PORT or :PORT, with a port up to 65535"
    if match is None or int(match[3]) > 65535:
        raise click.BadParameter(f"'{value}': {expected}")
    address = match[1] or match[2]
    try:
        (address or "").encode("idna")  # as bind() does, which has no word for what it cannot
    except UnicodeError:
        raise click.BadParameter(f"'{value}': '{address}' is no name of a host; {expected}") from None
    return "127.0.0.1" if address is None else address, int(match[3])


def _server(directory: Path, address: str, port: int) -> http.server.ThreadingHTTPServer:
    told: set[str] = set()

    def left_out(why: str) -> None:
        if why not in told:
            told.add(why)
            click.echo(f"railweave: left out: {why}", err=True)

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            try:
                path = urlsplit(self.path).path
            except ValueError:  # as of a bracket that is not closed
                self.send_error(400, "no URL")
                return
            if path != "/metrics":
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
            if self.command != "HEAD":
                self.wfile.write(body)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a reader that leaves before it has its answer
                super().handle()

        def log_message(self, *arguments: object) -> None:
            """Scrapes are not logged."""

    reading: dict[socket.socket, None] = {}  # guarded by lock
    lock = threading.Lock()
    bound = address or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = _MOST_READERS  # those that have not been looked at yet
        address_family = socket.AF_INET6 if ":" in bound else socket.AF_INET

        def server_bind(self) -> None:
            if not address and self.address_family == socket.AF_INET6:
                # IPv4 as well, also where the system has net.ipv6.bindv6only on.
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

        def process_request(self, request: Any, client_address: Any) -> None:
            """Of too many readers the one that came first goes: one that only wanted to read is done long before as many others come."""
            with lock:
                if len(reading) == _MOST_READERS:
                    del reading[first := next(iter(reading))]
                    with contextlib.suppress(OSError):  # it has gone itself
                        first.shutdown(socket.SHUT_RDWR)
                reading[request] = None
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            with lock:  # nor is another one, which gets its number, shut instead
                reading.pop(request, None)
            super().shutdown_request(request)

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
    if listen is not None and count is not None:
        raise click.UsageError("--count is of tables, and --listen shows none")
    try:
        _show(directory, interval, count, listen)
    except KeyboardInterrupt:
        if count is not None:
            raise  # before its end


def _show(directory: Path, interval: float, count: int | None, listen: tuple[str, int] | None) -> None:
    if listen is not None:
        check_directory(directory)  # rather than to tell each reader
        with _server(directory, *listen) as server:
            host, port = str(server.server_address[0]), server.server_address[1]
            if host in ("::", "0.0.0.0"):
                host = socket.gethostname()  # by which others may reach it
            click.echo(f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
            server.serve_forever()
    console = Console(markup=False, emoji=False)  # names of hosts and NICs are text
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            _look(directory, interval, count, lambda view: live.update(view, refresh=True))
    else:
        console.width = 100  # the same everywhere, for files and pipes, which get one look after another
        _look(directory, interval, count, console.print)


def _look(directory: Path, interval: float, count: int | None, show: Callable[[Group], None]) -> None:
    before, last, shown = Look(), read(directory, lambda _: None), 0
    while not count or shown < count:
        time.sleep(interval)
        left_out: list[str] = []
        after = read(directory, left_out.append)
        before = counted_from(before, last, after)
        show(_view(before, after, directory, left_out))
        last, shown = after, shown + 1
