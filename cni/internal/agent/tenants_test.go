package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

var errBusy = errors.New("busy")

// two boots two nodes that share the tenancy; their pods' numbers must differ.
func two(t *testing.T, tenants map[string]string) (first, second *node, dir string) {
	t.Helper()
	dir = t.TempDir()
	writeNamespaces(t, dir, tenants)
	return newWorld(t).boot("node1", t.TempDir(), dir, "boot1"), newWorld(t).boot("node2", t.TempDir(), dir, "boot1"), dir
}

// knows tells whether a node's flows let an address on it send to an address elsewhere, or hear it.
func (w *world) knows(held *attachment.Attachment) bool {
	return w.flowsWith("nw_dst="+held.Hosts()[0].String()+",") > 0 || w.flowsWith("nw_src="+held.Hosts()[0].String()+",") > 0
}

func TestNodesLearnOfEachOther(t *testing.T) {
	first, second, _ := two(t, map[string]string{"team-a": "", "team-b": ""})
	here, friend, stranger := first.pod("team-a", 1), second.pod("team-a", 2), second.pod("team-b", 3)
	first.attach(here)
	second.attach(friend)
	second.attach(stranger)
	first.await("the friend is known", func() bool { return first.knows(friend) })
	second.await("the pod is known", func() bool { return second.knows(here) })
	if first.knows(stranger) {
		t.Error("flows for a tenant that is not here")
	}
	if err := second.agent.Detach(t.Context(), friend.Key); err != nil {
		t.Fatal(err)
	}
	first.await("the friend is forgotten", func() bool { return !first.knows(friend) })
}

func TestAddressInUseOnAnotherNode(t *testing.T) {
	first, second, _ := two(t, map[string]string{"team-a": ""})
	held := first.pod("team-a", 1)
	first.attach(held)
	twin := second.pod("team-a", 1)
	second.await("node2 has heard of it", func() bool { return second.agent.Source.View().Entries[held.Hosts()[0]].Node == "node1" })
	if err := second.agent.Attach(t.Context(), twin); err == nil || !strings.Contains(err.Error(), "node1") {
		t.Errorf("%v", err)
	}
	if _, err := first.Flows(t.Context(), "br-rail0"); err != nil || first.agent.Source.View().Entries[held.Hosts()[0]].Node != "node1" {
		t.Error("the owner lost its address")
	}
}

// TestChangeOfTenant: the old tenant is gone before the new one comes, on both nodes, with revalidation in between.
func TestChangeOfTenant(t *testing.T) {
	first, second, dir := two(t, map[string]string{"team-a": "red", "team-b": "blue", "mover": "red"})
	moving, friend, next := first.pod("mover", 1), second.pod("team-a", 2), second.pod("team-b", 3)
	first.attach(moving)
	second.attach(friend)
	second.attach(next)
	first.await("it knows its friend", func() bool { return first.knows(friend) })
	second.await("its friend knows it", func() bool { return second.knows(moving) })
	started := second.operations()
	writeNamespaces(t, dir, map[string]string{"team-a": "red", "team-b": "blue", "mover": "blue"})
	first.await("the change is in force", func() bool {
		view := first.agent.Source.View()
		inForce, _ := view.InForce("mover", time.Now())
		return inForce && view.Namespaces["mover"] == "label/blue" // else it has not heard of the change yet
	})
	if first.knows(friend) {
		t.Error("the old tenant is still known on its node")
	}
	first.await("the new tenant is known", func() bool { return first.knows(next) && second.knows(moving) })
	entry := first.agent.Source.View().Entries[moving.Hosts()[0]]
	if entry.Tenant != "label/blue" || entry.Revoked || !entry.Changed {
		t.Errorf("%+v", entry)
	}
	second.position("revalidate", started)
	// The two are of different tenants on node 2 now: nothing the mover sends is accepted for the friend.
	flows, err := second.Flows(t.Context(), "br-rail0")
	if err != nil {
		t.Fatal(err)
	}
	if tenantOf(flows, "nw_src="+moving.Hosts()[0].String()) == tenantOf(flows, "nw_src="+friend.Hosts()[0].String()) {
		t.Error("mover and friend still have one tenant")
	}
}

