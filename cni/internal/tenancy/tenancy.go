// Package tenancy is what all nodes must know of each other: which address is whose. A Source brings it from Kubernetes or
// from a directory; the rules here are the same for both.
package tenancy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
)

// Label of a Namespace that names its tenant; without it the Namespace is its own tenant.
const Label = "railweave.io/tenant"

// Tenant says whose an address is, and by what: "namespace/NAME" or "label/VALUE". The kind is a part of it because names and
// labels are given out by different people: who may create a Namespace must not join a tenant by choosing its label as a name.
type Tenant string

// The kinds of tenants.
const (
	byNamespace = "namespace/"
	byLabel     = "label/"
)

// TenantOf a Namespace, given its label.
func TenantOf(namespace, label string) Tenant {
	if label == "" {
		return Tenant(byNamespace + namespace)
	}
	return Tenant(byLabel + label)
}

// Valid tells whether it says its kind. Agents of before tenants had one published bare names, and whose those are cannot be
// told: no agent has such a tenant any more, so they match none.
func (t Tenant) Valid() bool {
	for _, kind := range []string{byNamespace, byLabel} {
		if rest, is := strings.CutPrefix(string(t), kind); is && rest != "" {
			return true
		}
	}
	return false
}

// Entry is a published address.
type Entry struct {
	Address    netip.Addr `json:"address"`
	Node       string     `json:"node"`
	Rail       string     `json:"rail"`
	Namespace  string     `json:"namespace"`
	Tenant     Tenant     `json:"tenant"`
	Generation uint64     `json:"generation"`
	// Revoked: the address changes its tenant and has none until all nodes have heard so.
	Revoked bool `json:"revoked,omitempty"`
	// Changed: the generation comes from a change of tenant, which the other nodes acknowledge.
	Changed bool `json:"changed,omitempty"`
}

// Node is what an agent says of itself.
type Node struct {
	Name      string    `json:"name"`
	Heartbeat time.Time `json:"heartbeat"`
	// Barrier is the latest generation at which one of this node's addresses lost or got a tenant; 0 if none did.
	Barrier uint64 `json:"barrier"`
	// Acks are the barriers of other nodes that are in force here.
	Acks map[string]uint64 `json:"acks,omitempty"`
	// Heard is when the heartbeat was heard to change, by the clock of who heard it; zero if it was only read once.
	Heard time.Time `json:"-"`
}

// lives tells whether a node was heard of within its lifetime. Clocks differ, so the time of hearing counts, where there is one.
func (n Node) lives(now time.Time) bool {
	last := n.Heard
	if last.IsZero() {
		last = n.Heartbeat
	}
	return now.Sub(last) < Lifetime
}

// hear sets when a node's heartbeat was heard, given what was known of the node before. Of the first one nobody knows how old it is:
// its own time counts, unless that lies ahead.
func (n *Node) hear(before Node, known bool, now time.Time) {
	switch {
	case known && before.Heartbeat.Equal(n.Heartbeat):
		n.Heard = before.Heard
	case !known && n.Heartbeat.Before(now):
		n.Heard = n.Heartbeat
	default:
		n.Heard = now
	}
}

// View is everything heard of so far. It is never changed, only replaced.
type View struct {
	// Namespaces that exist, with their tenant.
	Namespaces map[string]Tenant
	Entries    map[netip.Addr]Entry
	Nodes      map[string]Node
	// Disputed addresses are claimed by two nodes; nobody may use them.
	Disputed map[netip.Addr][]string
}

// Source of the view.
type Source interface {
	View() View
	// Changed is signalled after the view changed.
	Changed() <-chan struct{}
	// Publish makes an address of this node known. TakenError: another node has it.
	Publish(ctx context.Context, entry Entry) error
	// Remove takes it back. One that is not there is success.
	Remove(ctx context.Context, address netip.Addr) error
	// Report publishes what this node says of itself.
	Report(ctx context.Context, node Node) error
	// VerifyPod asks whoever knows whether that pod exists on this node, and whether its Namespace's tenant is what the view
	// says: a node that lags must not give a new pod the tenant of before a change that is in force.
	VerifyPod(ctx context.Context, pod attachment.Pod) error
	// Stale tells since when nothing could be heard, and why; zero if all is well.
	Stale() (since time.Time, why error)
	// Reached tells why nothing was heard since the start; nil if something was.
	Reached() error
}

// TakenError: the address is published by another node.
type TakenError struct {
	Address netip.Addr
	Node    string
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("address %s is in use on node %s", e.Address, e.Node)
}

// Pods and Namespaces that are not there, or not as this node has heard.
var (
	ErrNoNamespace = errors.New("no such Namespace")
	ErrNoPod       = errors.New("no such pod on this node")
	ErrBehind      = errors.New("its tenant was changed, and this node has not heard of it yet")
)

