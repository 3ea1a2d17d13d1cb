// Package kernel is the agent's hand in the node's own network namespace: the announcements (blackhole routes), the
// LOCAL ports, and the leafs' MAC addresses.
package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/frr"
)

// mainTable is where zebra looks for routes to redistribute.
const mainTable = unix.RT_TABLE_MAIN

// routeMetric is worse than anything an operator sets: an announcement never wins over a real route.
const routeMetric = 4294967

// ToIPNet and FromIP bridge to the netlink package, which uses the older types.
func ToIPNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

// FromIPNet is the inverse of ToIPNet.
func FromIPNet(network *net.IPNet) (netip.Prefix, bool) {
	if network == nil {
		return netip.Prefix{}, false
	}
	address, ok := netip.AddrFromSlice(network.IP)
	ones, bits := network.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(address.Unmap(), ones), true
}

func announcement(address netip.Addr) *netlink.Route {
	return &netlink.Route{
		Dst: ToIPNet(netip.PrefixFrom(address, address.BitLen())), Type: unix.RTN_BLACKHOLE, Table: mainTable,
		Protocol: frr.RouteProtocol, Priority: routeMetric,
	}
}

// Announce adds the blackhole route that FRR redistributes. Twice is once.
func Announce(address netip.Addr) error {
	if err := netlink.RouteReplace(announcement(address)); err != nil {
		return fmt.Errorf("announce %s: %w", address, err)
	}
	return nil
}

// Withdraw removes it. One that is not there is success.
func Withdraw(address netip.Addr) error {
	if err := netlink.RouteDel(announcement(address)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("withdraw %s: %w", address, err)
	}
	return nil
}

// Announcements lists the announcements that are in the kernel.
func Announcements() (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{Table: mainTable, Protocol: frr.RouteProtocol}
		routes, err := netlink.RouteListFiltered(family, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, err
		}
		for _, route := range routes {
			if prefix, ok := FromIPNet(route.Dst); ok && route.Type == unix.RTN_BLACKHOLE && prefix.IsSingleIP() {
				found[prefix.Addr()] = true
			}
		}
	}
	return found, nil
}

// Sysctl writes one value below /proc/sys/net of the calling thread's network namespace.
func Sysctl(root, key, value string) error {
	path := filepath.Join(root, key)
	current, err := os.ReadFile(path) // #nosec G304 -- keys are constants with a checked interface name
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(current)) == value {
		return nil
	}
	return os.WriteFile(path, []byte(value), 0o644) // a sysctl
}

// sysctl writes one of the calling process's namespace, which the kernel may be without.
func sysctl(key, value string) error {
	if err := Sysctl(ProcSysNet, key, value); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// ProcSysNet is where a process finds its namespace's network sysctls.
const ProcSysNet = "/proc/sys/net"

// HasIPv6 tells whether the kernel has it: it may be built without, or started with ipv6.disable=1.
func HasIPv6() bool {
	_, err := os.Stat(filepath.Join(ProcSysNet, "ipv6"))
	return err == nil
}

// Local is how the LOCAL port and the uplink of a rail must be.
type Local struct {
	Bridge, Uplink string
	MAC            string
	Addresses      []netip.Prefix
}

// linkLocal is the address that belongs to a MAC (RFC 4291, modified EUI-64). The leaf's FRR derives the MAC of an
// unnumbered neighbour from its link-local address, so the two must agree.
func linkLocal(mac net.HardwareAddr) netip.Prefix {
	address := [16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]}
	return netip.PrefixFrom(netip.AddrFrom16(address), 64)
}

