package agent

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

func TestLifeOfAnAttachment(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	// One flow for each address and direction.
	if sends, gets := n.flowsWith("dl_src="+held.MAC), n.flowsWith("set_field:"+held.MAC+"->eth_dst"); sends != 2 || gets != 2 {
		t.Errorf("%d flows from the pod, %d to it", sends, gets)
	}
	if routes := n.announced(); len(routes) != 0 {
		t.Errorf("announced before Announce: %v", routes)
	}
	n.announce(held)
	if routes := n.announced(); !slices.Equal(routes, held.Hosts()) {
		t.Errorf("announced: %v", routes)
	}
	if stored := n.stored(); len(stored) != 1 || !stored[0].Announced || stored[0].NetnsInode == 0 || stored[0].BootID != "boot1" {
		t.Errorf("%+v", stored)
	}
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), held), n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)); err != nil {
		t.Error(err)
	}
	if err := n.agent.Withdraw(t.Context(), held.Key); err != nil {
		t.Error(err)
	}
	if routes := n.announced(); len(routes) != 0 || n.flowsWith("dl_src="+held.MAC) == 0 {
		t.Errorf("after Withdraw: announced %v", routes)
	}
	for range 2 { // twice is once
		if err := n.agent.Detach(t.Context(), held.Key); err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft()
	n.locked(func() {
		if left := n.netns[held.Netns].interfaces["net1"].configured; left != nil {
			t.Errorf("the pod, which lives on, still has %+v", left)
		}
	})
}

// TestOrder: flows before the announcement, withdrawal before flows go, cached flows gone before DEL succeeds.
func TestOrder(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	began := n.operations()
	n.attach(held)
	n.announce(held)
	if flows, route := n.position("flows br-rail0", began), n.position("announce", began); flows > route {
		t.Errorf("announced at %d, flows at %d", route, flows)
	}
	detached := n.operations()
	if err := n.agent.Detach(t.Context(), held.Key); err != nil {
		t.Fatal(err)
	}
	if withdraw, flows, valid := n.position("withdraw", detached), n.position("flows br-rail0", detached), n.position("revalidate", detached); withdraw > flows || flows > valid {
		t.Errorf("withdrawn at %d, flows at %d, revalidated at %d", withdraw, flows, valid)
	}
}

// TestWithdrawThatFails fails again when it is repeated, and succeeds once the routes are gone.
func TestWithdrawThatFails(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.locked(func() { n.fail["withdraw"] = errors.New("busy") })
	for try := range 2 {
		if got := failure.ReasonOf(n.agent.Withdraw(t.Context(), held.Key)); got != nodev1.Reason_ROUTE_FAILED {
			t.Errorf("try %d: %v", try+1, got)
		}
	}
	n.locked(func() { delete(n.fail, "withdraw") })
	if err := n.agent.Withdraw(t.Context(), held.Key); err != nil || len(n.announced()) != 0 {
		t.Errorf("%v; announced: %v", err, n.announced())
	}
}

// TestRouteThatTheListLacks is announced, and withdrawn, all the same.
func TestRouteThatTheListLacks(t *testing.T) {
	for name, end := range map[string]func(*node, *attachment.Attachment) error{
		"Withdraw": func(n *node, held *attachment.Attachment) error { return n.agent.Withdraw(t.Context(), held.Key) },
		"Detach":   func(n *node, held *attachment.Attachment) error { return n.agent.Detach(t.Context(), held.Key) },
	} {
		n := start(t)
		held := n.pod("team-a", 1)
		n.attach(held)
		n.announce(held)
		host := held.Hosts()[1]
		lack := func(lists int) { n.locked(func() { n.lacking[host] = lists }) }
		lack(routeLooks - 1)
		if err := n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses); err != nil {
			t.Errorf("CHECK, by lists that lack a route: %v", err)
		}
		lack(math.MaxInt)
		if err := end(n, held); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if routes := n.announced(); len(routes) != 0 {
			t.Errorf("%s: still announced: %v", name, routes)
		}
	}
}

func TestRepeatedAttach(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.attach(held)
	if routes := n.announced(); len(routes) != 2 {
		t.Errorf("a repeated Attach withdrew: %v", routes)
	}
	if stored := n.stored(); len(stored) != 1 {
		t.Errorf("%v", stored)
	}
}

