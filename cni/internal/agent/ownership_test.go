package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// lagging is a source whose view is behind what was published, as an API server's watch is, and whose writes can be held up.
type lagging struct {
	tenancy.Source
	mutex   sync.Mutex
	hidden  map[netip.Addr]bool
	publish func(context.Context, tenancy.Entry) error // called before a write; an error is its result
	remove  func(context.Context, netip.Addr) error    // likewise
}

func (l *lagging) View() tenancy.View {
	view := l.Source.View()
	l.mutex.Lock()
	defer l.mutex.Unlock()
	view.Entries = maps.Clone(view.Entries)
	maps.DeleteFunc(view.Entries, func(address netip.Addr, _ tenancy.Entry) bool { return l.hidden[address] })
	return view
}

func (l *lagging) Publish(ctx context.Context, entry tenancy.Entry) error {
	l.mutex.Lock()
	publish := l.publish
	l.mutex.Unlock()
	if publish != nil {
		if err := publish(ctx, entry); err != nil {
			return err
		}
	}
	return l.Source.Publish(ctx, entry)
}

func (l *lagging) Remove(ctx context.Context, address netip.Addr) error {
	l.mutex.Lock()
	remove := l.remove
	l.mutex.Unlock()
	if remove != nil {
		if err := remove(ctx, address); err != nil {
			return err
		}
	}
	return l.Source.Remove(ctx, address)
}

func (l *lagging) locked(change func()) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	change()
}

// behind boots node1 with Namespaces team-a and team-b on a source that lags.
func behind(t *testing.T) (*node, *lagging) {
	t.Helper()
	w, l := newWorld(t), &lagging{hidden: map[netip.Addr]bool{}}
	w.source = func(source tenancy.Source) tenancy.Source {
		l.Source = source
		return l
	}
	dir := t.TempDir()
	writeNamespaces(t, dir, map[string]string{"team-a": "", "team-b": ""})
	return w.boot("node1", t.TempDir(), dir, "boot1"), l
}

func (n *node) owned(address netip.Addr) (tenancy.Entry, bool) {
	n.agent.mutex.Lock()
	defer n.agent.mutex.Unlock()
	entry, owned := n.agent.own[address]
	return entry, owned
}

// senderTenant is the number in the registers that an attachment's first address sends with; empty if it may not send.
func (n *node) senderTenant(held *attachment.Attachment) string {
	n.t.Helper()
	flows, err := n.Flows(n.t.Context(), "br-rail0")
	if err != nil {
		n.t.Fatal(err)
	}
	return tenantOf(flows, "nw_src="+held.Hosts()[0].String())
}

// heir is another Namespace's pod that gets the address of one that has ended.
func (n *node) heir(of *attachment.Attachment, namespace string, number int) *attachment.Attachment {
	heir := n.pod(namespace, number)
	heir.Addresses = slices.Clone(of.Addresses)
	n.locked(func() {
		n.netns[heir.Netns].interfaces["net1"].addresses = heir.Addresses
		delete(n.netns, of.Netns)
	})
	return heir
}

// TestDetachDuringPublication: what is detached while the reconciliation publishes, to a slow API server, is not claimed again,
// and the next pod with its address has its own tenant.
func TestDetachDuringPublication(t *testing.T) {
	for name, result := range map[string]error{"that succeeds": nil, "that fails": context.DeadlineExceeded} {
		t.Run(name, func(t *testing.T) {
			n, l := behind(t)
			keeper, pods := n.pod("team-a", 9), []*attachment.Attachment{n.pod("team-a", 1), n.pod("team-a", 2)}
			n.attach(keeper)
			reached, release := make(chan netip.Addr, 1), make(chan struct{})
			var first sync.Once
			for _, held := range pods {
				n.attach(held)
			}
			l.locked(func() {
				for _, held := range pods {
					for _, host := range held.Hosts() {
						l.hidden[host] = true
					}
				}
				l.publish = func(_ context.Context, entry tenancy.Entry) error {
					first.Do(func() { reached <- entry.Address })
					<-release
					return result
				}
			})
			var publishing sync.WaitGroup
			publishing.Go(func() { n.agent.publishAll(t.Context()) })
			busy := <-reached
			gone := pods[slices.IndexFunc(pods, func(held *attachment.Attachment) bool { return !slices.Contains(held.Hosts(), busy) })]
			detached := make(chan error, 1)
			go func() { detached <- n.agent.Detach(t.Context(), gone.Key) }()
			n.await("it is no longer this node's", func() bool { _, owned := n.owned(gone.Hosts()[0]); return !owned })
			close(release)
			if err := <-detached; err != nil {
				t.Fatal(err)
			}
			publishing.Wait()
			l.locked(func() { l.hidden, l.publish = map[netip.Addr]bool{}, nil })
			for _, host := range gone.Hosts() {
				if entry, owned := n.owned(host); owned || n.published(host).Node != "" {
					t.Errorf("an address that no attachment has: owned %t %+v, published %+v", owned, entry, n.published(host))
				}
			}
			heir := n.heir(gone, "team-b", 3)
			n.attach(heir)
			for _, when := range []string{"at once", "after reconciliation"} {
				if mine, theirs := n.senderTenant(heir), n.senderTenant(keeper); mine == "" || mine == theirs {
					t.Errorf("%s a pod of team-b sends with tenant %q, those of team-a with %q", when, mine, theirs)
				}
				if entry := n.published(heir.Hosts()[0]); entry.Tenant != "namespace/team-b" || entry.Namespace != "team-b" {
					t.Errorf("%s it is published as %+v", when, entry)
				}
				n.agent.publishAll(t.Context())
				n.agent.heard(t.Context())
			}
		})
	}
}

