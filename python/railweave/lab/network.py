"""The links of a lab: namespaces, veth pairs, leaf bridges, the spine, shaping, faults and counters.

    rank or node            leafs (one bridge a rail)         spine (routes between rails)
    rail0 ══veth, tbf══ n0r0 ─┐
                              ├─ leaf0 ─ up0 ══veth, tbf══ leaf0
    rail0 ══veth, tbf══ n1r0 ─┘

Both ends of a `══` are shaped, so each direction has a rate of its own. Ranks that share a NIC (`gpu` isolation, fewer
rails than GPUs) hang on a small bridge in the namespace `adapters`, whose uplink is the shaped one, as virtual functions do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from railweave.lab import shaping, syscalls
from railweave.lab.errors import LabError
from railweave.lab.spec import LabSpec, Nic, host_address

_NO_PREFIX_ROUTE = 0x200  # IFA_F_NOPREFIXROUTE, linux/if_addr.h: the routes here carry metrics
_SCOPE_LINK = 253  # linux/rtnetlink.h
# The kernel heeds RTAX_RTO_MIN only where its bit in RTAX_LOCK is set (linux/rtnetlink.h).
_RTAX_RTO_MIN = 13
METRICS = {"rto_min": shaping.MIN_RETRANSMIT_MS, "lock": 1 << _RTAX_RTO_MIN}
_FIRST_TABLE = 100
_ELSEWHERE = 1000  # priority of routes to a rail over another one, behind those of its own NIC
_GATEWAY = "10.{rail}.255.254"


class Network:
    """Builds the links of a lab in namespaces without names: they vanish with the last process that holds them."""

    def __init__(self, spec: LabSpec) -> None:
        """Build everything; on an error nothing stays, because nothing has a name."""
        self.spec = spec
        self.namespaces: dict[str, int] = {}
        self._links: dict[str, IPRoute] = {}
        self._rates = {(nic.node, nic.rail): spec.rate for nic in spec.nics()}
        self._namespace("leafs", bridge_filter=False)
        self._namespace("spine", forward=True)
        for node in range(spec.nodes):
            self._namespace(f"node{node}")
        if spec.isolation == "gpu":
            for rank in range(spec.world):
                self._namespace(f"rank{rank}")
            self._host_network()
            if spec.rails < spec.gpus:
                self._namespace("adapters", bridge_filter=False)
        for rail in range(spec.rails):
            self._leaf(rail)
        for nic in spec.nics():
            self._nic(nic)

    def close(self) -> None:
        """Let go of the namespaces; the kernel removes them with all that is in them."""
        for ip in self._links.values():
            ip.close()
        for fd in self.namespaces.values():
            os.close(fd)

    def namespace_of(self, rank: int) -> str:
        """The network namespace in which a rank's programs run."""
        return f"rank{rank}" if self.spec.isolation == "gpu" else f"node{self.spec.node_of(rank)}"

    def set_link(self, node: int, rail: int, *, up: bool | None = None, rate: int | None = None) -> None:
        """Take a NIC's switch port down or up, or change the rate of the NIC and its port (bits per second)."""
        nic = self._find(node, rail)
        if up is not None:
            self._set("leafs", _port(nic), state="up" if up else "down")
        if rate is not None:
            self._rates[node, rail] = rate
            for namespace, interface in self._shaped_ends(nic):
                self._shape(namespace, interface, rate)

    def links(self) -> list[dict[str, Any]]:
        """For each NIC: its state, its rate, and the bytes that went in and out, as the kernel counted at its switch port."""
        ports = {link.get_attr("IFLA_IFNAME"): link for link in _answer(self._links["leafs"].get_links())}
        result = []
        for nic in self.spec.nics():
            link = ports[_port(nic)]
            counters = link.get_attr("IFLA_STATS64")
            result.append(
                {
                    "node": nic.node,
                    "rail": nic.rail,
                    "up": link["flags"] & 1 == 1,
                    "rate": self._rates[nic.node, nic.rail],
                    "tx_bytes": counters["rx_bytes"],  # what the port receives, the NIC sent
                    "rx_bytes": counters["tx_bytes"],
                    "tx_packets": counters["rx_packets"],
                    "rx_packets": counters["tx_packets"],
                }
            )
        return result

    # --- building

    def _namespace(self, name: str, *, forward: bool = False, bridge_filter: bool = True) -> None:
        home = syscalls.open_namespace("net")
        try:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            self.namespaces[name] = syscalls.open_namespace("net")
            self._links[name] = IPRoute()
            for setting, value in _sysctls(forward, bridge_filter):
                _write_sysctl(setting, value)
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWNET)
            os.close(home)
        self._set(name, "lo", state="up")

    def _leaf(self, rail: int) -> None:
        leaf, uplink = f"leaf{rail}", f"up{rail}"
        self._bridge("leafs", leaf)
        self._veth(("leafs", uplink), ("spine", leaf))
        self._set("leafs", uplink, master=self._index("leafs", leaf), state="up")
        gateway = _GATEWAY.format(rail=rail + 1)
        self._address("spine", leaf, gateway, 16)
        self._set("spine", leaf, state="up")
        self._shape("leafs", uplink, self.spec.spine_rate)
        self._shape("spine", leaf, self.spec.spine_rate)

    def _nic(self, nic: Nic) -> None:
        port = _port(nic)
        (_, _), (namespace, interface) = self._shaped_ends(nic)
        self._veth(("leafs", port), (namespace, interface))
        self._set("leafs", port, master=self._index("leafs", f"leaf{nic.rail}"), state="up")
        if namespace == "adapters":
            self._virtual_functions(nic, interface)
        else:
            self._endpoint(namespace, nic, 0)
        for end in self._shaped_ends(nic):
            self._shape(*end, self.spec.rate)

    def _virtual_functions(self, nic: Nic, uplink: str) -> None:
        bridge = f"b{nic.node}-{nic.rail}"
        self._bridge("adapters", bridge)
        self._set("adapters", uplink, master=self._index("adapters", bridge), state="up")
        for function, rank in enumerate(nic.ranks):
            own = f"v{rank}-{nic.rail}"
            self._veth(("adapters", own), (f"rank{rank}", nic.interface))
            self._set("adapters", own, master=self._index("adapters", bridge), state="up")
            self._endpoint(f"rank{rank}", nic, function)

    def _endpoint(self, namespace: str, nic: Nic, function: int) -> None:
        """Address, and a routing table of its own so that what is sent from this address leaves by this NIC."""
        ip, address, table = self._links[namespace], nic.address(function), _FIRST_TABLE + nic.rail
        self._address(namespace, nic.interface, address, 16, noprefixroute=True)
        self._set(namespace, nic.interface, state="up")
        index, gateway = self._index(namespace, nic.interface), _GATEWAY.format(rail=nic.rail + 1)
        for route in ({"dst": f"10.{nic.rail + 1}.0.0/16", "scope": _SCOPE_LINK}, {"dst": "10.0.0.0/8", "gateway": gateway}):
            ip.route("add", **route, oif=index, table=table, metrics=METRICS)
            ip.route("add", **route, oif=index, priority=nic.rail + 1, metrics=METRICS)
        ip.rule("add", src=address, src_len=32, table=table, priority=1000 + nic.rail)
        # A program that asks the main table what a NIC reaches (UCX) finds the rails of the other NICs here, too, as a last resort.
        for rail in self._rails_in(namespace):
            if rail != nic.rail:
                ip.route("add", dst=f"10.{rail + 1}.0.0/16", gateway=gateway, oif=index, priority=_ELSEWHERE + nic.rail, metrics=METRICS)

    def _rails_in(self, namespace: str) -> list[int]:
        """Rails whose NICs a rank's or a node's namespace has."""
        if self.spec.isolation == "node":
            return list(range(self.spec.rails))
        return self.spec.rails_of(int(namespace.removeprefix("rank")) % self.spec.gpus)

    def _host_network(self) -> None:
        self._bridge("leafs", "hosts")
        for node in range(self.spec.nodes):
            port = f"h{node}"
            self._veth(("leafs", port), (f"node{node}", "mgmt0"))
            self._set("leafs", port, master=self._index("leafs", "hosts"), state="up")
            self._address(f"node{node}", "mgmt0", host_address(node), 16)
            self._set(f"node{node}", "mgmt0", state="up")

    def _shaped_ends(self, nic: Nic) -> Iterator[tuple[str, str]]:
        yield "leafs", _port(nic)
        if self.spec.isolation == "node":
            yield f"node{nic.node}", nic.interface
        elif len(nic.ranks) == 1:
            yield f"rank{nic.ranks[0]}", nic.interface
        else:
            yield "adapters", f"u{nic.node}-{nic.rail}"

    # --- one netlink request each

    def _bridge(self, namespace: str, name: str) -> None:
        _kernel_has("bridge", lambda: self._links[namespace].link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0))
        self._set(namespace, name, state="up", mtu=self.spec.mtu)

    def _veth(self, here: tuple[str, str], there: tuple[str, str]) -> None:
        peer = {"ifname": there[1], "net_ns_fd": self.namespaces[there[0]], "mtu": self.spec.mtu}
        ip = self._links[here[0]]
        _kernel_has("veth", lambda: ip.link("add", ifname=here[1], kind="veth", peer=peer, mtu=self.spec.mtu))

    def _shape(self, namespace: str, interface: str, rate: int) -> None:
        ip, index = self._links[namespace], self._index(namespace, interface)
        burst, limit = shaping.burst(rate, self.spec.frame), shaping.queue(rate)
        _kernel_has("sch_tbf", lambda: ip.tc("replace", "tbf", index, 0x10000, rate=rate // 8, burst=burst, limit=limit))

    def _address(self, namespace: str, interface: str, address: str, prefix: int, *, noprefixroute: bool = False) -> None:
        flags = {"flags": _NO_PREFIX_ROUTE} if noprefixroute else {}
        self._links[namespace].addr("add", index=self._index(namespace, interface), address=address, prefixlen=prefix, **flags)

    def _set(self, namespace: str, interface: str, **settings: Any) -> None:
        self._links[namespace].link("set", index=self._index(namespace, interface), **settings)

    def _index(self, namespace: str, interface: str) -> int:
        found = _answer(self._links[namespace].link_lookup(ifname=interface))
        return int(found[0])

    def _find(self, node: int, rail: int) -> Nic:
        for nic in self.spec.nics():
            if (nic.node, nic.rail) == (node, rail):
                return nic
        raise LabError(
            f"no NIC at node {node}, rail {rail}: this lab has {self.spec.nodes} nodes with {self.spec.rails} rails, counted from 0"
        )


def _port(nic: Nic) -> str:
    return f"n{nic.node}r{nic.rail}"


def _answer(messages: Any) -> list[Any]:
    return list(messages)


def _sysctls(forward: bool, bridge_filter: bool) -> Iterator[tuple[str, str]]:
    yield "net/ipv6/conf/all/disable_ipv6", "1"
    yield "net/ipv4/conf/all/rp_filter", "0"
    yield "net/ipv4/conf/default/rp_filter", "0"
    yield "net/ipv4/tcp_congestion_control", shaping.CONGESTION_CONTROL
    yield "net/ipv4/tcp_no_metrics_save", "1"  # no exchange learns from the one before it
    if forward:
        yield "net/ipv4/ip_forward", "1"
    if not bridge_filter:
        yield "net/bridge/bridge-nf-call-iptables", "0"


def _write_sysctl(setting: str, value: str) -> None:
    path = Path("/proc/sys") / setting
    if path.exists():  # IPv6 and bridge filters may be absent, and are then not in the way
        try:
            path.write_text(value)
        except OSError as error:
            raise LabError(
                f"cannot write {path}: {error.strerror}. In a container, /proc/sys must be writable: run it with --privileged"
            ) from error


def _kernel_has(module: str, request: Callable[[], Any]) -> None:
    """Run a request; say which kernel module is missing if that is why it fails."""
    try:
        request()
    except NetlinkError as error:
        if error.code in (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV):
            raise LabError(f"the kernel lacks {module}: try `sudo modprobe {module}` (in a container: on its host)") from error
        raise
