"""Labs for real: who sees what, who reaches whom, what the links are, and that nothing stays."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from railweave.lab import Lab, LabError, LabSpec, Program, labs, take_down, wire
from railweave.lab.fabric import of_lab

pytestmark = pytest.mark.root

Cli = Callable[..., subprocess.CompletedProcess[str]]
Check = Callable[[], None]


def run(lab: Lab, *argv: str, rank: int | None = None, node: int | None = None) -> tuple[int, str]:
    """Exit status and output of a program in the lab."""
    read, write = os.pipe()
    job = lab.start([Program(list(argv), rank=rank, node=node, fds={1: write, 2: write})])
    os.close(write)
    with os.fdopen(read) as output:
        text = output.read()
    return job.wait(), text


def unreached(lab: Lab, rank: int, *addresses: str, patience_s: float = 60.0) -> list[str]:
    """Those of the addresses at which a TCP connection attempt gets no answer (refused is one)."""
    code = (
        "import socket,sys\n"
        "for address in sys.argv[2:]:\n"
        "    s = socket.socket(); s.settimeout(float(sys.argv[1]))\n"
        "    try: answer = s.connect_ex((address, 9))\n"
        "    except OSError: answer = 0\n"
        "    if answer != 111: print(address)\n"
    )
    status, text = run(lab, sys.executable, "-c", code, str(patience_s), *addresses, rank=rank)
    assert status == 0, text
    return text.split()


def send(lab: Lab, source: int, destination: int, size: int) -> None:
    """Send `size` bytes from a rank to another over TCP."""
    address = lab.spec.rank_address(destination)
    serve = (
        f"import socket; c=socket.create_server(({address!r}, 7000)).accept()[0]; n=0\n"
        "while d := c.recv(1<<20): n+=len(d)\n"
        f"assert n == {size}, n"
    )
    connect = (
        "import socket,time\n"
        "while True:\n"
        f"    try: c=socket.create_connection(({address!r}, 7000)); break\n"
        "    except OSError: time.sleep(0.05)\n"
        f"c.sendall(bytes({size}))"
    )
    programs = [Program([sys.executable, "-c", serve], rank=destination), Program([sys.executable, "-c", connect], rank=source)]
    with lab.start(programs) as job:
        assert job.wait() == 0


@pytest.mark.parametrize("isolation", ["node", "gpu"])
def test_what_a_rank_sees(isolation: str, nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2, isolation=isolation)) as lab:
        expected = "lo rail1" if isolation == "gpu" else "lo rail0 rail1"
        status, text = run(
            lab, "sh", "-c", "hostname; echo $(ls /sys/class/net); echo $RANK $LOCAL_RANK $WORLD_SIZE $RAILWEAVE_NICS", rank=3
        )
        assert (status, text.splitlines()) == (0, ["node1", expected, "3 1 4 rail1"])


@pytest.mark.parametrize(
    "spec",
    [
        LabSpec(2, 2),
        LabSpec(2, 2, isolation="node"),
        LabSpec(2, 4, rails=2),
        LabSpec(2, 2, rails=4),
        LabSpec(2, 4, rails=2, isolation="node"),
    ],
    ids=["gpu", "node", "shared NICs", "two NICs a rank", "node, fewer rails"],
)
def test_every_rank_reaches_every_rank(spec: LabSpec, nothing_stays: Check) -> None:
    with Lab.up(spec) as lab:
        for rank in range(spec.world):
            assert unreached(lab, rank, *map(spec.rank_address, range(spec.world))) == [], f"from rank {rank}"


@pytest.mark.parametrize("spec", [LabSpec(2, 1, 2), LabSpec(2, 2, isolation="node")], ids=["two NICs a rank", "node"])
def test_every_rail_is_reached_from_each_nic(spec: LabSpec, tmp_path: Path, nothing_stays: Check) -> None:
    code = (
        "import os, sys, time\n"
        "import numpy as np\n"
        "from railweave.exchange import Exchange\n"
        "rank, world, fabric = int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), open(sys.argv[2]).read()\n"
        "with Exchange(rank, world, sys.argv[1], fabric=fabric) as exchange:\n"
        "    end = time.monotonic() + 60\n"
        "    while exchange.links_down() and time.monotonic() < end: time.sleep(0.05)\n"
        "    if exchange.links_down(): sys.exit(str(exchange.links_down()))\n"
        "    a_word_of_each = np.zeros(world), np.zeros(world), [1] * world, [1] * world\n"
        "    exchange.all_to_all_v(*a_word_of_each)\n"  # who leaves takes its links down: not before all have looked
    )
    fabric, meeting = tmp_path / "fabric.json", tmp_path / "meeting"
    fabric.write_text(of_lab(spec).to_json())
    meeting.mkdir()
    with Lab.up(spec) as lab:
        programs = [Program([sys.executable, "-c", code, f"file://{meeting}", str(fabric)], rank=rank) for rank in range(spec.world)]
        with lab.start(programs) as job:
            assert job.wait() == 0


def test_names_of_nodes_are_addresses_on_the_rails(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2)) as lab:
        assert unreached(lab, 0, "node1") == []
        assert "10.1.1.1 node1" in run(lab, "cat", "/etc/hosts", rank=0)[1]


def test_shared_memory_is_a_nodes_own(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2)) as lab:
        assert run(lab, "sh", "-c", "echo hello > /dev/shm/note", rank=0)[0] == 0
        assert run(lab, "cat", "/dev/shm/note", rank=1) == (0, "hello\n")
        assert run(lab, "cat", "/dev/shm/note", rank=2)[0] != 0
        assert not Path("/dev/shm/note").exists()


def test_both_ends_of_every_link_are_shaped(nothing_stays: Check) -> None:
    from railweave.lab.network import Network

    network = Network(LabSpec(2, 2, rate=400_000_000, spine_rate=600_000_000))
    try:
        shaped: dict[int, int] = {}
        for name in network.namespaces:
            for qdisc in network._links[name].get_qdiscs():
                if qdisc.get_attr("TCA_KIND") == "tbf":
                    rate = qdisc.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"]
                    shaped[rate] = shaped.get(rate, 0) + 1
        assert shaped == {50_000_000: 2 * 4, 75_000_000: 2 * 2}  # four NICs, two uplinks
    finally:
        network.close()


@pytest.mark.parametrize(("rate", "mtu"), [(100_000_000, 16384), (400_000_000, 65535)])
def test_rails_carry_frames_as_large_as_their_mtu(rate: int, mtu: int, nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 1, rate=rate, mtu=mtu)) as lab:
        send(lab, 0, 1, 1_000_000)


def test_counters_say_which_rail_carried_what(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2)) as lab:
        before = lab.links()
        send(lab, 1, 3, 2_000_000)
        moved = {
            (a["node"], a["rail"]): (a["tx_bytes"] - b["tx_bytes"], a["rx_bytes"] - b["rx_bytes"])
            for b, a in zip(before, lab.links(), strict=True)
        }
        # Once, with headers, and what TCP sends again when a CPU stands still in between.
        assert 2_000_000 < moved[0, 1][0] < 3_000_000
        assert 2_000_000 < moved[1, 1][1] < 3_000_000
        assert max(moved[0, 0] + moved[1, 0]) < 10_000


def test_links_break_and_mend(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2)) as lab:
        there = lab.spec.rank_address(3)
        assert unreached(lab, 1, there) == []
        lab.set_link(1, 1, up=False)
        assert [link["up"] for link in lab.links()] == [True, True, True, False]
        assert unreached(lab, 1, there, patience_s=1.0) == [there]
        lab.set_link(1, 1, up=True)
        assert any(unreached(lab, 1, there) == [] for _ in range(20))  # a neighbour that was given up is asked for again after a second
        lab.set_link(0, 0, rate=100_000_000)
        assert [link["rate"] for link in lab.links()] == [100_000_000, 400_000_000, 400_000_000, 400_000_000]
        with pytest.raises(LabError, match="no NIC at node 7, rail 0"):
            lab.set_link(7, 0, up=True)


def test_two_labs_at_once(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 1), "first") as first, Lab.up(LabSpec(2, 1), "second") as second:
        assert {"first", "second"} <= set(labs())
        assert unreached(first, 0, "10.1.1.1") == []
        first.set_link(1, 0, up=False)
        assert unreached(second, 0, "10.1.1.1") == []
        with pytest.raises(LabError, match="'first' is up already"):
            Lab.up(LabSpec(2, 1), "first")


def test_job_ends_with_its_first_failure(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2)) as lab:
        programs = [Program(["sh", "-c", "exit 7" if rank == 2 else "sleep 1000"], rank=rank) for rank in range(4)]
        assert lab.start(programs).wait() == 7


def test_job_of_a_process_with_many_descriptors(nothing_stays: Check) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("needs 2048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Lab.up(LabSpec(1, 1)) as lab, lab.start([Program(["sh", "-c", "exit 7"], rank=0)]) as job:
            assert job.events > 1024
            assert job.wait() == 7
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def children(process: int) -> dict[int, str]:
    """A process's children, with their states."""
    listed = subprocess.run(["ps", "--ppid", str(process), "-o", "pid=,stat="], capture_output=True, text=True, check=False).stdout
    return {int(pid): state for pid, state in (line.split() for line in listed.splitlines())}