// TestRefused: what is wrong with a request, and the reason it gets; nothing is left behind.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(n *node, held *attachment.Attachment)
		reason nodev1.Reason
	}{
		{"no rail of that name", func(_ *node, h *attachment.Attachment) { h.Rail = "rail7" }, nodev1.Reason_RAIL_UNKNOWN},
		{"no name", func(_ *node, h *attachment.Attachment) { h.Network = "" }, nodev1.Reason_REQUEST_MALFORMED},
		{"address outside the pool", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.99.0.5/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"address of another rail", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.65.0.5/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the gateway's address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.0.1/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the IPAM's gateway", func(_ *node, h *attachment.Attachment) { h.Gateways = []netip.Addr{h.Addresses[0].Addr()} }, nodev1.Reason_ADDRESS_REFUSED},
		{"the network address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.0.0/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the broadcast address", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.255.255/16") }, nodev1.Reason_ADDRESS_REFUSED},
		{"the router's MAC", func(n *node, h *attachment.Attachment) { h.MAC = n.agent.Config.Rails[0].RouterMAC }, nodev1.Reason_MAC_REFUSED},
		{"the leaf's MAC", func(n *node, h *attachment.Attachment) { h.MAC = n.leafMAC }, nodev1.Reason_MAC_REFUSED},
		{"a group's MAC", func(_ *node, h *attachment.Attachment) { h.MAC = "01:00:5e:00:00:01" }, nodev1.Reason_MAC_REFUSED},
		{"not the interface's MAC", func(_ *node, h *attachment.Attachment) { h.MAC = "0a:58:00:00:00:77" }, nodev1.Reason_MAC_REFUSED},
		{"no such netns", func(_ *node, h *attachment.Attachment) { h.Netns = "/run/netns/none" }, nodev1.Reason_NETNS_MISSING},
		{"not a netns", func(_ *node, h *attachment.Attachment) { h.Netns = "/etc/hostname" }, nodev1.Reason_NETNS_MISSING},
		{"no such interface", func(_ *node, h *attachment.Attachment) { h.Interface = "net9" }, nodev1.Reason_INTERFACE_MISSING},
		{"an address the interface lacks", func(_ *node, h *attachment.Attachment) { h.Addresses[0] = netip.MustParsePrefix("10.64.3.3/16") }, nodev1.Reason_POD_DIFFERS},
		{"Namespace unknown", func(_ *node, h *attachment.Attachment) { h.Pod.Namespace = "nobody" }, nodev1.Reason_NAMESPACE_UNKNOWN},
		{"no such port", func(_ *node, h *attachment.Attachment) { h.Port = "veth77" }, nodev1.Reason_PORT_MISSING},
		{"the uplink as port", func(_ *node, h *attachment.Attachment) { h.Port = "p0" }, nodev1.Reason_PORT_MISSING},
		{"a device that is not there", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrNoDevice }, nodev1.Reason_DEVICE_UNKNOWN},
		{"RDMA not isolated", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrRDMANotIsolated }, nodev1.Reason_RDMA_NOT_ISOLATED},
		{"no GID", func(n *node, _ *attachment.Attachment) { n.fail["rdma"] = podnet.ErrNoGID }, nodev1.Reason_RDMA_NOT_READY},
		{"the pod cannot be configured", func(n *node, _ *attachment.Attachment) { n.fail["configure"] = errors.New("full") }, nodev1.Reason_POD_SETUP_FAILED},
		{"the port cannot be marked", func(n *node, _ *attachment.Attachment) { n.fail["mark-port"] = errors.New("refused") }, nodev1.Reason_DATAPATH_FAILED},
		{"the port's MTU cannot be set", func(n *node, _ *attachment.Attachment) {
			n.fail["mtu"] = errors.New("refused")
		}, nodev1.Reason_DATAPATH_FAILED},
		{"the port cannot be closed", func(n *node, _ *attachment.Attachment) {
			n.fail["close-port"] = errors.New("refused")
		}, nodev1.Reason_DATAPATH_FAILED},
		{"the database does not answer", func(n *node, _ *attachment.Attachment) { n.fail["mark-port"] = vswitch.ErrSilent }, nodev1.Reason_NOT_READY},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := start(t)
			held := n.pod("team-a", 1)
			n.locked(func() { test.change(n, held) })
			err := n.agent.Attach(t.Context(), held)
			if got := failure.ReasonOf(err); got != test.reason {
				t.Fatalf("%v: %v", got, err)
			}
			n.nothingLeft()
		})
	}
}

func TestCollisions(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(first, second *attachment.Attachment)
		reason nodev1.Reason
	}{
		{"the same address", func(f, s *attachment.Attachment) { s.Addresses[0] = f.Addresses[0] }, nodev1.Reason_ADDRESS_IN_USE},
		{"the same MAC", func(f, s *attachment.Attachment) { s.MAC = f.MAC }, nodev1.Reason_MAC_IN_USE},
		{"the same port", func(f, s *attachment.Attachment) { s.Port = f.Port }, nodev1.Reason_PORT_IN_USE},
		{"the same key, other contents", func(f, s *attachment.Attachment) { s.Key = f.Key }, nodev1.Reason_ATTACHMENT_DIFFERS},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := start(t)
			first, second := n.pod("team-a", 1), n.pod("team-b", 2)
			n.attach(first)
			test.change(first, second)
			n.locked(func() {
				n.netns[second.Netns].interfaces["net1"] = &fakeInterface{mac: second.MAC, addresses: second.Addresses}
			})
			if got := failure.ReasonOf(n.agent.Attach(t.Context(), second.Clone())); got != test.reason {
				t.Fatalf("%v", got)
			}
			if err := n.agent.CheckAttachment(t.Context(), first); err != nil {
				t.Errorf("the first one suffers: %v", err)
			}
			// Once the first one's namespace is dead, the second may have what it wants.
			n.locked(func() { delete(n.netns, first.Netns) })
			n.attach(second)
			if stored := n.stored(); len(stored) != 1 || stored[0].Pod != second.Pod {
				t.Errorf("%+v", stored)
			}
		})
	}
}

