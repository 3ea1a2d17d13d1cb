"""The GPU part of `railweave bench`: what its options mean, and what is printed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from railweave.bench import result
from railweave.bench.errors import BenchError
from railweave.bench.gpus import beside, compare
from railweave.bench.gpus.mesh import MOST_GPUS, mesh_bound, mesh_systems
from railweave.bench.gpus.rails import on_rails
from railweave.bench.gpus.result import Beside, Exchange, Layer, Run
from railweave.bench.gpus.session import SYSTEMS, Place, System, start_probe, systems, under_mps
from railweave.bench.gpus.table import tables
from railweave.bench.taken import TakenTime, warning
from railweave.cli.bench import BenchProgress, chosen, titled
from railweave.lab import LabSpec
from railweave.matrix import Matrix, load
from railweave.output import OutputError, json_text, name_files, write_whole

# What skew looks like from small to large, what a real gate sends, and what no skew looks like.
DEFAULT_MATRICES = (
    *(
        f"hot-pair:{size}:{background}"
        for size, background in (("1MiB", "64KiB"), ("16MiB", "1MiB"), ("64MiB", "4MiB"), ("256MiB", "16MiB"))
    ),
    *("hot-pair:64KiB", "hot-pair:256MiB", "incast:64MiB", "zipf:64MiB:1.0", "moe:8192:4096:64:8:1.0"),
    *("balanced:64KiB", "balanced:1MiB", "balanced:16MiB", "balanced:64MiB", "balanced:256MiB"),
)


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Which layers."""

    skews: tuple[str, ...]
    computes: tuple[float, ...]
    tokens: int
    width: int
    iterations: int


