"""`railweave lab`: emulated rails on this machine."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from railweave.lab import Lab, LabError, LabSpec, Program, foreign_labs, labs, take_down
from railweave.lab.labels import start_labelled
from railweave.lab.spec import ISOLATIONS, parse_rate, parse_shape
from railweave.size import counted


@click.group(name="lab")
def command() -> None:
    """Emulated rails on this machine: network namespaces with shaped links. Needs root."""


@command.command()
@click.argument("name")
@click.argument("shape", metavar="NODESxGPUS")
@click.option("--rails", type=click.IntRange(min=1), metavar="N", help="Rails; by default one a GPU.")
@click.option("--rate", default="400mbit", show_default=True, help="Rate of each NIC, each way.")
@click.option(
    "--spine-rate", default=None, metavar="RATE", help="Of each leaf's link to the spine; by default the sum of its NICs, at most 32gbit."
)
@click.option(
    "--isolation", type=click.Choice(ISOLATIONS), default="gpu", show_default=True, help="Does a rank see its node's NICs, or only its own?"
)
@click.option("--mtu", default=9000, show_default=True, help="Of all links.")
def up(name: str, shape: str, rails: int | None, rate: str, spine_rate: str | None, isolation: str, mtu: int) -> None:
    """Build a lab that stays until `railweave lab down NAME`.

    \b
    railweave lab up demo 2x4 --rate 400mbit       # 2 nodes of 4 ranks
    railweave lab exec demo -- ip -br address
    railweave lab down demo
    """
    nodes, gpus = parse_shape(shape)
    spine = 0 if spine_rate is None else parse_rate(spine_rate)
    lab = Lab.up(LabSpec(nodes, gpus, rails or 0, parse_rate(rate), spine, isolation, mtu), name)
    lab.release()
    click.echo(f"{name} is up: {_summary(lab.spec)}")
    click.echo(f"Run a program on every rank: railweave lab exec {name} -- PROGRAM; mpirun: railweave lab exec {name} --node 0 -- mpirun …")


class _Exec(click.Command):
    """Options end where the program begins, which may have some of the same name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {name for option in self.params if isinstance(option, click.Option) and not option.is_flag for name in option.opts}
        return super().parse_args(ctx, _program_apart(args, with_value))


def _program_apart(words: list[str], with_value: set[str]) -> list[str]:
    """With a `--` before the program, which is the second word that is no option."""
    at, named = 0, False
    while at < len(words) and words[at] != "--":
        if words[at].startswith("-"):
            at += 2 if words[at] in with_value else 1
        elif not named:
            at, named = at + 1, True
        else:
            return [*words[:at], "--", *words[at:]]
    return words


