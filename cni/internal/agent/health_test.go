package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// diary is a Recorder that remembers.
type diary struct {
	mutex      sync.Mutex
	events     []string // "pod reason"
	conditions map[string]Condition
}

func (d *diary) PodEvent(pod attachment.Pod, _ bool, reason, _ string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.events = append(d.events, pod.Name+" "+reason)
}

func (d *diary) Condition(_ context.Context, node string, wanted Condition) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.conditions[node] = wanted
	return nil
}

func (d *diary) told() ([]string, map[string]Condition) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return slices.Clone(d.events), maps.Clone(d.conditions)
}

// kept is start with a diary.
func kept(t *testing.T) (*node, *diary) {
	t.Helper()
	dir := t.TempDir()
	writeNamespaces(t, dir, map[string]string{"team-a": ""})
	w, d := newWorld(t), &diary{conditions: map[string]Condition{}}
	w.recorder = d
	return w.boot("node1", t.TempDir(), dir, "boot1"), d
}

// TestConditionIsStatus: whatever makes STATUS fail on one rail is in the condition, with its reason.
func TestConditionIsStatus(t *testing.T) {
	for _, test := range []struct {
		name    string
		breakIt func(n *node)
		status  corev1.ConditionStatus
		reason  string
	}{
		{"all is well", func(*node) {}, corev1.ConditionTrue, "RailsReady"},
		{"one rail's session is down", func(n *node) { n.sessions["rail1"] = frr.Session{} }, corev1.ConditionFalse, "RailDown"},
		{"BFD is down", func(n *node) { n.sessions["rail0"] = frr.Session{Established: true, BFDDown: true} }, corev1.ConditionFalse, "RailDown"},
		{"ovs-vswitchd is gone", func(n *node) { n.incarnation = 0 }, corev1.ConditionFalse, "BridgeMissing"},
		{"ovsdb-server is gone", func(n *node) { n.fail["database"] = errors.New("not connected") }, corev1.ConditionFalse, "NotReady"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // each waits for a poll
			n, d := kept(t)
			n.mutex.Lock()
			test.breakIt(n)
			n.mutex.Unlock()
			n.agent.observeSessions(t.Context())
			n.await("it is told", func() bool {
				_, conditions := d.told()
				told := conditions["node1"]
				return told.Status == test.status && told.Reason == test.reason && told.Message != ""
			})
			var status error
			for _, rail := range []string{"rail0", "rail1"} {
				if err := n.agent.Status(t.Context(), rail); err != nil {
					status = errors.Join(status, err)
					if message := n.agent.condition(t.Context()).Message; !strings.Contains(message, err.Error()) {
						t.Errorf("%q lacks %q", message, err)
					}
				}
			}
			if (status == nil) != (test.status == corev1.ConditionTrue) {
				t.Errorf("STATUS says %v", status)
			}
		})
	}
}

// TestConditionOutsideOfService: an agent that is not ready yet, and one that was stopped, leave no condition that is True.
func TestConditionOutsideOfService(t *testing.T) {
	n, d := kept(t)
	if got := New(n.agent.Surroundings).condition(t.Context()); got.Status != corev1.ConditionFalse || got.Reason != "NotReady" {
		t.Errorf("before it is ready: %+v", got)
	}
	n.stop()
	if _, conditions := d.told(); conditions["node1"].Status != corev1.ConditionUnknown || conditions["node1"].Reason != "AgentStopped" {
		t.Errorf("after its end: %+v", conditions)
	}
}

