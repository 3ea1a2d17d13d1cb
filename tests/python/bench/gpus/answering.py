"""Ranks for the tests of Processes, without PyTorch; the argument is CONTROL-FD."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(control_fd: str, *words: str) -> None:
    rank = int(os.environ["RANK"])
    with socket.socket(fileno=int(control_fd)) as control, control.makefile("rw") as lines:

        def say(**answer: object) -> None:
            lines.write(json.dumps(answer) + "\n")
            lines.flush()

        say(up=rank, seen=os.environ.get("SEEN", ""))
        for line in lines:
            command = json.loads(line)
            if command["do"] == "stop" and rank == 1:
                say(rank=rank, **command)
                os.kill(os.getpid(), signal.SIGSTOP)
                continue
            if command["do"] == "die" and rank == 1:
                print("rank 1 has had enough", flush=True)
                os._exit(3)
            if command["do"] == "sleep":
                continue
            if command["do"] == "fill" and rank == 1:
                say(failed="CUDA out of memory. Tried to allocate 2 TiB.")
                continue
            say(rank=rank, **command)


main(*sys.argv[1:])
