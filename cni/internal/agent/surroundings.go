package agent

import (
	"context"
	"net/netip"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/frr"
	"github.com/railweave/railweave/cni/internal/kernel"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// What the agent works on. The real ones are in vswitch, frr, kernel and podnet; the tests have their own.

// Database of Open vSwitch.
type Database interface {
	Bridge(ctx context.Context, name string) (*vswitch.Bridge, error)
	Owners(ctx context.Context) map[string]string
	EnsureBridge(ctx context.Context, wanted vswitch.Bridge, uplink string) error
	AddPort(ctx context.Context, bridge, name string, externalIDs map[string]string, number int) error
	DeletePort(ctx context.Context, bridge, name string) error
	MarkPort(ctx context.Context, bridge, name, key, value string) error
	SetOtherConfig(ctx context.Context, key, value string) error
	Changed() <-chan struct{}
	Answers(ctx context.Context) error
}

// Switch is the flow side of Open vSwitch.
type Switch interface {
	Apply(ctx context.Context, bridge, bundle string) error
	Replace(ctx context.Context, bridge, program string) error
	Differences(ctx context.Context, bridge, program string) ([]string, error)
	PortNumbers(ctx context.Context, bridge string) (map[string]int, error)
	Incarnation(bridge string) uint64
	Answers(ctx context.Context) error
	Revalidate(ctx context.Context, bridge string) error
	Megaflows(ctx context.Context) ([]vswitch.Megaflow, error)
}

// Routing is FRR.
type Routing interface {
	Ensure(ctx context.Context) error
	Sessions(ctx context.Context) (map[string]frr.Session, error)
	Originated(ctx context.Context) (map[netip.Addr]bool, error)
	Advertised(ctx context.Context) (map[netip.Addr]bool, error)
	Redistribute(ctx context.Context, ipv4 bool) error
	Incarnation() uint64
}

// Kernel of the node.
type Kernel interface {
	Announce(address netip.Addr) error
	Withdraw(address netip.Addr) error
	Announcements() (map[netip.Addr]bool, error)
	EnsureLocal(local kernel.Local) (mtu int, err error)
	RepeatAddresses(link string) error
	NeighbourMAC(link string, peer netip.Addr) (string, error)
	LinkExists(name string) bool
	MTU(link string) (int, error)
	EnsureMTU(link string, mtu int) error
	// ClosePort keeps the node's own stack from what comes from a link.
	ClosePort(link string) error
}

// Pods are the network namespaces of the pods.
type Pods interface {
	Inode(path string) (uint64, error)
	Alive(path string, inode uint64) bool
	// Fate of a namespace; inode 0: whichever was at the path.
	Fate(path string, inode uint64) podnet.Fate
	MAC(netns, name string) (string, error)
	CheckAddresses(i *podnet.Interface) error
	Configure(i *podnet.Interface) error
	Check(i *podnet.Interface) error
	// Release removes what would outlive the interface in a pod that lives on.
	Release(i *podnet.Interface) error
	// RDMAReady tells whether a device's RDMA side is where it must be: in the pod if namespaces are exclusive, with the
	// GIDs of its addresses.
	RDMAReady(netns, device string, addresses []netip.Prefix) error
}

// Recorder tells people.
type Recorder interface {
	PodEvent(pod attachment.Pod, warning bool, reason, message string)
	// Condition makes a Node's condition the wanted one.
	Condition(ctx context.Context, node string, wanted Condition) error
}

// Host is the real Kernel.
type Host struct{}

// Announce and the others are those of package kernel.
func (Host) Announce(address netip.Addr) error { return kernel.Announce(address) }

// Withdraw removes an announcement.
func (Host) Withdraw(address netip.Addr) error { return kernel.Withdraw(address) }

// Announcements lists them.
func (Host) Announcements() (map[netip.Addr]bool, error) { return kernel.Announcements() }

// EnsureLocal sets up the LOCAL port.
func (Host) EnsureLocal(local kernel.Local) (int, error) { return kernel.EnsureLocal(local) }

// RepeatAddresses tells the kernel's listeners of a link's addresses again.
func (Host) RepeatAddresses(link string) error { return kernel.RepeatAddresses(link) }

// NeighbourMAC asks the kernel's neighbour table.
func (Host) NeighbourMAC(link string, peer netip.Addr) (string, error) {
	return kernel.NeighbourMAC(link, peer)
}

// LinkExists asks the kernel.
func (Host) LinkExists(name string) bool { return kernel.LinkExists(name) }

// MTU asks the kernel.
func (Host) MTU(link string) (int, error) { return kernel.MTU(link) }

// EnsureMTU of a link.
func (Host) EnsureMTU(link string, mtu int) error { return kernel.EnsureMTU(link, mtu) }

// ClosePort of a pod.
func (Host) ClosePort(link string) error { return kernel.ClosePort(link) }

// Namespaces are the real Pods.
type Namespaces struct{ witness *podnet.Witness }

// NewNamespaces of this machine.
func NewNamespaces() Namespaces { return Namespaces{podnet.NewWitness()} }

// Inode and the others are those of package podnet.
func (Namespaces) Inode(path string) (uint64, error) { return podnet.Inode(path) }

// Alive tells whether a namespace is still there.
func (Namespaces) Alive(path string, inode uint64) bool { return podnet.Alive(path, inode) }

// Fate of a namespace.
func (n Namespaces) Fate(path string, inode uint64) podnet.Fate { return n.witness.Fate(path, inode) }

// MAC of a pod's interface.
func (Namespaces) MAC(netns, name string) (string, error) { return podnet.MAC(netns, name) }

// CheckAddresses of a pod's interface.
func (Namespaces) CheckAddresses(i *podnet.Interface) error { return podnet.CheckAddresses(i) }

// Configure a pod's interface.
func (Namespaces) Configure(i *podnet.Interface) error { return podnet.Configure(i) }

// Check a pod's interface.
func (Namespaces) Check(i *podnet.Interface) error { return podnet.Check(i) }

// Release a pod's interface.
func (Namespaces) Release(i *podnet.Interface) error { return podnet.Release(i) }

// RDMAReady asks the kernel and sysfs.
func (Namespaces) RDMAReady(netns, device string, addresses []netip.Prefix) error {
	return podnet.RDMAReady(netns, device, addresses)
}
