package tenancy

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/railweave/railweave/cni/internal/attachment"
)

var one = netip.MustParseAddr("10.64.0.5")

func TestTenantOf(t *testing.T) {
	if name, label := TenantOf("blue", ""), TenantOf("team-b", "blue"); name == label || name != "namespace/blue" || label != "label/blue" {
		t.Errorf("%s, %s", name, label)
	}
	for tenant, want := range map[Tenant]bool{"namespace/a": true, "label/a": true, "a": false, "": false, "label/": false, "namespace": false, "other/a": false, "/a": false} {
		if got := tenant.Valid(); got != want {
			t.Errorf("%q: %t", tenant, got)
		}
	}
}

func TestNext(t *testing.T) {
	for _, test := range []struct {
		entry   Entry
		wanted  Tenant
		missing []string
		want    Step
	}{
		{Entry{Tenant: "a"}, "a", nil, Keep},
		{Entry{Tenant: "a"}, "a", []string{"node2"}, Keep},
		{Entry{Tenant: "a"}, "b", nil, Revoke},
		{Entry{Tenant: "a", Revoked: true}, "b", []string{"node2"}, Wait},
		{Entry{Tenant: "a", Revoked: true}, "b", nil, Grant},
		{Entry{Tenant: "a", Revoked: true}, "a", []string{"node2"}, Wait}, // changed back meanwhile: the same way
		{Entry{Tenant: "a", Revoked: true}, "a", nil, Grant},
	} {
		if got := Next(test.entry, test.wanted, test.missing); got != test.want {
			t.Errorf("%+v to %s, missing %v: %d, want %d", test.entry, test.wanted, test.missing, got, test.want)
		}
	}
}

func TestMissingAndDue(t *testing.T) {
	now := time.Now()
	view := emptyView()
	view.Nodes = map[string]Node{
		"node1": {Heartbeat: now, Barrier: 7},
		"node2": {Heartbeat: now, Acks: map[string]uint64{"node1": 6}},
		"node3": {Heartbeat: now, Acks: map[string]uint64{"node1": 7}},
		"node4": {Heartbeat: now.Add(-Lifetime)},
	}
	if got := view.Missing("node1", 7, now); !slices.Equal(got, []string{"node2"}) {
		t.Errorf("missing %v", got)
	}
	// The barrier was heard before the address it is about: not due yet.
	view.Entries[one] = Entry{Address: one, Node: "node1", Generation: 6, Changed: true}
	if got := view.Due("node2"); len(got) != 0 {
		t.Errorf("due %v", got)
	}
	// Nor does a new pod's address with a later generation say that the changes have been heard: it may overtake them.
	other := netip.MustParseAddr("10.64.0.6")
	view.Entries[other] = Entry{Address: other, Node: "node1", Generation: 8}
	if got := view.Due("node2"); len(got) != 0 {
		t.Errorf("due %v", got)
	}
	view.Entries[one] = Entry{Address: one, Node: "node1", Generation: 7, Changed: true}
	if got := view.Due("node2"); !maps.Equal(got, map[string]uint64{"node1": 7}) {
		t.Errorf("due %v", got)
	}
	if got := view.Due("node1"); len(got) != 0 {
		t.Errorf("its own: %v", got)
	}
}

// TestLifeByHearing: a node lives for a lifetime from when its heartbeat was heard to change, whatever its clock says.
func TestLifeByHearing(t *testing.T) {
	start := time.Now()
	for _, test := range []struct {
		name  string
		ahead time.Duration // the node's clock
		beats int           // one a period, the first is heard at the start
		after time.Duration // the last
		want  bool
	}{
		{"as ours", 0, 2, Lifetime - time.Second, true},
		{"as ours, dead", 0, 2, Lifetime, false},
		{"ahead, alive", time.Hour, 2, Lifetime - time.Second, true},
		{"ahead, dead", time.Hour, 2, Lifetime, false},
		{"ahead, dead since before we looked", time.Hour, 1, Lifetime, false},
		{"behind, alive", -time.Hour, 2, Lifetime - time.Second, true},
		{"behind, one beat: it may have died long ago", -time.Hour, 1, 0, false},
		{"dead since before we looked", -Lifetime, 1, 0, false},
	} {
		node, known, now := Node{}, false, start
		for beat := range test.beats {
			now = start.Add(time.Duration(beat) * HeartbeatPeriod)
			heard := Node{Name: "node2", Heartbeat: now.Add(test.ahead)}
			heard.hear(node, known, now)
			node, known = heard, true
		}
		again := Node{Name: "node2", Heartbeat: node.Heartbeat} // nothing new
		again.hear(node, true, now.Add(test.after))
		view := emptyView()
		view.Nodes["node2"] = again
		if got := len(view.Missing("node1", 1, now.Add(test.after))) > 0; got != test.want {
			t.Errorf("%s: lives %t, want %t", test.name, got, test.want)
		}
	}
}

