package podnet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/kernel"
)

// Interface is how the pod's interface must be.
type Interface struct {
	Netns     string
	Name      string
	MAC       string
	MTU       int
	Table     int // routing table, and priority of the rule that leads to it
	Addresses []netip.Prefix
	// Ways are the pools with the gateway through which this rail reaches them: first this rail's own, which the main
	// table has too, then the other rails', which only traffic with this rail's source address takes.
	Own   []Way
	Other []Way
	// RouterMAC is the gateways'.
	RouterMAC string
}

// Way is a pool and the gateway to it.
type Way struct {
	Pool    netip.Prefix
	Gateway netip.Addr
}

// ErrNoInterface: the pod has no interface of that name.
var ErrNoInterface = errors.New("no such interface in the pod")

// DifferenceError is something in the pod that is not as it was set.
type DifferenceError struct {
	What, Found, Expected string
}

func (e *DifferenceError) Error() string {
	return fmt.Sprintf("%s is %s, expected %s", e.What, e.Found, e.Expected)
}

// inside runs a function on a thread in the pod's namespace.
func inside(netns string, do func() error) error {
	return ns.WithNetNSPath(netns, func(ns.NetNS) error { return do() })
}

func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoInterface)
	}
	return link, err
}

// MAC of an interface in a pod.
func MAC(netns, name string) (string, error) {
	var mac string
	err := inside(netns, func() error {
		link, err := find(name)
		if err == nil {
			mac = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	return mac, err
}

// sysctls: no routes and no addresses from what is heard; ARP only for and from the interface's own addresses.
func (i *Interface) sysctls() [][2]string {
	return [][2]string{
		{"ipv6/conf/" + i.Name + "/accept_ra", "0"},
		{"ipv6/conf/" + i.Name + "/autoconf", "0"},
		{"ipv4/conf/" + i.Name + "/arp_ignore", "1"},
		{"ipv4/conf/" + i.Name + "/arp_announce", "2"},
		// Replies come back on the rail they were sent on, but the kernel's check looks at the main table first.
		{"ipv4/conf/" + i.Name + "/rp_filter", "2"},
	}
}

func (i *Interface) hasFamily(family int) bool {
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
}

func familyOf(address netip.Addr) int {
	if address.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// source is the address from which the pod sends to a family.
func (i *Interface) source(family int) net.IP {
	for _, prefix := range i.Addresses {
		if familyOf(prefix.Addr()) == family {
			return prefix.Addr().AsSlice()
		}
	}
	return nil
}

// Configure sets up the interface. Twice is once.
func Configure(i *Interface) error {
	return inside(i.Netns, func() error {
		link, err := find(i.Name)
		if err != nil {
			return err
		}
		for _, setting := range i.sysctls() {
			if err := kernel.Sysctl(kernel.ProcSysNet, setting[0], setting[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if i.MTU > 0 && link.Attrs().MTU != i.MTU {
			if err := netlink.LinkSetMTU(link, i.MTU); err != nil {
				return fmt.Errorf("MTU %d of %s: %w", i.MTU, i.Name, err)
			}
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
		}
		if err := i.dropConnected(link); err != nil {
			return err
		}
		if err := i.settle(link); err != nil {
			return err
		}
		return i.routes(link)
	})
}

// settleTime: duplicate address detection takes 1 to 2 s from the moment on at which the link is up.
const (
	settleTime = 5 * time.Second
	settlePoll = 10 * time.Millisecond
)

// settle waits until the IPv6 addresses may be used. The kernel looks for duplicates first, and until then it takes none of them as a
// route's source, nor may a program bind to it. (ovs-cni waits for it only where the IPAM names an IPv6 gateway.)
func (i *Interface) settle(link netlink.Link) error {
	if !i.hasFamily(netlink.FAMILY_V6) {
		return nil
	}
	for deadline := time.Now().Add(settleTime); ; time.Sleep(settlePoll) {
		tentative, failed, err := i.tentative(link)
		switch {
		case err != nil:
			return err
		case !tentative.IsValid():
			return nil
		case failed:
			return &DifferenceError{"address " + tentative.String() + " of " + i.Name, "a duplicate, by what the kernel heard on the link", "the pod's own"}
		case time.Now().After(deadline):
			return &DifferenceError{"address " + tentative.String() + " of " + i.Name, "still tentative (is the other end of the link up?)", "usable"}
		}
	}
}

// tentative is one of the addresses that may not be used, not yet or, if it has failed, not at all; none if all may.
func (i *Interface) tentative(link netlink.Link) (found netip.Addr, failed bool, err error) {
	err = i.eachAddress(link, netlink.FAMILY_V6, func(address netip.Addr, flags uint8) bool {
		mine := slices.ContainsFunc(i.Addresses, func(prefix netip.Prefix) bool { return prefix.Addr() == address })
		if mine && flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0 {
			found, failed = address, flags&unix.IFA_F_DADFAILED != 0
		}
		return !found.IsValid()
	})
	return found, failed, err
}

// eachAddress looks at a link's addresses until there is no more to see.
func (i *Interface) eachAddress(link netlink.Link, family int, look func(address netip.Addr, flags uint8) (more bool)) error {
	return list(unix.RTM_GETADDR, family, func(entry []byte) (bool, error) {
		found, err := attributes(entry, unix.SizeofIfAddrmsg)
		if err != nil {
			return false, err
		}
		// Where both are there IFA_ADDRESS is the other end's.
		address := addressOf(found[unix.IFA_LOCAL])
		if !address.IsValid() {
			address = addressOf(found[unix.IFA_ADDRESS])
		}
		message := nl.DeserializeIfAddrmsg(entry)
		return int(message.Index) != link.Attrs().Index || look(address, message.Flags), nil
	})
}

// dropConnected removes the routes the kernel made of the addresses' prefix lengths: a neighbour in the same prefix is
// behind the gateway too, nobody would answer an ARP request for it.
func (i *Interface) dropConnected(link netlink.Link) error {
	for _, prefix := range i.Addresses {
		if prefix.IsSingleIP() {
			continue
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: kernel.ToIPNet(prefix.Masked()), Protocol: unix.RTPROT_KERNEL, Table: unix.RT_TABLE_MAIN, Scope: netlink.SCOPE_LINK}
		if prefix.Addr().Is6() {
			route.Scope = netlink.SCOPE_UNIVERSE
		}
		if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("connected route %s of %s: %w", prefix.Masked(), i.Name, err)
		}
	}
	return nil
}

func (i *Interface) routes(link netlink.Link) error {
	router, err := net.ParseMAC(i.RouterMAC)
	if err != nil {
		return err
	}
	for _, way := range i.Own {
		if !i.hasFamily(familyOf(way.Gateway)) {
			continue
		}
		// First of all: no packet to the gateway may wait for an answer that never comes.
		neighbour := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: way.Gateway.AsSlice(), HardwareAddr: router}
		if err := netlink.NeighSet(neighbour); err != nil {
			return fmt.Errorf("gateway %s of %s: %w", way.Gateway, i.Name, err)
		}
	}
	for _, route := range i.wantedRoutes(link) {
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("route %s table %d of %s: %w", route.Dst, route.Table, i.Name, err)
		}
	}
	return i.rules()
}

func (i *Interface) wantedRoutes(link netlink.Link) []*netlink.Route {
	var routes []*netlink.Route
	add := func(way Way, table int) {
		family := familyOf(way.Gateway)
		if !i.hasFamily(family) {
			return
		}
		routes = append(routes, &netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: kernel.ToIPNet(way.Pool), Gw: way.Gateway.AsSlice(), Table: table,
			Src: i.source(family), Flags: int(netlink.FLAG_ONLINK),
		})
	}
	for _, way := range i.Own {
		add(way, unix.RT_TABLE_MAIN)
		add(way, i.Table)
	}
	for _, way := range i.Other {
		add(way, i.Table)
	}
	return routes
}

func (i *Interface) rules() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if !i.hasFamily(family) {
			continue
		}
		missing, err := i.missingRules(family)
		if err != nil {
			return err
		}
		for _, prefix := range missing {
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table, rule.Src = family, i.Table, i.Table, kernel.ToIPNet(prefix)
			if err := netlink.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("rule from %s of %s: %w", prefix, i.Name, err)
			}
		}
	}
	return nil
}

