// Package runtime starts and stops pods as a container runtime does: a network namespace per pod, and CNI plugins
// called through libcni.
package runtime

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// CallLimit is how long a plugin chain may take before it is ended; the kubelet's limit is longer.
const CallLimit = time.Minute

// cacheDir is where libcni keeps results, below the node's directory.
const cacheDir = "cni"

// Options are what differs between runtimes of one test and another's.
type Options struct {
	PluginDir  string
	CNIVersion string // of the network configurations
	// Observe hears of every plugin call; it may be called from several goroutines.
	Observe func(Call)
	// Interrupt may return a channel for a plugin call that is about to begin; the plugin is killed when it fires.
	Interrupt func(plugin, command string) <-chan time.Time
}

// Runtime is the container runtime of one node.
type Runtime struct {
	Node    *testnet.Node
	network *testnet.Network
	agent   *testnet.Agent
	options Options
	exec    *nodeExec
	cni     *libcni.CNIConfig
	rails   []*libcni.NetworkConfigList
	common  *libcni.NetworkConfigList // the default network
	serial  atomic.Int64

	mu   sync.Mutex
	pods map[string]*Pod // by container id
}

// Attachment is a pod's interface on a rail.
type Attachment struct {
	Rail      int
	Interface string // in the pod
	Port      string // on the bridge
	MAC       string
	Addresses []netip.Addr
}

// Address returns the attachment's address of the wanted family.
func (a Attachment) Address(v6 bool) netip.Addr {
	for _, addr := range a.Addresses {
		if addr.Is6() == v6 {
			return addr
		}
	}
	return netip.Addr{}
}

// Pod is a sandbox.
type Pod struct {
	Namespace, Name, UID string
	ContainerID          string
	NS                   testnet.Namespace
	Node                 *testnet.Node
	Attachments          []Attachment
}

func (p *Pod) String() string { return p.Namespace + "/" + p.Name + "@" + p.Node.Name }

// New makes the runtime of a node.
func New(network *testnet.Network, node *testnet.Node, agent *testnet.Agent, options Options) (*Runtime, error) {
	if options.CNIVersion == "" {
		options.CNIVersion = "1.1.0"
	}
	r := &Runtime{Node: node, network: network, agent: agent, options: options, pods: map[string]*Pod{}}
	r.exec = &nodeExec{ns: node.NS, observe: options.Observe, interrupt: options.Interrupt}
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{options.PluginDir}, filepath.Join(node.Dir, cacheDir), r.exec)
	for rail := range network.Config.Rails {
		list, err := parseList(r.RailConfig(rail))
		if err != nil {
			return nil, err
		}
		r.rails = append(r.rails, list)
	}
	var err error
	r.common, err = parseList(r.DefaultConfig())
	return r, err
}

