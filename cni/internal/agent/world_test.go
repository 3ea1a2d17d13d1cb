package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/preflight"
	"github.com/railweave/railweave/cni/internal/tenancy"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// world is a node in memory: switch, database, routing, kernel and pods. It survives the agents that work on it.
type world struct {
	t     *testing.T
	mutex sync.Mutex

	bridges     map[string]*vswitch.Bridge
	flows       map[string]map[string]string // bridge, flow's identity, flow
	incarnation uint64
	nextPort    int
	changed     chan struct{}

	sessions  map[string]frr.Session
	leafMAC   string
	routes    map[netip.Addr]bool
	lacking   map[netip.Addr]int  // so many of the kernel's next lists lack these, as lists of IPv6 routes do while others come and go
	missed    map[netip.Addr]bool // bgpd did not hear of the last change of these
	untold    map[netip.Addr]bool // the leafs did not hear that these are gone
	links     map[string]bool
	mtus      map[string]int // of links; one that is not in it has 1500
	shut      map[string]bool
	netns     map[string]*fakeNetns
	unmounted bool             // the agents see none of them
	fail      map[string]error // by operation
	findings  []preflight.Finding
	megaflows []vswitch.Megaflow
	history   []string
	source    func(tenancy.Source) tenancy.Source // wraps the agents' source; nil: nothing
	pools     *strings.Replacer                   // of the node file; nil: as it is
	recorder  Recorder                            // the agents'; nil: the log
	ahead     atomic.Int64                        // of the agents' clock before the real one, in nanoseconds
	added     func(flow string)                   // hears of every flow that is installed; nil: nobody does
	announces func()                              // hears of every announcement, before it is made; nil: nobody does
	sets      func()                              // hears of every configuration of a pod, before it is made; nil: nobody does
}

type fakeNetns struct {
	inode      uint64
	interfaces map[string]*fakeInterface
}

type fakeInterface struct {
	mac        string
	addresses  []netip.Prefix
	configured *podnet.Interface
	spoiled    bool
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, bridges: map[string]*vswitch.Bridge{}, flows: map[string]map[string]string{}, incarnation: 1, nextPort: 1, changed: make(chan struct{}, 1),
		sessions: map[string]frr.Session{
			"rail0": {Established: true, Peer: netip.MustParseAddr("fe80::1%br-rail0")},
			"rail1": {Established: true, Peer: netip.MustParseAddr("fe80::2%br-rail1")}},
		leafMAC: "02:00:00:00:00:99", routes: map[netip.Addr]bool{}, lacking: map[netip.Addr]int{}, missed: map[netip.Addr]bool{}, untold: map[netip.Addr]bool{}, links: map[string]bool{"p0": true, "p1": true}, mtus: map[string]int{}, shut: map[string]bool{}, netns: map[string]*fakeNetns{}, fail: map[string]error{},
	}
}

// do notes an operation and tells whether it is to fail.
func (w *world) do(operation string, args ...any) error {
	w.history = append(w.history, strings.TrimSpace(operation+" "+fmt.Sprint(args...)))
	return w.fail[operation]
}

func (w *world) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// locked runs a test's change of the world.
func (w *world) locked(change func()) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	change()
	w.notify()
}

func (w *world) Bridge(_ context.Context, name string) (*vswitch.Bridge, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	bridge := w.bridges[name]
	if bridge == nil {
		return nil, w.fail["bridge"]
	}
	copied := *bridge
	copied.Ports = maps.Clone(bridge.Ports)
	return &copied, w.fail["bridge"]
}

func (w *world) Owners(context.Context) map[string]string {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	owners := map[string]string{}
	for name, bridge := range w.bridges {
		if bridge.Owner != "" {
			owners[name] = bridge.Owner
		}
	}
	return owners
}

func (w *world) EnsureBridge(_ context.Context, wanted vswitch.Bridge, uplink string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.do("ensure-bridge", wanted.Name); err != nil {
		return err
	}
	bridge := w.bridges[wanted.Name]
	if bridge == nil {
		bridge = &vswitch.Bridge{Ports: map[string]vswitch.Port{wanted.Name: {Name: wanted.Name, OFPort: 65534}}}
		w.bridges[wanted.Name], w.flows[wanted.Name] = bridge, map[string]string{}
		w.notify()
	}
	ports := bridge.Ports
	*bridge = wanted
	bridge.Ports = ports
	if _, there := ports[uplink]; !there {
		w.addPort(wanted.Name, uplink, nil)
	}
	return nil
}

func (w *world) addPort(bridge, name string, ids map[string]string) {
	w.bridges[bridge].Ports[name] = vswitch.Port{Name: name, OFPort: w.nextPort, ExternalIDs: ids}
	w.nextPort++
	w.notify()
}

