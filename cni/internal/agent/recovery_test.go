package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

func TestRestartOfTheAgentChangesNothing(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	before, err := n.Flows(t.Context(), "br-rail0")
	if err != nil {
		t.Fatal(err)
	}
	n.mutex.Lock()
	n.history = nil
	n.mutex.Unlock()
	n = n.restart("boot1")
	after, err := n.Flows(t.Context(), "br-rail0")
	if err != nil || !slices.Equal(before, after) {
		t.Errorf("%v\nbefore %v\nafter  %v", err, before, after)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history {
		if strings.HasPrefix(operation, "withdraw") {
			t.Error(operation)
		}
	}
}

func TestReboot(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	n.stop()
	n.mutex.Lock()
	n.routes, n.netns = map[netip.Addr]bool{}, map[string]*fakeNetns{}
	n.mutex.Unlock()
	n = n.restart("boot2")
	n.nothingLeft()
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if _, there := n.bridges["br-rail0"].Ports[held.Port]; there {
		t.Error("the stale port, which makes ovs-cni's next ADD fail, is still there")
	}
}

func TestDamagedStoreIsRebuilt(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{\"checksum\":\"x\""), 0o600) },
		"removed": os.Remove,
		"of another release": func(path string) error {
			return store.WriteSealed(path, map[string]any{"version": 2, "something": "else"})
		},
	} {
		t.Run(name, func(t *testing.T) { rebuilt(t, damage) })
	}
}

func rebuilt(t *testing.T, damage func(path string) error) {
	n := start(t)
	first, second := n.pod("team-a", 1), n.pod("team-b", 2)
	n.attach(first)
	n.announce(first)
	n.attach(second)
	n.stop()
	want := n.stored()
	before := n.announced()
	if err := damage(filepath.Join(n.state, "store.json")); err != nil {
		t.Fatal(err)
	}
	n.mutex.Lock()
	n.history = nil
	n.mutex.Unlock()
	n = n.restart("boot1")
	got := n.stored()
	if fmt.Sprintf("%+v", deref(got)) != fmt.Sprintf("%+v", deref(want)) {
		t.Errorf("rebuilt\n%+v\nwas\n%+v", deref(got), deref(want))
	}
	if after := n.announced(); !slices.Equal(before, after) {
		t.Errorf("announced %v, before %v", after, before)
	}
	if err := errors.Join(n.agent.Status(t.Context(), "rail0"), n.agent.CheckAttachment(t.Context(), first), n.agent.CheckAnnouncement(t.Context(), first.Key, "rail0", first.Addresses)); err != nil {
		t.Errorf("STATUS and CHECK: %v", err)
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history {
		if strings.HasPrefix(operation, "withdraw") {
			t.Errorf("traffic was touched: %s", operation)
		}
	}
}

func deref(pointers []*attachment.Attachment) []attachment.Attachment {
	var values []attachment.Attachment
	for _, pointer := range pointers {
		values = append(values, *pointer)
	}
	return values
}

// TestTombstones are replayed before the agent serves, and those that come while the agent serves soon after.
func TestTombstones(t *testing.T) {
	n := start(t)
	first, second := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, held := range []*attachment.Attachment{first, second} {
		n.attach(held)
		n.announce(held)
	}
	n.stop()
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Withdraw, Key: first.Key}); err != nil {
		t.Fatal(err)
	}
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: first.Key}); err != nil {
		t.Fatal(err)
	}
	n = n.restart("boot1")
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != second.Key || n.flowsWith(first.MAC) != 0 {
		t.Errorf("%v", stored)
	}
	if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: second.Key}); err != nil {
		t.Fatal(err)
	}
	n.await("the late tombstone is replayed", func() bool { return len(n.announced()) == 0 && n.flowsWith(second.MAC) == 0 })
}

