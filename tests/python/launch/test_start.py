"""`railweave run` as users start it: binding, variables, what was set before, transparency."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from railweave import fabric, nccl
from railweave.advise.advice import advise
from railweave.advise.document import document
from railweave.advise.host import read_host
from railweave.doctor import job
from railweave.launch import cache
from railweave.launch import start as run
from railweave.launch.placement import cpu_set, cpu_text

CPUS = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")


@pytest.fixture
def advice(tmp_path: Path) -> Path:
    """For 8 ranks on this machine's CPUs."""
    parsed: dict[str, Any] = document(advise(read_host(fabric.load("kisti-v100-8gpu"))))
    for rank in parsed["ranks"]:
        rank["cpus"] = str(CPUS[rank["rank"] % len(CPUS)])
        rank["memory"] = [0]
        rank["environment"]["UCX_NET_DEVICES"] = f"mlx5_{rank['rank'] // 4}:1"
    path = tmp_path / "advice.json"
    path.write_text(json.dumps(parsed))
    return path


def start(*arguments: str, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "railweave", "run", *arguments]
    # A runtime folder of its own, where it is not root's.
    base = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "XDG_RUNTIME_DIR": "/tmp"}
    return subprocess.run(command, env={**base, **environment}, capture_output=True, text=True, timeout=120, check=False)


AFFINITY = ("grep", "Cpus_allowed_list", "/proc/self/status")


def affinity(done: subprocess.CompletedProcess[str]) -> frozenset[int]:
    assert done.returncode == 0, done.stderr
    return cpu_set(done.stdout.split()[-1])


@pytest.mark.parametrize("rank", range(3))
def test_each_rank_is_bound_to_its_cores(advice: Path, rank: int) -> None:
    done = start("--advice", str(advice), "--", *AFFINITY, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="8")
    assert affinity(done) == {CPUS[rank % len(CPUS)]}
    assert done.stderr == ""


def test_variables_are_the_ranks_own(advice: Path) -> None:
    done = start("--advice", str(advice), "env", OMPI_COMM_WORLD_LOCAL_RANK="6", OMPI_COMM_WORLD_LOCAL_SIZE="8")
    values = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (values["UCX_NET_DEVICES"], values["UCX_IB_GPU_DIRECT_RDMA"], values["OMPI_MCA_pml"]) == ("mlx5_1:1", "n", "ucx")


def test_one_rank_with_all_gpus_gets_their_cores_and_only_what_they_agree_on(advice: Path) -> None:
    done = start("--advice", str(advice), "--explain", "--", "sh", "-c", f"{' '.join(AFFINITY)}; env")
    assert cpu_set(done.stdout.split()[1]) == set(CPUS[:8])
    assert "OMPI_MCA_pml=ucx" in done.stdout
    assert "UCX_NET_DEVICES" not in done.stdout
    assert "UCX_NET_DEVICES is left alone" in done.stderr


@several
def test_an_affinity_that_was_set_before_is_kept_unless_told(advice: Path) -> None:
    before = ("taskset", "-c", str(CPUS[1]))
    kept = start("--advice", str(advice), "--", *AFFINITY, prefix=before, LOCAL_RANK="0", LOCAL_WORLD_SIZE="8")
    assert affinity(kept) == {CPUS[1]}
    assert "is kept" in kept.stderr
    assert "--bind-to none" in kept.stderr
    replaced = start("--advice", str(advice), "--override", "--", *AFFINITY, prefix=before, LOCAL_RANK="0", LOCAL_WORLD_SIZE="8")
    assert affinity(replaced) == {CPUS[0]}


def test_a_variable_that_was_set_before_is_kept_unless_told(advice: Path) -> None:
    show = ("sh", "-c", "echo $UCX_NET_DEVICES")
    kept = start("--advice", str(advice), "--", *show, LOCAL_RANK="0", UCX_NET_DEVICES="mlx5_7:1")
    assert kept.stdout == "mlx5_7:1\n"
    assert "UCX_NET_DEVICES=mlx5_7:1 was set before and is kept (advice: mlx5_0:1)" in kept.stderr
    replaced = start("--advice", str(advice), "--override", "--", *show, LOCAL_RANK="0", UCX_NET_DEVICES="mlx5_7:1")
    assert replaced.stdout == "mlx5_0:1\n"
    assert start("--advice", str(advice), "--", *show, LOCAL_RANK="0", UCX_NET_DEVICES="mlx5_0:1").stderr == ""