func (w *world) AddPort(_ context.Context, bridge, name string, ids map[string]string, _ int) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.do("add-port", name); err != nil {
		return err
	}
	w.addPort(bridge, name, maps.Clone(ids))
	return nil
}

func (w *world) DeletePort(_ context.Context, bridge, name string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	delete(w.bridges[bridge].Ports, name)
	w.notify()
	return w.do("delete-port", name)
}

func (w *world) MarkPort(_ context.Context, bridge, name, key, value string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.do("mark-port", name); err != nil {
		return err
	}
	port := w.bridges[bridge].Ports[name]
	port.ExternalIDs = maps.Clone(port.ExternalIDs)
	if port.ExternalIDs == nil {
		port.ExternalIDs = map[string]string{}
	}
	port.ExternalIDs[key] = value
	w.bridges[bridge].Ports[name] = port
	return nil
}

func (w *world) SetOtherConfig(context.Context, string, string) error { return nil }
func (w *world) Changed() <-chan struct{}                             { return w.changed }

func identity(flow string) string {
	_, rest, _ := strings.Cut(flow, ",")
	id, _, _ := strings.Cut(rest, ",actions=")
	return id
}

func (w *world) Apply(_ context.Context, bridge, bundle string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.do("flows", bridge); err != nil {
		return err
	}
	for line := range strings.Lines(bundle) {
		verb, flow, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch verb {
		case "add":
			w.add(bridge, flow)
		case "delete_strict":
			_, id, _ := strings.Cut(flow, ",")
			delete(w.flows[bridge], id)
		case "delete":
			fields := strings.Split(flow, ",")[1:]
			maps.DeleteFunc(w.flows[bridge], func(id, _ string) bool {
				has := strings.Split(id, ",")
				return !slices.ContainsFunc(fields, func(f string) bool { return !slices.Contains(has, f) })
			})
		default:
			w.t.Errorf("bundle line %q", line)
		}
	}
	return nil
}

func (w *world) Replace(_ context.Context, bridge, program string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if err := w.do("flows", bridge); err != nil {
		return err
	}
	w.flows[bridge] = map[string]string{}
	for line := range strings.Lines(program) {
		w.add(bridge, strings.TrimSpace(line))
	}
	return nil
}

func (w *world) add(bridge, flow string) {
	w.flows[bridge][identity(flow)] = flow
	if w.added != nil {
		w.added(flow)
	}
}

func (w *world) Differences(_ context.Context, bridge, program string) ([]string, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	wanted := map[string]bool{}
	var lines []string
	for line := range strings.Lines(program) {
		wanted[strings.TrimSpace(line)] = true
	}
	for _, flow := range w.flows[bridge] {
		if !wanted[flow] {
			lines = append(lines, "-"+flow)
		}
		delete(wanted, flow)
	}
	for flow := range wanted {
		lines = append(lines, "+"+flow)
	}
	return lines, w.fail["differences"]
}

func (w *world) Flows(_ context.Context, bridge string) ([]string, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Sorted(maps.Values(w.flows[bridge])), nil
}

func (w *world) PortNumbers(_ context.Context, bridge string) (map[string]int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	numbers := map[string]int{}
	for name, port := range w.bridges[bridge].Ports {
		numbers[name] = port.OFPort
	}
	return numbers, nil
}

func (w *world) Incarnation(string) uint64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.incarnation
}

// database is the world's database; both it and the switch are asked whether they answer.
type database struct{ *world }

func (d database) Answers(context.Context) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.fail["database"]
}

func (w *world) Answers(context.Context) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.fail["answers"]
}

func (w *world) preflight(context.Context) []preflight.Finding {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Clone(w.findings)
}

func (w *world) Revalidate(context.Context, string) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.do("revalidate")
}

func (w *world) Megaflows(context.Context) ([]vswitch.Megaflow, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return slices.Clone(w.megaflows), nil
}

// routing, kernel and pods are the other sides of the same world; their methods' names collide with the database's.
type routing struct{ *world }

func (r routing) Ensure(context.Context) error { return nil }
func (r routing) Incarnation() uint64          { return 1 }
func (r routing) Sessions(context.Context) (map[string]frr.Session, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return maps.Clone(r.sessions), r.fail["sessions"]
}

func (r routing) Originated(context.Context) (map[netip.Addr]bool, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	found := maps.Clone(r.routes)
	for address := range r.missed {
		if r.routes[address] {
			delete(found, address)
		} else {
			found[address] = true
		}
	}
	return found, r.fail["originated"]
}