func parseList(config map[string]any) (*libcni.NetworkConfigList, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// RailConfig is the network configuration list of a rail.
func (r *Runtime) RailConfig(rail int) map[string]any {
	own := map[string]any{"rail": testnet.Rail(rail), "socket": r.agent.Socket(), "stateDir": r.agent.StateDir()}
	return map[string]any{
		"cniVersion": r.options.CNIVersion, "name": testnet.Rail(rail),
		"plugins": []any{
			ovsPlugin(testnet.Bridge(rail), r.Node.OVS.DatabaseSocket(), r.ipam(rail)),
			map[string]any{"type": "railweave-ovs", "railweave": own},
			map[string]any{"type": "railweave-frr", "railweave": own},
		},
	}
}

// ovsPlugin is ovs-cni's part of a rail's configuration: what the chart installs (networks.yaml), nothing more.
func ovsPlugin(bridge, socket string, ipam any) map[string]any {
	return map[string]any{"type": "ovs", "bridge": bridge, "vlan": 0, "socket_file": "unix:" + socket,
		// ovs-cni polls the port's state; its default of one second would be most of an ADD.
		"link_state_check_retries": 500, "link_state_check_interval": 10, "ipam": ipam}
}

// ChangeSettings gives our plugins of a rail other settings, as who edits the network's definition does. It returns those of before.
func (r *Runtime) ChangeSettings(rail int, settings map[string]any) (before map[string]any, err error) {
	config := r.RailConfig(rail)
	for _, plugin := range config["plugins"].([]any) {
		plugin := plugin.(map[string]any)
		if own, ours := plugin["railweave"].(map[string]any); ours {
			before, plugin["railweave"] = own, settings
		}
	}
	r.rails[rail], err = parseList(config)
	return before, err
}

func (r *Runtime) ipam(rail int) map[string]any {
	pool4, pool6 := testnet.Pool(rail)
	range4, range6 := testnet.NodeRange(rail, r.Node.Index)
	gateway4, gateway6 := testnet.Gateway(rail)
	// The whole pool is the subnet, so that host-local's routes and prefix lengths are as with one pool for all nodes;
	// each node hands out its own part.
	part := func(pool, own netip.Prefix, gateway netip.Addr, last netip.Addr) []any {
		return []any{map[string]any{"subnet": pool.String(), "rangeStart": own.Addr().Next().Next().String(),
			"rangeEnd": last.String(), "gateway": gateway.String()}}
	}
	last4, last6 := range4.Addr().As4(), range6.Addr().As16()
	last4[3], last6[15] = 250, 250
	return map[string]any{"type": "host-local", "dataDir": filepath.Join(r.Node.Dir, "ipam"), "ranges": []any{
		part(pool4, range4, gateway4, netip.AddrFrom4(last4)), part(pool6, range6, gateway6, netip.AddrFrom16(last6)),
	}}
}

// DefaultConfig is the network configuration list of the default network, which every pod of a cluster has.
func (r *Runtime) DefaultConfig() map[string]any {
	return map[string]any{
		"cniVersion": r.options.CNIVersion, "name": "default",
		"plugins": []any{map[string]any{"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true,
			"ipam": map[string]any{"type": "host-local", "dataDir": filepath.Join(r.Node.Dir, "ipam"), "ranges": []any{
				[]any{map[string]any{"subnet": testnet.DefaultNetwork(r.Node.Index).String()}}}}}},
	}
}

// NewPod makes a pod's sandbox, attached to nothing.
func (r *Runtime) NewPod(namespace, name string) (*Pod, error) {
	id := fmt.Sprintf("%s-%s-%d", r.network.ID, r.Node.Name, r.serial.Add(1))
	ns, err := testnet.CreateNamespace(id)
	if err != nil {
		return nil, err
	}
	// ovs-cni waits until IPv6 addresses have passed duplicate address detection, 1.9 s with the kernel's default, and
	// nobody on a rail could answer. An operator sets the same for pods with net.core.devconf_inherit_init_net.
	if err := ns.Sysctl("ipv6/conf/default/accept_dad", "0"); err != nil {
		return nil, errors.Join(err, ns.Delete())
	}
	pod := &Pod{Namespace: namespace, Name: name, UID: newUID(), ContainerID: id, NS: ns, Node: r.Node}
	r.mu.Lock()
	r.pods[id] = pod
	r.mu.Unlock()
	return pod, nil
}

func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// RailInterface is a rail's interface name in pods, as Multus numbers them.
func RailInterface(rail int) string { return fmt.Sprintf("net%d", rail+1) }

// Config is the runtime's part of a CNI call for a pod.
func (r *Runtime) Config(pod *Pod, ifname string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: pod.ContainerID, NetNS: pod.NS.Path(), IfName: ifname, Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", pod.ContainerID}, {"K8S_POD_UID", pod.UID}}}
}

// Attach calls ADD for one rail and records the result in the pod.
func (r *Runtime) Attach(pod *Pod, rail int) (*types100.Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	raw, err := r.cni.AddNetworkList(ctx, r.rails[rail], r.Config(pod, RailInterface(rail)))
	if err != nil {
		return nil, err
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, err
	}
	attachment, err := readResult(rail, result)
	if err != nil {
		return nil, err
	}
	// Without this, TCP through the userspace datapath has wrong checksums.
	if err := pod.NS.DisableChecksumOffload(attachment.Interface); err != nil {
		return nil, err
	}
	pod.Attachments = append(pod.Attachments, attachment)
	return result, nil
}

func readResult(rail int, result *types100.Result) (Attachment, error) {
	a := Attachment{Rail: rail}
	for _, i := range result.Interfaces {
		if i.Sandbox == "" {
			a.Port = i.Name
		} else {
			a.Interface, a.MAC = i.Name, i.Mac
		}
	}
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return a, fmt.Errorf("result has an address that is none: %v", ip.Address)
		}
		a.Addresses = append(a.Addresses, addr.Unmap())
	}
	if a.Port == "" || a.Interface == "" || len(a.Addresses) == 0 {
		return a, fmt.Errorf("result lacks an interface or an address: %v", result)
	}
	return a, nil
}

// Detach calls DEL for one rail. The runtime repeats a failed DEL, so an error leaves the attachment in the pod.
func (r *Runtime) Detach(pod *Pod, rail int) error {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	return r.cni.DelNetworkList(ctx, r.rails[rail], r.Config(pod, RailInterface(rail)))
}