def test_only_one_rank_of_a_node_warns_unless_all_explain(advice: Path) -> None:
    options = {"UCX_NET_DEVICES": "mlx5_7:1", "LOCAL_WORLD_SIZE": "8"}
    assert start("--advice", str(advice), "true", LOCAL_RANK="1", **options).stderr == ""
    assert "is kept" in start("--advice", str(advice), "--explain", "true", LOCAL_RANK="1", **options).stderr


def test_a_topology_file_that_is_not_there_is_said(advice: Path) -> None:
    parsed = json.loads(advice.read_text())
    for rank in parsed["ranks"]:
        rank["environment"]["NCCL_TOPO_FILE"] = "/no/such/topology.xml"
    advice.write_text(json.dumps(parsed))
    done = start("--advice", str(advice), "--", "true", LOCAL_RANK="0", LOCAL_WORLD_SIZE="8")
    assert done.returncode == 0
    assert "warning: NCCL_TOPO_FILE=/no/such/topology.xml: no such file here" in done.stderr


def test_explanations_have_doctors_findings_about_the_rank_as_it_starts(advice: Path) -> None:
    """Of the variables that the command gets, not those that `run` was started with."""
    parsed = json.loads(advice.read_text())
    for rank in parsed["ranks"]:
        rank["environment"]["NCCL_TOPO_FILE"] = "/no/such/topology.xml"
    advice.write_text(json.dumps(parsed))
    job = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "NCCL_NO_SUCH": "1"}
    done = start("--advice", str(advice), "--explain", "--", "echo", "started", **job)
    assert done.stdout == "started\n"
    assert "rank 1: doctor: warning: there is no file /no/such/topology.xml (nccl.contradiction" in done.stderr
    assert re.search(r"rank 1: doctor: warning: no NCCL release from \S+ to \S+ reads it \(nccl.unknown, NCCL_NO_SUCH=1\)", done.stderr)
    assert "not known before the command runs:" in done.stderr  # which NCCL it will load
    assert "doctor" not in start("--advice", str(advice), "--", "true", **job).stderr


def test_a_doctor_that_fails_keeps_no_program_from_starting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(_: object) -> list[str]:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(job, "lines_before_start", fail)
    monkeypatch.setattr(run, "_become", lambda command, _environment: print("became", *command) or 0)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "FOR_ALL", str(tmp_path / "for-all"))
    assert run.main(["--explain", "--", "program"]) == 0
    said = capsys.readouterr()
    assert said.out == "became program\n"
    assert "warning: doctor cannot examine this rank: RuntimeError: what nobody thought of" in said.err


def test_cores_outside_of_the_cpuset_leave_the_process_unbound(advice: Path) -> None:
    parsed = json.loads(advice.read_text())
    parsed["ranks"][0]["cpus"] = "4000"
    advice.write_text(json.dumps(parsed))
    done = start("--advice", str(advice), "--", *AFFINITY, LOCAL_RANK="0", LOCAL_WORLD_SIZE="8")
    assert affinity(done) == set(CPUS)
    assert "none of the advised cores 4000" in done.stderr


def test_arguments_output_and_status_are_the_programs_own(advice: Path) -> None:
    done = start("--advice", str(advice), "--", "sh", "-c", 'printf "%s|" "$@"; echo err >&2; exit 37', "sh", "a b", "--explain", "$x")
    assert (done.stdout, done.returncode) == ("a b|--explain|$x|", 37)
    assert done.stderr.endswith("err\n")


