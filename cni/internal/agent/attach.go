package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/failure"
	"github.com/railweave/railweave/cni/internal/flow"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/tenancy"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

func (a *Agent) findRail(name string) (*rail, error) {
	if r, known := a.rails[name]; known {
		return r, nil
	}
	return nil, failure.New(nodev1.Reason_RAIL_UNKNOWN, name, "name one of the rails in the node file", "this node has no such rail")
}

// Attach puts an attachment into the switch and configures the pod's interface.
func (a *Agent) Attach(ctx context.Context, wanted *attachment.Attachment) error {
	if err := wanted.Validate(); err != nil {
		return failure.New(nodev1.Reason_REQUEST_MALFORMED, wanted.Key.String(), "", "%v", err)
	}
	r, err := a.findRail(wanted.Rail)
	if err != nil {
		return err
	}
	if err := a.replayTombstones(ctx, r); err != nil {
		return wrap(err, nodev1.Reason_STORE_FAILED, wanted.Key.String(), "an earlier DEL could not be replayed")
	}
	release, err := a.busy.take(ctx, wanted.Key)
	if err != nil {
		return err
	}
	defer release()
	if err := a.judgeAddresses(r, wanted); err != nil {
		return err
	}
	if err := a.judgePod(ctx, wanted); err != nil {
		return err
	}
	if problem := r.usable(); problem != nil {
		return problem
	}
	if problem := a.nodeProblem(wanted.Rail); problem != nil {
		return problem
	}
	port, err := r.awaitPort(ctx, wanted.Port)
	if err != nil {
		return err
	}
	wanted.PortIDs = foreignIDs(port)
	repeated, err := a.reserve(ctx, wanted)
	if err != nil {
		return err
	}
	if err := a.realise(ctx, r, wanted); err != nil {
		if !repeated {
			// The caller's context may be over; what was begun is undone all the same.
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			err = errors.Join(err, a.remove(undo, wanted.Key))
		}
		return err
	}
	return nil
}

const undoTime = 10 * time.Second

// judgeAddresses: whatever an annotation made the IPAM hand out, only the pool's own host addresses are served.
func (a *Agent) judgeAddresses(r *rail, wanted *attachment.Attachment) error {
	const remedy = "let the IPAM allocate from the rail's pool, without an address requested by the pod"
	refuse := func(address netip.Addr, why string) error {
		return failure.New(nodev1.Reason_ADDRESS_REFUSED, address.String(), remedy, "%s", why)
	}
	for _, prefix := range wanted.Addresses {
		address := prefix.Addr()
		pool, inside := r.config.PoolOf(address)
		switch {
		case !inside:
			return refuse(address, "it lies in no pool of "+r.config.Name)
		case address == pool.Gateway || slices.Contains(wanted.Gateways, address):
			return refuse(address, "it is a gateway's")
		case address == pool.Prefix.Addr() && !pool.Prefix.IsSingleIP():
			return refuse(address, "it is the pool's network address")
		case address.Is4() && pool.Prefix.Bits() < 31 && address == lastOf(pool.Prefix):
			return refuse(address, "it is the pool's broadcast address")
		}
		for i := range a.Config.Rails {
			other := &a.Config.Rails[i]
			if slices.Contains(other.Peer.Addresses, address) {
				return refuse(address, "it is a leaf's")
			}
			for _, own := range other.NodeAddresses() {
				if own.Addr() == address {
					return refuse(address, "it is the node's")
				}
			}
		}
	}
	r.mutex.Lock()
	leaf := r.leafMAC
	r.mutex.Unlock()
	if !flow.ValidMAC(wanted.MAC) || wanted.MAC == r.config.RouterMAC || wanted.MAC == leaf {
		return failure.New(nodev1.Reason_MAC_REFUSED, wanted.MAC, "let ovs-cni choose the MAC address", "a pod's MAC address must be unicast and neither the router's nor the leaf's")
	}
	return nil
}