def test_a_killed_program_is_told_before_one_that_ended_because_of_it(nothing_stays: Check) -> None:
    """Also when the process that starts programs had no CPU, and finds both dead."""
    with Lab.up(LabSpec(1, 2)) as lab:
        ends = [os.pipe() for _ in range(2)]
        programs = [
            Program(["sh", "-c", f"read _; {how}"], rank=rank, fds={0: ends[rank][0]})
            for rank, how in enumerate(("exit 1", "kill -KILL $$"))
        ]
        with lab.start(programs) as job:
            for read, _ in ends:
                os.close(read)
            while not (starters := children(job._process.pid)):
                time.sleep(0.01)
            (starter,) = starters
            while len(children(starter)) < 2:
                time.sleep(0.01)
            os.kill(starter, signal.SIGSTOP)
            # A signal is not there when it has been sent: in its wait for children the starter would still collect one that dies first.
            while not children(job._process.pid)[starter].startswith("T"):
                time.sleep(0.01)
            for _, write in reversed(ends):
                os.close(write)
            while sum(state.startswith("Z") for state in children(starter).values()) < 2:
                time.sleep(0.01)
            os.kill(starter, signal.SIGCONT)
            assert job.wait() == -signal.SIGKILL


def test_program_that_does_not_exist(nothing_stays: Check) -> None:
    with Lab.up(LabSpec(1, 1)) as lab:
        status, text = run(lab, "/no/such/program", rank=0)
        assert status == 127
        assert text == "railweave lab: cannot start /no/such/program: No such file or directory\n"