func TestInForce(t *testing.T) {
	now := time.Now()
	for _, test := range []struct {
		name   string
		entry  Entry
		silent time.Duration // of its owner
		want   bool
		says   string
	}{
		{"as wanted", Entry{Tenant: "label/b"}, 0, true, "label/b"},
		{"still the old one", Entry{Tenant: "label/a"}, 0, false, "still"},
		{"still the old one, and nobody to change it", Entry{Tenant: "label/a"}, Lifetime, false, "only the agent of node1"},
		{"the Namespace of that name", Entry{Tenant: "namespace/b"}, 0, false, "still"},
		{"of an older agent", Entry{Tenant: "b"}, 0, false, "still"},
		{"revoked", Entry{Tenant: "label/b", Revoked: true}, 0, false, "waits"},
		{"revoked, and nobody to grant it", Entry{Tenant: "label/b", Revoked: true}, Lifetime, false, "only the agent of node1"},
		{"granted, not acknowledged", Entry{Tenant: "label/b", Changed: true, Generation: 9}, 0, false, "node2"},
		{"granted and acknowledged", Entry{Tenant: "label/b", Changed: true, Generation: 4}, 0, true, "label/b"},
		{"granted by an agent that has died since", Entry{Tenant: "label/b", Changed: true, Generation: 4}, Lifetime, true, "label/b"},
	} {
		view := emptyView()
		view.Namespaces["ns"] = "label/b"
		view.Nodes = map[string]Node{"node1": {Heartbeat: now.Add(-test.silent)}, "node2": {Heartbeat: now, Acks: map[string]uint64{"node1": 4}}}
		test.entry.Address, test.entry.Node, test.entry.Namespace = one, "node1", "ns"
		view.merge(test.entry)
		if got, why := view.InForce("ns", now); got != test.want || !strings.Contains(why, test.says) {
			t.Errorf("%s: %t, %s", test.name, got, why)
		}
	}
	if got, _ := emptyView().InForce("nobody", now); got {
		t.Error("a Namespace that does not exist is in force")
	}
}

func TestDisputedAddressIsNobodys(t *testing.T) {
	view := emptyView()
	for _, node := range []string{"node1", "node2", "node3"} {
		view.merge(Entry{Address: one, Node: node})
	}
	if _, there := view.Entries[one]; there || len(view.Disputed[one]) != 3 {
		t.Errorf("%+v", view)
	}
}

