package testnet

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// end is one side of a cable: an interface name in a namespace.
type end struct {
	ns   Namespace
	name string
	mtu  int
}

// connect lays a veth pair between two namespaces, both ends up.
func connect(a, b end) error {
	return a.ns.Do(func() error {
		peer, err := os.Open(b.ns.Path())
		if err != nil {
			return err
		}
		defer func() { _ = peer.Close() }()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = a.name, a.mtu
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: b.name, PeerNamespace: netlink.NsFd(int(peer.Fd())),
			PeerMTU: uint32(b.mtu)}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("cable %s/%s - %s/%s: %w", a.ns.Name, a.name, b.ns.Name, b.name, err)
		}
		if err := configureEnd(a); err != nil {
			return err
		}
		return b.ns.Do(func() error { return configureEnd(b) })
	})
}

func configureEnd(e end) error {
	link, err := netlink.LinkByName(e.name)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", e.ns.Name, e.name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s/%s: up: %w", e.ns.Name, e.name, err)
	}
	return nil
}

// addAddresses puts addresses on an interface. IPv6 ones skip duplicate address detection, so that a BGP session need
// not wait the second it takes.
func (n Namespace) addAddresses(ifname string, prefixes ...netip.Prefix) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", n.Name, ifname, err)
		}
		for _, p := range prefixes {
			addr, err := netlink.ParseAddr(p.String())
			if err != nil {
				return err
			}
			if p.Addr().Is6() {
				addr.Flags |= unix.IFA_F_NODAD
			}
			if err := netlink.AddrReplace(link, addr); err != nil {
				return fmt.Errorf("%s/%s: address %s: %w", n.Name, ifname, p, err)
			}
		}
		return nil
	})
}

// Counters are an interface's packet counters.
type Counters struct{ ReceivedPackets, SentPackets uint64 }

// Counters reads the counters of an interface in the namespace.
func (n Namespace) Counters(ifname string) (Counters, error) {
	var c Counters
	err := n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", n.Name, ifname, err)
		}
		if s := link.Attrs().Statistics; s != nil {
			c = Counters{ReceivedPackets: s.RxPackets, SentPackets: s.TxPackets}
		}
		return nil
	})
	return c, err
}

// HardwareAddr returns the MAC address of an interface in the namespace.
func (n Namespace) HardwareAddr(ifname string) (string, error) {
	var mac string
	err := n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", n.Name, ifname, err)
		}
		mac = link.Attrs().HardwareAddr.String()
		return nil
	})
	return mac, err
}

// IPv4 is an interface's IPv4 address.
func (n Namespace) IPv4(ifname string) (netip.Addr, error) {
	var address netip.Addr
	err := n.Do(func() error {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", n.Name, ifname, err)
		}
		found, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", n.Name, ifname, err)
		}
		if len(found) == 0 {
			return fmt.Errorf("%s/%s has no IPv4 address", n.Name, ifname)
		}
		address, _ = netip.AddrFromSlice(found[0].IP.To4())
		return nil
	})
	return address, err
}