func (i *Interface) missingRules(family int) ([]netip.Prefix, error) {
	var missing []netip.Prefix
	for _, prefix := range i.Addresses {
		if familyOf(prefix.Addr()) == family {
			missing = append(missing, netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen()))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	err := list(unix.RTM_GETRULE, family, func(entry []byte) (bool, error) {
		found, err := attributes(entry, unix.SizeofRtMsg)
		if err != nil {
			return false, err
		}
		if numberOf(found[nl.FRA_TABLE]) == i.Table && numberOf(found[nl.FRA_PRIORITY]) == i.Table {
			source := netip.PrefixFrom(addressOf(found[nl.FRA_SRC]), int(nl.DeserializeRtMsg(entry).Src_len))
			missing = slices.DeleteFunc(missing, func(host netip.Prefix) bool { return host == source })
		}
		return len(missing) > 0, nil
	})
	return missing, err
}

// Release removes what would outlive the interface in a pod that lives on: the rules that lead its addresses to the rail's
// table. Routes and neighbours go with the interface. Twice is once.
func Release(i *Interface) error {
	return inside(i.Netns, func() error {
		for _, prefix := range i.Addresses {
			rule := netlink.NewRule()
			host := netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen())
			rule.Family, rule.Priority, rule.Table, rule.Src = familyOf(host.Addr()), i.Table, i.Table, kernel.ToIPNet(host)
			if err := netlink.RuleDel(rule); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("rule from %s: %w", host, err)
			}
		}
		return nil
	})
}

