package agent

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/internal/tenancy"
)

// ledger is a source that notes what is written, in the order in which it is, and can hold writes up.
type ledger struct {
	tenancy.Source
	mutex   sync.Mutex
	written []tenancy.Entry
	// hold, if set, is called before a write.
	hold func(tenancy.Entry)
}

func (l *ledger) Publish(ctx context.Context, entry tenancy.Entry) error {
	l.mutex.Lock()
	hold := l.hold
	l.mutex.Unlock()
	if hold != nil {
		hold(entry)
	}
	err := l.Source.Publish(ctx, entry)
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if err == nil {
		l.written = append(l.written, entry)
	}
	return err
}

func (l *ledger) of(address netip.Addr) []tenancy.Entry {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return slices.DeleteFunc(slices.Clone(l.written), func(entry tenancy.Entry) bool { return entry.Address != address })
}

// noted makes the agents that are booted on a world write through a ledger.
func (w *world) noted() *ledger {
	l := &ledger{}
	w.source = func(source tenancy.Source) tenancy.Source {
		l.Source = source
		return l
	}
	return l
}

func (n *node) published(address netip.Addr) tenancy.Entry {
	return n.agent.Source.View().Entries[address]
}

// TestNameOfAnothersLabel: who names a Namespace like the label of others joins nobody, on one node or on two.
func TestNameOfAnothersLabel(t *testing.T) {
	first, second, _ := two(t, map[string]string{"blue": "", "team-a": "blue", "team-b": "blue"})
	intruder, here, friend := first.pod("blue", 1), first.pod("team-a", 2), second.pod("team-b", 3)
	first.attach(intruder)
	first.attach(here)
	second.attach(friend)
	first.await("those of one label know each other", func() bool { return first.knows(friend) && second.knows(here) })
	if second.knows(intruder) {
		t.Error("a Namespace named like a label has flows on a node of the label's tenant")
	}
	flows, err := first.Flows(t.Context(), "br-rail0")
	if err != nil {
		t.Fatal(err)
	}
	if tenantOf(flows, "nw_src="+intruder.Hosts()[0].String()) == tenantOf(flows, "nw_src="+here.Hosts()[0].String()) {
		t.Error("a Namespace named like a label has the label's tenant")
	}
}

