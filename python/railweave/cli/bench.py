"""`railweave bench`: exchanges for real."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from railweave.lab.spec import ISOLATIONS
from railweave.output import OutputError, check_writable, json_text, name_files, write_whole

if TYPE_CHECKING:
    from railweave.lab import LabSpec

_OUTPUT = click.Path(path_type=Path)
_SYSTEMS_HELP = (
    "nccl, nccl-tuned, nccl-shim-off, railweave, railweave-torch, railweave-torch-registered, railweave-torch-async,"
    " railweave-counters, railweave-checksums, railweave-nvtx; the first is the rival."
)


def _finite(_context: click.Context, option: click.Parameter, values: tuple[float, ...]) -> tuple[float, ...]:
    """A range holds what is no number, too."""
    if any(math.isnan(value) for value in values):
        raise click.BadParameter("nan is no number.", param=option)
    return values


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


@command.command(short_help="Exchanges by traffic matrices, in a lab or on GPUs.")
@click.option("--lab", "shape", metavar="NODESxGPUS", help="Emulated rails to run on; needs root.")
@click.option("--gpus", is_flag=False, flag_value=0, type=click.IntRange(0), metavar="[N]", help="This machine's GPUs, by default all.")
@click.option("--rails", type=click.IntRange(min=1), metavar="N", help="Rails; by default as in --fabric, else one a GPU.")
@click.option("--rate", default="400mbit", show_default=True, help="Rate of each NIC, each way.")
@click.option("--spine-rate", metavar="RATE", help="Of each leaf's link to the spine; by default the sum of its NICs, at most 32gbit.")
@click.option(
    "--isolation",
    type=click.Choice(ISOLATIONS),
    help="Does a rank see its node's NICs (node, the default on GPUs), or only its own (gpu, the default else)?",
)
@click.option("--fabric", "source", metavar="FILE|TEMPLATE", help="Wire each node as this says: topology XML, cluster or template.")
@click.option("--matrix", "matrices", multiple=True, metavar="GEN|FILE", help="Repeatable; see `railweave matrix --help`. By default six.")
@click.option("--policies", default="single-path,railweave", show_default=True, help="Of the engine, separated by commas; '' for none.")
@click.option("--peer", "peers", default="", metavar="openmpi,ucx", help="MPI_Alltoallv of the system's OpenMPI, over TCP or UCX.")
@click.option(
    "--systems",
    default="nccl,railweave",
    show_default=True,
    help=f"On GPUs: {_SYSTEMS_HELP}",
)
@click.option("--nccl", "other_nccl", type=click.Path(exists=True, path_type=Path), help="On GPUs: one more rival's libnccl.so.2.")
@click.option(
    "--emulate-mesh",
    "mesh",
    type=click.IntRange(1, 1000),
    metavar="GB/s",
    help="On GPUs behind an NVSwitch: as if each pair had an NVLink of that rate; Railweave with paths through other GPUs against without.",
)
@click.option("--repeat", type=click.IntRange(1, 1000), help="Rounds, after a warm-up: 5 in the lab, else 9, of 50 queued calls on GPUs.")
@click.option(
    "--starts",
    type=click.IntRange(1, 20),
    default=1,
    show_default=True,
    help="On GPUs: of each system, up at once; rounds are of each in turns. Single calls differ between starts by more than 3%.",
)
@click.option("--json", "json_file", type=_OUTPUT, help="Write the result.")
@click.option("--report", type=_OUTPUT, help="Write a page with pictures (one HTML file).")
def alltoallv(
    shape: str | None,
    gpus: int | None,
    rails: int | None,
    rate: str,
    spine_rate: str | None,
    isolation: str | None,
    source: str | None,
    matrices: tuple[str, ...],
    policies: str,
    peers: str,
    systems: str,
    other_nccl: Path | None,
    mesh: int | None,
    repeat: int | None,
    starts: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Each rank sends each other rank as many bytes as a matrix says: on emulated rails (--lab), through PyTorch on GPUs (--gpus), or
    through PyTorch on GPUs of emulated nodes (both).

    \b
    railweave bench alltoallv --lab 2x4 --peer openmpi --report page.html
    railweave bench alltoallv --lab 2x2 --matrix hot-pair:8MiB --matrix balanced:1MiB --repeat 9
    railweave bench alltoallv --gpus --json out.json
    """
    if shape is None and gpus is None and mesh is None:
        raise click.UsageError("give --lab NODESxGPUS, --gpus, or both")
    if starts > 1 and (gpus is None or shape is not None or mesh is not None):
        raise click.UsageError("--starts takes --gpus without --lab and --emulate-mesh")
    if repeat is not None and repeat % starts:
        raise click.UsageError(f"--repeat {repeat} --starts {starts}: expected as many rounds of each start")
    check_writable(json_file, report)
    if mesh is not None:
        from railweave.cli.bench_gpus import run_on_mesh

        if gpus is None or shape is not None or _given("systems", "other_nccl"):
            raise click.UsageError("--emulate-mesh takes --gpus and compares Railweave with itself: no --lab, --systems, --nccl")
        return run_on_mesh(gpus, mesh, matrices, repeat or 9, json_file, report)
    if gpus is not None and (ignored := _given("policies", "peers")):
        raise click.UsageError(f"--gpus compares PyTorch's NCCL and Railweave (--systems): no {ignored}")
    if gpus is None and (ignored := _given("systems", "other_nccl")):
        raise click.UsageError(f"--lab without --gpus compares --policies and --peer: no {ignored}")
    if shape is None and (ignored := _given("rails", "rate", "spine_rate", "isolation", "source")):
        raise click.UsageError(f"--gpus without --lab runs on this machine's own links: no {ignored}")
    if gpus is not None and shape is not None:
        from railweave.cli.bench_gpus import run_on_rails

        if gpus or source is not None:
            raise click.UsageError(
                "--lab with --gpus takes the GPUs that CUDA_VISIBLE_DEVICES names, each beside its own rails: no number, no --fabric"
            )
        spec = _gpu_lab(shape, rails, rate, spine_rate, isolation)
        return run_on_rails(spec, matrices, systems, other_nccl, repeat or 5, json_file, report)
    if gpus is not None:
        from railweave.cli.bench_gpus import run_exchanges

        return run_exchanges(gpus, matrices, systems, other_nccl, repeat or starts * -(-9 // starts), starts, json_file, report)
    assert shape is not None
    return _in_lab(shape, rails, rate, spine_rate, isolation or "gpu", source, matrices, policies, peers, repeat or 5, json_file, report)


def _given(*names: str) -> str:
    """Those of the options that were typed, as they are typed."""
    context = click.get_current_context()
    typed = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return ", ".join(option.opts[0] for option in context.command.params if option.name in typed)


def _gpu_lab(shape: str, rails: int | None, rate: str, spine_rate: str | None, isolation: str | None) -> LabSpec:
    from railweave.lab import LabSpec
    from railweave.lab.spec import parse_rate, parse_shape

    nodes, gpus = parse_shape(shape)
    return LabSpec(nodes, gpus, rails or gpus, parse_rate(rate), 0 if spine_rate is None else parse_rate(spine_rate), isolation or "node")


def _in_lab(
    shape: str,
    rails: int | None,
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
    from rich.console import Console

    from railweave.bench import result, table
    from railweave.bench.alltoallv import Case, lower_bound, run, steps
    from railweave.bench.result import Result
    from railweave.bench.session import PEERS
    from railweave.bench.taken import TakenTime
    from railweave.lab import LabSpec
    from railweave.lab.fabric import of_file, of_lab, rails_of_file
    from railweave.lab.spec import parse_rate, parse_shape
    from railweave.matrix import load

    nodes, gpus = parse_shape(shape)
    rails = rails or (gpus if source is None else rails_of_file(source, nodes))
    spec = LabSpec(nodes, gpus, rails, parse_rate(rate), 0 if spine_rate is None else parse_rate(spine_rate), isolation)
    fabric = of_lab(spec) if source is None else of_file(spec, source)
    wanted = chosen(policies, _policies(), "policy"), chosen(peers, PEERS, "peer")
    if not any(wanted):
        raise click.UsageError("nothing to run: give --policies or --peer")
    loaded = [(title, load(name, spec.world)) for title, name in titled(matrices or DEFAULT_MATRICES)]
    cases = [Case(name, matrix, lower_bound(fabric, matrix)) for name, matrix in loaded]
    found = result.Run(
        result.now(),
        result.command_line(),
        result.machine(),
        result.versions(peers=bool(wanted[1])),
        spec.to_json(),
        Path(source).name if source else f"lab {spec.shape}",
        [],
    )

    def write() -> None:
        if json_file:
            write_whole(json_file, json_text(found.to_json(), indent=1) + "\n")

    def keep(results: list[Result]) -> None:
        """A run that is ended early has left what it measured."""
        found.results.extend(results)
        taken.look()
        # What the ranks took is known once they have ended: until then they would be other programs.
        found.machine.update(cpu_stolen=round(taken.stolen, 4))
        with contextlib.suppress(OutputError):  # told below, with what was measured until then and since
            write()

    with BenchProgress(steps(len(cases), sum(map(len, wanted)), repeat)) as progress, TakenTime() as taken:
        run(spec, fabric, cases, *wanted, repeat, progress.step, keep)
    found.machine.update(cpu_stolen=round(taken.stolen, 4), cpu_others=round(taken.others, 4))
    # First what needs no file: a disk may have become full since it was looked at.
    Console(width=None if sys.stdout.isatty() else 120).print(table.table(found))
    write()
    if report:
        from railweave.report.exchange import page

        write_whole(report, page(found))
    name_files(result=json_file, page=report)
    wrong = [f"{each.matrix}, {each.policy}: {each.wrong}" for each in found.results if each.wrong]
    if wrong:
        click.echo("\n".join(["wrong bytes:", *wrong]), err=True)
        sys.exit(1)


@command.command(short_help="A mixture-of-experts layer on GPUs, through PyTorch.")
@click.option("--lab", "shape", metavar="NODESxGPUS", help="GPUs of emulated nodes, on shaped rails; needs root.")
@click.option(
    "--gpus", is_flag=False, flag_value=0, default=0, type=click.IntRange(0), metavar="[N]", help="By default all of this machine."
)
@click.option("--rails", type=click.IntRange(min=1), metavar="N", help="Of the lab; by default one a GPU.")
@click.option("--rate", default="8gbit", show_default=True, help="Of each NIC of the lab, each way.")
@click.option(
    "--skew", "skews", multiple=True, metavar="none|zipf:S|rotating", help="Repeatable; by default none, zipf:0.6, 1.0, 1.2, rotating."
)
@click.option(
    "--compute",
    "computes",
    multiple=True,
    type=click.FloatRange(min=0, max=1000, min_open=True),
    callback=_finite,
    metavar="X",
    help="Expert over dispatch time; repeatable; by default 0.5, 1, 2.",
)
@click.option("--tokens", type=click.IntRange(1), default=16384, show_default=True, help="Of a rank, once for each of its experts.")
@click.option("--width", type=click.IntRange(8), default=7168, show_default=True, help="Elements of a token, 2 bytes each.")
@click.option("--iterations", type=click.IntRange(1), default=10, show_default=True, help="Of a round.")
@click.option("--systems", default="nccl,railweave", show_default=True, help=_SYSTEMS_HELP)
@click.option("--nccl", "other_nccl", type=click.Path(exists=True, path_type=Path), help="One more rival's libnccl.so.2.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=9, show_default=True, help="Rounds, after a warm-up.")
@click.option("--json", "json_file", type=_OUTPUT, help="Write the result.")
@click.option("--report", type=_OUTPUT, help="Write a page with pictures (one HTML file).")
def moe(
    shape: str | None,
    gpus: int,
    rails: int | None,
    rate: str,
    skews: tuple[str, ...],
    computes: tuple[float, ...],
    tokens: int,
    width: int,
    iterations: int,
    systems: str,
    other_nccl: Path | None,
    repeat: int,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """A mixture-of-experts layer on GPUs: dispatch, experts, combine, forward and backward, through PyTorch."""
    from railweave.cli.bench_gpus import LayerOptions, run_layers

    check_writable(json_file, report)
    _each_once("--skew", skews)
    _each_once("--compute", [f"{compute:g}" for compute in computes])
    options = LayerOptions(
        skews or ("none", "zipf:0.6", "zipf:1.0", "zipf:1.2", "rotating"), computes or (0.5, 1.0, 2.0), tokens, width, iterations
    )
    if shape and gpus:
        raise click.UsageError("--lab takes the GPUs that CUDA_VISIBLE_DEVICES names: no --gpus N")
    if not shape and (ignored := _given("rails", "rate")):
        raise click.UsageError(f"without --lab it runs on this machine's own links: no {ignored}")
    spec = _gpu_lab(shape, rails, rate, None, None) if shape else None
    run_layers(gpus, spec, options, systems, other_nccl, repeat, json_file, report)


@command.command(short_help="How much exchanges slow other work on the GPUs.")
@click.option(
    "--gpus", is_flag=False, flag_value=0, default=0, type=click.IntRange(0), metavar="[N]", help="By default all of this machine."
)
@click.option("--work", "works", multiple=True, type=click.Choice(("gemm", "all-reduce")), help="Repeatable; by default both.")
@click.option("--matrix", "matrices", multiple=True, metavar="GEN|FILE", help="Repeatable; by default a hot pair and a balanced one.")
@click.option("--systems", default="nccl,railweave", show_default=True, help=_SYSTEMS_HELP)
@click.option("--nccl", "other_nccl", type=click.Path(exists=True, path_type=Path), help="One more rival's libnccl.so.2.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=9, show_default=True, help="Rounds, after a warm-up.")
@click.option("--json", "json_file", type=_OUTPUT, help="Write the result.")
def beside(
    gpus: int,
    works: tuple[str, ...],
    matrices: tuple[str, ...],
    systems: str,
    other_nccl: Path | None,
    repeat: int,
    json_file: Path | None,
) -> None:
    """How much exchanges slow other work on the GPUs: matrix products, or NCCL's all-reduce on another communicator."""
    from railweave.cli.bench_gpus import run_beside

    check_writable(json_file)
    _each_once("--work", works)
    run_beside(gpus, works or ("gemm", "all-reduce"), matrices, systems, other_nccl, repeat, json_file)


@command.command()
@click.argument("result_file", metavar="RESULT.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("page_file", metavar="PAGE.html", type=_OUTPUT)
def report(result_file: Path, page_file: Path) -> None:
    """Make the page of an earlier run's --json file."""
    from railweave.bench.errors import BenchError
    from railweave.bench.gpus.result import FORMAT as GPU_FORMAT
    from railweave.bench.gpus.result import Run as GpuRun
    from railweave.bench.result import Run
    from railweave.fields import Fields
    from railweave.report import exchange, gpus

    if _one_file(result_file, page_file):
        raise OutputError(f"{page_file}: named for the result and for its page; expected a file for each")
    text = Fields(result_file, "a result of `railweave bench`", BenchError).file()  # once: a pipe has it no second time
    on_gpus = f'"{GPU_FORMAT}"' in text
    write_whole(page_file, gpus.page(GpuRun.parse(text, result_file)) if on_gpus else exchange.page(Run.parse(text, result_file)))
    name_files(page=page_file)


def _one_file(read: Path, written: Path) -> bool:
    """Under whatever names. What is no regular file, as a terminal, is read and written for what it is."""
    try:
        return read.is_file() and read.samefile(written)
    except OSError:  # there is no other yet; who opens it tells anything else
        return False


def titled(matrices: Sequence[str]) -> list[tuple[str, str]]:
    """What results call each matrix, and the matrix as it was named: a file by its name, and by as much of its path as tells it from the
    others. Raises UsageError for one that is named twice: its second results would count as the first's."""
    files = [_file_of(matrix) for matrix in matrices]
    _each_once("--matrix", [str(file or matrix) for file, matrix in zip(files, matrices, strict=True)])
    lengths = [1] * len(files)
    while True:
        titles = [_last(file, length) if file else matrix for file, length, matrix in zip(files, lengths, matrices, strict=True)]
        alike = [bool(file) and titles.count(title) > 1 for file, title in zip(files, titles, strict=True)]
        if not any(alike):
            return list(zip(titles, matrices, strict=True))
        lengths = [length + longer for length, longer in zip(lengths, alike, strict=True)]


def _file_of(matrix: str) -> Path | None:
    """The whole path, where it is a file and no generator, which goes first."""
    from railweave.matrix import GENERATORS

    if matrix.split(":")[0] in GENERATORS or not os.path.isfile(matrix):  # noqa: PTH113 - Path raises for some
        return None
    return Path(os.path.abspath(matrix))  # noqa: PTH100 - a link keeps the name by which it was named


def _last(file: Path, length: int) -> str:
    """So many parts of a path, from its end."""
    return str(Path(*file.parts[-length:]))


def _each_once(option: str, values: Sequence[str]) -> None:
    """Raises UsageError for a value that an option has twice."""
    for value in values:
        if values.count(value) > 1:
            raise click.UsageError(f"{option} {value} is there twice; expected each once")


class BenchProgress:
    """A progress bar that says what is running now; nothing where standard error is no terminal."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        console = Console(stderr=True)
        self._shown = console.is_interactive
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._shown)
        self._task = self._progress.add_task("", total=total)
        self._started = False

    def step(self, description: str) -> None:
        """Something begins."""
        self._progress.update(self._task, description=description, advance=1 if self._started else 0)
        self._started = True

    def __enter__(self) -> BenchProgress:
        if self._shown:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:  # rich would end it with an empty line
            self._progress.stop()


def _policies() -> tuple[str, ...]:
    from railweave._native import policy_names

    return tuple(policy_names())


def chosen(text: str, known: tuple[str, ...], what: str) -> list[str]:
    """Names separated by commas. Raises UsageError for one that is not known."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise click.UsageError(f"no {what} '{name}': there are {', '.join(known)}")
    return list(dict.fromkeys(names))
