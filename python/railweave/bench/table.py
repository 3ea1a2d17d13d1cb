"""A run as a table for terminals, readable at 80 columns."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from railweave.bench.result import Result, Run
from railweave.bench.taken import warning
from railweave.size import counted
from railweave.units import RATES, TIMES, decimals, fitting

_BARS = "▁▂▃▄▅▆▇█"


def table(run: Run) -> Table:
    """One row for each matrix and policy; the speed-up is over the first policy of the run."""
    base, spec = run.policies()[0], run.lab
    shape = f"{counted(spec['nodes'], 'node')} × {counted(spec['gpus'], 'rank')}, {counted(spec['rails'], 'rail')}"
    times = fitting((each.seconds_median for each in run.results), TIMES)
    rates = fitting((each.bytes / each.seconds_median for each in run.results), RATES)
    checked = (
        "Every byte on every rank was right" if all(each.wrong is None for each in run.results) else "[red]THERE WERE WRONG BYTES[/red]"
    )
    notes = [f"Speed-up over {base}; bound: share of it reached; NICs: bytes through those of the busiest node.", f"{checked}."]
    if taken := warning(run.machine):
        notes.append(f"[yellow]{taken}[/yellow]")
    result = Table(
        title=f"all-to-allv, {shape} of {spec['rate'] / 1e6:g} mbit each way",
        caption="\n".join(notes),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    result.add_column("matrix", no_wrap=True)
    result.add_column("policy", no_wrap=True)
    for name in (times.name, "±", rates.name, "speed-up", "bound"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("NICs", no_wrap=True)
    for matrix in run.matrices():
        reference = run.find(matrix, base).seconds_median
        for number, policy in enumerate(run.policies()):
            each = run.find(matrix, policy)
            result.add_row(
                Text(matrix if number == 0 else ""),  # names of files are no markup
                Text(policy),
                times.show(each.seconds_median),
                # one repetition does not tell
                f"{(max(each.seconds) - min(each.seconds)) / each.seconds_median / 2:.0%}" if len(each.seconds) > 1 else "",
                rates.show(each.bytes / each.seconds_median),
                f"{reference / each.seconds_median:.2f}",
                f"{each.bound_fraction:.{decimals(each.bound_fraction, 2)}f}",
                _bars(busiest_node(each)) if each.wrong is None else "[red]WRONG[/red]",
                end_section=number == len(run.policies()) - 1,
            )
    return result


def busiest_node(result: Result) -> list[int]:
    """Bytes through each NIC of the node and in the direction whose busiest NIC carries most; of equals, the most uneven one."""
    sides: dict[tuple[int, str], list[int]] = {}
    for nic in result.rails:
        sides.setdefault((nic.node, "tx"), []).append(nic.tx_bytes)
        sides.setdefault((nic.node, "rx"), []).append(nic.rx_bytes)
    # Kernel counters differ a little by acknowledgements: equal to a part in 50 is equal.
    top = max((max(side) for side in sides.values()), default=0)
    return min((side for side in sides.values() if max(side) >= 0.98 * top), key=sum, default=[])


def _bars(counts: list[int]) -> str:
    top = max(counts, default=0) or 1
    return "".join(_BARS[min(7, round(7 * count / top))] for count in counts)
