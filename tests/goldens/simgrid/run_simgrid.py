"""Simulates flow sets with SimGrid 4.1 in its exact max-min settings. Runs in an environment that has simgrid (make simgrid-goldens).

Standard input: one JSON object a line, {"capacities": [bytes/s], "flows": [[bytes, start_ns, latency_ns, [resource, ...]], ...]}.
Standard output: one JSON object a line, {"finish_seconds": [...], "wall_seconds" and "cpu_seconds": time that Engine.run took}.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import time
from typing import Any


def _simulate(case: dict[str, Any]) -> dict[str, Any]:
    from simgrid import Comm, Engine, LinkInRoute, this_actor

    engine = Engine(["railweave", "--log=root.thres:error"])
    # CM02 without TCP's window (gamma) and without acknowledgements on the way back is max-min fairness and nothing else; a
    # precision far below the sizes and rates that occur.
    for setting in (
        "network/model:CM02",
        "network/TCP-gamma:0",
        "network/crosstraffic:0",
        "precision/work-amount:1e-3",
        "precision/timing:1e-12",
    ):
        Engine.set_config(setting)
    zone = engine.netzone_root.add_netzone_full("fabric")
    # CM02 shares in inverse proportion to latency, which is a property of TCP; so links have none here, and a flow's latency is
    # added to its completion, as the model does.
    links = [zone.add_link(f"r{i}", float(capacity)) for i, capacity in enumerate(case["capacities"])]
    for link in links:
        link.seal()
    # Each flow gets a pair of hosts, so that it has a route of its own.
    flows = case["flows"]
    side = math.isqrt(len(flows)) + 1
    hosts = [zone.add_host(f"h{i}", 1e9) for i in range(2 * side)]
    for host in hosts:
        host.seal()
    for i, (_bytes, _start, _latency, resources) in enumerate(flows):
        route = [LinkInRoute(links[r]) for r in resources]
        zone.add_route(hosts[i // side], hosts[side + i % side], route, False)
    zone.seal()
    finish = [0.0] * len(flows)

    def run_flows() -> None:
        comms = []
        for i in sorted(range(len(flows)), key=lambda i: flows[i][1]):
            size, start_ns, _latency, _resources = flows[i]
            this_actor.sleep_until(start_ns * 1e-9)
            comms.append((i, Comm.sendto_async(hosts[i // side], hosts[side + i % side], size)))
        for i, comm in comms:
            comm.wait()
            finish[i] = comm.finish_time + flows[i][2] * 1e-9

    hosts[0].add_actor("flows", run_flows)
    begin, cpu = time.perf_counter(), time.process_time()
    engine.run()
    return {"finish_seconds": finish, "wall_seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}


def main() -> None:
    """Answers each line of standard input, each in a process of its own, because SimGrid has one engine a process."""
    context = multiprocessing.get_context("fork")
    for line in sys.stdin:
        with context.Pool(1) as pool:
            print(json.dumps(pool.apply(_simulate, (json.loads(line),))), flush=True)


if __name__ == "__main__":
    main()