const (
	// HeartbeatPeriod is how often a node says that it lives.
	HeartbeatPeriod = 10 * time.Second
	// Lifetime: a node that was not heard of for so long does not hold up a change. Its own pods may still send with the old
	// rules, but the node that owns the changed address refuses both directions.
	Lifetime = 45 * time.Second
)

// Step is what to do next about an address whose Namespace may have changed its tenant.
type Step int

// The steps of a change of tenant.
const (
	Keep   Step = iota // nothing changed
	Revoke             // the tenant changed: take the old one away first
	Wait               // other nodes have not taken it away yet
	Grant              // all have: give the new one
)

// Next decides the step. missing are the nodes that have not acknowledged the revocation.
func Next(entry Entry, wanted Tenant, missing []string) Step {
	switch {
	case !entry.Revoked && entry.Tenant == wanted:
		return Keep
	case !entry.Revoked:
		return Revoke
	case len(missing) > 0:
		return Wait
	default:
		return Grant
	}
}

// Missing lists the live nodes that have not acknowledged a barrier of a node.
func (v View) Missing(owner string, barrier uint64, now time.Time) []string {
	var missing []string
	for name, node := range v.Nodes {
		if name != owner && node.lives(now) && node.Acks[owner] < barrier {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// Due are the barriers of others this view has everything of: the nodes' changed addresses up to the barrier have been heard.
// Barriers and addresses may come by different watches, but one node's changed addresses come in the order of their
// generations. Addresses of new pods do not: they are published side by side.
func (v View) Due(self string) map[string]uint64 {
	heard := map[string]uint64{}
	for _, entry := range v.Entries {
		if entry.Changed {
			heard[entry.Node] = max(heard[entry.Node], entry.Generation)
		}
	}
	due := map[string]uint64{}
	for name, node := range v.Nodes {
		if name != self && node.Barrier > 0 && heard[name] >= node.Barrier {
			due[name] = node.Barrier
		}
	}
	return due
}

// Barrier a node must publish: the latest generation that others are to acknowledge.
func Barrier(own []Entry) uint64 {
	var barrier uint64
	for _, entry := range own {
		if entry.Changed {
			barrier = max(barrier, entry.Generation)
		}
	}
	return barrier
}

// Revocation is the latest generation of a node's revoked addresses; 0 if none is. Nothing is granted before all have acknowledged it.
func Revocation(own []Entry) uint64 {
	var latest uint64
	for _, entry := range own {
		if entry.Revoked {
			latest = max(latest, entry.Generation)
		}
	}
	return latest
}

// InForce tells whether a Namespace's tenant is in force everywhere, and if not why.
func (v View) InForce(namespace string, now time.Time) (bool, string) {
	wanted, exists := v.Namespaces[namespace]
	if !exists {
		return false, fmt.Sprintf("Namespace %s does not exist", namespace)
	}
	for _, address := range slices.SortedFunc(maps.Keys(v.Entries), netip.Addr.Compare) {
		entry := v.Entries[address]
		if entry.Namespace != namespace {
			continue
		}
		if (entry.Revoked || entry.Tenant != wanted) && !v.Nodes[entry.Node].lives(now) {
			return false, fmt.Sprintf("%s has tenant %q, wanted %q; only the agent of %s can change it, which has not been heard of for %v", address, entry.Tenant, wanted, entry.Node, Lifetime)
		}
		if entry.Revoked {
			return false, fmt.Sprintf("%s on %s has lost tenant %q at generation %d and waits for the other nodes", address, entry.Node, entry.Tenant, entry.Generation)
		}
		if entry.Tenant != wanted {
			return false, fmt.Sprintf("%s on %s still has tenant %q, wanted %q", address, entry.Node, entry.Tenant, wanted)
		}
		if missing := v.Missing(entry.Node, entry.Generation, now); entry.Changed && len(missing) > 0 {
			return false, fmt.Sprintf("%s on %s has tenant %q since generation %d, which %v have not reported", address, entry.Node, entry.Tenant, entry.Generation, missing)
		}
	}
	return true, fmt.Sprintf("tenant %q", wanted)
}

// merge adds an entry to a view under construction and notices disputes.
func (v *View) merge(entry Entry) {
	other, there := v.Entries[entry.Address]
	if nodes, disputed := v.Disputed[entry.Address]; disputed {
		v.Disputed[entry.Address] = append(nodes, entry.Node)
		return
	}
	if there && other.Node != entry.Node {
		delete(v.Entries, entry.Address)
		v.Disputed[entry.Address] = []string{other.Node, entry.Node}
		return
	}
	v.Entries[entry.Address] = entry
}

func emptyView() View {
	return View{Namespaces: map[string]Tenant{}, Entries: map[netip.Addr]Entry{}, Nodes: map[string]Node{}, Disputed: map[netip.Addr][]string{}}
}
