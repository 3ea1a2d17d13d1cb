package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/internal/kernel"
)

func TestInode(t *testing.T) {
	own, err := Inode("/proc/self/ns/net")
	if err != nil || own == 0 {
		t.Fatalf("%d, %v", own, err)
	}
	if !Alive("/proc/self/ns/net", own) || Alive("/proc/self/ns/net", own+1) {
		t.Error("the own namespace is mistaken")
	}
	for _, path := range []string{"/proc/self/ns/mnt", "/etc/hostname", t.TempDir()} {
		if _, err := Inode(path); !errors.Is(err, ErrNotNamespace) {
			t.Errorf("%s: %v", path, err)
		}
		if Alive(path, own) {
			t.Errorf("%s is taken for a live namespace", path)
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	if _, err := Inode(gone); !errors.Is(err, os.ErrNotExist) || Alive(gone, own) {
		t.Errorf("%v", err)
	}
}

// pod makes a namespace with a veth in it that has addresses, as ovs-cni leaves it.
func pod(t *testing.T, addresses ...string) *Interface {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	namespace, err := testutils.NewNS()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() {
		// Closed first: an open file keeps the mount busy.
		if err := errors.Join(namespace.Close(), testutils.UnmountNS(namespace)); err != nil {
			t.Error(err)
		}
	})
	i := &Interface{Netns: namespace.Path(), Name: "net1", Table: 1000, MTU: 1400, RouterMAC: "02:00:00:00:00:01"}
	err = namespace.Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "net1"}, PeerName: "peer"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("net1")
		if err != nil {
			return err
		}
		i.MAC = link.Attrs().HardwareAddr.String()
		for _, text := range addresses {
			address, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			address.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
			i.Addresses = append(i.Addresses, netip.MustParsePrefix(text))
		}
		return errors.Join(netlink.LinkSetUp(link), up("peer"))
	})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func up(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func both(t *testing.T) *Interface {
	i := pod(t, "10.64.0.5/16", "fd64::5/64")
	i.Own = []Way{{netip.MustParsePrefix("10.64.0.0/16"), netip.MustParseAddr("10.64.0.1")}, {netip.MustParsePrefix("fd64::/64"), netip.MustParseAddr("fd64::1")}}
	i.Other = []Way{{netip.MustParsePrefix("10.65.0.0/16"), netip.MustParseAddr("10.64.0.1")}, {netip.MustParsePrefix("fd65::/64"), netip.MustParseAddr("fd64::1")}}
	return i
}

func TestConfigure(t *testing.T) {
	i := both(t)
	var difference *DifferenceError
	if err := Check(i); !errors.As(err, &difference) {
		t.Errorf("before: %v", err)
	}
	for range 2 { // twice is once
		if err := errors.Join(Configure(i), Check(i)); err != nil {
			t.Fatal(err)
		}
	}
	err := inside(i.Netns, func() error {
		// A neighbour of the own prefix is behind the gateway too.
		for destination, gateway := range map[string]string{"10.64.7.7": "10.64.0.1", "fd64::7": "fd64::1"} {
			routes, err := netlink.RouteGet(netip.MustParseAddr(destination).AsSlice())
			if err != nil || len(routes) != 1 || routes[0].Gw.String() != gateway {
				t.Errorf("%s: %v, %v", destination, routes, err)
			}
		}
		// Another rail's pool is reached by this rail from its own address only.
		if routes, err := netlink.RouteGet(netip.MustParseAddr("10.65.0.9").AsSlice()); err == nil {
			t.Errorf("without source: %v", routes)
		}
		routes, err := netlink.RouteGetWithOptions(netip.MustParseAddr("10.65.0.9").AsSlice(), &netlink.RouteGetOptions{SrcAddr: netip.MustParseAddr("10.64.0.5").AsSlice()})
		if err != nil || len(routes) != 1 || routes[0].Gw.String() != "10.64.0.1" {
			t.Errorf("from its address: %v, %v", routes, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCheckFindsEachDifference, and Configure repairs it.
func TestCheckFindsEachDifference(t *testing.T) {
	i := both(t)
	if err := Configure(i); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(link netlink.Link) error{
		"MTU":       func(link netlink.Link) error { return netlink.LinkSetMTU(link, 1300) },
		"neighbour": func(link netlink.Link) error { return removeNeighbour(link, "fd64::1") },
		"accept_ra": func(netlink.Link) error {
			return os.WriteFile("/proc/sys/net/ipv6/conf/net1/accept_ra", []byte("2"), 0o600)
		},
		"arp_ignore": func(netlink.Link) error {
			return os.WriteFile("/proc/sys/net/ipv4/conf/net1/arp_ignore", []byte("0"), 0o600)
		},
		"main route": func(link netlink.Link) error {
			return netlink.RouteDel(i.wantedRoutes(link)[0])
		},
		"rule": func(netlink.Link) error {
			rules, err := netlink.RuleList(netlink.FAMILY_V6)
			for at := range rules {
				if err == nil && rules[at].Table == i.Table {
					rules[at].Family = netlink.FAMILY_V6
					err = netlink.RuleDel(&rules[at])
				}
			}
			return err
		},
	} {
		err := inside(i.Netns, func() error {
			link, err := find(i.Name)
			if err != nil {
				return err
			}
			return spoil(link)
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var difference *DifferenceError
		if err := Check(i); !errors.As(err, &difference) {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(Configure(i), Check(i)); err != nil {
			t.Errorf("%s was not repaired: %v", name, err)
		}
	}
	other := *i
	other.Name = "net9"
	if err := Check(&other); !errors.Is(err, ErrNoInterface) {
		t.Errorf("%v", err)
	}
}

// TestTentativeAddress: while the kernel looks for duplicates of an IPv6 address it takes no route with it as its source. ovs-cni waits
// for that only where the IPAM names an IPv6 gateway.
func TestTentativeAddress(t *testing.T) {
	for name, duplicate := range map[string]bool{"alone": false, "at the other end, too": true} {
		i := both(t)
		err := inside(i.Netns, func() error {
			link, err := find(i.Name)
			if err != nil {
				return err
			}
			address := kernel.ToIPNet(i.Addresses[1])
			if err := netlink.AddrDel(link, &netlink.Addr{IPNet: address}); err != nil {
				return err
			}
			if duplicate {
				peer, err := find("peer")
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(peer, &netlink.Addr{IPNet: address, Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
			}
			return netlink.AddrAdd(link, &netlink.Addr{IPNet: address})
		})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(CheckAddresses(i), Configure(i), Check(i))
		var difference *DifferenceError
		if !duplicate && err != nil || duplicate && (!errors.As(err, &difference) || !strings.Contains(err.Error(), "duplicate")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEndlessLists: what a pod makes too much of is a difference, found and repaired without reading it to its end.
func TestEndlessLists(t *testing.T) {
	for name, fill := range map[string]func(number uint32) error{
		"rules": func(number uint32) error {
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table, rule.Src = netlink.FAMILY_V4, 1, unix.RT_TABLE_MAIN, host(number)
			return netlink.RuleAdd(rule)
		},
		"addresses": func(number uint32) error {
			loopback, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(loopback, &netlink.Addr{IPNet: host(number)})
		},
		"routes": func(number uint32) error {
			return netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: host(number), Table: unix.RT_TABLE_MAIN})
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := pod(t, "10.64.0.5/16")
			i.Own = []Way{{netip.MustParsePrefix("10.64.0.0/16"), netip.MustParseAddr("10.64.0.1")}}
			i.Table = 60000 // sorted behind what fills the lists
			if err := errors.Join(Configure(i), Check(i)); err != nil {
				t.Fatal(err)
			}
			err := inside(i.Netns, func() error {
				for number := range uint32(listLimit) {
					if err := fill(number); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			var difference *DifferenceError
			if err := Check(i); !errors.As(err, &difference) {
				t.Errorf("%v", err)
			}
			if err := Configure(i); err != nil {
				t.Errorf("what is there is not set again: %v", err)
			}
		})
	}
}

// host is one of the addresses from 1.0.0.0 on.
func host(number uint32) *net.IPNet {
	address := binary.BigEndian.AppendUint32(nil, 1<<24+number)
	return &net.IPNet{IP: address, Mask: net.CIDRMask(32, 32)}
}

// TestRelease: what another interface needs stays.
func TestRelease(t *testing.T) {
	i := both(t)
	if err := Configure(i); err != nil {
		t.Fatal(err)
	}
	count := func() (ours, others int) {
		t.Helper()
		err := inside(i.Netns, func() error {
			rules, err := netlink.RuleList(netlink.FAMILY_ALL)
			for _, rule := range rules {
				if rule.Table == i.Table {
					ours++
				} else {
					others++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ours, others
	}
	ours, others := count()
	if ours != 2 || others == 0 {
		t.Fatalf("%d rules, %d others", ours, others)
	}
	for range 2 {
		if err := Release(i); err != nil {
			t.Fatal(err)
		}
		if left, still := count(); left != 0 || still != others {
			t.Errorf("%d rules are left, %d of %d others", left, still, others)
		}
	}
}

func removeNeighbour(link netlink.Link, address string) error {
	return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: netip.MustParseAddr(address).AsSlice()})
}

func TestOneFamily(t *testing.T) {
	i := pod(t, "10.64.0.5/32")
	i.Own = []Way{{netip.MustParsePrefix("10.64.0.0/16"), netip.MustParseAddr("10.64.0.1")}, {netip.MustParsePrefix("fd64::/64"), netip.MustParseAddr("fd64::1")}}
	if err := errors.Join(Configure(i), Check(i)); err != nil {
		t.Fatal(err)
	}
	if ways := i.MainRoutes(); len(ways) != 1 {
		t.Errorf("%v", ways)
	}
}

// TestRDMA on directories in the form of sysfs; no RDMA device was at hand.
func TestRDMA(t *testing.T) {
	root := t.TempDir()
	gids := filepath.Join(root, "class/infiniband/mlx5_2/ports/1/gids")
	if err := errors.Join(os.MkdirAll(gids, 0o750), os.MkdirAll(filepath.Join(root, "bus/pci/devices/0000:03:00.2/infiniband/mlx5_2"), 0o750),
		os.WriteFile(filepath.Join(gids, "0"), []byte("fe80:0000:0000:0000:0858:0aff:fe40:0005\n"), 0o600),
		os.WriteFile(filepath.Join(gids, "1"), []byte("0000:0000:0000:0000:0000:ffff:0a40:0005\n"), 0o600),
		os.WriteFile(filepath.Join(gids, "2"), []byte("\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "bus/pci/devices/0000:03:00.3"), 0o750),
		os.MkdirAll(filepath.Join(root, "bus/auxiliary/devices/mlx5_core.sf.4/infiniband/mlx5_7"), 0o750)); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]string{"0000:03:00.2": "[mlx5_2]", "0000:03:00.3": "[]", "mlx5_core.sf.4": "[mlx5_7]"} {
		if names, err := rdmaDevices(root, device); err != nil || fmt.Sprint(names) != want {
			t.Errorf("%s: %v, %v, want %s", device, names, err, want)
		}
	}
	if names, err := rdmaDevices(root, "0000:03:00.9"); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device that is not there: %v, %v", names, err)
	}
	if err := RDMAReady("/run/netns/none", "ffff:ff:1f.7", nil); !errors.Is(err, ErrNoDevice) {
		t.Errorf("a device this machine does not have: %v", err)
	}
	class := filepath.Join(root, "class/infiniband")
	if err := awaitGIDs(class, "mlx5_2", []netip.Prefix{netip.MustParsePrefix("10.64.0.5/16")}); err != nil {
		t.Error(err)
	}
	if err := awaitGIDs(class, "mlx5_2", []netip.Prefix{netip.MustParsePrefix("fd64::5/64")}); !errors.Is(err, ErrNoGID) {
		t.Errorf("%v", err)
	}
	if err := RDMAReady("/run/netns/none", "", nil); err != nil {
		t.Errorf("a veth: %v", err)
	}
}
