"""`railweave plan`: routes a matrix on a fabric."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

from railweave import matrix as matrices
from railweave.calibrate import link_state, read
from railweave.errors import FabricError
from railweave.fabric import Fabric, LinkState
from railweave.machine.load import load_fabric
from railweave.plan import POLICIES, Planned, make
from railweave.plan.explain import bound_name, explain, gap_remark, time_text
from railweave.size import size_text

_LEAST_WIDTH = 60  # characters a line that the table's figures need; in narrower terminals lines go on below


@click.command(name="plan")
@click.option(
    "--fabric",
    "fabric_source",
    required=True,
    metavar="FILE|TEMPLATE",
    help="A template, or any file that `railweave topo` reads.",
)
@click.option("--nodes", type=click.IntRange(1), help="Nodes to make of a template or topology file.")
@click.option(
    "--matrix", "matrix_source", required=True, metavar="FILE|GEN", help="nccl-tests matrix file, or a generator (railweave matrix -h)."
)
@click.option("--policy", type=click.Choice(POLICIES), default="railweave", show_default=True)
@click.option("--pxn", type=click.IntRange(0, 2), help="Level of NCCL's send-side relay, for policy nccl; by default 2.")
@click.option("--down", multiple=True, metavar="VERTEX", help="Take down all links of a vertex, e.g. leaf0 or node0/nic1; repeatable.")
@click.option("--slow", multiple=True, metavar="VERTEX=PART", help="Slow the links of a vertex to a part of their rate, e.g. leaf0=0.5.")
@click.option("--calibration", "calibrated", metavar="FILE", help="What railweave calibrate measured on the fabric's nodes (--output).")
@click.option("--exact", is_flag=True, help="Also solve the linear program over the planner's routes, for the gap to the optimum.")
@click.option("--explain", "explained", is_flag=True, help="Say for each demand which paths it takes and why.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema/plan.schema.json).")
def command(
    fabric_source: str,
    nodes: int | None,
    matrix_source: str,
    policy: str,
    pxn: int | None,
    down: tuple[str, ...],
    slow: tuple[str, ...],
    calibrated: str | None,
    exact: bool,
    explained: bool,
    as_json: bool,
) -> None:
    """Plan a matrix on a fabric: which bytes take which path, and what bounds them.

    \b
    railweave plan --fabric hgx-h100 --nodes 2 --matrix zipf:64MiB:1.2 --exact --explain
    railweave plan --fabric h100-4gpu-ndr --nodes 2 --matrix hot-pair:1GiB --down leaf0
    """
    if as_json and explained:
        raise click.UsageError("--json and --explain exclude each other: the one is for programs, the other for people.")
    if pxn is not None and policy != "nccl":
        raise click.UsageError(f"--pxn is for --policy nccl, not {policy}.")
    if calibrated == "":
        raise click.UsageError("--calibration is empty, perhaps a variable that is not set; without it links have the fabric's rates.")
    fabric, unknown = load_fabric(fabric_source, nodes)
    for note in unknown:
        click.echo(f"railweave: {note}", err=True)
    matrix = matrices.load(matrix_source, fabric.gpu_count)
    planned = make(
        fabric, matrix, policy, links=_link_state(fabric, calibrated, down, slow), pxn_level=2 if pxn is None else pxn, exact=exact
    )
    if as_json:
        click.echo(json.dumps(planned.document(), indent=1))
    elif explained:
        for line in explain(planned):
            click.echo(line)
    else:
        _show(planned)


def _link_state(fabric: Fabric, calibrated: str | None, down: tuple[str, ...], slow: tuple[str, ...]) -> LinkState:
    links = link_state(read(calibrated), fabric) if calibrated is not None else LinkState(fabric)
    for name in down:
        for edge in _edges_of(fabric, name):
            links.set_down(edge, True)
    for text in slow:
        name, _, part = text.rpartition("=")
        try:
            factor = float(part)
        except ValueError:
            factor = 0.0
        if not name or not 0 < factor <= 1:
            raise click.BadParameter(f"'{text}'; expected VERTEX=PART with a part above 0 and up to 1", param_hint="--slow")
        for edge in _edges_of(fabric, name):
            if not links.is_down(edge):
                # A link has two ends, and what was measured may be slower still: no slowdown speeds up what another left.
                links.set_rate(edge, max(1, min(links.rate_Bps(edge), int(fabric.edge(edge).capacity_Bps * factor))))
    return links


def _edges_of(fabric: Fabric, name: str) -> list[int]:
    vertex = fabric.find_vertex(name)
    if vertex is None:
        raise FabricError(f"fabric '{fabric.name}' has no vertex '{name}'; `railweave topo` lists them")
    return [*fabric.out_edges(vertex), *fabric.in_edges(vertex)]


def _show(planned: Planned) -> None:
    plan, fabric = planned.plan, planned.fabric
    # Names of fabrics and vertices are text, and whole in pipes, too.
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.width = max(console.width, _LEAST_WIDTH)
    kinds: dict[str, list[int]] = {}
    for share in plan.shares:
        name = share.route.kind + {0: "", 1: " + 1 relay", 2: " + 2 relays"}[share.route.relays if share.route.nic_src is not None else 0]
        kinds.setdefault(name, []).append(share.bytes)
    console.print(f"{fabric.name}, policy {plan.policy}", style="italic")
    table = Table()
    table.add_column("path", no_wrap=True)
    for name in ("shares", "bytes", "part"):
        table.add_column(name, justify="right", no_wrap=True)
    total = sum(sum(sizes) for sizes in kinds.values())
    for name, sizes in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        table.add_row(name, str(len(sizes)), size_text(sum(sizes)), f"{sum(sizes) / total:.1%}")
    console.print(table)
    console.print(f"time         {time_text(plan.z_seconds)}")
    console.print(f"bound        {time_text(planned.bound_seconds)} ({bound_name(planned)})")
    if planned.optimum is not None:
        remark = gap_remark(planned)
        gap = f"{planned.gap:.3%}" + (remark and f": {remark}")
        console.print(f"optimum      {time_text(planned.optimum.seconds)}, gap {gap}")
    bottleneck = "none" if plan.bottleneck is None else fabric.describe(plan.bottleneck)
    console.print(f"bottleneck   {bottleneck}")
    console.print(f"planned in   {planned.plan_time_us:.1f} us")