def test_the_program_takes_over_the_process(advice: Path) -> None:
    """Signals sent to the process reach the program, and its death by signal is seen."""
    command = [sys.executable, "-m", "railweave", "run", "--advice", str(advice), "--", "sh", "-c", "echo $$; exec sleep 1000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == -signal.SIGTERM


def test_python_leaves_nothing_of_itself_behind(advice: Path) -> None:
    """Ignored signals and LC_CTYPE would be inherited."""
    done = start("--advice", str(advice), "--", "sh", "-c", "env; grep SigIgn /proc/self/status", LC_ALL="", LANG="C")
    assert "LC_CTYPE" not in done.stdout
    assert int(done.stdout.split()[-1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
    assert "LC_CTYPE=C.UTF-8" in start("--advice", str(advice), "env", LC_CTYPE="C.UTF-8").stdout


def test_an_inherited_descriptor_stays_open(advice: Path) -> None:
    read_end, write_end = os.pipe()
    command = [
        sys.executable,
        "-m",
        "railweave",
        "run",
        "--advice",
        str(advice),
        "--",
        sys.executable,
        "-c",
        f"import os; os.write({write_end}, b'through\\n')",
    ]
    subprocess.run(command, pass_fds=[write_end], check=True, timeout=120)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        assert file.read() == "through\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "no command"),
        (("--",), 2, "no command"),
        (("",), 2, "an empty word"),
        (("--", "", "x"), 2, "an empty word"),
        (("--sim", "nccl", "true"), 2, "no such option: --sim"),
        (("--shim",), 2, "--shim needs a value"),
        (("--shim=ucx", "true"), 2, "--shim ucx; expected nccl"),
        (("--for", "speed", "true"), 2, "--for speed; expected bandwidth or latency"),
        (("--advice", "/nowhere", "true"), 1, "/nowhere: cannot be read: No such file"),
        (("--advice", "/dev/null", "true"), 1, "/dev/null: "),
        (("--advice", "ADVICE", "/no/such/program"), 127, "/no/such/program: not found"),
        (("--advice", "ADVICE", "/etc/passwd"), 126, "/etc/passwd: Permission denied"),
    ],
)
def test_bad_use_is_named(advice: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    done = start(*(str(advice) if word == "ADVICE" else word for word in arguments))
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith("railweave run: ")
    assert message in done.stderr


def test_a_bad_rank_starts_nothing(advice: Path) -> None:
    done = start("--advice", str(advice), "echo", "started", LOCAL_RANK="first")
    assert (done.returncode, done.stdout) == (1, "")
    assert "LOCAL_RANK=first" in done.stderr


def test_an_empty_rank_is_none(advice: Path) -> None:
    done = start("--advice", str(advice), "--explain", "echo", "started", LOCAL_RANK="", LOCAL_WORLD_SIZE="")
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert "local rank 0 of 1 (no launcher)" in done.stderr


def test_help_is_for_run_only_before_the_command(advice: Path) -> None:
    assert start("--help").stdout.startswith("Usage: railweave run")
    assert start("--advice", str(advice), "sh", "-c", 'echo "$1"', "sh", "--help").stdout == "--help\n"


def test_without_advice_the_program_runs_as_it_is(tmp_path: Path) -> None:
    """A machine without GPUs, or a rank that is shown none, and each time in words."""
    elsewhere = "import sys; from railweave.launch import cache, start; cache.FOR_ALL = sys.argv[1]; sys.exit(start.main(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", elsewhere, str(tmp_path / "for-all"), "echo", "started"],
        env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "nothing is bound or set" in done.stderr


@pytest.mark.root
@pytest.mark.parametrize("own", ["rw", "ro"])
def test_a_folder_that_cannot_be_written_keeps_no_program_from_starting(own: str, tmp_path: Path) -> None:
    """As a container sees the node's that is mounted into it; then root's own folder serves, or none."""
    (tmp_path / "railweave-0").mkdir(mode=0o700)
    script = (
        "mount -t tmpfs none /run; mkdir -m 755 /run/railweave-placement; echo of before > /run/railweave-placement/placement-bandwidth; "
        'mount -o remount,ro /run; folder="$XDG_RUNTIME_DIR/railweave-0"; mount --bind "$folder" "$folder"; '
        f'mount -o remount,bind,{own} "$folder"; exec "$@"'
    )
    done = start("echo", "started", prefix=("unshare", "-m", "sh", "-ec", script, "sh"), XDG_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "railweave-0" / "placement-bandwidth").is_file() == (own == "rw")


NO_READER = "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 2); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    "prefix",
    [
        ("sh", "-c", 'exec "$@" 2>&-', "sh"),
        ("sh", "-c", 'exec "$@" <&- 2>&-', "sh"),
        ("sh", "-c", 'exec "$@" 2>/dev/full', "sh"),
        (sys.executable, "-c", NO_READER),
    ],
    ids=["closed", "closed as input is", "full", "without a reader"],
)
def test_a_warning_that_nobody_takes_keeps_no_program_from_starting(prefix: tuple[str, ...], advice: Path) -> None:
    """Nor does it come to lie in what the program writes."""
    done = start("--advice", str(advice), "--", "echo", "started", prefix=prefix, LOCAL_RANK="0", UCX_NET_DEVICES="another")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "was set before and is kept" in start("--advice", str(advice), "true", LOCAL_RANK="0", UCX_NET_DEVICES="another").stderr


