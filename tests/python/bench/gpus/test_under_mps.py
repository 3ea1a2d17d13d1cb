"""A program under MPS, with a script in the place of nvidia-cuda-mps-control. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "benchmarks/gpus/under_mps.py"

# In the foreground until it is told to quit; answers, and says on standard error when a client comes, as the real one does there.
_CONTROL = """#!/bin/sh
if [ "$1" = -f ]; then
  [ -n "$REFUSES" ] && echo "[Control 7] an instance of this daemon is already running" >&2 && exit 1
  echo "[Control 7] Starting control daemon using socket $CUDA_MPS_PIPE_DIRECTORY/control" >&2
  [ -z "$SERVES_NOBODY" ] && echo "[Server 8] Client {PID: 9, Context ID: 0} connected" >&2
  touch "$CUDA_MPS_PIPE_DIRECTORY/up"
  while [ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ]; do sleep 0.05; done
  exit 0
fi
read line
[ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ] || exit 1
case "$line" in quit*) rm "$CUDA_MPS_PIPE_DIRECTORY/up"; echo "$line" >> "$SAID";; esac
"""


def run(folder: Path, *command: str, **extra: str) -> tuple[int, str, str]:
    """Status, what it printed, and what the service was told at the end."""
    control = folder / "nvidia-cuda-mps-control"
    control.write_text(_CONTROL)
    control.chmod(0o755)
    said = folder / "said"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SAID": str(said), **extra}
    done = subprocess.run([sys.executable, SCRIPT, *command], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout + done.stderr, said.read_text() if said.exists() else ""


def test_the_program_is_a_client_and_the_service_ends_with_it(tmp_path: Path) -> None:
    status, text, said = run(tmp_path, "sh", "-c", 'test -d "$CUDA_MPS_PIPE_DIRECTORY" && echo client && exit 7')
    assert (status, said) == (7, "quit -t 5\n")
    assert text == "client\nunder MPS\n", "the service's own log is not the user's"


def test_a_machine_without_mps_says_so(tmp_path: Path) -> None:
    status, text, _ = run(tmp_path, "true", REFUSES="1")
    assert status == 3
    assert "no MPS here: nvidia-cuda-mps-control does not answer (status 1); its log ends:" in text
    assert "an instance of this daemon is already running" in text


def test_a_service_that_served_nobody_is_no_success(tmp_path: Path) -> None:
    status, text, _ = run(tmp_path, "true", SERVES_NOBODY="1")
    assert status == 3
    assert "MPS served nobody; its log ends:\n    [Control 7] Starting control daemon" in text
