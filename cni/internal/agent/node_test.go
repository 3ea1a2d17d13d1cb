package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/nodeconfig"
	"github.com/railweave/railweave/cni/internal/store"
	"github.com/railweave/railweave/cni/internal/tenancy"
)

// node is an agent on a world, with what it needs on disk.
type node struct {
	*world
	agent *Agent
	state string
	stop  func()
}

const nodeFile = `{"apiVersion":"railweave.io/v1","kind":"NodeConfig","node":"%s","asn":65001,"routerID":"10.255.0.1","stateDir":"%s",
"tenancy":{"source":"directory","directory":"%s"},"rails":[
{"name":"rail0","bridge":"br-rail0","uplink":"p0","pools":[{"prefix":"10.64.0.0/16","gateway":"10.64.0.1"},{"prefix":"fd64::/64","gateway":"fd64::1"}],"peer":{"unnumbered":true}},
{"name":"rail1","bridge":"br-rail1","uplink":"p1","pools":[{"prefix":"10.65.0.0/16","gateway":"10.65.0.1"}],"peer":{"unnumbered":true}}]}`

func (w *world) boot(name, state, tenants, bootID string) *node {
	w.t.Helper()
	text := fmt.Sprintf(nodeFile, name, state, tenants)
	if w.pools != nil {
		text = w.pools.Replace(text)
	}
	config, err := nodeconfig.Parse("test", []byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	source, err := tenancy.OpenDirectory(ctx, tenants, name)
	if err != nil {
		w.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	surroundings := Surroundings{
		Config: config, Database: database{w}, Switch: w, Routing: routing{w}, Kernel: host{w}, Pods: pods{w}, Source: source, Recorder: LogRecorder{log}, Preflight: w.preflight,
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: log, BootID: bootID, Now: w.now,
	}
	if w.source != nil {
		surroundings.Source = w.source(source)
	}
	if w.recorder != nil {
		surroundings.Recorder = w.recorder
	}
	a := New(surroundings)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	n := &node{world: w, agent: a, state: state}
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(n.stop)
	w.await("the agent is ready", a.Ready)
	return n
}

// start boots node1 with Namespaces team-a, team-b and team-c.
func start(t *testing.T) *node {
	t.Helper()
	tenants := t.TempDir()
	writeNamespaces(t, tenants, map[string]string{"team-a": "", "team-b": "", "team-c": ""})
	return newWorld(t).boot("node1", t.TempDir(), tenants, "boot1")
}

// restart is a crash: the new agent has only what is on disk and in the world.
func (n *node) restart(bootID string) *node {
	n.t.Helper()
	n.stop()
	return n.boot("node1", n.state, n.agent.Config.Tenancy.Directory, bootID)
}

func writeNamespaces(t *testing.T, dir string, tenants map[string]string) {
	t.Helper()
	entries := []string{}
	for name, tenant := range tenants {
		entries = append(entries, fmt.Sprintf("%q:{\"tenant\":%q}", name, tenant))
	}
	path := filepath.Join(dir, ".namespaces")
	if err := os.WriteFile(path, []byte(`{"namespaces":{`+strings.Join(entries, ",")+`}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, filepath.Join(dir, "namespaces.json")); err != nil {
		t.Fatal(err)
	}
}

// now is the agents' clock; later moves it.
func (w *world) now() time.Time           { return time.Now().Add(time.Duration(w.ahead.Load())) }
func (w *world) later(span time.Duration) { w.ahead.Add(int64(span)) }

func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within 60 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// pod does what the runtime, ovs-cni and the IPAM do before our plugin: a namespace, an interface in it, a port.
func (n *node) pod(namespace string, number int) *attachment.Attachment {
	return n.podOn("rail0", namespace, number)
}

func (n *node) podOn(rail, namespace string, number int) *attachment.Attachment {
	name := fmt.Sprintf("pod%d", number)
	held := &attachment.Attachment{
		Key: attachment.Key{Network: rail, ContainerID: name, Interface: "net1"}, Netns: "/run/netns/" + name, Rail: rail,
		Pod: attachment.Pod{Namespace: namespace, Name: name, UID: name}, Port: fmt.Sprintf("veth%d", number), MAC: fmt.Sprintf("0a:58:0a:40:%02x:%02x", number/256, number%256),
		Device: "0000:03:00.2",
	}
	for _, pool := range n.agent.rails[rail].config.Pools {
		octets := pool.Prefix.Addr().AsSlice()
		last := len(octets) - 1
		octets[last-1], octets[last] = byte(1+number/200), byte(2+number%200)
		address, _ := netip.AddrFromSlice(octets)
		held.Addresses = append(held.Addresses, netip.PrefixFrom(address, pool.Prefix.Bits()))
	}
	n.locked(func() {
		n.netns[held.Netns] = &fakeNetns{inode: uint64(4026530000 + number), interfaces: map[string]*fakeInterface{"net1": {mac: held.MAC, addresses: slices.Clone(held.Addresses)}}}
		n.links[held.Port] = true
		n.addPort("br-"+rail, held.Port, map[string]string{"owner": ovsCNIOwner, ovsCNINetns: held.Netns})
	})
	return held
}

func (n *node) attach(held *attachment.Attachment) {
	n.t.Helper()
	if err := n.agent.Attach(n.t.Context(), held.Clone()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) announce(held *attachment.Attachment) {
	n.t.Helper()
	if err := n.agent.Announce(n.t.Context(), held.Key, held.Rail, held.Addresses); err != nil {
		n.t.Fatal(err)
	}
}

// flowsWith counts the bridge's flows that have a text.
func (w *world) flowsWith(text string) int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	count := 0
	for _, flow := range w.flows["br-rail0"] {
		if strings.Contains(flow, text) {
			count++
		}
	}
	return count
}

func (w *world) announced() []netip.Addr {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.SortedFunc(maps.Keys(w.routes), netip.Addr.Compare)
}

func (n *node) stored() []*attachment.Attachment {
	n.t.Helper()
	state, err := store.Read(n.state)
	if err != nil {
		n.t.Fatal(err)
	}
	return state.Attachments
}

// nothingLeft: no flow, route, store entry or published address of any attachment.
func (n *node) nothingLeft() {
	n.t.Helper()
	if count := n.flowsWith("priority=200"); count != 0 {
		n.t.Errorf("%d flows are left", count)
	}
	if routes := n.announced(); len(routes) != 0 {
		n.t.Errorf("announced: %v", routes)
	}
	if left := n.stored(); len(left) != 0 {
		n.t.Errorf("in the store: %v", left)
	}
	for address, entry := range n.agent.Source.View().Entries {
		if entry.Node == "node1" {
			n.t.Errorf("published: %v", address)
		}
	}
}

// position of the first operation in the history that begins with a text, after a position.
func (n *node) position(text string, after int) int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for i := after; i < len(n.history); i++ {
		if strings.HasPrefix(n.history[i], text) {
			return i
		}
	}
	n.t.Fatalf("no %q after %d", text, after)
	return 0
}

func (n *node) operations() int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return len(n.history)
}
