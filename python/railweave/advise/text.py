"""Advice for people: who uses what, when GPUDirect helps, which settings and why."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.advise.advice import Advice
from railweave.advise.gdr import Decision
from railweave.advise.host import Distance
from railweave.advise.mapping import Mapping, Workload
from railweave.advise.settings import Setting
from railweave.launch.placement import cpu_text
from railweave.size import counted, exact_size
from railweave.topo.hierarchy import rate


def render(advice: Advice) -> str:
    """The whole text, ending in a newline."""
    host = advice.host
    sources = _Sources()
    lines = [f"{host.fabric.name}, {host.fabric.node_names[host.node]}: advice for {headline(advice.workload, advice.size_B)}", ""]
    lines += _rank_table(advice)
    if host.network_why:
        lines += ["", f"GPU network: {host.network_why}"]
    if advice.mapping:
        lines += ["", *_bound(advice.mapping)]
    if advice.decisions:
        lines += ["", "GPUDirect RDMA (GDR) and GDRCopy", *_decisions(advice, sources)]
    lines += ["", "settings that differ from the defaults" if advice.settings else "settings: the defaults are right"]
    lines += _settings(advice.settings, sources)
    for title, texts in (("not known", advice.missing), ("notes", advice.notes)):
        if texts:
            lines += ["", title, *(f"  - {text}" for text in texts)]
    if sources.numbers:
        lines += ["", "sources", *(f"  [{number}] {source}" for source, number in sources.numbers.items())]
    return "\n".join(lines) + "\n"


class _Sources:
    """Footnotes, numbered as they are first named."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, source: str) -> str:
        """`[1]`."""
        return f"[{self.numbers.setdefault(source, len(self.numbers) + 1)}]"


def _rank_table(advice: Advice) -> list[str]:
    rows = [["rank", "GPU", "NIC", "way", "NUMA", "cores"]]
    for gpu, binding in zip(advice.host.gpus, advice.bindings, strict=True):
        nics = advice.mapping.nics[gpu.rank] if advice.mapping else ()
        rows.append(
            [
                str(gpu.rank),
                " ".join(filter(None, (gpu.name, gpu.bus_id))),
                ", ".join(f"{nic.name} {nic.device}" if nic.device else nic.name for nic in nics) or "-",
                _way(advice.distances[gpu.rank]) if advice.distances else "-",
                "?" if binding.memory is None else cpu_text(binding.memory),
                "?" if binding.cpus is None else cpu_text(binding.cpus),
            ]
        )
    return table(rows)


def _way(distance: Distance | None) -> str:
    return "?" if distance is None else distance.name


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns, left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _bound(mapping: Mapping) -> list[str]:
    each = rate(round(1 / mapping.seconds_per_byte))
    lines = [f"bound when all ranks send and receive at once: {each} a rank each way, by {mapping.bottleneck}"]
    if mapping.nearest_seconds_per_byte > mapping.seconds_per_byte * 1.001:  # printed with three digits
        lines.append(f"  the nearest NIC for each rank would give {rate(round(1 / mapping.nearest_seconds_per_byte))}")
    how = "the best of" if mapping.exact else "the best found among"
    tried = f"{counted(mapping.candidates, 'assignment')} ({counted(mapping.steps, 'step')}; bounds and symmetry settle the others)"
    lines.append(f"  {how} {tried}")
    return lines


def _decisions(advice: Advice, sources: _Sources) -> list[str]:
    groups: dict[tuple[Decision, ...], list[int]] = {}
    for rank, decisions in enumerate(advice.decisions):
        groups.setdefault(decisions, []).append(rank)
    lines = []
    for decisions, ranks in groups.items():
        ways = " and ".join(sorted({_way(advice.distances[rank]) for rank in ranks}))
        lines.append(f"  rank{'s' * (len(ranks) > 1)} {cpu_text(ranks)}, way {ways}")
        for decision in decisions:
            switches = f"GDR {_switch(decision.gdr):<3}  GDRCopy {_switch(decision.gdrcopy)}"
            lines.append(f"    {decision.metric.value:<9}  {_sizes(decision):<18}  {switches}")
            lines.append(f"      {decision.why} {sources.mark(decision.source)}")
            if decision.caveat:
                lines.append(f"      caveat: {decision.caveat}")
    return lines


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _sizes(decision: Decision) -> str:
    if decision.last_B is None:
        return f"from {exact_size(decision.first_B)}" if decision.first_B % 1024 != 1 else f"above {exact_size(decision.first_B - 1)}"
    return (
        f"up to {exact_size(decision.last_B)}"
        if decision.first_B == 0
        else f"{exact_size(decision.first_B)} to {exact_size(decision.last_B)}"
    )


def _settings(settings: Sequence[Setting], sources: _Sources) -> list[str]:
    lines = []
    for setting in settings:
        if setting.per_rank:
            lines.append(f"  {setting.library.value}: {setting.name}, by rank:")
            lines += [f"    {rank}: {'(unset)' if value is None else value}" for rank, value in enumerate(setting.values)]
        else:
            lines.append(f"  {setting.library.value}: {setting.name}={setting.values[0]}")
        lines.append(f"      {setting.why} {sources.mark(setting.source)}")
        lines.append(f"      default: {setting.default}; holds for {setting.library.value} {setting.versions}")
    return lines


def headline(workload: Workload, size_B: int) -> str:
    """For comments in generated files."""
    return f"{workload.value}, {exact_size(size_B)} messages"