def test_the_shim_is_preloaded_before_what_was(advice: Path) -> None:
    done = start("--advice", str(advice), "--shim", "nccl", "--", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD="/usr/lib/other.so")
    first, second = done.stdout.strip().split(":")
    assert Path(first).name == "librailweave_nccl.so"
    assert Path(first).exists()
    assert second == "/usr/lib/other.so"


def test_without_a_device_library_the_shim_is_preloaded_and_it_is_said_once(advice: Path, tmp_path: Path) -> None:
    def warned(rank: int, **environment: str) -> list[str]:
        words = ("--advice", str(advice), "--shim", "nccl", "--", "sh", "-c", "echo $LD_PRELOAD")
        done = start(*words, LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="8", **environment)
        assert (done.returncode, done.stdout.rstrip().endswith("librailweave_nccl.so")) == (0, True), done.stderr
        return done.stderr.splitlines()

    (line,) = warned(0, RAILWEAVE_CUDA_LIBRARY="/nowhere.so")
    assert line.startswith("railweave run: rank 0: warning: no device library: /nowhere.so: cannot open")
    assert line.endswith("; everything is left to NCCL; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it")
    assert warned(1, RAILWEAVE_CUDA_LIBRARY="/nowhere.so") == []
    there = tmp_path / "librailweave_cuda.so"
    shutil.copy(nccl.library(), there)  # any library
    assert warned(0, RAILWEAVE_CUDA_LIBRARY=str(there)) == []
    assert warned(0, LD_LIBRARY_PATH=str(tmp_path)) == []


TORCHRUN = """
import os, subprocess, sys

size = 2
ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)} for rank in range(size)]
children = [subprocess.Popen(sys.argv[1:], env={**os.environ, **rank}) for rank in ranks]
sys.exit(max(child.wait() for child in children))
"""
TRAIN = """
import json, os, sys

with open("/proc/self/maps") as maps:
    loaded = "librailweave_nccl.so" in maps.read()
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    json.dump({"cpus": sorted(os.sched_getaffinity(0)), "loaded": loaded, "environment": dict(os.environ)}, file)
"""


@several
@pytest.mark.parametrize("above", [False, True])
def test_torchrun_above_and_below(advice: Path, tmp_path: Path, above: bool) -> None:
    """Below torchrun each rank is placed for its GPU. Above it, where there is no rank yet, none is placed as if it were the first."""
    parsed = json.loads(advice.read_text())
    for rank in parsed["ranks"]:
        rank["environment"]["UCX_NET_DEVICES"] = f"mlx5_{rank['rank']}:1"
    advice.write_text(json.dumps(parsed))
    torchrun, train = [sys.executable, "-c", TORCHRUN], [sys.executable, "-c", TRAIN, str(tmp_path)]
    options = ("--advice", str(advice), "--shim", "nccl", "--explain", "--")
    done = start(*options, *torchrun, *train) if above else start(*options, *train, prefix=(*torchrun,))
    assert done.returncode == 0, done.stderr
    assert ("start `railweave run` below the launcher" in done.stderr) == above
    advised = [rank["environment"] for rank in parsed["ranks"]]
    agreed = {name: value for name, value in advised[0].items() if all(each.get(name) == value for each in advised)}
    assert set(advised[0]) - set(agreed) == {"UCX_NET_DEVICES"}
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        environment = found["environment"]
        assert found["loaded"]
        assert environment["LD_PRELOAD"] == str(nccl.library())
        assert "CUDA_VISIBLE_DEVICES" not in environment
        assert found["cpus"] == (CPUS[:8] if above else [CPUS[rank]])
        assert {name: environment[name] for name in advised[rank] if name in environment} == (agreed if above else advised[rank])


def test_the_command_group_knows_it(cli: Any) -> None:
    assert "run " in cli("--help").stdout


@several
@pytest.mark.skipif(not Path("/usr/bin/mpirun").exists(), reason="needs Open MPI")
def test_under_mpirun(advice: Path) -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    program = f"echo $OMPI_COMM_WORLD_RANK $({' '.join(AFFINITY)})"
    run = [sys.executable, "-m", "railweave", "run", "--advice", str(advice), "--", "sh", "-c", program]
    done = subprocess.run(["mpirun", *root, "--bind-to", "none", "-np", "2", *run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    bound = {int(line.split()[0]): cpu_set(line.split()[-1]) for line in done.stdout.splitlines()}
    assert bound == {0: {CPUS[0]}, 1: {CPUS[1]}}


def test_texts_of_cpu_sets() -> None:
    assert cpu_text({3, 1, 2, 8}) == "1-3,8"