// lastOf is the highest address of a prefix.
func lastOf(prefix netip.Prefix) netip.Addr {
	octets := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(octets)*8; bit++ {
		octets[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(octets) // 4 or 16 octets, as they came
	return last
}

// judgePod: the namespace must be one, the interface must be in it as claimed, and the pod must exist.
func (a *Agent) judgePod(ctx context.Context, wanted *attachment.Attachment) error {
	inode, err := a.Pods.Inode(wanted.Netns)
	switch {
	case errors.Is(err, podnet.ErrNotNamespace), errors.Is(err, os.ErrNotExist):
		return failure.New(nodev1.Reason_NETNS_MISSING, wanted.Netns, "the runtime must pass the pod's network namespace", "it is no network namespace").Because(err)
	case err != nil:
		return failure.New(nodev1.Reason_NETNS_MISSING, wanted.Netns, "mount the runtime's netns directory into the agent with propagation HostToContainer", "it cannot be opened").Because(err)
	}
	wanted.NetnsInode, wanted.BootID = inode, a.BootID
	mac, err := a.Pods.MAC(wanted.Netns, wanted.Interface)
	if err != nil {
		return podFailure(wanted, err)
	}
	if mac != wanted.MAC {
		return failure.New(nodev1.Reason_MAC_REFUSED, wanted.MAC, "no plugin between ovs-cni and railweave-ovs may change the MAC address", "the interface %s has %s", wanted.Interface, mac)
	}
	if err := a.Pods.CheckAddresses(a.podInterface(wanted)); err != nil {
		return podFailure(wanted, err)
	}
	err = a.Source.VerifyPod(ctx, wanted.Pod)
	pod := wanted.Pod.Namespace + "/" + wanted.Pod.Name
	switch {
	case errors.Is(err, tenancy.ErrNoNamespace):
		return failure.New(nodev1.Reason_NAMESPACE_UNKNOWN, pod, "K8S_POD_NAMESPACE in CNI_ARGS must name an existing Namespace", "the pod's Namespace does not exist").Because(err)
	case errors.Is(err, tenancy.ErrNoPod):
		return failure.New(nodev1.Reason_POD_UNKNOWN, pod, "K8S_POD_NAME and K8S_POD_UID in CNI_ARGS must name a pod of this node", "the API knows no such pod").Because(err)
	case errors.Is(err, tenancy.ErrBehind):
		return failure.New(nodev1.Reason_TENANCY_STALE, wanted.Pod.Namespace, "the runtime tries again", "the Namespace's tenant is not known yet").Because(err)
	case err != nil:
		return failure.New(nodev1.Reason_TENANCY_STALE, pod, "see whether the API server can be reached from the node", "the pod could not be verified").Because(err)
	}
	return a.judgeRDMA(wanted)
}

func (a *Agent) judgeRDMA(wanted *attachment.Attachment) error {
	err := a.Pods.RDMAReady(wanted.Netns, wanted.Device, wanted.Addresses)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, podnet.ErrNoDevice):
		return failure.New(nodev1.Reason_DEVICE_UNKNOWN, wanted.Device, "compare the device plugin's resource with the node's virtual functions (`lspci`, sriov_numvfs): one was removed, or the name is wrong",
			"there is no such PCI or auxiliary device").Because(err)
	case errors.Is(err, podnet.ErrRDMANotIsolated):
		return failure.New(nodev1.Reason_RDMA_NOT_ISOLATED, wanted.Device, "put rdma-cni between ovs-cni and railweave-ovs, or use `rdma system set netns shared`",
			"RDMA namespaces are exclusive, but the device is not in the pod's").Because(err)
	default:
		return failure.New(nodev1.Reason_RDMA_NOT_READY, wanted.Device, "the runtime tries again; see `show_gids` in the pod if it stays so", "its GIDs have not appeared").Because(err)
	}
}

func podFailure(wanted *attachment.Attachment, err error) error {
	var difference *podnet.DifferenceError
	switch {
	case errors.Is(err, podnet.ErrNoInterface):
		return failure.New(nodev1.Reason_INTERFACE_MISSING, wanted.Interface, "railweave-ovs must come after the plugin that makes the interface", "the pod has no such interface").Because(err)
	case errors.As(err, &difference):
		return failure.New(nodev1.Reason_POD_DIFFERS, wanted.Interface, "the agent sets routes, rules and neighbours again at its next reconciliation; for an address or MAC address restart the pod", "%v", difference)
	case errors.Is(err, os.ErrNotExist):
		return failure.New(nodev1.Reason_NETNS_MISSING, wanted.Netns, "", "it vanished").Because(err)
	default:
		return failure.New(nodev1.Reason_POD_SETUP_FAILED, wanted.Interface, "see the agent's log", "the pod's interface could not be read or set up").Because(err)
	}
}

// awaitPort waits for the switch to know the port, which ovs-cni has just added.
func (r *rail) awaitPort(ctx context.Context, name string) (vswitch.Port, error) {
	a := r.agent
	gone := func(why string) error {
		return failure.New(nodev1.Reason_PORT_MISSING, name, "ovs-cni must come first in the chain, with bridge "+r.config.Bridge, "%s", why)
	}
	deadline := a.Now().Add(settleTime)
	for {
		bridge, err := a.Database.Bridge(ctx, r.config.Bridge)
		if err != nil {
			return vswitch.Port{}, r.missing(err, "the database cannot be read")
		}
		if bridge == nil {
			return vswitch.Port{}, r.missing(nil, "it does not exist")
		}
		port, there := bridge.Ports[name]
		switch {
		case name == r.config.Bridge || name == r.config.Uplink:
			return vswitch.Port{}, gone("it is the rail's own port")
		case there && port.OFPort > 0:
			return port, nil
		case a.Now().After(deadline) && there && port.Error != "":
			return vswitch.Port{}, gone("ovs-vswitchd cannot use it: " + port.Error)
		case a.Now().After(deadline) && there:
			return vswitch.Port{}, gone("ovs-vswitchd gives it no OpenFlow number")
		case a.Now().After(deadline) || !there && !a.Kernel.LinkExists(name):
			return vswitch.Port{}, gone("it is not on bridge " + r.config.Bridge)
		}
		if err := sleep(ctx, settlePoll); err != nil {
			return vswitch.Port{}, err
		}
	}
}

