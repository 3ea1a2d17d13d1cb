package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLinkLocal is the example of RFC 4291, appendix A, and the address FRR's leaf computes the MAC from.
func TestLinkLocal(t *testing.T) {
	mac, err := net.ParseMAC("34:56:78:9a:bc:de")
	if err != nil {
		t.Fatal(err)
	}
	if got := linkLocal(mac); got != netip.MustParsePrefix("fe80::3656:78ff:fe9a:bcde/64") {
		t.Error(got)
	}
}

// emptyNamespace is a network namespace of the test's own.
func emptyNamespace(t *testing.T) ns.NetNS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	namespace, err := testutils.NewNS()
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	t.Cleanup(func() {
		if err := errors.Join(namespace.Close(), testutils.UnmountNS(namespace)); err != nil {
			t.Error(err)
		}
	})
	return namespace
}

// TestRepeatAddresses: listeners hear of each address again, and the addresses stay.
func TestRepeatAddresses(t *testing.T) {
	err := emptyNamespace(t).Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "local0"}, PeerName: "peer"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("local0")
		if err != nil {
			return err
		}
		want := map[netip.Prefix]bool{}
		for _, text := range []string{"10.255.1.1/31", "fe80::5/64"} {
			prefix := netip.MustParsePrefix(text)
			want[prefix] = true
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ToIPNet(prefix), Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
		}
		heard, done := make(chan netlink.AddrUpdate, 16), make(chan struct{})
		defer close(done)
		if err := netlink.AddrSubscribe(heard, done); err != nil {
			return err
		}
		if err := RepeatAddresses("local0"); err != nil {
			return err
		}
		for len(want) > 0 {
			select {
			case update := <-heard:
				prefix, _ := FromIPNet(&update.LinkAddress)
				if !update.NewAddr {
					return fmt.Errorf("%s was removed", prefix)
				}
				delete(want, prefix)
			case <-time.After(60 * time.Second):
				return fmt.Errorf("not heard of again: %v", want)
			}
		}
		present, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err == nil && len(present) != 2 {
			err = fmt.Errorf("addresses are now %v", present)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestEnsureLocalWithoutIPv6: a kernel without it refuses each IPv6 address and has no sysctl of it.
func TestEnsureLocalWithoutIPv6(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread, with its namespaces, ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
			done <- err
			return
		}
		done <- ensureLocalWithoutIPv6()
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skipf("no namespaces here: %v", err)
	} else if err != nil {
		t.Error(err)
	}
}

func ensureLocalWithoutIPv6() error {
	if err := errors.Join(
		Sysctl(ProcSysNet, "ipv6/conf/default/disable_ipv6", "1"),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("tmpfs", ProcSysNet, "tmpfs", 0, ""),
		netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "br-rail0"}, PeerName: "p0"}),
	); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName("br-rail0")
	if err != nil {
		return err
	}
	address := netip.MustParsePrefix("10.255.1.1/31")
	if _, err := EnsureLocal(Local{Bridge: "br-rail0", Uplink: "p0", MAC: bridge.Attrs().HardwareAddr.String(), Addresses: []netip.Prefix{address}}); err != nil {
		return err
	}
	found, err := netlink.AddrList(bridge, netlink.FAMILY_ALL)
	if err == nil && (len(found) != 1 || found[0].IP.String() != "10.255.1.1") {
		err = fmt.Errorf("addresses %v", found)
	}
	return err
}

