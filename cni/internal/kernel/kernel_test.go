package kernel

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
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