// Check calls CHECK for one rail.
func (r *Runtime) Check(pod *Pod, rail int) error {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	return r.cni.CheckNetworkList(ctx, r.rails[rail], r.Config(pod, RailInterface(rail)))
}

// Status calls STATUS for one rail.
func (r *Runtime) Status(rail int) error {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	return r.cni.GetStatusNetworkList(ctx, r.rails[rail])
}

// Collect calls GC for one rail, with these pods as the only ones that the caller knows.
func (r *Runtime) Collect(rail int, known ...*Pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	args := &libcni.GCArgs{}
	for _, pod := range known {
		for _, a := range pod.Attachments {
			if a.Rail == rail {
				args.ValidAttachments = append(args.ValidAttachments,
					types.GCAttachment{ContainerID: pod.ContainerID, IfName: a.Interface})
			}
		}
	}
	return r.cni.GCNetworkList(ctx, r.rails[rail], args)
}

// ForgetResults loses libcni's record of what it added, as an update of a runtime may: GC then cannot call DEL, and all is left
// to the plugins.
func (r *Runtime) ForgetResults() error {
	return os.RemoveAll(filepath.Join(r.Node.Dir, cacheDir))
}

// How long, and how often, Run starts a pod once more whose ADD was answered "try again later", as a kubelet does (for ever): on a
// machine that stands still for seconds, a node's daemons do not answer for as long.
const (
	laterLimit = time.Minute
	laterPause = time.Second
)

// Run starts a pod on the default network, if wanted, and all rails. On failure everything is undone, as a runtime does; and
// begun again for a minute, if it was told to try later.
func (r *Runtime) Run(namespace, name string, withDefault bool) (*Pod, error) {
	deadline := time.Now().Add(laterLimit)
	for {
		pod, err := r.try(namespace, name, withDefault)
		if !IsLater(err) || time.Now().After(deadline) {
			return pod, err
		}
		time.Sleep(laterPause)
	}
}

// IsLater tells whether a plugin answered "try again later".
func IsLater(err error) bool {
	var answer *PluginError
	return errors.As(err, &answer) && answer.Code == types.ErrTryAgainLater
}

func (r *Runtime) try(namespace, name string, withDefault bool) (*Pod, error) {
	pod, err := r.NewPod(namespace, name)
	if err != nil {
		return nil, err
	}
	if withDefault {
		if err := r.AttachDefault(pod); err != nil {
			return nil, errors.Join(err, r.Stop(pod))
		}
	}
	for rail := range r.rails {
		if _, err := r.Attach(pod, rail); err != nil {
			return nil, errors.Join(fmt.Errorf("%v, rail %d: %w", pod, rail, err), r.Stop(pod))
		}
	}
	return pod, nil
}

// AttachDefault puts a pod on the default network.
func (r *Runtime) AttachDefault(pod *Pod) error {
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	_, err := r.cni.AddNetworkList(ctx, r.common, r.Config(pod, "eth0"))
	return err
}

// Remove stops a pod: DEL of everything, then its namespace. It stops at the first DEL that fails, so that it can be
// called again.
func (r *Runtime) Remove(pod *Pod) error {
	for rail := range r.rails {
		if err := r.Detach(pod, rail); err != nil {
			return fmt.Errorf("%v, rail %d: DEL: %w", pod, rail, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	if err := r.cni.DelNetworkList(ctx, r.common, r.Config(pod, "eth0")); err != nil {
		return fmt.Errorf("%v, default network: DEL: %w", pod, err)
	}
	return r.Discard(pod)
}

// codeDatapath is DATAPATH_FAILED (docs/cni/interfaces.md): what a DEL answers while Open vSwitch does not answer, too.
const codeDatapath = 109

// Stop is Remove, repeated for a minute, as a kubelet does for ever, while Open vSwitch does not answer in time.
func (r *Runtime) Stop(pod *Pod) error {
	deadline := time.Now().Add(laterLimit)
	for {
		err := r.Remove(pod)
		var answer *PluginError
		passes := errors.As(err, &answer) && (answer.Code == codeDatapath || IsLater(err))
		if !passes || time.Now().After(deadline) {
			return err
		}
		time.Sleep(laterPause)
	}
}

// Discard removes a pod's namespace and forgets the pod without any DEL, as a reboot does.
func (r *Runtime) Discard(pod *Pod) error {
	r.mu.Lock()
	delete(r.pods, pod.ContainerID)
	r.mu.Unlock()
	return pod.NS.Delete()
}

// Pods lists the pods that have a sandbox.
func (r *Runtime) Pods() []*Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pods []*Pod
	for _, p := range r.pods {
		pods = append(pods, p)
	}
	return pods
}
