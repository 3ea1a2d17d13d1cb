"""`railweave calibrate`: measures what this machine's GPUs do."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from railweave.calibrate import Calibration, CalibrationError, read, settings
from railweave.calibrate.kept import keep, kept


@click.command(name="calibrate")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the calibration there as well.")
@click.option("--show", is_flag=True, help="Show the calibration that is kept, and measure nothing.")
@click.option(
    "--from", "recorded", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Show the calibration of a file instead."
)
def command(output: Path | None, show: bool, recorded: Path | None) -> None:
    """Measure what this machine's GPUs do, for the settings of the GPU exchange and for plans.

    Takes all GPUs for some seconds, so it is run while nothing else uses them. What follows is kept until the next boot:
    `railweave run --shim nccl` sets it, `railweave plan --calibration FILE` plans by it.
    """
    if show and recorded:
        raise click.UsageError("--show and --from exclude each other: one is what is kept, the other a file.")
    if show:
        found = kept()
        if found is None:
            raise CalibrationError("no calibration is kept since this machine booted; `railweave calibrate` makes one")
        calibration = found
    elif recorded:
        calibration = read(str(recorded))
    else:
        calibration = _measured()
    if output:
        _write(output, calibration)
    _show(calibration)


def _measured() -> Calibration:
    from railweave.calibrate.gpus import GpuBench
    from railweave.calibrate.measure import measure

    bench = GpuBench()
    try:
        with Console(stderr=True).status("") as status:
            calibration = measure(bench, status.update)
    finally:
        bench.close()
    place = keep(calibration)
    click.echo(f"kept in {place}" if place else "not kept: no folder that only this user can write; --output FILE writes it", err=True)
    return calibration


def _write(path: Path, calibration: Calibration) -> None:
    try:
        path.write_text(calibration.text(), encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be written: {error.strerror}") from None


def _show(calibration: Calibration) -> None:
    console = Console()
    models = ", ".join(dict.fromkeys(gpu.name for gpu in calibration.gpus))
    console.print(f"{len(calibration.gpus)} x {models}, {calibration.driver}, {calibration.date}", highlight=False)
    table = Table(title="GB/s of a pair", title_justify="left")
    for name in ("from", "to", "push", "slots", "copy engine", "over the host"):
        table.add_column(name, justify="right")
    for row in calibration.pairs:
        rates = (row.push_Bps, row.slots_Bps, row.copy_Bps, row.host_Bps)
        table.add_row(str(row.source), str(row.destination), *(f"{rate / 1e9:.1f}" for rate in rates))
    console.print(table)
    blocks = ", ".join(f"{row.blocks}: {row.pair_Bps / 1e9:.0f}, {row.balanced_Bps / 1e9:.0f}" for row in calibration.blocks)
    console.print(f"GB/s by blocks (a pair, all pairs)   {blocks}", highlight=False)
    sizes = ", ".join(f"{row.bytes >> 10} KiB: {row.packets_ns / 1e3:.1f}, {row.granted_ns / 1e3:.1f}" for row in calibration.sizes)
    console.print(f"us by size (packets, granted)        {sizes}", highlight=False)
    console.print(f"us of the smallest operation         {calibration.launch_ns / 1e3:.1f}", highlight=False)
    for name, value in settings(calibration).items():
        console.print(f"{name} {value}", highlight=False)