// tenantOf is the number that table 0 gives a sender.
func tenantOf(flows []string, sender string) string {
	at := slices.IndexFunc(flows, func(flow string) bool { return strings.Contains(flow, sender+",") })
	if at < 0 {
		return ""
	}
	_, rest, _ := strings.Cut(flows[at], "set_field:")
	number, _, _ := strings.Cut(rest, "->reg0")
	return number
}

// TestChangeWaitsForALiveNode, and not for one that has not been heard of for long.
func TestChangeWaitsForALiveNode(t *testing.T) {
	first, second, dir := two(t, map[string]string{"team-a": "", "mover": "red"})
	moving := first.pod("mover", 1)
	first.attach(moving)
	second.await("node2 has heard of it", func() bool { return len(second.agent.Source.View().Entries) > 0 })
	second.stop() // it does not acknowledge; its last heartbeat is recent
	writeNamespaces(t, dir, map[string]string{"team-a": "", "mover": "other"})
	first.await("the address is revoked", func() bool { return first.agent.Source.View().Entries[moving.Hosts()[0]].Revoked })
	first.agent.heard(t.Context())
	if entry := first.agent.Source.View().Entries[moving.Hosts()[0]]; !entry.Revoked || first.knows(moving) {
		t.Errorf("granted without node2, or it still has flows: %+v", entry)
	}
	if inForce, why := first.agent.Source.View().InForce("mover", time.Now()); inForce {
		t.Errorf("in force: %s", why)
	}
	first.later(tenancy.Lifetime)
	first.agent.heard(t.Context())
	first.await("granted without the dead node", func() bool {
		entry := first.agent.Source.View().Entries[moving.Hosts()[0]]
		return !entry.Revoked && entry.Tenant == "label/other"
	})
}

// TestRevocationThatCannotBeRevalidated is not published: others must not acknowledge what is not in force here.
func TestRevocationThatCannotBeRevalidated(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() { n.fail["revalidate"] = errBusy })
	writeNamespaces(t, n.agent.Config.Tenancy.Directory, map[string]string{"team-a": "new"})
	n.await("the address has lost its flows", func() bool { return !n.knows(held) })
	n.attach(held) // a repeated ADD does not publish it either
	if entry := n.agent.Source.View().Entries[held.Hosts()[0]]; entry.Revoked || entry.Tenant != "namespace/team-a" {
		t.Errorf("published: %+v", entry)
	}
	n.locked(func() { delete(n.fail, "revalidate") })
	n.agent.heard(t.Context())
	n.await("the new tenant", func() bool {
		return n.agent.Source.View().Entries[held.Hosts()[0]].Tenant == "label/new" && n.knows(held)
	})
}

// TestGrantThatCannotBeRevalidated is not published either: "in force" would meet cached flows that still drop.
func TestGrantThatCannotBeRevalidated(t *testing.T) {
	first, second, dir := two(t, map[string]string{"team-a": "", "mover": "red"})
	moving := first.pod("mover", 1)
	first.attach(moving)
	second.await("node2 has heard of it", func() bool { return len(second.agent.Source.View().Entries) > 0 })
	second.stop() // it holds the grant up until it is taken for dead
	writeNamespaces(t, dir, map[string]string{"team-a": "", "mover": "other"})
	published := func() tenancy.Entry { return first.agent.Source.View().Entries[moving.Hosts()[0]] }
	first.await("the address is revoked", func() bool { return published().Revoked })
	first.locked(func() { first.fail["revalidate"] = errBusy })
	first.later(tenancy.Lifetime)
	first.agent.heard(t.Context())
	if entry := published(); !entry.Revoked {
		t.Errorf("published: %+v", entry)
	}
	first.locked(func() { delete(first.fail, "revalidate") })
	first.agent.heard(t.Context())
	first.await("granted", func() bool { return !published().Revoked && published().Tenant == "label/other" })
}