func TestEnsureMTU(t *testing.T) {
	err := emptyNamespace(t).Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port1"}, PeerName: "net1"}); err != nil {
			return err
		}
		for range 2 { // twice is once
			if err := EnsureMTU("port1", 9000); err != nil {
				return err
			}
		}
		if mtu, err := MTU("port1"); err != nil || mtu != 9000 {
			t.Errorf("%d, %v", mtu, err)
		}
		if mtu, err := MTU("net1"); err != nil || mtu != 1500 {
			t.Errorf("the other end has %d, %v", mtu, err)
		}
		if err := EnsureMTU("port9", 9000); err == nil {
			t.Error("a link that is not there")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestClosePort: what comes from the other end of a closed link does not reach a program here, by whatever address.
func TestClosePort(t *testing.T) {
	here, pod := emptyNamespace(t), emptyNamespace(t)
	setUp := func(name string, addresses ...string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, text := range addresses {
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ToIPNet(netip.MustParsePrefix(text)), Flags: unix.IFA_F_NODAD}); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	}
	var mac net.HardwareAddr
	err := here.Do(func(ns.NetNS) error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "port1"}, PeerName: "net1", PeerNamespace: netlink.NsFd(pod.Fd())}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("port1")
		if err != nil {
			return err
		}
		mac = link.Attrs().HardwareAddr
		// The node has a way to anywhere, so that no source is strange to it.
		return errors.Join(setUp("lo", "192.0.2.7/32"), setUp("port1", "fe80::1/64"), netlink.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: ToIPNet(netip.MustParsePrefix("0.0.0.0/0"))}))
	})
	if err != nil {
		t.Fatal(err)
	}
	var index int
	err = pod.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName("net1")
		if err != nil {
			return err
		}
		index = link.Attrs().Index
		for _, address := range []string{"192.0.2.7", "fe80::1"} {
			neighbour := &netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(address), HardwareAddr: mac}
			if err := errors.Join(setUp("net1"), netlink.NeighSet(neighbour)); err != nil {
				return err
			}
		}
		return errors.Join(setUp("net1", "198.51.100.9/24", "fe80::9/64"), netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: ToIPNet(netip.MustParsePrefix("192.0.2.7/32"))}))
	})
	if err != nil {
		t.Fatal(err)
	}
	// heard tells which of two packets, to the one and to the other address, a program here gets.
	heard := func() (ipv4, ipv6 bool) {
		t.Helper()
		var socket net.PacketConn
		err := here.Do(func(ns.NetNS) (err error) {
			socket, err = net.ListenPacket("udp", ":7777")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = socket.Close() }() // read to its end
		err = pod.Do(func(ns.NetNS) error {
			for _, to := range []string{"192.0.2.7:7777", "[fe80::1%net1]:7777"} {
				from, err := net.Dial("udp", to)
				if err != nil {
					return err
				}
				_, err = from.Write([]byte("x"))
				if err := errors.Join(err, from.Close()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 9)
		for {
			if err := socket.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return ipv4, ipv6
			}
			if from.(*net.UDPAddr).IP.To4() != nil {
				ipv4 = true
			} else {
				ipv6 = true
			}
		}
	}
	// Its first packets may come before the links and their IPv6 addresses are ready.
	for deadline := time.Now().Add(10 * time.Second); ; {
		ipv4, ipv6 := heard()
		if ipv4 && ipv6 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("open: IPv4 %t, IPv6 %t", ipv4, ipv6)
		}
	}
	err = here.Do(func(ns.NetNS) error { return errors.Join(ClosePort("port1"), ClosePort("port1"), ClosePort("port9")) })
	if err != nil {
		t.Fatal(err)
	}
	if ipv4, ipv6 := heard(); ipv4 || ipv6 {
		t.Errorf("closed: IPv4 %t, IPv6 %t", ipv4, ipv6)
	}
}

func TestPrefixesThereAndBack(t *testing.T) {
	for _, text := range []string{"10.64.0.5/32", "10.64.0.0/16", "fd64::5/128", "fd64::/64", "0.0.0.0/0"} {
		want := netip.MustParsePrefix(text)
		if got, ok := FromIPNet(ToIPNet(want)); !ok || got != want {
			t.Errorf("%s: %v, %t", text, got, ok)
		}
	}
	if _, ok := FromIPNet(nil); ok {
		t.Error("nil has a prefix")
	}
}