def run_exchanges(
    gpus: int,
    matrices: tuple[str, ...],
    names: str,
    other_nccl: Path | None,
    rounds: int,
    starts: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """`bench alltoallv --gpus`."""
    gpus = _gpus(gpus)
    cases = _cases(matrices or DEFAULT_MATRICES, gpus)
    effort = compare.Effort(rounds)
    date = result.now()
    running = _systems(names, other_nccl)
    steps = 2 + len(running) * len(cases) * (starts + rounds) + len(cases)
    with (
        BenchProgress(steps) as progress,
        start_probe(gpus) as probe,
        compare.Systems(running, Place(gpus), progress.step, starts) as all_of_them,
        TakenTime() as taken,
    ):
        progress.step("starting the probe")
        probe.ready()
        found = _run(date, all_of_them, gpus, {**dataclasses.asdict(effort), "starts": starts})
        for results in compare.exchange(all_of_them, functools.partial(compare.measure_bound, probe), cases, effort, progress.step):
            _keep(found, taken, json_file, exchanges=results)
    _finish(found, json_file, report)


DEFAULT_MESH_MATRICES = ("hot-pair:64MiB", "hot-pair:256MiB", "hot-pair:256MiB:16MiB", "bidir-pair:256MiB", "balanced:64MiB")


def run_on_mesh(gpus: int, rate_GBps: int, matrices: tuple[str, ...], rounds: int, json_file: Path | None, report: Path | None) -> None:
    """`bench alltoallv --gpus --emulate-mesh`."""
    gpus = _gpus(gpus)
    if not 3 <= gpus <= MOST_GPUS:
        raise BenchError(f"a mesh of {gpus} GPUs; messages go through others from 3 to {MOST_GPUS} on")
    cases = _cases(matrices or DEFAULT_MESH_MATRICES, gpus)
    effort = compare.Effort(rounds)
    date = result.now()
    running = mesh_systems(rate_GBps)
    with (
        BenchProgress(2 + len(running) * len(cases) * (1 + rounds) + len(cases)) as progress,
        start_probe(gpus) as probe,
        compare.Systems(running, Place(gpus), progress.step) as all_of_them,
        TakenTime() as taken,
    ):
        progress.step("starting the probe")
        probe.ready()
        found = _run(date, all_of_them, gpus, {**dataclasses.asdict(effort), "emulated_mesh_GBps": rate_GBps})

        def bound(matrix: Matrix) -> float:
            """Of the links, and of the GPUs, which have less than the links of a mesh of eight together."""
            return max(mesh_bound(gpus, rate_GBps, matrix), compare.measure_bound(probe, matrix))

        for results in compare.exchange(all_of_them, bound, cases, effort, progress.step):
            _keep(found, taken, json_file, exchanges=results)
    _finish(found, json_file, report)


DEFAULT_RAIL_MATRICES = ("hot-pair:256MiB", "bidir-pair:256MiB", "incast:64MiB", "hot-pair:256MiB:2MiB", "balanced:16MiB")


def run_on_rails(
    spec: LabSpec, matrices: tuple[str, ...], names: str, other_nccl: Path | None, rounds: int, json_file: Path | None, report: Path | None
) -> None:
    """`bench alltoallv --lab --gpus`: the same shaped rails for all systems."""
    gpus = _gpus(0, least=1)
    cases = _cases(matrices or DEFAULT_RAIL_MATRICES, spec.world)
    effort = compare.Effort(rounds)
    date = result.now()
    running = _systems(names, other_nccl, spec)
    steps = 4 + len(running) * len(cases) * (1 + rounds) + len(cases)
    with (
        BenchProgress(steps) as progress,
        start_probe(gpus) as probe,
        on_rails(spec, gpus, systems(["nccl"], None)[0], probe, progress.step) as rails,
        compare.Systems(running, rails.place, progress.step) as all_of_them,
        TakenTime() as taken,
    ):
        progress.step("starting the probe")
        probe.ready()
        found = _run(date, all_of_them, min(gpus, spec.world), {**dataclasses.asdict(effort), **_rails(spec)})
        for results in compare.exchange(all_of_them, rails.bound, cases, effort, progress.step):
            _keep(found, taken, json_file, exchanges=results)
    _finish(found, json_file, report)


def _rails(spec: LabSpec) -> dict[str, int]:
    return {"nodes": spec.nodes, "ranks": spec.world, "rails": spec.rails, "rate_bps": spec.rate}


DEFAULT_BESIDE_MATRICES = ("hot-pair:64MiB:4MiB", "balanced:64MiB")


def run_beside(
    gpus: int, works: tuple[str, ...], matrices: tuple[str, ...], names: str, other_nccl: Path | None, rounds: int, json_file: Path | None
) -> None:
    """`bench beside`."""
    gpus = _gpus(gpus)
    cases = _cases(matrices or DEFAULT_BESIDE_MATRICES, gpus)
    date = result.now()
    running = _systems(names, other_nccl)
    with (
        BenchProgress(1 + len(running) * len(cases) * len(works) * (1 + rounds)) as progress,
        compare.Systems(running, Place(gpus), progress.step) as all_of_them,
        TakenTime() as taken,
    ):
        found = _run(date, all_of_them, gpus, {"rounds": rounds})
        for results in beside.beside(all_of_them, works, cases, rounds, progress.step):
            _keep(found, taken, json_file, beside=results)
    _finish(found, json_file, None)


def run_layers(
    gpus: int,
    spec: LabSpec | None,
    options: LayerOptions,
    names: str,
    other_nccl: Path | None,
    rounds: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """`bench moe`, on this machine's GPUs, or on a lab's shaped rails."""
    for skew in options.skews:
        compare.schedule(skew, 2, options.tokens, 1)  # refuses what it does not know before anything starts
    gpus = _gpus(gpus, least=1 if spec else 2)
    world = spec.world if spec else gpus
    cases = [compare.LayerCase(skew, compute) for compute in options.computes for skew in options.skews]
    date = result.now()
    running = _systems(names, other_nccl, spec)
    steps = (4 if spec else 2) + len(running) * len(cases) * (1 + rounds)
    effort = compare.Effort(rounds)
    with (
        BenchProgress(steps) as progress,
        _place(spec, gpus, progress) as place,
        compare.Systems(running, place, progress.step) as all_of_them,
        TakenTime() as taken,
    ):
        settings = {"rounds": rounds, "iterations": options.iterations, "tokens": options.tokens, "width": options.width}
        found = _run(date, all_of_them, min(gpus, world), {**settings, **(_rails(spec) if spec else {})})
        for results in compare.layers(all_of_them, world, options.tokens, options.width, cases, effort, options.iterations, progress.step):
            _keep(found, taken, json_file, layers=results)
    _finish(found, json_file, report)


@contextlib.contextmanager
def _place(spec: LabSpec | None, gpus: int, progress: BenchProgress) -> Iterator[Place]:
    if spec is None:
        yield Place(gpus)
        return
    with on_rails(spec, gpus, systems(["nccl"], None)[0], None, progress.step) as rails:
        yield rails.place


def _cases(matrices: Sequence[str], ranks: int) -> list[tuple[str, Matrix]]:
    """Matrices with their names. Refuses what nothing can be measured of before anything starts."""
    loaded = [(title, load(name, ranks)) for title, name in titled(matrices)]
    for title, matrix in loaded:
        compare.check_something(title, matrix)
    return loaded


def _systems(names: str, other_nccl: Path | None, spec: LabSpec | None = None) -> list[System]:
    found = systems(chosen(names, SYSTEMS, "system"), other_nccl, over_rails=spec is not None and spec.nodes > 1)
    if not found:
        raise click.UsageError("nothing to run: give --systems")
    return found


def _gpus(wanted: int, least: int = 2) -> int:
    """How many; all of this machine for 0. Ranks of a lab may share one."""
    try:
        import torch
    except ImportError as error:
        raise BenchError(f"{sys.executable} has no PyTorch: {error}; run railweave with the Python of your PyTorch programs") from error
    found = torch.cuda.device_count()
    if found < least or wanted > found or 0 < wanted < least:
        raise BenchError(f"{wanted or 'all'} of {found} GPUs that PyTorch sees; expected {least} or more")
    return wanted or int(found)


def _run(date: str, running: compare.Systems, gpus: int, settings: dict[str, Any]) -> Run:
    """A run that has measured nothing yet."""
    machine = {**result.machine(), "gpu": running.gpu()}
    versions = {**result.versions(peers=False), **running.versions()}
    calibrated = {name: int(value) for name, value in running.calibrated.items()}
    settings = {**settings, **calibrated, **({"mps": 1} if under_mps() else {})}
    return Run(date, result.command_line(), machine, versions, gpus, settings, [], [])


def _keep(
    run: Run,
    taken: TakenTime,
    json_file: Path | None,
    exchanges: Sequence[Exchange] = (),
    layers: Sequence[Layer] = (),
    beside: Sequence[Beside] = (),
) -> None:
    """Adds results and writes the file: a run that is ended early has left what it measured."""
    run.exchanges.extend(exchanges)
    run.layers.extend(layers)
    run.beside.extend(beside)
    taken.look()
    run.machine["cpu_stolen"] = round(taken.stolen, 4)
    if json_file:
        with contextlib.suppress(OutputError):  # told by _finish(), with what was measured until then and since
            _write(run, json_file)


def _write(run: Run, json_file: Path) -> None:
    write_whole(json_file, json_text(run.to_json(), indent=1) + "\n")


def _finish(found: Run, json_file: Path | None, report: Path | None) -> None:
    """Tells first: that needs no file, and a disk may have become full."""
    from rich.console import Console
    from rich.table import Table

    # Names of files are no markup, and no emoji.
    console = Console(width=None if sys.stdout.isatty() else 140, markup=False, emoji=False)
    for title, head, rows in tables(found):
        table = Table(title=f"{found.place}: {title}", title_justify="left", box=None, pad_edge=False)
        for name in head:
            table.add_column(name, justify="left" if name in ("matrix", "system", "skew", "results", "work") else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if doubt := warning(found.machine):
        console.print(doubt)
    if json_file:
        _write(found, json_file)
    if report:
        from railweave.report.gpus import page

        write_whole(report, page(found))
        name_files(page=report)
    if problems := found.problems():
        click.echo("\n".join(["wrong:", *problems]), err=True)
        sys.exit(1)