def test_program_that_cannot_be_started(tmp_path: Path, cli: Cli, nothing_stays: Check) -> None:
    """As shells have it; and where a file is missing that is not the program, that is said."""
    name = f"test-{os.getpid()}"
    cli("lab", "up", name, "1x1")
    try:
        done = cli("lab", "exec", name, "/etc/passwd")
        assert (done.returncode, done.stderr) == (126, "railweave lab: cannot start /etc/passwd: Permission denied\n")
        gone = tmp_path / "gone"
        gone.mkdir()
        line = f"rmdir {gone}; exec {sys.executable} -m railweave lab exec {name} pwd"
        done = subprocess.run(["sh", "-c", line], cwd=gone, capture_output=True, text=True, timeout=500, check=False)
        assert (done.returncode, done.stderr) == (126, "railweave lab: cannot start pwd: the working directory has been deleted\n")
    finally:
        cli("lab", "down", name)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no OpenMPI")
@pytest.mark.parametrize("isolation", ["node", "gpu"])
def test_openmpi_runs_unmodified(isolation: str, nothing_stays: Check) -> None:
    with Lab.up(LabSpec(2, 2, isolation=isolation)) as lab:
        status, text = run(
            lab,
            "mpirun",
            "-np",
            "4",
            "--host",
            "node0:2,node1:2",
            "sh",
            "-c",
            "echo $OMPI_COMM_WORLD_RANK $(hostname) $(ls /sys/class/net)",
            node=0,
        )
        nics = [["rail0"], ["rail1"]] if isolation == "gpu" else [["rail0", "rail1"]] * 2
        assert status == 0, text
        # Its launcher warns where its child has begun another program before it could be given a process group.
        said = [line for line in text.splitlines() if "plm:rsh: Warning: setpgid" not in line]
        assert sorted(said) == [f"{rank} node{rank // 2} lo {' '.join(nics[rank % 2])}" for rank in range(4)]