// TestRailThatStaysDown: ADD answers "try again later" at once, the condition says so, and pods hear of it once it has lasted.
func TestRailThatStaysDown(t *testing.T) {
	n, d := kept(t)
	held, next := n.pod("team-a", 1), n.pod("team-a", 2)
	n.attach(held)
	n.locked(func() { n.sessions["rail0"] = frr.Session{Established: true, BFDDown: true} })
	n.agent.observeSessions(t.Context())
	err := n.agent.Attach(t.Context(), next.Clone())
	if failure.ReasonOf(err) != nodev1.Reason_RAIL_DOWN || failure.Codes(nodev1.Reason_RAIL_DOWN).CNI != failure.CNITryAgain || !strings.Contains(err.Error(), "BFD") {
		t.Errorf("ADD: %v", err)
	}
	if events, _ := d.told(); len(events) != 0 {
		t.Errorf("told before it has lasted: %v", events)
	}
	n.await("the condition", func() bool {
		_, conditions := d.told()
		return conditions["node1"].Status == corev1.ConditionFalse && strings.Contains(conditions["node1"].Message, "BFD")
	})
	n.later(2 * downGrace)
	for range 3 {
		n.agent.observeSessions(t.Context())
	}
	if events, _ := d.told(); !slices.Equal(events, []string{"pod1 RailDown"}) {
		t.Errorf("%v", events)
	}
	n.locked(func() { n.sessions["rail0"] = frr.Session{Established: true} })
	n.agent.observeSessions(t.Context())
	n.attach(next)
	n.await("the condition", func() bool {
		_, conditions := d.told()
		return conditions["node1"].Status == corev1.ConditionTrue
	})
}

// heartbeats is a source of which only the nodes and whether it is stale are looked at.
type heartbeats struct {
	tenancy.Source
	nodes map[string]tenancy.Node
	stale time.Time
}

func (h *heartbeats) View() tenancy.View        { return tenancy.View{Nodes: h.nodes} }
func (h *heartbeats) Stale() (time.Time, error) { return h.stale, nil }

