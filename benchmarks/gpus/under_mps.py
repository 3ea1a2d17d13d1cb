"""Runs a program under a Multi-Process Service (MPS) of its own, which ends with it.

    python benchmarks/gpus/under_mps.py PROGRAM [ARGUMENT ...]

The service's pipes and log are in a folder of its own, so it meets no other one of the machine; no setting of a GPU is changed. Of its
log only the end is told, and only when it does not serve. Status: the program's; 3 where the service does not start or does not serve.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_START_S, _END_S = 15.0, 15.0
_NOT_THERE = 3
_SERVED = re.compile(r"Client \{PID: .*\} connected")  # in the log of control and server (driver 580)
_LOG_LINES = 10  # that say why


@contextlib.contextmanager
def service(folder: Path) -> Iterator[dict[str, str]]:
    """The environment of its clients. It is this process's child, in the foreground: no daemon outlives anybody. There it and its server
    write no files: `folder`/log is what they say on standard error."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipes"), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    (folder / "pipes").mkdir()
    with (folder / "log").open("wb") as log:
        control = subprocess.Popen([_CONTROL, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _START_S
        while _ask("get_default_active_thread_percentage", environment) is None:
            if control.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{_CONTROL} does not answer (status {control.poll()}){_end_of_log(folder)}")
            time.sleep(0.2)
        yield environment
    finally:
        _ask("quit -t 5", environment)
        with contextlib.suppress(subprocess.TimeoutExpired):
            control.wait(_END_S)
        control.kill()
        control.wait()


def _ask(command: str, environment: dict[str, str]) -> str | None:
    """The service's answer, None where it gives none."""
    try:
        done = subprocess.run(
            [_CONTROL], input=f"{command}\n", capture_output=True, text=True, timeout=_END_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def _end_of_log(folder: Path) -> str:
    lines = (folder / "log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
    return "; its log ends:" + "".join(f"\n    {line}" for line in lines) if lines else "; it said nothing"


def main(command: list[str]) -> int:
    """The program's status."""
    if not command:
        print(__doc__)
        return _NOT_THERE
    with tempfile.TemporaryDirectory(prefix="mps-") as scratch:
        folder = Path(scratch)
        try:
            with service(folder) as environment:
                status = subprocess.run(command, env=environment, check=False).returncode
                served = bool(_SERVED.search((folder / "log").read_text(errors="replace")))
                print("under MPS" if served else f"MPS served nobody{_end_of_log(folder)}", flush=True)
        except (OSError, RuntimeError) as error:
            print(f"no MPS here: {error}")
            return _NOT_THERE
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
    return status if served else _NOT_THERE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