# --- whatever happens, nothing stays


def owner(code: str) -> subprocess.Popen[str]:
    """A Python process that owns a lab `lab` with a sleeping program, a child of that, and a file in shared memory."""
    setup = (
        "import os,signal,sys,time\nfrom railweave.lab import Lab,LabSpec,Program\n"
        "lab = Lab.up(LabSpec(2, 2), f'doomed-{os.getpid()}')\n"
        "up, says = os.pipe()\n"
        "script = 'echo > /dev/shm/left; sleep 1000 & echo up; exec sleep 1000'\n"
        "job = lab.start([Program(['sh', '-c', script], rank=r, fds={1: says}) for r in range(4)])\n"
        "heard = b''\n"
        "while heard.count(b'up') < 4: heard += os.read(up, 100)\n"
        "print('up', flush=True)\n"
    )
    return subprocess.Popen([sys.executable, "-c", setup + code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_owner_killed(how: signal.Signals, nothing_stays: Check) -> None:
    process = owner("while True: time.sleep(0.05)")  # Python loses a signal that comes just before a sleep until that is over
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(how)
    process.wait()
    nothing_stays()


def test_owner_crashes(nothing_stays: Check) -> None:
    process = owner("os.abort()")
    process.wait()
    nothing_stays()


def test_supervisor_killed(nothing_stays: Check) -> None:
    lab = Lab.up(LabSpec(2, 2))
    job = lab.start([Program(["sleep", "1000"], rank=rank) for rank in range(4)])
    os.kill(wire.supervisor(lab.name), signal.SIGKILL)
    with pytest.raises(LabError, match="went down"):
        job.wait()
    job.close()
    lab.down()
    nothing_stays()


def test_ctrl_c_while_programs_are_started_does_not_keep_a_lab(nothing_stays: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    with pytest.raises(KeyboardInterrupt), Lab.up(LabSpec(2, 1)) as lab:
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        lab.start([Program(["sleep", "1000"], rank=0)])
    nothing_stays()


def test_jobs_that_nobody_closed_do_not_keep_a_lab(nothing_stays: Check) -> None:
    with pytest.raises(KeyboardInterrupt), Lab.up(LabSpec(2, 1)) as lab:
        job = lab.start([Program(["sleep", "1000"], rank=0)])
        raise KeyboardInterrupt
    with pytest.raises(LabError, match="went down"):
        job.wait()
    job.drain(1000.0)
    job.close()
    nothing_stays()


def test_owner_killed_while_it_builds(nothing_stays: Check) -> None:
    for delay in (0.05, 0.2, 0.4):
        process = subprocess.Popen(
            [sys.executable, "-m", "railweave", "lab", "up", "halfway", "4x4"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(delay)
        process.kill()
        process.wait()
        take_down("halfway")  # it may have been faster; one that is not released yet ends by itself
    nothing_stays()


def test_command_line(cli: Cli, nothing_stays: Check) -> None:
    name = f"test-{os.getpid()}"
    assert "is up" in cli("lab", "up", name, "2x2", "--rate", "100mbit").stdout
    try:
        done = cli("lab", "exec", name, "--", "sh", "-c", "echo $RANK")
        assert sorted(done.stdout.split()) == ["0", "1", "2", "3"]
        assert cli("lab", "exec", name, "--rank", "2", "--", "sh", "-c", "exit 9").returncode == 9
        ignored = cli("lab", "exec", name, "--rank", "0", "--", "grep", "SigIgn", "/proc/self/status").stdout
        assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0
        assert "no rank 4" in cli("lab", "exec", name, "--rank", "4", "true").stderr
        assert cli("lab", "link", name, "--node", "0", "--rail", "1", "--down").returncode == 0
        (status,) = json.loads(cli("lab", "status", name, "--json").stdout)
        assert [link["up"] for link in status["links"]] == [True, False, True, True]
        assert "node 0 rail 1: down" in cli("lab", "status").stdout
        assert cli("lab", "link", name, "--node", "1", "--rail", "0", "--rate", "50mbit").returncode == 0
        told = cli("lab", "fabric", name)
        rails = {edge["from"]: edge["source"] for edge in json.loads(told.stdout)["edges"] if edge["kind"] == "rail"}
        assert (rails["node0/nic0"], rails["node1/nic0"], "node0/nic1" in rails) == ("lab: tbf at 100 mbit", "lab: tbf at 50 mbit", False)
        assert told.stderr == "node 0 rail 1 is down and left out\n"
        again = cli("lab", "up", name, "2x2")
        assert again.returncode == 1
        assert "is up already" in again.stderr
    finally:
        assert f"{name} is down" in cli("lab", "down", name).stdout
    assert "no lab named" in cli("lab", "exec", name, "true").stderr


def test_labels_say_which_rank_wrote_a_line(cli: Cli, nothing_stays: Check) -> None:
    name = f"test-{os.getpid()}"
    cli("lab", "up", name, "2x6")
    try:
        script = "for i in 1 2 3 4 5; do printf 'half of %s' $i; printf ' and half\\n'; done; echo >&2; printf 'the end'"
        done = cli("lab", "exec", name, "--label", "--", "sh", "-c", script)
        lines = [*(f"half of {i} and half" for i in (1, 2, 3, 4, 5)), "the end"]
        told = done.stdout.splitlines()
        for rank in range(12):
            assert [line for line in told if line.startswith(f"{rank:2}: ")] == [f"{rank:2}: {line}" for line in lines]
        assert (len(told), sorted(done.stderr.splitlines())) == (72, sorted(f"{rank:2}: " for rank in range(12)))
        # A line without end takes no memory, descriptors of the others are not a program's, and the status is the program's.
        script = "yes | tr -d '\\n' | head -c 1000000; echo; ls /proc/self/fd; exit 9"
        done = cli("lab", "exec", name, "--label", "--rank", "3", "--", "sh", "-c", script)
        *long, a, b, c, d = done.stdout.splitlines()
        assert all(line.startswith("3: ") for line in long) and 7 < len(long) < 20
        assert sum(map(len, long)) - 3 * len(long) == 1_000_000
        assert ([a, b, c, d], done.returncode) == (["3: 0", "3: 1", "3: 2", "3: 3"], 9)
        for other in ("yes", "echo ready; exec sleep 1000"):  # ends with its reader, with its first failure
            line = f"{sys.executable} -m railweave lab exec {name} --label -- sh -c '[ $RANK = 5 ] && exit 7; {other}'"
            piped = subprocess.run(["bash", "-c", f"{line} | head -n 1"], capture_output=True, text=True, timeout=500, check=False)
            assert "Traceback" not in piped.stderr
        refused = cli("lab", "exec", name, "--label", "--node", "0", "true")
        assert (refused.returncode, "mpirun has --tag-output" in refused.stderr) == (2, True)
    finally:
        cli("lab", "down", name)


def test_a_lab_without_a_name_is_not_given_one(cli: Cli, nothing_stays: Check) -> None:
    done = cli("lab", "up", "", "1x1")
    assert done.returncode == 1
    assert "lab name ''" in done.stderr
    nothing_stays()


def test_exec_killed_takes_its_programs_along(cli: Cli, nothing_stays: Check) -> None:
    name = f"test-{os.getpid()}"
    sleep = f"sleep 4242.{os.getpid()}"
    cli("lab", "up", name, "2x1")
    try:
        command = [sys.executable, "-m", "railweave", "lab", "exec", name, "--", "sh", "-c", f"{sleep} & {sleep}"]
        process = subprocess.Popen(command)
        while _running(sleep) < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        end = time.monotonic() + 120
        while _running(sleep) > 0 and time.monotonic() < end:
            time.sleep(0.05)
        assert _running(sleep) == 0
    finally:
        cli("lab", "down", name)


def _running(command: str) -> int:
    return len(subprocess.run(["pgrep", "-f", f"^{command}"], capture_output=True, text=True, check=False).stdout.split())


def test_down_all_removes_strays(cli: Cli, nothing_stays: Check) -> None:
    if labs():
        pytest.skip("somebody else's labs are up")
    for name in ("stray-1", "stray-2"):
        cli("lab", "up", name, "2x1")
    os.kill(wire.supervisor("stray-2"), signal.SIGSTOP)  # one that no longer answers
    done = cli("lab", "down", "--all")
    assert "stray-1 is down" in done.stdout
    assert "stray-2 is down" in done.stdout
    nothing_stays()


def test_without_root_it_says_what_is_missing() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os\nfrom railweave.lab import Lab,LabSpec\nos.setgid(65534); os.setuid(65534)\nLab.up(LabSpec(2,2))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a lab needs root" in done.stderr
    assert "sudo" in done.stderr


@pytest.mark.parametrize("hard", [40, 400])
def test_open_files(hard: int, cli: Cli, nothing_stays: Check) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, hard))

    name = f"test-{os.getpid()}"
    up = cli("lab", "up", name, "2x4", preexec_fn=limited)
    if hard == 40:
        assert up.returncode == 1
        assert up.stderr == "railweave: this lab needs more than 40 open files at once: raise the hard limit (ulimit -Hn)\n"
    else:
        assert up.returncode == 0, up.stderr
        assert f"{name} is down" in cli("lab", "down", name).stdout
    nothing_stays()


def test_only_its_user_uses_a_lab(nothing_stays: Check) -> None:
    others = (
        "import os,sys\nfrom railweave.lab import *\nos.setgid(65534); os.setuid(65534)\n"
        "tries = [lambda: Lab.find(sys.argv[1]), lambda: Lab(sys.argv[1], LabSpec(2, 1)).set_link(0, 0, up=False), "
        "lambda: take_down(sys.argv[1])]\n"
        "for each in tries:\n"
        "    try: each(); print('done')\n"
        "    except LabError as error: print(error)\n"
    )
    with Lab.up(LabSpec(2, 1)) as lab:
        done = subprocess.run([sys.executable, "-c", others, lab.name], capture_output=True, text=True, check=True)
        assert all(link["up"] for link in lab.links())
    refused = done.stdout.splitlines()
    assert len(refused) == 3
    assert all(f"'{lab.name}'" in line and line.endswith("run the command with sudo") for line in refused), refused


@pytest.fixture
def listening(nothing_stays: Check) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Processes that listen under the name of a lab, answer `describe` as one would, and print how many bytes they were sent."""
    code = (
        "import json,os,socket,sys\n"
        "os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('\\0railweave/lab/' + sys.argv[1]); server.listen(64)\n"
        "if sys.argv[3] == 'leave' and os.fork():\n"
        "    os._exit(0)\n"
        "print('listens', flush=True)\n"
        "answer = json.dumps({'name': sys.argv[1], 'spec': {'nodes': 1, 'gpus': 1}, 'links': []}).encode() + b'\\n'\n"
        "while True:\n"
        "    connection = server.accept()[0]\n"
        "    size, part = 0, b'x'\n"
        "    try:\n"
        "        connection.sendall(answer)\n"
        "        while part and size < 1000: part = connection.recv(1000); size += len(part)\n"
        "    except OSError: pass\n"  # who is not answered in time, or goes without reading
        "    print(size, flush=True)\n"
    )
    processes = []

    def start(name: str, user: int, what: str = "stay") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, name, str(user), what]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        return process

    yield start
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_lab_of_another_user_is_told_nothing_and_not_used(listening: Callable[..., subprocess.Popen[str]], cli: Cli) -> None:
    name = f"foreign-{os.getpid()}"
    process = listening(name, 65534)
    tries: list[Callable[[], object]] = [
        lambda: Lab.find(name),
        lambda: Lab(name, LabSpec(1, 1)).start([Program(["true"], rank=0)]),
        lambda: Lab(name, LabSpec(1, 1)).down(),
        lambda: take_down(name),
    ]
    for each in tries:
        with pytest.raises(LabError, match=f"'{name}' belongs to user 65534"):
            each()
    with pytest.raises(LabError, match=f"'{name}' is taken by user 65534"):
        Lab.up(LabSpec(1, 1), name)
    for command in (("exec", name, "true"), ("status", name), ("fabric", name), ("down", name)):
        done = cli("lab", *command)
        assert (done.returncode, "belongs to user 65534" in done.stderr) == (1, True), done
    assert name not in labs()
    assert f"{name}: of user 65534\n" in cli("lab", "status").stdout
    assert all(each["name"] != name for each in json.loads(cli("lab", "status", "--json").stdout))
    assert process.poll() is None
    process.kill()
    assert process.stdout is not None
    assert {line.strip() for line in process.stdout} == {"0"}


@pytest.mark.parametrize("what", ["stay", "leave"])
def test_a_process_that_is_no_supervisor_is_not_killed(what: str, listening: Callable[..., subprocess.Popen[str]], cli: Cli) -> None:
    """Also where the one that began to listen has gone, and its number may be anybody's."""
    name = f"odd-{os.getpid()}"
    process = listening(name, 0, what)
    if what == "leave":
        process.wait()
    done = cli("lab", "down", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"'{name}' has lost its supervisor" in done.stderr
    assert wire.owners()[name] == 0
    assert (process.poll() is None) == (what == "stay")


def test_names_of_sockets_are_any_bytes(nothing_stays: Check) -> None:
    """Which any user can choose, also so that the kernel's list seems to have another line."""
    odd = [b"\xff\xfe", b"a\x1b[2J", b"a\n0: 1 0 zz 1 01 1 @railweave/lab/zz", b"a\n0: 1 0 00010000 1 01 1 @railweave/lab/not-there"]
    with contextlib.ExitStack() as opened:
        for name in odd:
            server = opened.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(b"\0railweave/lab/" + name)
            server.listen()
        found = labs()
    assert not {"zz", "not-there"} & set(found)
    assert all(wire.NAME.fullmatch(name) for name in found)


@pytest.mark.parametrize("capability", ["sys_admin", "net_admin"])
def test_without_capabilities_it_says_which(capability: str) -> None:
    done = subprocess.run(
        ["setpriv", f"--bounding-set=-{capability}", sys.executable, "-c", "from railweave.lab import Lab,LabSpec; Lab.up(LabSpec(2,2))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert capability.upper() in done.stderr
    assert "--privileged" in done.stderr