// TestEntryWithoutAttachment: whatever left it, the next pod does not inherit it, and the reconciliation takes it back also if
// the view does not show it.
func TestEntryWithoutAttachment(t *testing.T) {
	n, l := behind(t)
	keeper, next := n.pod("team-a", 9), n.pod("team-b", 1)
	n.attach(keeper)
	stale := tenancy.Entry{
		Address: next.Hosts()[0], Node: "node1", Rail: "rail0", Namespace: "team-a", Tenant: "namespace/team-a", Generation: 1,
	}
	leave := func() {
		if err := l.Source.Publish(t.Context(), stale); err != nil {
			t.Fatal(err)
		}
		l.locked(func() { l.hidden[stale.Address] = true })
		n.agent.mutex.Lock()
		defer n.agent.mutex.Unlock()
		n.agent.own[stale.Address] = stale
	}
	leave()
	n.attach(next)
	if mine, theirs := n.senderTenant(next), n.senderTenant(keeper); mine == "" || mine == theirs {
		t.Errorf("a pod of team-b sends with tenant %q, those of team-a with %q", mine, theirs)
	}
	if entry := l.Source.View().Entries[stale.Address]; entry.Namespace != "team-b" || entry.Tenant != "namespace/team-b" {
		t.Errorf("published: %+v", entry)
	}
	if err := n.agent.Detach(t.Context(), next.Key); err != nil {
		t.Fatal(err)
	}
	leave()
	n.agent.publishAll(t.Context())
	if entry, owned := n.owned(stale.Address); owned {
		t.Errorf("still owned: %+v", entry)
	}
	if entry, there := l.Source.View().Entries[stale.Address]; there {
		t.Errorf("still published: %+v", entry)
	}
}

// TestAdoptedEntryOfAnotherPod: an agent that starts with an entry of the pod that had the address before (the source, or what was
// remembered of it, is older than the store) serves nothing by it, and gives the address its tenant as by a change.
func TestAdoptedEntryOfAnotherPod(t *testing.T) {
	for name, change := range map[string]func(*tenancy.Entry){
		"of another Namespace": func(entry *tenancy.Entry) { entry.Namespace, entry.Tenant = "team-a", "namespace/team-a" },
		"of another rail":      func(entry *tenancy.Entry) { entry.Rail = "rail1" },
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			keeper, held := n.pod("team-a", 9), n.pod("team-b", 1)
			n.attach(keeper)
			n.attach(held)
			n.stop()
			for _, host := range held.Hosts() {
				entry := n.published(host)
				change(&entry)
				if err := n.agent.Source.Publish(context.Background(), entry); err != nil {
					t.Fatal(err)
				}
			}
			theirs := n.senderTenant(keeper)
			sender, tenant := "nw_src="+held.Hosts()[0].String()+",", "set_field:"+theirs+"->reg0"
			n.locked(func() {
				n.added = func(flow string) {
					if strings.Contains(flow, sender) && strings.Contains(flow, tenant) {
						t.Errorf("the restarted agent installed %s", flow)
					}
				}
			})
			again := n.boot("node1", n.state, n.agent.Config.Tenancy.Directory, "boot1")
			again.await("its own tenant", func() bool {
				entry := again.published(held.Hosts()[0])
				is := entry.Tenant == "namespace/team-b" && entry.Namespace == "team-b" && entry.Rail == "rail0"
				return is && !entry.Revoked && entry.Changed && again.senderTenant(held) != ""
			})
		})
	}
}

