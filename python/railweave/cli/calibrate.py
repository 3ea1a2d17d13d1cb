"""`railweave calibrate`: measures what this machine's GPUs do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from railweave._native import TransportError
from railweave.calibrate import Calibration, read, settings
from railweave.calibrate.kept import keep, kept, kept_for_another_build
from railweave.output import check_writable, write_whole
from railweave.size import format_size

_LEAST_WIDTH = 80
"""Characters a line that the tables need; in narrower terminals lines go on below."""


@click.command(name="calibrate")
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the calibration there as well.")
@click.option("--show", is_flag=True, help="Show the calibration that is kept, and measure nothing.")
@click.option("--from", "recorded", type=click.Path(path_type=Path), metavar="FILE", help="Show the calibration of a file instead.")
def command(output: Path | None, show: bool, recorded: Path | None) -> None:
    """Measure what this machine's GPUs do, for the settings of the GPU exchange and for plans.

    Takes all GPUs for some seconds, so it is run while nothing else uses them. What root measures is kept until the next boot, for all
    users' programs under the NCCL shim. What another user measures is for that user's alone; in a login session, which has
    XDG_RUNTIME_DIR set, it goes with the session, and only programs with the same XDG_RUNTIME_DIR see it. `railweave plan --calibration
    FILE` plans by a file.
    """
    if show and recorded:
        raise click.UsageError("--show and --from exclude each other: one is what is kept, the other a file.")
    if output:
        check_writable(output)
    if show:
        calibration = _kept()
    elif recorded:
        calibration = read(str(recorded))
    else:
        calibration = _measured()
    if output:
        write_whole(output, calibration.text())
    _show(calibration)


def _kept() -> Calibration:
    """Without a device library, whose build it is kept for, nobody goes by it here; what was measured can be shown all the same."""
    try:
        return kept()
    except TransportError as error:
        calibration, path = kept_for_another_build()
        click.echo(f"railweave: {path} is shown, but no program goes by it here: {error}", err=True)
        return calibration


def _measured() -> Calibration:
    from railweave.calibrate.gpus import GpuBench
    from railweave.calibrate.measure import measure

    bench = GpuBench()
    try:
        with Console(stderr=True).status("") as status:
            calibration = measure(bench, status.update)
    finally:
        bench.close()
    click.echo(where_it_is(keep(calibration)), err=True)
    return calibration


def where_it_is(place: str | None) -> str:
    """What is said of a calibration that is kept there, or nowhere."""
    if place is None:
        return "not kept: in no folder of only this user can it be written; --output FILE writes it"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(place).parents[1] == Path(runtime):
        return f"kept in {place} until this user logs out, for programs with the same XDG_RUNTIME_DIR"
    return f"kept in {place} until the next boot"


def _show(calibration: Calibration) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.width = max(console.width, _LEAST_WIDTH)
    models = ", ".join(dict.fromkeys(gpu.name for gpu in calibration.gpus))
    console.print(f"{len(calibration.gpus)} x {models}, {calibration.driver}, {calibration.date}")
    rates = (
        (row.source, row.destination, *map(_gigabytes, (row.push_Bps, row.slots_Bps, row.copy_Bps, row.host_Bps)))
        for row in calibration.pairs
    )
    _print(console, "GB/s of a pair", ("from", "to", "push", "slots", "copy engine", "over the host"), rates)
    by_blocks = ((row.blocks, _gigabytes(row.pair_Bps), _gigabytes(row.balanced_Bps)) for row in calibration.blocks)
    _print(console, "GB/s by blocks", ("blocks", "a pair", "all pairs"), by_blocks)
    by_size = ((format_size(row.bytes), *(_us(time) for times in row.times() for time in times)) for row in calibration.sizes)
    of_kind = ("a pair: packets", "granted", "all pairs: packets", "granted")
    kinds = max(len(list(row.times())) for row in calibration.sizes)
    _print(console, "us by size", ("message", *of_kind[: 2 * kinds]), by_size)
    console.print(f"us of the smallest operation: {_us(calibration.launch_ns)}")
    for name, value in settings(calibration).items():
        console.print(f"{name} {value}")


def _print(console: Console, title: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def _gigabytes(Bps: int) -> str:
    return f"{Bps / 1e9:.1f}"


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f}"
