"""A rail goes down in the middle of an exchange between GPUs of two nodes and comes back: what it costs, under NCCL and Railweave.

    python benchmarks/gpus/rail_down.py [--gpus N] [--ranks N] [--systems nccl,railweave]

Needs root, PyTorch and a GPU; ranks that are more than the GPUs share them (under_mps.py, or by time slices). The first rank of a node
sends to the first of the other. Of the sender's rails the one that the system itself sends most over is down for ten seconds, from the
first third of the exchange on. One line of JSON for each system, also of one that ended or did not answer within a minute: `error` says why
then, and what was found before stands. Status 1 when Railweave delivered a wrong byte, did not end while the rail was down, or did not use
it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from railweave.bench.errors import BenchError
from railweave.bench.gpus.rails import on_rails
from railweave.bench.gpus.session import Place, Processes, System, check_served, start, systems
from railweave.lab import Lab, LabSpec
from railweave.matrix import hot_pair

_RATE = 8_000_000_000
_EXCHANGE_S = 1.5  # on all rails
_DOWN_S = 10.0
_LIMIT_S = 60.0
# After the rail is up: NCCL's connections try again after their retransmission time, Railweave after reconnect_ms.
_BACK_S = 5.0
_LEAST_SHARE = 0.5  # of an equal share, on the rail that came back


def measure(
    ranks: Processes, lab: Lab, rails: int, nbytes: int, found: dict[str, Any], pause: Callable[[float], None] = time.sleep
) -> None:
    """Three exchanges: all rails up; the one that was used most goes down and comes back; all up again. Raises BenchError where the ranks
    end or do not answer; what `found` has then is what was seen until that, with the time for which they were waited."""
    world = lab.spec.world
    ranks.ask(_LIMIT_S, "prepare", matrix=hot_pair(world, nbytes).tolist(), repetition=0)
    ranks.ask(_LIMIT_S, "check")  # connects
    shares = _shares(lab, lambda: _exchange(ranks, "healthy_s", found))
    rail = shares.index(max(shares))
    found |= {"rail": rail, "share_of_the_rail": shares[rail]}
    healthy = found["healthy_s"]

    def fail_and_mend() -> None:
        pause(healthy / 3)
        lab.set_link(0, rail, up=False)
        pause(_DOWN_S)
        lab.set_link(0, rail, up=True)

    with ThreadPoolExecutor(1) as plug:
        mended = plug.submit(fail_and_mend)
        try:
            _exchange(ranks, "with_the_rail_down_s", found)
        finally:
            mended.result()  # the next system needs the rail, and a rail that never went down would look like one that nobody missed
    found["ended_while_the_rail_was_down"] = found["with_the_rail_down_s"] < healthy / 3 + _DOWN_S
    pause(_BACK_S)
    share = _shares(lab, lambda: _exchange(ranks, "afterwards_s", found))[rail]
    found |= {"share_of_the_rail_afterwards": share, "used_again": share >= _LEAST_SHARE / rails}


def _exchange(ranks: Processes, name: str, found: dict[str, Any]) -> None:
    """Notes its seconds by that name, and the first wrong byte of all exchanges."""
    begin = time.monotonic()
    try:
        answers = ranks.ask(_LIMIT_S, "check")
    finally:
        found[name] = round(time.monotonic() - begin, 3)
    wrong = [
        f"rank {rank} got a wrong byte from rank {each['wrong'][0]} at {each['wrong'][1]}"
        for rank, each in enumerate(answers)
        if each["wrong"]
    ]
    found["wrong"] = found.get("wrong") or (wrong[0] if wrong else None)


def _shares(lab: Lab, exchange: Callable[[], None]) -> list[float]:
    """Of what the first node sends meanwhile, the part over each rail."""
    before = _sent(lab)
    exchange()
    sent = [after - count for after, count in zip(_sent(lab), before, strict=True)]
    return [round(count / max(1, sum(sent)), 3) for count in sent]


def _sent(lab: Lab) -> list[int]:
    """Bytes that each NIC of the first node has sent, by rail."""
    return [int(link["tx_bytes"]) for link in sorted(lab.links(), key=lambda link: int(link["rail"])) if link["node"] == 0]


def _one(chosen: System, place: Place, lab: Lab) -> dict[str, Any]:
    rails, found = lab.spec.rails, {"system": chosen.name}
    try:
        with tempfile.TemporaryDirectory(prefix="railweave-") as scratch, start(chosen, place, Path(scratch)) as ranks:
            ranks.ready()
            if chosen.name == "railweave":
                check_served("railweave", Path(scratch))
            measure(ranks, lab, rails, int(_EXCHANGE_S * rails * _RATE / 8) // 512 * 512, found)
    except BenchError as error:
        found["error"] = str(error)
    return found


def main() -> int:
    """A line for each system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--ranks", type=int, help="of both nodes together; by default one a GPU")
    parser.add_argument("--systems", default="nccl,railweave")
    options = parser.parse_args()
    ranks = options.ranks or options.gpus
    if ranks < 2 or ranks % 2:
        parser.error("--ranks: expected an even number, for two nodes")
    status, a_node = 0, ranks // 2
    spec = LabSpec(2, a_node, 4 if 4 % a_node == 0 else a_node, _RATE, isolation="node")
    with on_rails(spec, options.gpus, systems(["nccl"], None)[0], None, lambda _: None) as run:
        assert run.place.lab is not None
        for chosen in systems(options.systems.split(","), None):
            found = _one(chosen, run.place, run.place.lab)
            print(json.dumps(found), flush=True)
            right = not found.get("wrong", "nothing") and found.get("ended_while_the_rail_was_down") and found.get("used_again")
            if chosen.name == "railweave" and not right:
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