func (r routing) Advertised(ctx context.Context) (map[netip.Addr]bool, error) {
	found, err := r.Originated(ctx)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	maps.Copy(found, r.untold)
	return found, err
}

func (r routing) Redistribute(_ context.Context, ipv4 bool) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.do("redistribute", ipv4); err != nil {
		return err
	}
	// What bgpd holds although the kernel does not it keeps, as FRR 8.4's does.
	maps.DeleteFunc(r.missed, func(address netip.Addr, _ bool) bool { return address.Is4() == ipv4 && r.routes[address] })
	return nil
}

type host struct{ *world }

func (h host) Announce(address netip.Addr) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.do("announce", address); err != nil {
		return err
	}
	if h.announces != nil {
		h.announces()
	}
	h.routes[address] = true
	delete(h.missed, address) // bgpd has it: it had it before, or it hears of it
	delete(h.untold, address) // and has told the leafs, so that it can take it back
	return nil
}

func (h host) Withdraw(address netip.Addr) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	delete(h.routes, address)
	return h.do("withdraw", address)
}

func (h host) Announcements() (map[netip.Addr]bool, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	found := maps.Clone(h.routes)
	for address, lists := range h.lacking {
		if lists > 0 {
			delete(found, address)
			h.lacking[address]--
		}
	}
	return found, nil
}

func (h host) EnsureLocal(kernel.Local) (int, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return 9000, h.fail["local"]
}

func (h host) RepeatAddresses(link string) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.do("repeat-addresses", link)
}

func (h host) NeighbourMAC(string, netip.Addr) (string, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.leafMAC, nil
}

func (h host) LinkExists(name string) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.links[name]
}

func (h host) MTU(link string) (int, error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if !h.links[link] {
		return 0, os.ErrNotExist
	}
	return cmp.Or(h.mtus[link], 1500), nil
}

func (h host) EnsureMTU(link string, mtu int) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.do("mtu", link); err != nil {
		return err
	}
	h.mtus[link] = mtu
	return nil
}

func (h host) ClosePort(link string) error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if err := h.do("close-port", link); err != nil {
		return err
	}
	h.shut[link] = true
	return nil
}

type pods struct{ *world }

func (p pods) find(netns, name string) (*fakeInterface, error) {
	namespace := p.netns[netns]
	if namespace == nil {
		return nil, os.ErrNotExist
	}
	link := namespace.interfaces[name]
	if link == nil {
		return nil, podnet.ErrNoInterface
	}
	return link, nil
}

func (p pods) Inode(path string) (uint64, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if path == "/etc/hostname" {
		return 0, podnet.ErrNotNamespace
	}
	if namespace := p.netns[path]; namespace != nil && !p.unmounted {
		return namespace.inode, nil
	}
	return 0, os.ErrNotExist
}

func (p pods) Fate(path string, inode uint64) podnet.Fate {
	found, err := p.Inode(path)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch {
	case err == nil && (inode == 0 || inode == found):
		return podnet.Lives
	case err != nil && p.unmounted:
		return podnet.Unclear
	default:
		return podnet.Ended
	}
}

func (p pods) Alive(path string, inode uint64) bool {
	found, err := p.Inode(path)
	return err == nil && found == inode
}

func (p pods) MAC(netns, name string) (string, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link, err := p.find(netns, name)
	if err != nil {
		return "", err
	}
	return link.mac, nil
}

func (p pods) CheckAddresses(i *podnet.Interface) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link, err := p.find(i.Netns, i.Name)
	if err == nil && !slices.Equal(link.addresses, i.Addresses) {
		err = &podnet.DifferenceError{What: "address", Found: fmt.Sprint(link.addresses), Expected: fmt.Sprint(i.Addresses)}
	}
	return err
}

func (p pods) Configure(i *podnet.Interface) error {
	p.mutex.Lock()
	hears := p.sets
	p.mutex.Unlock()
	if hears != nil {
		hears()
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link, err := p.find(i.Netns, i.Name)
	if err := errors.Join(err, p.do("configure", i.Name)); err != nil {
		return err
	}
	link.configured, link.spoiled = i, false
	return nil
}

func (p pods) Check(i *podnet.Interface) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link, err := p.find(i.Netns, i.Name)
	if err == nil && (link.configured == nil || link.spoiled) {
		err = &podnet.DifferenceError{What: "route", Found: "missing", Expected: "there"}
	}
	return err
}

func (p pods) Release(i *podnet.Interface) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	link, err := p.find(i.Netns, i.Name)
	if err := errors.Join(err, p.do("release", i.Name)); err != nil {
		return err
	}
	link.configured = nil
	return nil
}

func (p pods) RDMAReady(string, string, []netip.Prefix) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.fail["rdma"]
}
