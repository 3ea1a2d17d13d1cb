"""A program under MPS, with a script in the place of nvidia-cuda-mps-control. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "benchmarks/gpus/under_mps.py"

# In the foreground until it is told to quit; answers, and says so in the server's log, as the real one does when a client comes.
_CONTROL = """#!/bin/sh
if [ "$1" = -f ]; then
  [ -n "$REFUSES" ] && exit 1
  [ -z "$SERVES_NOBODY" ] && touch "$CUDA_MPS_LOG_DIRECTORY/server.log"
  touch "$CUDA_MPS_PIPE_DIRECTORY/up"
  while [ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ]; do sleep 0.05; done
  exit 0
fi
read line
[ -e "$CUDA_MPS_PIPE_DIRECTORY/up" ] || exit 1
case "$line" in quit*) rm "$CUDA_MPS_PIPE_DIRECTORY/up"; echo "$line" >> "$SAID";; esac
"""


def run(folder: Path, *command: str, **extra: str) -> tuple[int, str, str]:
    control = folder / "nvidia-cuda-mps-control"
    control.write_text(_CONTROL)
    control.chmod(0o755)
    said = folder / "said"
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SAID": str(said), **extra}
    done = subprocess.run([sys.executable, SCRIPT, *command], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stdout, said.read_text() if said.exists() else ""


def test_the_program_is_a_client_and_the_service_ends_with_it(tmp_path: Path) -> None:
    status, text, said = run(tmp_path, "sh", "-c", 'test -d "$CUDA_MPS_PIPE_DIRECTORY" && echo client && exit 7')
    assert (status, said) == (7, "quit -t 5\n")
    assert "client" in text
    assert "under MPS" in text


def test_a_machine_without_mps_says_so(tmp_path: Path) -> None:
    status, text, _ = run(tmp_path, "true", REFUSES="1")
    assert status == 3
    assert "no MPS here: nvidia-cuda-mps-control does not answer (status 1)" in text


def test_a_service_that_served_nobody_is_no_success(tmp_path: Path) -> None:
    status, text, _ = run(tmp_path, "true", SERVES_NOBODY="1")
    assert (status, "MPS served nobody" in text) == (3, True)
