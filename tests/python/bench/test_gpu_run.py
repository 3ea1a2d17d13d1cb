"""benchmarks/cuda/gpu_run.py with a program in gpu_exchange's place: no GPU is needed to see that no step is lost and no failure hidden."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[3] / "benchmarks" / "cuda" / "gpu_run.py"

_EXCHANGE = """#!/bin/sh
case "$RAILWEAVE_GPU_DIRECT $*" in
  3*) echo "{direct}" ;;
  *--check*) echo 'rank 0: 300 random operations, 900 messages received, 0 wrong'; exit {check} ;;
  *--nccl*)
    echo '4 GPUs, NCCL 22809, 3 rounds, queued calls'
    echo 'hot pair + 1/16     1048576  nccl     13.00 us [    12.90     13.20]   90.1 GB/s  railweave     47.20 us [    47.00     48.00]   24.0 GB/s  ratio 0.28'
    echo 'balanced            1048576  nccl     23.00 us [    22.90     23.20]  134.1 GB/s  railweave     20.00 us [    19.00     20.20]  157.0 GB/s  ratio 1.15'
    ;;
esac
"""  # noqa: E501


_DIRECT = "gpu_exchange: the slots of NIC lo lie in the GPU's memory (GPUDirect)"


def _run(folder: Path, check: int, *more: str, direct: str = _DIRECT) -> tuple[int, str]:
    program = folder / "gpu_exchange"
    program.write_text(_EXCHANGE.format(check=check, direct=direct))
    program.chmod(0o755)
    command = [sys.executable, str(_SCRIPT), "--exchange", "gpu_exchange", "--nccl", "n.so", "--railweave", "a.so", *more]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=dict(os.environ))
    return ended.returncode, ended.stdout


def test_tables_in_microseconds_and_rates(tmp_path: Path) -> None:
    status, text = _run(tmp_path, 0, "--railweave", "b.so", "--keep", "kept")
    assert status == 0
    assert "| bytes | hot pair + 1/16 | balanced |" in text
    assert "| 1 MiB | 13.0 / 47.2 us, **0.28×** | 23.0 / 20.0 us, 1.15× |" in text
    assert "| 1 MiB | 90.1 / 24.0 GB/s, **0.28×** | 134.1 / 157.0 GB/s, 1.15× |" in text
    assert text.count("b.so: status 0") == 3  # its bytes, its replays, its queued calls
    assert len(list((tmp_path / "kept").iterdir())) == text.count("\n## ") + 1


@pytest.mark.parametrize(("check", "arguments", "said"), [(1, (), "status 1"), (0, ("--sanitizer", "no-such-program"), "status 127")])
def test_a_step_that_fails_does_not_end_the_run(tmp_path: Path, check: int, arguments: tuple[str, ...], said: str) -> None:
    status, text = _run(tmp_path, check, *arguments)
    assert status == 1
    assert said in text
    assert "queued calls, other patterns: status 0" in text


_SANITIZER = """#!/bin/sh
while [ "${1##*gpu_exchange}" != "" ]; do shift; done
"$@" || exit
echo '========= ERROR SUMMARY: %d errors'
"""


@pytest.mark.parametrize("errors", [0, 3])
def test_what_memcheck_finds_is_a_failure_though_the_program_ends_well(tmp_path: Path, errors: int) -> None:
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(_SANITIZER % errors)
    sanitizer.chmod(0o755)
    status, text = _run(tmp_path, 0, "--sanitizer", str(sanitizer), "--keep", "kept")
    assert status == (errors > 0)
    kept = [file.read_text().partition("\n")[0] for file in sorted((tmp_path / "kept").iterdir())]
    commands = [command for command in kept if "--tool memcheck" in command]
    assert len(commands) == len(re.findall(rf"memcheck of .*: status {int(errors > 0)}, ", text))
    assert all("--error-exitcode" in command and "--threads" in command for command in commands), "or it ends as the program does"
    for option in ("--large", "--nodes 2", "RAILWEAVE_CHECKSUM=1"):
        assert sum(option in command for command in commands) == 1, "what takes other ways through the kernels and the engine"


def test_a_hundred_communicators_come_and_go_before_tables_take_the_time(tmp_path: Path) -> None:
    status, _ = _run(tmp_path, 0, "--keep", "kept")
    assert status == 0
    commands = [kept.read_text().partition("\n")[0] for kept in sorted((tmp_path / "kept").iterdir())]
    lives = [place for place, command in enumerate(commands) if "--lives 100" in command]
    assert [("--virtual" in commands[place]) for place in lives] == [False, True]
    tables = [place for place, command in enumerate(commands) if "--patterns hot,balanced" not in command and "--nccl" in command]
    assert max(lives) < min(tables)


def test_slots_that_stayed_in_host_memory_are_a_failure(tmp_path: Path) -> None:
    status, text = _run(tmp_path, 0, direct="gpu_exchange: the slots of NIC lo lie in host memory: no CUDA")
    assert status == 1
    assert text.count("status 1") == 1
    assert "nothing said: lie in the GPU's memory" in text


def test_no_step_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    status, text = _run(tmp_path, 0, "--seconds", "1")
    assert status == 0
    assert "status" not in text
    assert text.count("not begun") == text.count("## ")


_CONTROL = """#!/bin/sh
up=$CUDA_MPS_LOG_DIRECTORY/up quit=$CUDA_MPS_LOG_DIRECTORY/quit
if [ "$1" = -f ]; then
  echo 'Client {PID: 7} connected' >&2
  touch "$up"
  while [ ! -e "$quit" ]; do sleep 0.02; done
else
  read -r question
  [ -e "$up" ] || exit 1
  case "$question" in quit*) touch "$quit" ;; *) echo 100 ;; esac
fi
"""


def test_ranks_that_share_a_gpu_do_so_under_mps_but_for_those_that_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(_CONTROL)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    status, text = _run(tmp_path, 0, "--mps", "--ranks", "8")
    steps = {head: said for head, _, said in (each.partition("\n") for each in text.split("## ")[1:])}
    assert status == 0, text
    assert "300 random operations, 900 messages" in text
    served = {name.partition(":")[0] for name, said in steps.items() if "under MPS" in said}
    assert {name.partition(":")[0] for name in steps} - served == {"a rank dies, two nodes", "a rank dies", "a rank dies, four blocks"}
    assert "GB/s" not in text, "NCCL is no rival there"


def test_a_step_ends_with_the_run(tmp_path: Path) -> None:
    held = tmp_path / "fifo"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    program = tmp_path / "gpu_exchange"
    program.write_text(f"#!/bin/sh\ntrap '' INT\nexec 3> {held}\nsleep 1000 &\necho begun >&3\nwait\n")  # a rank that takes no notice
    program.chmod(0o755)
    command = [sys.executable, str(_SCRIPT), "--exchange", "gpu_exchange", "--nccl", "n.so", "--railweave", "a.so"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert select.select([reader], [], [], 60.0)[0]
        assert os.read(reader, 100) == b"begun\n"
        for _ in range(30):  # as Python loses a signal that comes just before its wait begins, and people press the key again
            run.send_signal(signal.SIGINT)
            if select.select([reader], [], [], 2.0)[0]:
                break
        assert os.read(reader, 100) == b"", "no writer is left"
        run.wait()
    finally:
        os.close(reader)
        run.kill()
