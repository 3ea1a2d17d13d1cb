"""Checks of cores, clocks and memory: each fires on its fault, is silent without it, unknown where its input is not readable."""

from __future__ import annotations

from faults import Break, Case, unread
from template_machine import TemplateMachine


def sub_numa(machine: TemplateMachine) -> None:
    for cpu in range(16):
        machine.files[f"/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = "0"


def all_policies(name: str, setting: str) -> Break:
    def fault(machine: TemplateMachine) -> None:
        for cpu in range(16):
            machine.files[f"/sys/devices/system/cpu/cpufreq/policy{cpu}/{name}"] = setting

    return fault


CASES = [
    Case("cpu.sub-numa", sub_numa, ("machine",), "2 NUMA nodes a socket", "socket 0: NUMA nodes 0, 1", "info"),
    Case(
        "cpu.smt",
        lambda machine: machine.files.update({"/sys/devices/system/cpu/smt/active": "1"}),
        ("machine",),
        "several hardware threads",
        "smt/active",
        "info",
    ),
    Case(
        "cpu.clock", all_policies("scaling_governor", "schedutil"), ("machine",), "schedutil on CPUs 0-15", "schedutil on 0-15", "warning"
    ),
    Case(
        "cpu.clock",
        all_policies("energy_performance_preference", "balance_performance"),
        ("machine",),
        "preference balance_performance",
        "balance_performance on 0-15",
        "warning",
        name="epp",
    ),
    Case(
        "cpu.numa-balancing",
        lambda machine: machine.files.update({"/proc/sys/kernel/numa_balancing": "1"}),
        ("machine",),
        "on",
        "/proc/sys/kernel/numa_balancing: 1",
        "warning",
    ),
    Case(
        "cpu.hugepages",
        lambda machine: machine.files.update({"/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"}),
        ("machine",),
        "transparent huge pages are off",
        "transparent_hugepage/enabled: never",
        "info",
    ),
]

UNKNOWN: list[tuple[str, Break, str]] = [
    ("cpu.sub-numa", lambda machine: unread(machine, "/sys/devices/system/node/node1/cpulist"), ""),
    ("cpu.smt", lambda machine: unread(machine, "/sys/devices/system/cpu/smt/active"), "permission"),
    ("cpu.clock", lambda machine: unread(machine, "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"), "permission"),
    ("cpu.numa-balancing", lambda machine: unread(machine, "/proc/sys/kernel/numa_balancing"), "permission"),
    ("cpu.hugepages", lambda machine: unread(machine, "/sys/kernel/mm/transparent_hugepage/enabled"), "permission"),
]
