"""`railweave bench`: exchanges for real."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from railweave.lab.spec import ISOLATIONS

# The main job: what skew looks like, and what no skew looks like. Two moments of a real model's routing: early, when experts
# are far from even, and after 200 steps.
DEFAULT_MATRICES = (
    "hot-pair:32MiB",
    "incast:8MiB",
    "zipf:16MiB:1.2",
    "trace:noaux:5:5:512",
    "trace:noaux:40:2:512",
    "balanced:4MiB",
)


@click.group(name="bench")
def command() -> None:
    """Run an exchange for real and compare policies and peers, every byte checked."""


@command.command()
@click.option("--lab", "shape", required=True, metavar="NODESxGPUS", help="Emulated rails to run on; needs root.")
@click.option("--rails", default=0, metavar="N", help="Rails; by default as in --fabric, else one a GPU.")
@click.option("--rate", default="400mbit", show_default=True, help="Of each NIC, each way.")
@click.option("--spine-rate", metavar="RATE", help="Of each leaf's link to the spine; by default the sum of its NICs.")
@click.option(
    "--isolation", type=click.Choice(ISOLATIONS), default="gpu", show_default=True, help="Does a rank see its node's NICs, or only its own?"
)
@click.option("--fabric", "source", metavar="FILE|TEMPLATE", help="Wire each node as this says: topology XML, cluster or template.")
@click.option("--matrix", "matrices", multiple=True, metavar="GEN|FILE", help="Repeatable; see `railweave matrix --help`. By default six.")
@click.option("--policies", default="single-path,railweave", show_default=True, help="Of the engine, separated by commas; '' for none.")
@click.option("--peer", "peers", default="", metavar="openmpi,ucx", help="MPI_Alltoallv of the system's OpenMPI, over TCP or UCX.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=5, show_default=True, help="After one warm-up.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the result.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with pictures (one HTML file).")
def alltoallv(
    shape: str,
    rails: int,
    rate: str,
    spine_rate: str | None,
    isolation: str,
    source: str | None,
    matrices: tuple[str, ...],
    policies: str,
    peers: str,
    repeat: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Each rank sends each other rank as many bytes as a matrix says."""
    from rich.console import Console

    from railweave.bench import result, table
    from railweave.bench.alltoallv import Case, lower_bound, run, steps
    from railweave.bench.session import PEERS
    from railweave.lab import LabSpec
    from railweave.lab.fabric import of_file, of_lab, rails_of_file
    from railweave.lab.spec import parse_rate, parse_shape
    from railweave.matrix import load

    nodes, gpus = parse_shape(shape)
    rails = rails or (rails_of_file(source, nodes) if source else gpus)
    spec = LabSpec(nodes, gpus, rails, parse_rate(rate), parse_rate(spine_rate) if spine_rate else 0, isolation)
    fabric = of_file(spec, source) if source else of_lab(spec)
    wanted = _chosen(policies, _policies(), "policy"), _chosen(peers, PEERS, "peer")
    if not any(wanted):
        raise click.UsageError("nothing to run: give --policies or --peer")
    loaded = [(Path(name).name if Path(name).is_file() else name, load(name, spec.world)) for name in matrices or DEFAULT_MATRICES]
    cases = [Case(name, matrix, lower_bound(fabric, matrix)) for name, matrix in loaded]
    date = result.now()
    with _Progress(steps(len(cases), sum(map(len, wanted)), repeat)) as progress:
        results = run(spec, fabric, cases, *wanted, repeat, progress.step)
    found = result.Run(
        date,
        result.command_line(),
        result.machine(),
        result.versions(peers=bool(wanted[1])),
        spec.to_json(),
        Path(source).name if source else f"lab {spec.shape}",
        results,
    )
    if json_file:
        _write(json_file, json.dumps(found.to_json(), indent=1) + "\n")
    if report:
        from railweave.report.exchange import page

        _write(report, page(found))
    Console(width=None if sys.stdout.isatty() else 120).print(table.table(found))
    wrong = [f"{each.matrix}, {each.policy}: {each.wrong}" for each in results if each.wrong]
    if wrong:
        click.echo("\n".join(["wrong bytes:", *wrong]), err=True)
        sys.exit(1)


@command.command()
@click.argument("result_file", metavar="RESULT.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("page_file", metavar="PAGE.html", type=click.Path(dir_okay=False, path_type=Path))
def report(result_file: Path, page_file: Path) -> None:
    """Make the page of an earlier run's --json file."""
    from railweave.bench.result import Run
    from railweave.report.exchange import page

    _write(page_file, page(Run.load(result_file)))


class _Progress:
    """A progress bar that says what is running now; nothing where standard error is no terminal."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=total)
        self._started = False

    def step(self, description: str) -> None:
        self._progress.update(self._task, description=description, advance=1 if self._started else 0)
        self._started = True

    def __enter__(self) -> _Progress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _policies() -> tuple[str, ...]:
    from railweave._native import policy_names

    return tuple(policy_names())


def _chosen(text: str, known: tuple[str, ...], what: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise click.UsageError(f"no {what} '{name}': there are {', '.join(known)}")
    return list(dict.fromkeys(chosen))


def _write(path: Path, text: str) -> Any:
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise click.FileError(str(path), error.strerror) from error