// TestTenantsOfOlderAgents, which did not say whether they are names or labels, are nobody's: those of other nodes are not let
// in, and this node's own get theirs as by a change of tenant.
func TestTenantsOfOlderAgents(t *testing.T) {
	first, second, dir := two(t, map[string]string{"team-a": ""})
	here, there := first.pod("team-a", 1), second.pod("team-a", 2)
	first.attach(here)
	second.attach(there)
	first.await("they know each other", func() bool { return first.knows(there) && second.knows(here) })
	first.stop()
	second.stop()
	for _, name := range []string{"node1", "node2"} {
		path := filepath.Join(dir, "nodes", name+".json")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		older := strings.ReplaceAll(string(text), `"namespace/team-a"`, `"team-a"`)
		if older == string(text) {
			t.Fatalf("no tenant in %s", text)
		}
		if err := os.WriteFile(path, []byte(older), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first = first.boot("node1", first.state, dir, "boot1")
	first.await("its address waits for node2", func() bool { return first.published(here.Hosts()[0]).Revoked })
	if entry := first.published(here.Hosts()[0]); entry.Tenant != "namespace/team-a" {
		t.Errorf("published again without its kind: %+v", entry)
	}
	if first.knows(there) || first.flowsWith("nw_src="+here.Hosts()[0].String()+",") > 0 {
		t.Error("flows for tenants of which nobody can say what they are")
	}
	second = second.boot("node2", second.state, dir, "boot1")
	first.await("both have their tenants", func() bool { return first.knows(there) && second.knows(here) })
	if entry := first.published(here.Hosts()[0]); entry.Tenant != "namespace/team-a" || !entry.Changed {
		t.Errorf("%+v", entry)
	}
}

// TestAttachMeetsAChange: an ADD's publication that is under way when the tenant changes must not come after the change's, nor
// say before the node is ready to that an address lost its tenant.
func TestAttachMeetsAChange(t *testing.T) {
	dir := t.TempDir()
	writeNamespaces(t, dir, map[string]string{"mover": "red"})
	w := newWorld(t)
	l := w.noted()
	first := w.boot("node1", t.TempDir(), dir, "boot1")
	held := first.pod("mover", 1)
	address := held.Hosts()[0]
	reached, release := make(chan struct{}, 1), make(chan struct{})
	l.mutex.Lock()
	l.hold = func(entry tenancy.Entry) {
		if entry.Address == address && !entry.Changed {
			reached <- struct{}{}
			<-release
		}
	}
	l.mutex.Unlock()
	attached := make(chan error, 1)
	go func() { attached <- first.agent.Attach(t.Context(), held.Clone()) }()
	<-reached
	// What is heard meanwhile must not wait for that publication.
	heard, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	first.agent.heard(heard)
	if heard.Err() != nil {
		t.Fatal("what was heard waits for the publication of an ADD")
	}
	writeNamespaces(t, dir, map[string]string{"mover": "blue"})
	first.await("the address is revoked here", func() bool {
		first.agent.mutex.Lock()
		defer first.agent.mutex.Unlock()
		return first.agent.own[address].Changed
	})
	close(release)
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	first.await("claim, revocation and grant are published", func() bool { return len(l.of(address)) >= 3 })
	written := l.of(address)
	if last := written[len(written)-1]; last.Tenant != "label/blue" || last.Revoked {
		t.Errorf("published last: %+v", last)
	}
	if !slices.IsSortedFunc(written, func(x, y tenancy.Entry) int { return int(x.Generation) - int(y.Generation) }) || len(written) != 3 {
		t.Errorf("published in this order: %+v", written)
	}
}

// TestTwoChangesInARow: what is granted in the end is what the Namespace has then, and nothing that it had in between.
func TestTwoChangesInARow(t *testing.T) {
	dir := t.TempDir()
	writeNamespaces(t, dir, map[string]string{"team-a": "", "mover": "red"})
	w := newWorld(t)
	l := w.noted()
	first, second := w.boot("node1", t.TempDir(), dir, "boot1"), newWorld(t).boot("node2", t.TempDir(), dir, "boot1")
	held := first.pod("mover", 1)
	address := held.Hosts()[0]
	first.attach(held)
	second.await("node2 has heard of it", func() bool { return len(second.agent.Source.View().Entries) > 0 })
	second.stop() // holds the grant up
	for _, label := range []string{"blue", "red", "green"} {
		writeNamespaces(t, dir, map[string]string{"team-a": "", "mover": label})
		first.await("it has heard of "+label, func() bool { return first.agent.Source.View().Namespaces["mover"] == tenancy.TenantOf("", label) })
		first.await("the address has no tenant", func() bool { return first.published(address).Revoked })
	}
	if first.knows(held) {
		t.Error("flows while it has no tenant")
	}
	second = second.boot("node2", second.state, dir, "boot1")
	first.await("the last tenant is in force", func() bool {
		inForce, _ := first.agent.Source.View().InForce("mover", time.Now())
		return inForce && first.knows(held)
	})
	for _, entry := range l.of(address)[1:] {
		if entry.Revoked != (entry.Tenant == "label/red") || entry.Tenant == "label/blue" {
			t.Errorf("published: %+v", entry)
		}
	}
	if entry := second.published(address); entry.Tenant != "label/green" {
		t.Errorf("%+v", entry)
	}
}

// TestRestartDuringAChange, whether or not the revocation was published before the crash: the old tenant does not come back.
func TestRestartDuringAChange(t *testing.T) {
	for name, published := range map[string]bool{"published": true, "not published yet": false} {
		t.Run(name, func(t *testing.T) {
			first, second, dir := two(t, map[string]string{"mover": "red"})
			held := first.pod("mover", 1)
			address := held.Hosts()[0]
			first.attach(held)
			second.await("node2 has heard of it", func() bool { return len(second.agent.Source.View().Entries) > 0 })
			second.stop()
			if !published {
				first.locked(func() { first.fail["revalidate"] = errBusy })
			}
			writeNamespaces(t, dir, map[string]string{"mover": "blue"})
			first.await("its flows are gone", func() bool { return !first.knows(held) })
			if published {
				first.await("it is revoked", func() bool { return first.published(address).Revoked })
			}
			first.stop()
			first.locked(func() {
				first.added = func(flow string) {
					if strings.Contains(flow, address.String()+",") {
						t.Errorf("the restarted agent installed %s", flow)
					}
				}
			})
			first = first.restart("boot1")
			if entry := first.published(address); entry.Revoked != published || entry.Tenant != "label/red" {
				t.Errorf("published: %+v", entry)
			}
			first.locked(func() {
				first.added = nil
				delete(first.fail, "revalidate")
			})
			first.later(tenancy.Lifetime)
			first.agent.heard(t.Context())
			first.await("the new tenant", func() bool { return first.published(address).Tenant == "label/blue" && first.knows(held) })
		})
	}
}

// TestLostGenerations: a node that was installed anew under its old name counts on from what others have acknowledged; else its
// next barrier would find itself acknowledged.
func TestLostGenerations(t *testing.T) {
	dir := t.TempDir()
	writeNamespaces(t, dir, map[string]string{"mover": "red"})
	if err := os.MkdirAll(filepath.Join(dir, "nodes"), 0o700); err != nil {
		t.Fatal(err)
	}
	beat, err := time.Now().Add(time.Hour).MarshalText() // it lives on, and acknowledges nothing
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nodes", "node2.json"), []byte(`{"heartbeat":"`+string(beat)+`","acks":{"node1":57}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	first := newWorld(t).boot("node1", t.TempDir(), dir, "boot1")
	held := first.pod("mover", 1)
	address := held.Hosts()[0]
	first.attach(held)
	writeNamespaces(t, dir, map[string]string{"mover": "blue"})
	first.await("it is revoked", func() bool { return first.published(address).Revoked })
	first.agent.heard(t.Context())
	if entry := first.published(address); !entry.Revoked || entry.Generation <= 57 {
		t.Errorf("granted with an acknowledgement of long ago: %+v", entry)
	}
}

// TestRevocationWithAFailingRail: that one rail cannot be applied keeps no other from taking a tenant away, and nothing is
// acknowledged to others meanwhile.
func TestRevocationWithAFailingRail(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() {
		bridge := *n.bridges["br-rail1"]
		bridge.Controllers = 1 // somebody else's now
		n.bridges["br-rail1"] = &bridge
	})
	writeNamespaces(t, n.agent.Config.Tenancy.Directory, map[string]string{"team-a": "new"})
	n.await("the address has lost its flows", func() bool { return !n.knows(held) })
	if entry := n.published(held.Hosts()[0]); entry.Revoked {
		t.Errorf("published although a rail may still serve it: %+v", entry)
	}
}
