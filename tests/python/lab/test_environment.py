"""What OpenMPI needs in a lab, in version 4 and in version 5, whichever of them is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from railweave.lab import Lab, LabSpec, Program
from railweave.lab.environment import for_node
from railweave.lab.spec import host_address

# Each rank says where it is, and how many share memory with it.
_MPI_PROGRAM = """\
#include <mpi.h>
#include <stdio.h>
int main(int argc, char** argv) {
    int rank, sum = 0, beside, length;
    char name[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &beside);
    MPI_Get_processor_name(name, &length);
    printf("%d %s sum %d beside %d\\n", rank, name, sum, beside);
    MPI_Finalize();
}
"""

# A daemon that says something to the one program it starts, and how that program ended.
_DAEMON = """\
import os, socket, subprocess, sys
address, agent, program = sys.argv[1:]
server = socket.create_server((address, 0))
uri = f"daemon.0;tcp4://{address}:{server.getsockname()[1]}"
ranks = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
uris = {"PMIX_SERVER_URI2": uri, "PMIX_SERVER_URI41": uri}
started = subprocess.Popen([*agent.split(), sys.executable, "-c", program], env={**os.environ, **ranks, **uris})
with server.accept()[0] as connection:
    connection.sendall(b"heard")
sys.exit(started.wait())
"""
_OF_THE_DAEMON = """\
import os, socket
found = {os.environ[name].rpartition("//")[2] for name in ("PMIX_SERVER_URI2", "PMIX_SERVER_URI41")}
host, port = found.pop().split(":")
print(socket.create_connection((host, int(port))).recv(5).decode(), not found, os.environ["RANK"], *sorted(os.listdir("/sys/class/net")))
"""


def run(lab: Lab, *argv: str) -> tuple[int, str]:
    """Exit status and output of a program on node 0."""
    read, write = os.pipe()
    job = lab.start([Program(list(argv), node=0, fds={1: write, 2: write})])
    os.close(write)
    with os.fdopen(read) as output:
        text = output.read()
    return job.wait(), text


@pytest.mark.parametrize("isolation", ["node", "gpu"])
@pytest.mark.parametrize(
    ("orte", "prrte"),
    [
        ("OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"),
        ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", "PRTE_MCA_plm_ssh_no_tree_spawn"),
        ("OMPI_MCA_orte_fork_agent", "PRTE_MCA_odls_base_exec_agent"),
        ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"),
    ],
)
def test_both_versions_are_told_the_same(orte: str, prrte: str, isolation: str) -> None:
    variables = for_node(LabSpec(2, 2, isolation=isolation), 1)
    assert variables.get(orte) == variables.get(prrte)
    assert (orte in variables) == (isolation == "gpu" or "fork" not in orte)


@pytest.mark.root
@pytest.mark.parametrize("address", ["127.0.0.1", host_address(0)], ids=["OpenMPI 4", "mpirun of OpenMPI 5"])
def test_a_rank_reaches_its_daemon(address: str, nothing_stays: Callable[[], None]) -> None:
    with Lab.up(LabSpec(1, 2)) as lab:
        agent = for_node(lab.spec, 0)["PRTE_MCA_odls_base_exec_agent"]
        assert run(lab, sys.executable, "-c", _DAEMON, address, agent, _OF_THE_DAEMON) == (0, "heard True 1 lo rail1\n")


@pytest.mark.root
@pytest.mark.skipif(shutil.which("mpirun") is None or shutil.which("mpicc") is None, reason="no OpenMPI")
@pytest.mark.parametrize("isolation", ["node", "gpu"])
@pytest.mark.parametrize("hosts", ["node0:2,node1:2", "node0,node1"], ids=["as many slots as ranks", "more ranks than slots"])
def test_ranks_of_openmpi_fill_their_nodes(hosts: str, isolation: str, tmp_path: Path, nothing_stays: Callable[[], None]) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(_MPI_PROGRAM)
    subprocess.run(["mpicc", "-o", str(program), str(source)], check=True)
    with Lab.up(LabSpec(2, 2, isolation=isolation)) as lab:
        status, text = run(lab, "mpirun", "-np", "4", "--host", hosts, str(program))
        assert status == 0, text
        assert sorted(text.splitlines()) == [f"{rank} node{rank // 2} sum 6 beside 2" for rank in range(4)]
