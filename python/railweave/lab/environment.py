"""Environment of programs in a lab, so that OpenMPI, NCCL, UCX, Gloo and torchrun programs run unmodified."""

from __future__ import annotations

import sys
from pathlib import Path

from railweave.lab.spec import LabSpec, host_address
from railweave.lab.wire import INSIDE_TMP

RENDEZVOUS_PORT = 29500  # torchrun's default
_AGENT = str(Path(__file__).with_name("agent.sh"))


def node_name(node: int) -> str:
    """Host name of a node."""
    return f"node{node}"


def for_node(spec: LabSpec, node: int) -> dict[str, str]:
    """What every program on a node gets; launchers such as mpirun start here."""
    launchers = "172.31.0.0/16" if spec.isolation == "gpu" else "10.0.0.0/8"
    result = {
        "RAILWEAVE_NODE_ID": node_name(node),
        "RAILWEAVE_LAB_PYTHON": sys.executable,
        "TMPDIR": str(INSIDE_TMP),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "LOCAL_WORLD_SIZE": str(spec.gpus),
        "WORLD_SIZE": str(spec.world),
        "MASTER_ADDR": spec.rank_address(0),
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        # NCCL: one host a node; ranks of a node may sit in different network namespaces, which abstract sockets do not cross.
        "NCCL_HOSTID": node_name(node),
        "NCCL_SOCKET_IFNAME": "rail",
        "NCCL_IPC_USE_ABSTRACT_SOCKET": "0",
        # OpenMPI: data over the rails only, daemons through the lab's agent.
        "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8",
        # They are ORTE's in version 4 and PRRTE's from version 5 on; each has names of its own, and few of ORTE's mean anything to PRRTE.
        "OMPI_MCA_oob_tcp_if_include": launchers,
        "PRTE_MCA_prte_if_include": launchers,
        "OMPI_MCA_plm_rsh_agent": f"{_AGENT} host",
        "PRTE_MCA_plm_ssh_agent": f"{_AGENT} host",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        # By slot, as ORTE does it: once nodes may have more ranks than slots, PRRTE's default (by package) has all ranks on the first.
        # PRRTE 3.0.13 renames this and the binding policy, to names that 3.0.12 does not know, and takes these still.
        "PRTE_MCA_rmaps_default_mapping_policy": "slot:OVERSUBSCRIBE",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    if spec.isolation == "gpu":
        # mpirun starts ranks from the node's own namespace; the fork agent moves each into its rank's.
        result["OMPI_MCA_orte_fork_agent"] = f"{_AGENT} rank"
        result["PRTE_MCA_odls_base_exec_agent"] = f"{_AGENT} rank"
    return result


def for_rank(spec: LabSpec, rank: int) -> dict[str, str]:
    """What a rank's program gets: torchrun's variables and its own NIC."""
    local = rank % spec.gpus
    own = [f"rail{rail}" for rail in spec.rails_of(local)]
    visible = own if spec.isolation == "gpu" else [f"rail{rail}" for rail in range(spec.rails)]
    # Of the ranks that share a NIC one drives it for all, as on real nodes: to the engine a NIC has one owner.
    drives = local == 0 or spec.rails_of(local) != spec.rails_of(local - 1)
    return {
        **for_node(spec, spec.node_of(rank)),
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "RAILWEAVE_NICS": ",".join(own) if drives else ",",
        "GLOO_SOCKET_IFNAME": own[0],
        "UCX_NET_DEVICES": ",".join(visible),
    }


def hosts_file(spec: LabSpec, *, for_ranks: bool) -> str:
    """/etc/hosts of a lab: names of nodes, as seen by ranks (over the first rail) or by launchers."""
    lines = ["127.0.0.1 localhost"]
    for node in range(spec.nodes):
        over_rails = for_ranks or spec.isolation == "node"
        address = spec.rank_address(node * spec.gpus) if over_rails else host_address(node)
        lines.append(f"{address} {node_name(node)}")
    return "\n".join(lines) + "\n"