// TestLaterEntryOfAnotherPod: what comes to be heard of an address after a start without the source is taken over only if it is
// about the attachment that has it.
func TestLaterEntryOfAnotherPod(t *testing.T) {
	n := start(t)
	keeper, held := n.pod("team-a", 9), n.pod("team-b", 1)
	n.attach(keeper)
	n.attach(held)
	for _, host := range held.Hosts() {
		entry := n.published(host)
		entry.Namespace, entry.Tenant, entry.Generation = "team-a", "namespace/team-a", entry.Generation+100
		if err := n.agent.Source.Publish(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	n.agent.heard(t.Context())
	if mine, theirs := n.senderTenant(held), n.senderTenant(keeper); mine == "" || mine == theirs {
		t.Errorf("a pod of team-b sends with tenant %q, those of team-a with %q", mine, theirs)
	}
	n.agent.publishAll(t.Context())
	if entry := n.published(held.Hosts()[0]); entry.Namespace != "team-b" || entry.Tenant != "namespace/team-b" {
		t.Errorf("published: %+v", entry)
	}
}

// TestOneTenantForAllAddresses of an attachment, or it has none: a flow's tenant must not depend on which address was looked at last.
func TestOneTenantForAllAddresses(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	hosts := held.Hosts()
	for _, other := range hosts {
		n.agent.mutex.Lock()
		kept := n.agent.own[other]
		changed := kept
		changed.Tenant = "namespace/team-b"
		n.agent.own[other] = changed
		n.agent.mutex.Unlock()
		if err := n.agent.applyAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sends := n.flowsWith("dl_src=" + held.MAC); sends != 0 {
			t.Errorf("%d flows although %s has another tenant than the others of %v", sends, other, hosts)
		}
		n.agent.mutex.Lock()
		n.agent.own[other] = kept
		n.agent.mutex.Unlock()
	}
}

// TestReconciliationPublishesWhatIsShown: of what an object says beside its entry (its owner, the Node) the view tells nothing, so
// the source is asked each time; also for an address whose tenant was changed, once the view shows the change.
func TestReconciliationPublishesWhatIsShown(t *testing.T) {
	n, l := behind(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	address := held.Hosts()[0]
	writeNamespaces(t, n.agent.Config.Tenancy.Directory, map[string]string{"team-a": "blue", "team-b": ""})
	n.await("the change is published", func() bool {
		entry := n.published(address)
		return entry.Tenant == "label/blue" && !entry.Revoked
	})
	var asked []tenancy.Entry
	l.locked(func() {
		l.publish = func(_ context.Context, entry tenancy.Entry) error {
			l.locked(func() { asked = append(asked, entry) })
			return nil
		}
	})
	n.agent.publishAll(t.Context())
	l.locked(func() {
		if !slices.Contains(asked, n.agent.Source.(*lagging).Source.View().Entries[address]) {
			t.Errorf("published: %+v", asked)
		}
	})
}

// TestSourceThatSwallowsRequests holds up neither a DEL, which has its own time, nor for ever a reconciliation or a report.
func TestSourceThatSwallowsRequests(t *testing.T) {
	n, l := behind(t)
	held, other := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, each := range []*attachment.Attachment{held, other} {
		n.attach(each)
		n.announce(each)
	}
	swallow := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	l.locked(func() {
		l.remove = func(ctx context.Context, _ netip.Addr) error { return swallow(ctx) }
		l.publish = func(ctx context.Context, _ tenancy.Entry) error { return swallow(ctx) }
	})
	if err := n.agent.Detach(t.Context(), held.Key); err != nil {
		t.Errorf("DEL fails because of the API server: %v", err)
	}
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != other.Key {
		t.Errorf("%+v", stored)
	}
	// One whose caller gives up meanwhile is done all the same: the store was written first.
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := n.agent.Detach(short, other.Key); err != nil {
		t.Errorf("DEL fails because of the API server: %v", err)
	}
	if stored := n.stored(); len(stored) != 0 {
		t.Errorf("%+v", stored)
	}
	n.agent.reconcile(t.Context()) // ends
	l.locked(func() { l.remove, l.publish = nil, nil })
	n.agent.reconcile(t.Context())
	for _, host := range append(held.Hosts(), other.Hosts()...) {
		if entry, there := l.Source.View().Entries[host]; there {
			t.Errorf("not taken back when the API server answered again: %+v", entry)
		}
	}
}

// TestDetachLeavesTheNextOnesAddress: another attachment that has got the address meanwhile keeps it.
func TestDetachLeavesTheNextOnesAddress(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.agent.mutex.Lock()
	delete(n.agent.attachments, held.Key) // as a removal that is under way does first
	n.agent.mutex.Unlock()
	next := n.pod("team-b", 2)
	next.Addresses = slices.Clone(held.Addresses)
	n.locked(func() { n.netns[next.Netns].interfaces["net1"].addresses = next.Addresses })
	n.attach(next)
	if left := n.agent.disown(held); len(left) != 0 {
		t.Errorf("disowned: %v", left)
	}
	if n.senderTenant(next) == "" {
		t.Error("it has no tenant")
	}
	for _, host := range next.Hosts() {
		if entry := n.published(host); entry.Namespace != "team-b" {
			t.Errorf("published: %+v", entry)
		}
	}
}