// TestRequestsAtTheEnd are answered, whatever time they have: the agent's end waits for them.
func TestRequestsAtTheEnd(t *testing.T) {
	n := start(t)
	held, late := n.pod("team-a", 1), n.pod("team-a", 2)
	n.attach(held)
	n.stop()
	for verb, err := range map[string]error{
		"Attach":   n.agent.Attach(t.Context(), late),
		"Announce": n.agent.Announce(t.Context(), held.Key, "rail0", held.Addresses),
		"Detach":   n.agent.Detach(t.Context(), held.Key),
	} {
		if got := failure.ReasonOf(err); got != nodev1.Reason_NOT_READY {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// TestNamespacesNotSeen: with another directory mounted than the runtime's all pods look dead. They are kept, with what they have
// on disk, on the bridge and in the routes, until it is certain that they have ended.
func TestNamespacesNotSeen(t *testing.T) {
	n := start(t)
	held, ending := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, each := range []*attachment.Attachment{held, ending} {
		n.attach(each)
		n.announce(each)
	}
	fresh := n.pod("team-a", 3) // ovs-cni was here, its ADD is under way
	n.stop()
	n.locked(func() { n.unmounted = true })
	n = n.restart("boot1")
	n.agent.reconcile(t.Context())
	if stored := n.stored(); len(stored) != 2 || len(n.announced()) != 4 || n.flowsWith("dl_src="+held.MAC) != 2 {
		t.Errorf("stored %v, announced %v", stored, n.announced())
	}
	n.locked(func() {
		for _, each := range []*attachment.Attachment{held, ending, fresh} {
			if _, there := n.bridges["br-rail0"].Ports[each.Port]; !there {
				t.Errorf("port %s was purged", each.Port)
			}
		}
		delete(n.links, ending.Port) // a veth ends with its namespace
		delete(n.links, fresh.Port)
	})
	n.agent.reconcile(t.Context())
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != held.Key {
		t.Errorf("stored %v", stored)
	}
	n.locked(func() {
		if _, there := n.bridges["br-rail0"].Ports[fresh.Port]; there {
			t.Error("a port without a link was not purged")
		}
		n.unmounted = false
	})
	if err := n.agent.CheckAttachment(t.Context(), held); err != nil {
		t.Errorf("the directory is seen again: %v", err)
	}
}

// TestRebootWithoutNamespaces: after a reboot no pod is there yet, and what is left of those before goes all the same; of a virtual
// function the port's link is still there.
func TestRebootWithoutNamespaces(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.announce(held)
	fresh := n.pod("team-a", 2)
	n.stop()
	n.locked(func() { n.unmounted = true })
	n = n.restart("boot2")
	n.nothingLeft()
	n.locked(func() {
		if _, there := n.bridges["br-rail0"].Ports[fresh.Port]; there {
			t.Error("a port of before the reboot was not purged")
		}
	})
}

// TestTombstoneOfAnUnknownAttachment: the store was lost, cached flows may be left.
func TestTombstoneOfAnUnknownAttachment(t *testing.T) {
	n := start(t)
	n.stop()
	began := n.operations()
	gone := store.Tombstone{Verb: store.Detach, Key: attachment.Key{Network: "rail0", ContainerID: "gone", Interface: "net1"}}
	if err := store.Bury(n.state, gone); err != nil {
		t.Fatal(err)
	}
	n.restart("boot1")
	n.position("revalidate", began)
	if store.Buried(n.state, gone) {
		t.Error("it is still buried")
	}
}

// TestTombstonesOfOneRailDoNotHoldUpAnother: rail0's bridge was taken over by a controller; rail1 serves, with its tombstone replayed.
func TestTombstonesOfOneRailDoNotHoldUpAnother(t *testing.T) {
	n := start(t)
	first := n.pod("team-a", 1)
	n.attach(first)
	n.announce(first)
	second := n.podOn("rail1", "team-a", 2)
	n.attach(second)
	n.announce(second)
	n.stop()
	for _, held := range []*attachment.Attachment{first, second} {
		if err := store.Bury(n.state, store.Tombstone{Verb: store.Detach, Key: held.Key}); err != nil {
			t.Fatal(err)
		}
		for _, host := range held.Hosts() {
			delete(n.routes, host) // as the plugin does
		}
	}
	n.bridges["br-rail0"].Controllers = 1
	began := n.operations()
	n = n.restart("boot1")
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != first.Key {
		t.Errorf("in the store: %v", stored)
	}
	third := n.podOn("rail1", "team-a", 3)
	n.attach(third)
	if got := failure.ReasonOf(n.agent.Attach(t.Context(), n.pod("team-a", 4))); got != nodev1.Reason_BRIDGE_FOREIGN {
		t.Errorf("on the rail whose DEL waits: %v", got)
	}
	n.locked(func() { n.bridges["br-rail0"].Controllers = 0 })
	n.await("the tombstone is replayed", func() bool { return len(n.stored()) == 1 })
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, operation := range n.history[began:] {
		if strings.HasPrefix(operation, "announce") {
			t.Errorf("an address that the plugin had withdrawn came back: %s", operation)
		}
	}
}

// buryAlone does what the plugins do in a DEL that finds no agent. Called with the world's mutex held.
func (n *node) buryAlone(held *attachment.Attachment) {
	for _, verb := range []store.Verb{store.Withdraw, store.Detach} {
		if err := store.Bury(n.state, store.Tombstone{Verb: verb, Key: held.Key}); err != nil {
			n.t.Error(err)
		}
		for _, host := range held.Hosts() {
			delete(n.routes, host)
		}
	}
}

// TestDeleteWhileStarting: what ends after the first replay, and before the API server lets the agent be ready, is not announced
// again, and is gone without waiting for it.
func TestDeleteWhileStarting(t *testing.T) {
	n, l := behind(t)
	held, other := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, each := range []*attachment.Attachment{held, other} {
		n.attach(each)
		n.announce(each)
	}
	n.stop()
	buried := 0 // the history's length when the DEL was done
	n.locked(func() {
		n.incarnation++ // Open vSwitch was restarted as well: the flows are installed anew
		n.flows["br-rail0"], n.flows["br-rail1"] = map[string]string{}, map[string]string{}
		n.added = func(string) {
			if buried == 0 {
				n.buryAlone(held)
				buried = len(n.history)
			}
		}
	})
	replayed := false
	l.locked(func() {
		l.publish = func(ctx context.Context, _ tenancy.Entry) error {
			for ctx.Err() == nil {
				if !store.Buried(n.state, store.Tombstone{Verb: store.Detach, Key: held.Key}) {
					l.locked(func() { replayed = true })
					return nil
				}
				time.Sleep(time.Millisecond)
			}
			return ctx.Err()
		}
	})
	n = n.restart("boot1")
	l.locked(func() {
		if !replayed {
			t.Error("the tombstone waits until the agent is ready")
		}
	})
	for _, operation := range n.history[buried:] {
		for _, host := range held.Hosts() {
			if operation == "announce "+host.String() {
				t.Errorf("an address that the plugin had withdrawn came back: %s", operation)
			}
		}
	}
	if routes := n.announced(); !slices.Equal(routes, other.Hosts()) || n.flowsWith(held.MAC) != 0 {
		t.Errorf("announced: %v, want %v; %d flows are left", routes, other.Hosts(), n.flowsWith(held.MAC))
	}
}

// TestDeleteMeetsTheAnnouncement: the DEL comes between the agent's look at the tombstones and its announcement.
func TestDeleteMeetsTheAnnouncement(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 1)
	n.attach(held)
	n.locked(func() { n.announces = sync.OnceFunc(func() { n.buryAlone(held) }) })
	if err := n.agent.Announce(t.Context(), held.Key, held.Rail, held.Addresses); failure.ReasonOf(err) != nodev1.Reason_ROUTE_DIFFERS {
		t.Errorf("announced after its DEL: %v", err)
	}
	n.await("the tombstones are replayed", func() bool { return len(n.stored()) == 0 })
	if routes := n.announced(); len(routes) != 0 || n.flowsWith(held.MAC) != 0 {
		t.Errorf("announced: %v, %d flows are left", routes, n.flowsWith(held.MAC))
	}
}

// TestUnreadableTombstones: what DELs wanted is not known, so nothing new is served. Pods that run keep their announcements.
func TestUnreadableTombstones(t *testing.T) {
	n := start(t)
	held := n.pod("team-a", 2)
	n.attach(held)
	n.announce(held)
	if err := os.WriteFile(filepath.Join(n.state, "tombstones"), nil, 0o600); err != nil { // a file, not a directory
		t.Fatal(err)
	}
	for verb, err := range map[string]error{"Attach": n.agent.Attach(t.Context(), n.pod("team-a", 1)), "STATUS": n.agent.Status(t.Context(), "rail0")} {
		if got := failure.ReasonOf(err); got != nodev1.Reason_STORE_FAILED {
			t.Errorf("%s: %v", verb, err)
		}
	}
	n.agent.reconcile(t.Context())
	if routes := n.announced(); !slices.Equal(routes, held.Hosts()) {
		t.Errorf("announced: %v", routes)
	}
}

// TestFullDisk: the agent starts on it and does for the pods that run what it can; STATUS and ADDs refuse new ones. When there is room
// again all is well, without anybody's ADD.
func TestFullDisk(t *testing.T) {
	tenants, state := t.TempDir(), t.TempDir()
	writeNamespaces(t, tenants, map[string]string{"team-a": ""})
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "nr_inodes=16"); err != nil {
		t.Skipf("no file system may be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil {
			t.Error(err)
		}
	})
	n := newWorld(t).boot("node1", state, tenants, "boot1")
	held, ends := n.pod("team-a", 1), n.pod("team-a", 2)
	for _, each := range []*attachment.Attachment{held, ends} {
		n.attach(each)
		n.announce(each)
	}
	n.stop()
	var fill []string
	for {
		path := filepath.Join(state, fmt.Sprint(len(fill)))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			break
		}
		fill = append(fill, path)
	}
	n.locked(func() { // Open vSwitch was restarted, too
		n.incarnation++
		n.flows["br-rail0"], n.flows["br-rail1"] = map[string]string{}, map[string]string{}
	})
	n = n.restart("boot1")
	for verb, err := range map[string]error{"ADD": n.agent.Attach(t.Context(), n.pod("team-a", 3)), "STATUS": n.agent.Status(t.Context(), "rail0")} {
		if got := failure.ReasonOf(err); got != nodev1.Reason_STORE_FAILED {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if err := errors.Join(n.agent.CheckAttachment(t.Context(), held), n.agent.CheckAnnouncement(t.Context(), held.Key, "rail0", held.Addresses)); err != nil {
		t.Errorf("a pod that runs: %v", err)
	}
	_ = n.agent.Detach(t.Context(), ends.Key) // whatever it says of the store
	if routes := n.announced(); !slices.Equal(routes, held.Hosts()) || n.flowsWith(ends.MAC) != 0 {
		t.Errorf("after DEL: announced %v, %d flows", routes, n.flowsWith(ends.MAC))
	}
	for _, path := range fill {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	n.await("STATUS is right again", func() bool { return n.agent.Status(t.Context(), "rail0") == nil })
	if stored := n.stored(); len(stored) != 1 || stored[0].Key != held.Key {
		t.Errorf("%+v", stored)
	}
}

// TestDetachThatIsNotStored fails again when it is repeated, and so does its tombstone: an agent that started then would put port,
// flows and announcement of the pod back, whose address is somebody else's. What never came into the store has nothing to wait for.
func TestDetachThatIsNotStored(t *testing.T) {
	n := start(t)
	held, buried, refused := n.pod("team-a", 1), n.pod("team-a", 2), n.pod("team-a", 3)
	for _, each := range []*attachment.Attachment{held, buried} {
		n.attach(each)
		n.announce(each)
	}
	// A directory in the store's place cannot be replaced by a file.
	file := filepath.Join(n.state, "store.json")
	if err := errors.Join(os.Rename(file, file+".away"), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := failure.ReasonOf(n.agent.Attach(t.Context(), refused)); got != nodev1.Reason_STORE_FAILED {
		t.Errorf("ADD: %v", got)
	}
	for try := range 3 {
		if got := failure.ReasonOf(n.agent.Detach(t.Context(), held.Key)); got != nodev1.Reason_STORE_FAILED {
			t.Errorf("DEL, try %d: %v", try+1, got)
		}
	}
	if err := n.agent.Detach(t.Context(), refused.Key); err != nil {
		t.Errorf("DEL of what was refused: %v", err)
	}
	tombstone := store.Tombstone{Verb: store.Detach, Key: buried.Key}
	if err := store.Bury(n.state, tombstone); err != nil {
		t.Fatal(err)
	}
	for try := range 3 {
		if err := n.agent.replayTombstones(t.Context(), nil); err == nil || !store.Buried(n.state, tombstone) {
			t.Errorf("tombstone, try %d: %v", try+1, err)
		}
	}
	if err := errors.Join(os.Remove(file), os.Rename(file+".away", file)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(n.agent.Detach(t.Context(), held.Key), n.agent.replayTombstones(t.Context(), nil)); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if stored := n.stored(); len(stored) != 0 || store.Buried(n.state, tombstone) {
		t.Errorf("with room again: stored %v, buried %v", stored, store.Buried(n.state, tombstone))
	}
}