// EnsureLocal brings the uplink and the LOCAL port up, gives LOCAL its addresses and nothing else, and keeps the kernel
// from taking routes or addresses from what it hears there. It returns the uplink's MTU.
func EnsureLocal(local Local) (int, error) {
	uplink, err := netlink.LinkByName(local.Uplink)
	if err != nil {
		return 0, fmt.Errorf("uplink %s: %w", local.Uplink, err)
	}
	bridge, err := netlink.LinkByName(local.Bridge)
	if err != nil {
		return 0, fmt.Errorf("LOCAL port of %s: %w", local.Bridge, err)
	}
	for _, setting := range []struct{ key, value string }{
		{"ipv6/conf/" + local.Bridge + "/accept_ra", "0"},
		{"ipv6/conf/" + local.Bridge + "/disable_ipv6", "0"},
		{"ipv6/conf/" + local.Uplink + "/disable_ipv6", "1"},
		// The uplink's link belongs to the switch. Beside the userspace datapath the kernel hears its frames too, and would
		// answer ARP requests for LOCAL's addresses with the uplink's MAC.
		{"ipv4/conf/" + local.Uplink + "/arp_ignore", "8"},
		{"ipv4/conf/" + local.Bridge + "/forwarding", "0"},
		{"ipv6/conf/" + local.Bridge + "/forwarding", "0"},
	} {
		if err := sysctl(setting.key, setting.value); err != nil {
			return 0, err
		}
	}
	mtu := uplink.Attrs().MTU
	if bridge.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(bridge, mtu); err != nil {
			return 0, fmt.Errorf("MTU %d of %s: %w", mtu, local.Bridge, err)
		}
	}
	for _, link := range []netlink.Link{uplink, bridge} {
		if link.Attrs().Flags&net.FlagUp == 0 {
			if err := netlink.LinkSetUp(link); err != nil {
				return 0, fmt.Errorf("%s: %w", link.Attrs().Name, err)
			}
		}
	}
	// ovs-vswitchd sets the MAC some milliseconds after it made the link.
	if mac := bridge.Attrs().HardwareAddr; mac.String() != local.MAC {
		return 0, fmt.Errorf("LOCAL port of %s has MAC %s, expected %s", local.Bridge, mac, local.MAC)
	}
	wanted := slices.Clone(local.Addresses)
	if HasIPv6() { // else a session over IPv4 does without; preflight refuses others
		wanted = append(wanted, linkLocal(bridge.Attrs().HardwareAddr))
	}
	return mtu, ensureAddresses(bridge, wanted)
}

func ensureAddresses(link netlink.Link, wanted []netip.Prefix) error {
	present, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	missing := map[netip.Prefix]bool{}
	for _, prefix := range wanted {
		missing[prefix] = true
	}
	for i := range present {
		prefix, ok := FromIPNet(present[i].IPNet)
		if !ok {
			continue
		}
		if missing[prefix] {
			delete(missing, prefix)
			continue
		}
		if err := netlink.AddrDel(link, &present[i]); err != nil {
			return fmt.Errorf("foreign address %s on %s: %w", prefix, link.Attrs().Name, err)
		}
	}
	for prefix := range missing {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ToIPNet(prefix), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s on %s: %w", prefix, link.Attrs().Name, err)
		}
	}
	return nil
}

// RepeatAddresses makes the kernel tell its listeners of a link's addresses again; the addresses stay as they are.
func RepeatAddresses(linkName string) error {
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return err
	}
	present, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for i := range present {
		// Replacing an address by itself changes nothing and is announced (RTM_NEWADDR).
		if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: present[i].IPNet, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s on %s: %w", present[i].IPNet, linkName, err)
		}
	}
	return nil
}

// NeighbourMAC is the MAC address the kernel has for a peer on a link; empty if it has none.
func NeighbourMAC(linkName string, peer netip.Addr) (string, error) {
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return "", err
	}
	neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return "", err
	}
	const usable = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT
	for _, neighbour := range neighbours {
		address, ok := netip.AddrFromSlice(neighbour.IP)
		if ok && address.Unmap() == peer.WithZone("") && neighbour.State&usable != 0 && len(neighbour.HardwareAddr) == 6 {
			return neighbour.HardwareAddr.String(), nil
		}
	}
	return "", nil
}

// MTU of a link in the node's namespace.
func MTU(linkName string) (int, error) {
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", linkName, err)
	}
	return link.Attrs().MTU, nil
}

// EnsureMTU gives a link that MTU.
func EnsureMTU(linkName string, mtu int) error {
	link, err := netlink.LinkByName(linkName)
	if err != nil {
		return fmt.Errorf("%s: %w", linkName, err)
	}
	if link.Attrs().MTU == mtu {
		return nil
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return fmt.Errorf("MTU %d of %s: %w", mtu, linkName, err)
	}
	return nil
}

// ClosePort keeps the node's own stack from what a pod sends: the host's end of its interface belongs to the switch alone. Beside the
// userspace datapath the kernel hears its frames, too, and beside any while it is on no bridge; a pod would reach the node by its
// link-local address, and send it packets with whatever source. A link that is not there is closed.
func ClosePort(linkName string) error {
	for _, setting := range []struct{ key, value string }{
		{"ipv6/conf/" + linkName + "/disable_ipv6", "1"},
		{"ipv4/conf/" + linkName + "/arp_ignore", "8"},
		{"ipv4/conf/" + linkName + "/rp_filter", "1"}, // no route leads there, so no source is right
		{"ipv4/conf/" + linkName + "/forwarding", "0"},
	} {
		if err := sysctl(setting.key, setting.value); err != nil {
			return err
		}
	}
	return nil
}

// LinkExists tells whether the node's namespace has a link of that name.
func LinkExists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}