// Check tells the first thing in the pod that is not as Configure set it.
func Check(i *Interface) error {
	return inside(i.Netns, func() error {
		link, err := find(i.Name)
		if err != nil {
			return err
		}
		if mac := link.Attrs().HardwareAddr.String(); mac != i.MAC {
			return &DifferenceError{"MAC of " + i.Name, mac, i.MAC}
		}
		if i.MTU > 0 && link.Attrs().MTU != i.MTU {
			return &DifferenceError{"MTU of " + i.Name, fmt.Sprint(link.Attrs().MTU), fmt.Sprint(i.MTU)}
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			return &DifferenceError{i.Name, "down", "up"}
		}
		if err := i.checkSysctls(); err != nil {
			return err
		}
		if err := i.checkAddresses(link); err != nil {
			return err
		}
		return i.checkRoutes(link)
	})
}

func (i *Interface) checkSysctls() error {
	for _, setting := range i.sysctls() {
		text, err := os.ReadFile(filepath.Join(kernel.ProcSysNet, setting[0])) // #nosec G304 -- keys are constants with a checked interface name
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		if found := strings.TrimSpace(string(text)); found != setting[1] {
			return &DifferenceError{"sysctl net/" + setting[0], found, setting[1]}
		}
	}
	return nil
}

// CheckAddresses tells whether the pod's interface has the addresses the caller claims, and waits until they may be used.
func CheckAddresses(i *Interface) error {
	return inside(i.Netns, func() error {
		link, err := find(i.Name)
		if err != nil {
			return err
		}
		if err := i.checkAddresses(link); err != nil {
			return err
		}
		return i.settle(link)
	})
}

func (i *Interface) checkAddresses(link netlink.Link) error {
	missing := slices.Clone(i.Addresses)
	err := i.eachAddress(link, netlink.FAMILY_ALL, func(address netip.Addr, _ uint8) bool {
		missing = slices.DeleteFunc(missing, func(prefix netip.Prefix) bool { return prefix.Addr() == address })
		return len(missing) > 0
	})
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return &DifferenceError{"address " + missing[0].Addr().String() + " of " + i.Name, "missing", "there"}
	}
	return nil
}

// missingRoutes are the wanted ones of a family that are not there.
func (i *Interface) missingRoutes(link netlink.Link, family int) ([]*netlink.Route, error) {
	missing := slices.DeleteFunc(i.wantedRoutes(link), func(wanted *netlink.Route) bool { return (wanted.Gw.To4() != nil) != (family == netlink.FAMILY_V4) })
	if len(missing) == 0 {
		return nil, nil
	}
	err := list(unix.RTM_GETROUTE, family, func(entry []byte) (bool, error) {
		found, err := attributes(entry, unix.SizeofRtMsg)
		if err != nil {
			return false, err
		}
		destination := netip.PrefixFrom(addressOf(found[unix.RTA_DST]), int(nl.DeserializeRtMsg(entry).Dst_len))
		missing = slices.DeleteFunc(missing, func(wanted *netlink.Route) bool {
			pool, _ := kernel.FromIPNet(wanted.Dst)
			return pool == destination && numberOf(found[unix.RTA_TABLE]) == wanted.Table && numberOf(found[unix.RTA_OIF]) == wanted.LinkIndex &&
				wanted.Gw.Equal(found[unix.RTA_GATEWAY])
		})
		return len(missing) > 0, nil
	})
	return missing, err
}

func (i *Interface) checkRoutes(link netlink.Link) error {
	for _, way := range i.Own {
		if !i.hasFamily(familyOf(way.Gateway)) {
			continue
		}
		found, err := neighbour(link.Attrs().Index, way.Gateway)
		if err != nil {
			return err
		}
		if found == nil || found.State&netlink.NUD_PERMANENT == 0 || found.HardwareAddr.String() != i.RouterMAC {
			return &DifferenceError{"neighbour " + way.Gateway.String() + " on " + i.Name, "missing or changed", "permanent, " + i.RouterMAC}
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if missing, err := i.missingRoutes(link, family); err != nil {
			return err
		} else if len(missing) > 0 {
			return &DifferenceError{fmt.Sprintf("route %s in table %d", missing[0].Dst, missing[0].Table), "missing or changed", fmt.Sprintf("via %s dev %s", missing[0].Gw, i.Name)}
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if missing, err := i.missingRules(family); err != nil {
			return err
		} else if len(missing) > 0 {
			return &DifferenceError{"rule from " + missing[0].String(), "missing", fmt.Sprintf("lookup %d", i.Table)}
		}
	}
	return nil
}

// MainRoutes are the routes Configure puts into the pod's main table.
func (i *Interface) MainRoutes() []Way {
	return slices.DeleteFunc(slices.Clone(i.Own), func(way Way) bool { return !i.hasFamily(familyOf(way.Gateway)) })
}