// reserve enters the attachment, unless it collides with a live one. It tells whether the same one was there already.
func (a *Agent) reserve(ctx context.Context, wanted *attachment.Attachment) (repeated bool, err error) {
	a.mutex.Lock()
	var dead []attachment.Key
	for key, other := range a.attachments {
		if collision := collide(wanted, other); collision != nil {
			if a.dead(other) {
				dead = append(dead, key)
				continue
			}
			a.mutex.Unlock()
			return false, collision
		}
		repeated = repeated || key == wanted.Key
	}
	if len(dead) == 0 {
		if repeated {
			wanted.Announced = a.attachments[wanted.Key].Announced
		}
		a.attachments[wanted.Key] = wanted.Clone()
		a.mutex.Unlock()
		return repeated, nil
	}
	a.mutex.Unlock()
	for _, key := range dead {
		if key == wanted.Key {
			err = a.remove(ctx, key) // the turn is ours
		} else {
			_, err = a.removeDead(ctx, key) // in its turn: its own DEL must not succeed before this is done
		}
		if err != nil {
			return false, err
		}
	}
	return a.reserve(ctx, wanted)
}

// collide tells why two attachments cannot both be.
func collide(wanted, other *attachment.Attachment) error {
	if wanted.Key == other.Key {
		if wanted.SameRequest(other) {
			return nil
		}
		return failure.New(nodev1.Reason_ATTACHMENT_DIFFERS, wanted.Key.String(), "DEL it first", "it exists with other contents: port %s, %s, %v in %s", other.Port, other.MAC, other.Addresses, other.Netns)
	}
	for _, host := range wanted.Hosts() {
		if slices.Contains(other.Hosts(), host) {
			return failure.New(nodev1.Reason_ADDRESS_IN_USE, host.String(), "see why the IPAM hands it out twice", "pod %s/%s has it", other.Pod.Namespace, other.Pod.Name)
		}
	}
	if wanted.Rail != other.Rail {
		return nil
	}
	// A rail has one routing table in a pod: each of two interfaces would take the other's routes, again and again.
	if wanted.NetnsInode == other.NetnsInode && wanted.BootID == other.BootID {
		return failure.New(nodev1.Reason_REQUEST_MALFORMED, wanted.Key.String(), "name each rail once in the pod's networks",
			"the pod has an interface on %s already: %s", other.Rail, other.Interface)
	}
	if wanted.MAC == other.MAC {
		return failure.New(nodev1.Reason_MAC_IN_USE, wanted.MAC, "let ovs-cni choose the MAC address", "pod %s/%s has it", other.Pod.Namespace, other.Pod.Name)
	}
	if wanted.Port == other.Port {
		return failure.New(nodev1.Reason_PORT_IN_USE, wanted.Port, "DEL the other attachment first", "pod %s/%s uses it", other.Pod.Namespace, other.Pod.Name)
	}
	return nil
}