// TestSilent: the first living node tells of those that fell silent, by how long it has not heard them, whatever their clocks say.
func TestSilent(t *testing.T) {
	began := time.Now()
	source := &heartbeats{nodes: map[string]tenancy.Node{}}
	beat := func(at time.Time, names ...string) {
		for _, name := range names {
			// node4's clock is an hour behind.
			stamp := at
			if name == "node4" {
				stamp = at.Add(-time.Hour)
			}
			source.nodes[name] = tenancy.Node{Name: name, Heartbeat: stamp}
		}
	}
	of1, of2 := pulses{}, pulses{}
	expect := func(at time.Time, want1, want2 []string) {
		t.Helper()
		if got := of1.silent(source, "node1", at); !slices.Equal(got, want1) {
			t.Errorf("after %v node1 tells of %v, want %v", at.Sub(began), got, want1)
		}
		if got := of2.silent(source, "node2", at); !slices.Equal(got, want2) {
			t.Errorf("after %v node2 tells of %v, want %v", at.Sub(began), got, want2)
		}
	}
	beat(began, "node1", "node2", "node3", "node4")
	expect(began, nil, nil)
	now := began.Add(tenancy.Lifetime)
	beat(now, "node1", "node2", "node4")
	expect(now, []string{"node3"}, nil)
	of1.told("node3")
	expect(now, nil, nil)
	// node3 comes back and goes again.
	now = now.Add(time.Second)
	beat(now, "node3")
	expect(now, nil, nil)
	now = now.Add(tenancy.Lifetime)
	beat(now, "node1", "node2", "node4")
	expect(now, []string{"node3"}, nil)
	of1.told("node3")
	// node1 falls silent itself: now it is node2's turn, for all that are.
	now = now.Add(tenancy.Lifetime)
	beat(now, "node2", "node4")
	if got := of2.silent(source, "node2", now); !slices.Equal(got, []string{"node1", "node3"}) {
		t.Errorf("%v", got)
	}
	// Who hears nothing cannot tell, and starts anew when it hears again.
	source.stale = now
	now = now.Add(2 * tenancy.Lifetime)
	expect(now, nil, nil)
	source.stale = time.Time{}
	expect(now, nil, nil)
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

// TestKubeRecorderCondition: what is in the API is what was wanted last, transitions are counted by the status, and what others
// wrote meanwhile does not stay.
func TestKubeRecorderCondition(t *testing.T) {
	client := fake.NewClientset(nodeNamed("node1"), nodeNamed("node2"))
	r := NewKubeRecorder(t.Context(), client, "node1")
	began := time.Now().Truncate(time.Second) // what the API's times hold
	now := began
	r.now = func() time.Time { return now }
	tell := func(node string, wanted Condition) {
		t.Helper()
		if err := r.Condition(t.Context(), node, wanted); err != nil {
			t.Fatal(err)
		}
	}
	read := func(node string) corev1.NodeCondition {
		t.Helper()
		found, err := client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Status.Conditions) != 2 || found.Status.Conditions[0].Type == found.Status.Conditions[1].Type {
			t.Fatalf("%+v", found.Status.Conditions)
		}
		at := slices.IndexFunc(found.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == NodeCondition })
		return found.Status.Conditions[at]
	}
	expect := func(node string, wanted Condition, heartbeat, transition time.Time) {
		t.Helper()
		got := read(node)
		if (Condition{got.Status, got.Reason, got.Message}) != wanted || !got.LastHeartbeatTime.Time.Equal(heartbeat) || !got.LastTransitionTime.Time.Equal(transition) {
			t.Errorf("%s is %+v", node, got)
		}
	}
	well := Condition{corev1.ConditionTrue, "RailsReady", "all"}
	down := Condition{corev1.ConditionFalse, "RailDown", "rail0"}
	both := Condition{corev1.ConditionFalse, "RailDown", "rail0; rail1"}
	silent := Condition{corev1.ConditionUnknown, "AgentSilent", "nobody"}

	tell("node1", well)
	expect("node1", well, began, began)
	now = now.Add(2 * time.Second)
	tell("node1", down)
	fell := now
	expect("node1", down, fell, fell)
	now = now.Add(2 * time.Second)
	tell("node1", both) // still False: no transition
	expect("node1", both, now, fell)
	wrote := now
	now = now.Add(2 * conditionCheck)
	tell("node1", both) // no need to write
	expect("node1", both, wrote, fell)
	now = wrote.Add(conditionRefresh)
	tell("node1", both)
	expect("node1", both, now, fell)

	// Another agent took this one for dead; at the next look the condition is right again, by an agent that restarted meanwhile too.
	other := NewKubeRecorder(t.Context(), client, "node2")
	other.now = r.now
	if err := other.Condition(t.Context(), "node1", silent); err != nil {
		t.Fatal(err)
	}
	expect("node1", silent, now, now)
	now = now.Add(conditionCheck)
	tell("node1", both)
	expect("node1", both, now, now)
	back := now
	now = now.Add(time.Second)
	restarted := NewKubeRecorder(t.Context(), client, "node1")
	restarted.now = r.now
	if err := restarted.Condition(t.Context(), "node1", down); err != nil {
		t.Fatal(err)
	}
	expect("node1", down, now, back)

	tell("node3", silent) // a Node that is gone
	if found, err := client.CoreV1().Nodes().Get(t.Context(), "node2", metav1.GetOptions{}); err != nil || len(found.Status.Conditions) != 1 {
		t.Errorf("node2 has %+v, %v", found, err)
	}
}

// TestKubeRecorderEvent: an event is on the pod, of its UID, in its Namespace.
func TestKubeRecorderEvent(t *testing.T) {
	client := fake.NewClientset()
	r := NewKubeRecorder(t.Context(), client, "node1")
	r.PodEvent(attachment.Pod{Namespace: "team-a", Name: "pod", UID: "u1"}, true, "RailDown", "rail0 is down")
	var events []corev1.Event
	for deadline := time.Now().Add(60 * time.Second); len(events) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		list, err := client.CoreV1().Events("team-a").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		events = list.Items
	}
	if len(events) != 1 {
		t.Fatalf("%+v", events)
	}
	event := events[0]
	on := event.InvolvedObject
	if on.Kind != "Pod" || on.Namespace != "team-a" || on.Name != "pod" || on.UID != "u1" {
		t.Errorf("on %+v", on)
	}
	if event.Type != corev1.EventTypeWarning || event.Reason != "RailDown" || event.Message != "rail0 is down" || event.Source.Host != "node1" {
		t.Errorf("%+v", event)
	}
}