// TestDetachMeetsItsSuccessor: another pod got the port of one that has ended, and its Attach takes that one away. A DEL of it that comes
// meanwhile succeeds when that is done, and not before.
func TestDetachMeetsItsSuccessor(t *testing.T) {
	n, l := behind(t)
	first, second := n.pod("team-a", 1), n.pod("team-b", 2)
	n.attach(first)
	second.Port = first.Port
	n.locked(func() { delete(n.netns, first.Netns) })
	removing, free := make(chan struct{}), make(chan struct{})
	var once sync.Once
	l.locked(func() {
		l.remove = func(context.Context, netip.Addr) error {
			once.Do(func() { close(removing) })
			<-free
			return nil
		}
	})
	attached, detached := make(chan error, 1), make(chan error, 1)
	go func() { attached <- n.agent.Attach(t.Context(), second.Clone()) }()
	<-removing
	go func() { detached <- n.agent.Detach(t.Context(), first.Key) }()
	select {
	case err := <-detached:
		t.Errorf("DEL answers %v while the attachment is being removed", err)
		detached <- nil
	case <-time.After(100 * time.Millisecond): // a DEL that does not wait takes no millisecond
	}
	close(free)
	if err := errors.Join(<-attached, <-detached); err != nil {
		t.Error(err)
	}
}

// TestAttachAfterItsOwnDeath: a runtime that makes the namespace anew under the same key finds what is dead, and nobody else's turn.
func TestAttachAfterItsOwnDeath(t *testing.T) {
	n := start(t)
	first, second := n.pod("team-a", 1), n.pod("team-a", 2)
	n.attach(first)
	second.Key = first.Key
	n.locked(func() { delete(n.netns, first.Netns) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := n.agent.Attach(ctx, second.Clone()); err != nil {
		t.Error(err)
	}
	if stored := n.stored(); len(stored) != 1 || stored[0].Netns != second.Netns || n.flowsWith(first.MAC) != 0 {
		t.Errorf("%v, %d flows of the dead one", stored, n.flowsWith(first.MAC))
	}
}

// TestOneInterfaceOnARail: a second one of the same pod would share the first one's routing table. On another rail, or after the
// first one's DEL, it is welcome.
func TestOneInterfaceOnARail(t *testing.T) {
	n := start(t)
	first, second, elsewhere := n.pod("team-a", 1), n.pod("team-a", 2), n.podOn("rail1", "team-a", 3)
	for name, other := range map[string]*attachment.Attachment{"net2": second, "net3": elsewhere} {
		other.ContainerID, other.Interface, other.Netns, other.Pod = first.ContainerID, name, first.Netns, first.Pod
		n.locked(func() {
			n.netns[first.Netns].interfaces[name] = &fakeInterface{mac: other.MAC, addresses: other.Addresses}
		})
	}
	n.attach(first)
	n.attach(elsewhere)
	err := n.agent.Attach(t.Context(), second.Clone())
	if got := failure.ReasonOf(err); got != nodev1.Reason_REQUEST_MALFORMED || !strings.Contains(err.Error(), "net1") {
		t.Errorf("%v", err)
	}
	if err := n.agent.CheckAttachment(t.Context(), first); err != nil {
		t.Errorf("the first one suffers: %v", err)
	}
	if err := n.agent.Detach(t.Context(), first.Key); err != nil {
		t.Fatal(err)
	}
	n.attach(second)
}

func TestManyAtOnce(t *testing.T) {
	n := start(t)
	const count = 200
	all := make([]*attachment.Attachment, count)
	for i := range all {
		all[i] = n.pod([]string{"team-a", "team-b", "team-c"}[i%3], i+1)
	}
	var running sync.WaitGroup
	problems := make(chan error, count)
	for _, held := range all {
		running.Go(func() {
			if err := n.agent.Attach(t.Context(), held.Clone()); err != nil {
				problems <- err
				return
			}
			problems <- n.agent.Announce(t.Context(), held.Key, "rail0", held.Addresses)
		})
	}
	running.Wait()
	for range count {
		if err := <-problems; err != nil {
			t.Error(err)
		}
	}
	if routes := n.announced(); len(routes) != 2*count {
		t.Errorf("%d routes", len(routes))
	}
	for _, held := range all {
		running.Go(func() { problems <- n.agent.Detach(t.Context(), held.Key) })
	}
	running.Wait()
	for range count {
		if err := <-problems; err != nil {
			t.Error(err)
		}
	}
	n.nothingLeft()
}