// realise does the work of Attach, all parts side by side. A crash in between leaves nothing wrong: what the store lacks is
// removed from the switch by the next start, and what it has is installed.
func (a *Agent) realise(ctx context.Context, r *rail, held *attachment.Attachment) error {
	switch err := a.claim(held); {
	case errors.Is(err, errNoNamespace):
		return failure.New(nodev1.Reason_NAMESPACE_UNKNOWN, held.Pod.Namespace, "", "the Namespace does not exist")
	case err != nil: // its namespace ended, and another attachment needed what it has
		return failure.New(nodev1.Reason_NETNS_MISSING, held.Netns, "", "it vanished").Because(err)
	}
	parts := []func() error{
		func() error {
			return datapathFailure(r.applying.do(ctx), r.config.Bridge, "the flows were not installed")
		},
		func() error {
			return wrap(a.saving.do(ctx), nodev1.Reason_STORE_FAILED, a.Config.StateDir, "the store was not written")
		},
		func() error { return publishFailure(a.publish(ctx, held)) },
		func() error {
			if err := a.Pods.Configure(a.podInterface(held)); err != nil {
				return podFailure(held, err)
			}
			return nil
		},
		func() error {
			return datapathFailure(a.ensurePortMTU(held), held.Port, "the port's MTU could not be set")
		},
		func() error {
			return datapathFailure(a.Kernel.ClosePort(held.Port), held.Port, "the port could not be closed to the node's own stack")
		},
		func() error {
			return datapathFailure(a.Database.MarkPort(ctx, r.config.Bridge, held.Port, markKey, mark(held)), held.Port, "the port could not be marked")
		},
	}
	results := make(chan error, len(parts))
	for _, part := range parts {
		go func() { results <- part() }()
	}
	var first error
	for range parts {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return first
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.Metrics.Attachments.Set(float64(len(a.attachments)))
	return nil
}

// ensurePortMTU gives the host's end of an interface, or a virtual function's representor, the MTU of the pod's end. ovs-cni leaves
// it at the kernel's 1500 unless the network's configuration says otherwise, and what is longer would be dropped without a word.
func (a *Agent) ensurePortMTU(held *attachment.Attachment) error {
	if mtu := a.railMTU(held.Rail); mtu > 0 {
		return a.Kernel.EnsureMTU(held.Port, mtu)
	}
	return nil
}

func wrap(err error, reason nodev1.Reason, subject, problem string) error {
	var typed *failure.Error
	if err == nil || errors.As(err, &typed) {
		return err
	}
	return failure.New(reason, subject, "see the agent's log", "%s", problem).Because(err)
}

// datapathFailure of an Attach: Open vSwitch refused it, or is busy or away, which passes. (A Detach fails in both cases: it has to be
// called again while the agent runs.)
func datapathFailure(err error, subject, problem string) error {
	if errors.Is(err, vswitch.ErrSilent) {
		return failure.New(nodev1.Reason_NOT_READY, subject, "the runtime tries again; if it stays so see whether ovsdb-server and ovs-vswitchd answer", "%s", problem).Because(err)
	}
	return wrap(err, nodev1.Reason_DATAPATH_FAILED, subject, problem)
}

func publishFailure(err error) error {
	var taken *tenancy.TakenError
	if errors.As(err, &taken) {
		return failure.New(nodev1.Reason_ADDRESS_IN_USE, taken.Address.String(), "see why the IPAM hands it out twice", "node %s has it", taken.Node)
	}
	return wrap(err, nodev1.Reason_TENANCY_STALE, "tenancy", "the address could not be published")
}

// remove takes an attachment out of everything. One that is not there is success.
func (a *Agent) remove(ctx context.Context, key attachment.Key) error {
	a.mutex.Lock()
	held, known := a.attachments[key]
	delete(a.attachments, key)
	stored := a.stored[key]
	a.mutex.Unlock()
	if !known && stored { // a DEL that could not be stored is not to succeed for being repeated
		return wrap(a.saving.do(ctx), nodev1.Reason_STORE_FAILED, a.Config.StateDir, "the store was not written")
	}
	if !known {
		return nil
	}
	// The rail withdraws before it changes flows. The store follows: a crash in between only means that it is done again.
	r := a.rails[held.Rail]
	if err := wrap(r.applying.do(ctx), nodev1.Reason_DATAPATH_FAILED, r.config.Bridge, "the flows were not removed"); err != nil {
		return a.keep(held, err)
	}
	if err := wrap(a.withdrawHosts(held), nodev1.Reason_DATAPATH_FAILED, key.String(), "the routes were not removed"); err != nil {
		return a.keep(held, err)
	}
	// The next pod may get this port within milliseconds: no cached flow may still lead to it.
	if err := wrap(a.revalidating.do(ctx), nodev1.Reason_DATAPATH_FAILED, r.config.Bridge, "cached flows may be left"); err != nil {
		return a.keep(held, err)
	}
	disowned := a.disown(held)
	a.release(held)
	// The store first: what a crash, or an API server that does not answer, leaves published is taken back later, as nobody has it.
	err := wrap(a.saving.do(ctx), nodev1.Reason_STORE_FAILED, a.Config.StateDir, "the store was not written")
	a.takeBack(ctx, disowned)
	if err != nil {
		return err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.Metrics.Attachments.Set(float64(len(a.attachments)))
	return nil
}

// release cleans up in a pod that lives on without the interface. One that is ending is no reason to keep the attachment.
func (a *Agent) release(held *attachment.Attachment) {
	if held.BootID != a.BootID || !a.Pods.Alive(held.Netns, held.NetnsInode) {
		return
	}
	if err := a.Pods.Release(a.podInterface(held)); err != nil {
		a.Log.Warn("rules may be left in a pod", "attachment", held.Key.String(), "error", err)
	}
}

// keep enters an attachment again whose removal failed, so that the next DEL finds it.
func (a *Agent) keep(held *attachment.Attachment, err error) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.attachments[held.Key] = held
	return fmt.Errorf("%s is kept until it can be removed: %w", held.Key, err)
}
