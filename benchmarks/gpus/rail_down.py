"""A rail goes down in the middle of an exchange between GPUs of two nodes and comes back: what it costs, under NCCL and Railweave.

    python benchmarks/gpus/rail_down.py [--gpus N] [--ranks N] [--systems nccl,railweave]

Needs root, PyTorch and a GPU; ranks that are more than the GPUs share them (under_mps.py, or by time slices). The first rank of a node
sends to the first of the other; the sender's first rail is down for ten seconds from the first third of the exchange on. One line of JSON
for each system; status 1 when Railweave delivered a wrong byte, did not end while the rail was down, or did not use it again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
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


def measure(ranks: Processes, lab: Lab, rails: int, nbytes: int, pause: Callable[[float], None] = time.sleep) -> dict[str, Any]:
    """Three exchanges: all rails up; one goes down and comes back; all up again."""
    world = lab.spec.world
    ranks.ask(_LIMIT_S, "prepare", matrix=hot_pair(world, nbytes).tolist(), repetition=0)
    ranks.ask(_LIMIT_S, "check")  # connects
    healthy, wrong = _timed(ranks)
    found: dict[str, Any] = {"system": ranks.name, "healthy_s": healthy}

    def fail_and_mend() -> None:
        pause(healthy / 3)
        lab.set_link(0, 0, up=False)
        pause(_DOWN_S)
        lab.set_link(0, 0, up=True)

    plug = threading.Thread(target=fail_and_mend)
    plug.start()
    try:
        found["with_the_rail_down_s"], wrong_then = _timed(ranks)
    finally:
        plug.join()
    pause(_BACK_S)
    before = _sent(lab)
    found["afterwards_s"], wrong_after = _timed(ranks)
    sent = [after - count for after, count in zip(_sent(lab), before, strict=True)]
    found["share_of_the_rail_afterwards"] = round(sent[0] / max(1, sum(sent)), 3)
    found["wrong"] = wrong or wrong_then or wrong_after
    found["ended_while_the_rail_was_down"] = found["with_the_rail_down_s"] < healthy / 3 + _DOWN_S
    found["used_again"] = found["share_of_the_rail_afterwards"] >= _LEAST_SHARE / rails
    return found


def _timed(ranks: Processes) -> tuple[float, str | None]:
    begin = time.monotonic()
    answers = ranks.ask(_LIMIT_S, "check")
    seconds = round(time.monotonic() - begin, 3)
    wrong = [
        f"rank {rank} got a wrong byte from rank {each['wrong'][0]} at {each['wrong'][1]}"
        for rank, each in enumerate(answers)
        if each["wrong"]
    ]
    return seconds, wrong[0] if wrong else None


def _sent(lab: Lab) -> list[int]:
    """Bytes that each NIC of the first node has sent, by rail."""
    return [int(link["tx_bytes"]) for link in sorted(lab.links(), key=lambda link: int(link["rail"])) if link["node"] == 0]


def _one(chosen: System, place: Place, lab: Lab) -> dict[str, Any]:
    rails = lab.spec.rails
    try:
        with tempfile.TemporaryDirectory(prefix="railweave-") as scratch, start(chosen, place, Path(scratch)) as ranks:
            ranks.ready()
            if chosen.name == "railweave":
                check_served("railweave", Path(scratch))
            return measure(ranks, lab, rails, int(_EXCHANGE_S * rails * _RATE / 8) // 512 * 512)
    except BenchError as error:
        return {"system": chosen.name, "error": str(error)}


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