func open(t *testing.T, dir, node string) *Directory {
	t.Helper()
	d, err := OpenDirectory(t.Context(), dir, node)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 60 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// contract is what every Source must do; second sees what first publishes.
func contract(t *testing.T, first, second Source) {
	t.Helper()
	ctx := t.Context()
	entry := Entry{Address: one, Node: "node1", Rail: "rail0", Namespace: "team-a", Tenant: "namespace/team-a", Generation: 3}
	for range 2 { // twice is once
		if err := first.Publish(ctx, entry); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the address", func() bool { return second.View().Entries[one] == entry })
	var taken *TakenError
	if err := second.Publish(ctx, entry); !errors.As(err, &taken) || taken.Node != "node1" {
		t.Errorf("another node's address: %v", err)
	}
	entry.Revoked, entry.Changed, entry.Generation = true, true, 4
	if err := first.Publish(ctx, entry); err != nil {
		t.Fatal(err)
	}
	await(t, "the revocation", func() bool { return second.View().Entries[one] == entry })
	for range 2 {
		if err := first.Report(ctx, Node{Name: "node1", Heartbeat: time.Now(), Barrier: 4, Acks: map[string]uint64{"node2": 9}}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the report", func() bool { n := second.View().Nodes["node1"]; return n.Barrier == 4 && n.Acks["node2"] == 9 })
	before := time.Now()
	ahead := Node{Name: "node1", Heartbeat: before.Add(time.Hour), Barrier: 4, Acks: map[string]uint64{"node2": 9}}
	if err := first.Report(ctx, ahead); err != nil {
		t.Fatal(err)
	}
	for _, source := range []Source{first, second} {
		await(t, "a heartbeat of a clock that is ahead, by the time of hearing", func() bool {
			n := source.View().Nodes["node1"]
			return n.Heartbeat.Sub(before) > time.Minute && !n.Heard.Before(before) && n.Heard.Sub(before) < time.Hour
		})
	}
	if err := second.Remove(ctx, one); err != nil {
		t.Errorf("removing another node's address: %v", err)
	}
	if first.View().Entries[one] != entry {
		t.Error("another node removed the address")
	}
	for range 2 {
		if err := first.Remove(ctx, one); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the removal", func() bool { _, there := second.View().Entries[one]; return !there })
	if err := first.VerifyPod(ctx, attachment.Pod{Namespace: "nobody", Name: "p", UID: "u"}); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("%v", err)
	}
	if err := first.VerifyPod(ctx, attachment.Pod{Namespace: "team-a", Name: "pod", UID: "u1"}); err != nil {
		t.Errorf("%v", err)
	}
	if stale, why := first.Stale(); !stale.IsZero() || why != nil {
		t.Errorf("stale since %v: %v", stale, why)
	}
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "namespaces.json"), []byte(`{"namespaces":{"team-a":{},"team-b":{"tenant":"blue"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	first := open(t, dir, "node1")
	contract(t, first, open(t, dir, "node2"))
	if got := first.View().Namespaces; got["team-a"] != "namespace/team-a" || got["team-b"] != "label/blue" {
		t.Errorf("%v", got)
	}
	// A half-written file of another node: what was known stays, and it is said how old it is.
	if err := os.WriteFile(filepath.Join(dir, "nodes", "node9.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "stale, and the file named", func() bool {
		since, why := first.Stale()
		return !since.IsZero() && why != nil && strings.Contains(why.Error(), "node9.json")
	})
	if first.View().Namespaces["team-b"] != "label/blue" {
		t.Error("what was known is gone")
	}
}

func TestKubernetes(t *testing.T) {
	core := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node2", UID: "n2"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-b", Labels: map[string]string{Label: "blue"}}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pod", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "node1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "static", UID: "api", Annotations: map[string]string{mirrorAnnotation: "kubelet"}}, Spec: corev1.PodSpec{NodeName: "node1"}})
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{AddressResource: "RailAddressList", NodeResource: "RailNodeList"})
	openKubernetes := func(node string) *Kubernetes {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		k, err := OpenKubernetes(ctx, core, objects, node)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	first := openKubernetes("node1")
	contract(t, first, openKubernetes("node2"))
	if got := first.View().Namespaces; got["team-a"] != "namespace/team-a" || got["team-b"] != "label/blue" {
		t.Errorf("%v", got)
	}
	for _, test := range []struct {
		name, uid string
		want      error
	}{{"pod", "u2", ErrNoPod}, {"pod", "", ErrNoPod}, {"none", "u1", ErrNoPod}, {"static", "kubelet", nil}} {
		if err := first.VerifyPod(t.Context(), attachment.Pod{Namespace: "team-a", Name: test.name, UID: test.uid}); !errors.Is(err, test.want) {
			t.Errorf("%s with UID %q: %v", test.name, test.uid, err)
		}
	}
	if err := openKubernetes("node2").VerifyPod(t.Context(), attachment.Pod{Namespace: "team-a", Name: "pod", UID: "u1"}); !errors.Is(err, ErrNoPod) {
		t.Errorf("a pod of another node: %v", err)
	}
	// An object whose name is not its address's was not made by an agent.
	forged := object("RailAddress", "forged", nil, map[string]any{"address": "10.64.0.9", "node": "node2", "rail": "rail0", "namespace": "team-a", "tenant": "namespace/team-a", "generation": int64(1)})
	if _, err := objects.Resource(AddressResource).Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the forged object", func() bool { return len(first.addresses.List()) == 1 })
	if got := first.View().Entries; len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestNodeMadeAnew: a Node that was deleted and registered again has another UID. What is published names it, also what was
// published before; the garbage collector deletes what names the dead one.
func TestNodeMadeAnew(t *testing.T) {
	ctx := t.Context()
	core := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "before"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{AddressResource: "RailAddressList", NodeResource: "RailNodeList"})
	k, err := OpenKubernetes(ctx, core, objects, "node1")
	if err != nil {
		t.Fatal(err)
	}
	entry := Entry{Address: one, Node: "node1", Rail: "rail0", Namespace: "team-a", Tenant: "namespace/team-a", Generation: 3}
	publish := func() error {
		return errors.Join(k.Publish(ctx, entry), k.Report(ctx, Node{Name: "node1", Heartbeat: time.Now()}))
	}
	owners := func() (found []string) {
		for resource, name := range map[schema.GroupVersionResource]string{AddressResource: objectName(one), NodeResource: "node1"} {
			held, err := objects.Resource(resource).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, owner := range held.GetOwnerReferences() {
				found = append(found, owner.Kind+" "+owner.Name+" "+string(owner.UID))
			}
		}
		return found
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	if got := owners(); !slices.Equal(got, []string{"Node node1 before", "Node node1 before"}) {
		t.Errorf("%q", got)
	}
	await(t, "the address is heard of", func() bool { return k.View().Entries[one] == entry })
	if err := core.CoreV1().Nodes().Delete(ctx, "node1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "nothing is published for a Node that is gone", func() bool { return publish() != nil })
	anew := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "after"}}
	if _, err := core.CoreV1().Nodes().Create(ctx, anew, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "it is published again", func() bool { return publish() == nil })
	if got := owners(); !slices.Equal(got, []string{"Node node1 after", "Node node1 after"}) {
		t.Errorf("%q", got)
	}
}

func TestObjectNamesDiffer(t *testing.T) {
	for address, want := range map[string]string{"10.64.0.5": "10-64-0-5", "fd64::5": "fd64-0000-0000-0000-0000-0000-0000-0005"} {
		if got := objectName(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %s", address, got)
		}
	}
}