@command.command(name="exec", cls=_Exec, short_help="Run a program on all ranks of a lab.")
@click.argument("name")
@click.option("--rank", type=int, multiple=True, help="Only on this rank (repeatable).")
@click.option("--node", type=int, help="Once, on this node, for launchers such as mpirun (hosts are node0, node1, …).")
@click.option("--label", is_flag=True, help="Begin each line of output with its rank, as `srun --label` does.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, rank: tuple[int, ...], node: int | None, label: bool, program: tuple[str, ...]) -> None:
    """Run a program on all ranks, with torchrun's variables, its own NIC, and settings for OpenMPI, NCCL, UCX and Gloo.

    What follows the program is the program's own, options included.
    """
    if not program[0]:
        raise click.UsageError("the program is an empty word")
    if rank and node is not None:
        raise click.UsageError("--rank and --node exclude each other")
    if label and node is not None:
        raise click.UsageError("--label says which rank wrote a line; what runs once on a --node is none (mpirun has --tag-output)")
    lab = Lab.find(name)
    if node is not None:
        programs = [Program(list(program), node=node)]
        _within([node], lab.spec.nodes, "node")
    else:
        programs = [Program(list(program), rank=r) for r in rank or range(lab.spec.world)]
        _within(rank, lab.spec.world, "rank")
    with start_labelled(lab, programs) if label else lab.start(programs, new_session=False) as job:
        try:
            status = job.wait()
        except KeyboardInterrupt:
            # The programs got the same Ctrl-C from the terminal; whatever ignores it is killed when the job closes.
            status = 130
            job.drain(2.0)
    sys.exit(status if status >= 0 else 128 - status)


@command.command()
@click.argument("name")
@click.option("--node", type=int, required=True, help="The NIC's node, from 0.")
@click.option("--rail", type=int, required=True, help="Its rail, from 0.")
@click.option("--up/--down", default=None, help="Mend or break the switch port of the NIC.")
@click.option("--rate", help="New rate of NIC and port, each way.")
def link(name: str, node: int, rail: int, up: bool | None, rate: str | None) -> None:
    """Break, mend or slow a NIC's link."""
    if up is None and rate is None:
        raise click.UsageError("say what to change: --up, --down or --rate")
    new = None if rate is None else parse_rate(rate)
    Lab.find(name).set_link(node, rail, up=up, rate=new)


@command.command()
@click.argument("name", required=False)
@click.option("--all", "all_", is_flag=True, help="Every lab of yours on this machine, also those that no longer answer.")
def down(name: str | None, all_: bool) -> None:
    """Take a lab down: kill what runs in it and remove it."""
    if (name is None) != all_:
        raise click.UsageError("give either the name of a lab or --all")
    for each in labs() if name is None else [name]:
        if take_down(each):
            click.echo(f"{each} is down")
        elif name is not None:  # of all of them, one may have gone by itself meanwhile
            raise LabError(f"no lab named '{each}': see `railweave lab status`")


@command.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="With each NIC's state, rate and the kernel's byte counters.")
def status(name: str | None, as_json: bool) -> None:
    """Show the labs that are up.

    Other users' labs, which only they can use, are named alone, and left out of the JSON.
    """
    found = [Lab.find(name).describe()] if name else _all_that_stay()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    foreign = {} if name else foreign_labs()
    if not found and not foreign:
        click.echo("no lab is up")
    for other, owner in foreign.items():
        click.echo(f"{other}: of user {owner}")
    for each in found:
        click.echo(f"{each['name']}: {_summary(LabSpec.from_json(each['spec']))}")
        for nic in each["links"]:
            if not nic["up"] or nic["rate"] != each["spec"]["rate"]:
                state = "up" if nic["up"] else "down"
                click.echo(f"  node {nic['node']} rail {nic['rail']}: {state}, {nic['rate'] / 1e6:g} mbit")


@command.command()
@click.argument("name")
def fabric(name: str) -> None:
    """Print a lab's fabric as JSON, for plan and simulate.

    Its links are as they are now; those that are down are left out.
    """
    from railweave.lab.fabric import of_lab

    lab = Lab.find(name)
    links = lab.links()
    for nic in links:
        if not nic["up"]:  # in JSON that is an edge less, which is easily missed
            click.echo(f"node {nic['node']} rail {nic['rail']} is down and left out", err=True)
    click.echo(of_lab(lab.spec, links).to_json())


def _all_that_stay() -> list[dict[str, Any]]:
    """Descriptions of all labs but those that go down meanwhile."""
    found = []
    for each in labs():
        try:
            found.append(Lab.find(each).describe())
        except LabError:
            if each in labs():
                raise
    return found


def _summary(spec: LabSpec) -> str:
    shape = f"{counted(spec.nodes, 'node')} × {counted(spec.gpus, 'rank')}"
    rails = f"{counted(spec.rails, 'rail')} at {spec.rate / 1e6:g} mbit each way"
    spine = ""
    if spec.rails > 1 and spec.oversubscription > 1:
        spine = f", spine {spec.spine_rate / 1e6:g} mbit a leaf ({spec.oversubscription:.3g}:1 oversubscribed)"
    return f"{shape}, {rails}{spine}, isolation {spec.isolation}"


def _within(chosen: tuple[int, ...] | list[int], count: int, what: str) -> None:
    for each in chosen:
        if not 0 <= each < count:
            raise LabError(f"no {what} {each}: this lab has {what}s 0 to {count - 1}")
