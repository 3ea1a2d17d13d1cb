// Package probe sends frames that no well-behaved program would send, and counts at every receiver, with packet sockets
// below any filter, what arrived. Each frame carries a number of its own, so that "zero packets" is a fact about one
// frame and one receiver.
package probe

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// OffRails is the rail of an endpoint that is on none.
const OffRails = -1

// Endpoint is an interface of a pod on a rail, or of somebody else who may try to reach one.
type Endpoint struct {
	Name      string
	NS        testnet.Namespace
	Interface string
	Rail      int
	MAC       net.HardwareAddr
	Addr4     netip.Addr
	Addr6     netip.Addr
	LinkLocal netip.Addr
	// SendOnly endpoints are not watched: theirs is an interface that others' allowed packets pass through.
	SendOnly bool
	// Plays is the endpoint that an impostor pretends to be, which gets the answers.
	Plays *Endpoint
	// Leaf is the watch at which a node's own neighbour discovery is at home: its LOCAL port speaks it with the leaf.
	Leaf string
	// Fleeting is an interface that goes and comes with ovs-vswitchd. What it cannot send is not sent.
	Fleeting bool

	gateway4, gateway6 net.HardwareAddr
}

func (e *Endpoint) addr(v6 bool) netip.Addr {
	if v6 {
		return e.Addr6
	}
	return e.Addr4
}

func (e *Endpoint) gatewayMAC(dst netip.Addr) net.HardwareAddr {
	if dst.Is6() {
		return e.gateway6
	}
	return e.gateway4
}

// NewEndpoint looks an interface up in its namespace: MAC, addresses, and the permanent neighbours that the node agent
// has put there for the gateways.
func NewEndpoint(name string, ns testnet.Namespace, ifname string, rail int) (*Endpoint, error) {
	e := &Endpoint{Name: name, NS: ns, Interface: ifname, Rail: rail}
	return e, ns.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", name, ifname, err)
		}
		e.MAC = link.Attrs().HardwareAddr
		e.LinkLocal = linkLocal(e.MAC)
		addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.IP)
			switch addr = addr.Unmap(); {
			case addr.Is4():
				e.Addr4 = addr
			case !addr.IsLinkLocalUnicast():
				e.Addr6 = addr
			}
		}
		if err := e.readGateways(link); err != nil {
			return err
		}
		if !e.Addr4.IsValid() || !e.Addr6.IsValid() || e.gateway4 == nil || e.gateway6 == nil {
			return fmt.Errorf("%s: %s lacks something: addresses %v %v, gateway MACs %v %v", name, ifname, e.Addr4, e.Addr6,
				e.gateway4, e.gateway6)
		}
		return nil
	})
}

// NewRouterEndpoint makes an endpoint of a router's or host's own interface on a rail: something that pods must not
// reach, and that must not reach pods. Frames it routes go to nextHop.
func NewRouterEndpoint(name string, ns testnet.Namespace, ifname string, rail int, addr4, addr6 netip.Addr, nextHop string) (*Endpoint, error) {
	text, err := ns.HardwareAddr(ifname)
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(text)
	if err != nil {
		return nil, err
	}
	hop, err := net.ParseMAC(nextHop)
	if err != nil {
		return nil, err
	}
	return &Endpoint{Name: name, NS: ns, Interface: ifname, Rail: rail, MAC: mac, Addr4: addr4, Addr6: addr6,
		LinkLocal: linkLocal(mac), gateway4: hop, gateway6: hop}, nil
}

func (e *Endpoint) readGateways(link netlink.Link) error {
	want4, want6 := testnet.Gateway(e.Rail)
	neighbors, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, n := range neighbors {
		if n.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		addr, _ := netip.AddrFromSlice(n.IP)
		switch addr.Unmap() {
		case want4:
			e.gateway4 = n.HardwareAddr
		case want6:
			e.gateway6 = n.HardwareAddr
		}
	}
	return nil
}

// linkLocal is the address that a host derives from its MAC (RFC 4291, appendix A). A pod may use it whether or not the
// kernel has configured it.
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4],
		15: mac[5]})
}
