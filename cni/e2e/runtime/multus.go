package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// MultusOptions say where Multus takes a pod's networks from.
type MultusOptions struct {
	// Kubeconfig lets Multus read the pod's annotation and the NetworkAttachmentDefinitions. Without it, Multus
	// delegates to the default network and all rails for every pod.
	Kubeconfig string
}

// Multus is the same node's runtime with Multus as its only plugin, which calls everything else.
type Multus struct {
	*Runtime
	options MultusOptions
}

// NewMultus wraps a runtime whose PluginDir holds the multus program.
func NewMultus(r *Runtime, options MultusOptions) *Multus {
	return &Multus{Runtime: r, options: options}
}

// config is Multus's network configuration.
func (m *Multus) config() map[string]any {
	delegates := []any{m.DefaultConfig()}
	if m.options.Kubeconfig == "" {
		for rail := range m.network.Config.Rails {
			delegates = append(delegates, m.RailConfig(rail))
		}
	}
	plugin := map[string]any{"type": "multus", "binDir": m.Runtime.options.PluginDir, "delegates": delegates,
		"cniDir": filepath.Join(m.Node.Dir, "multus"), "logLevel": "error", "logToStderr": true}
	if m.options.Kubeconfig != "" {
		plugin["kubeconfig"] = m.options.Kubeconfig
	}
	return map[string]any{"cniVersion": "1.0.0", "name": "multus", "plugins": []any{plugin}}
}

// Run starts a pod on all its networks and reads from the system what it was given, because Multus's result tells of
// the default network only. Like the runtime's Run it begins again for a minute if it was told to try later.
func (m *Multus) Run(pod *Pod) error {
	deadline := time.Now().Add(laterLimit)
	for {
		err := m.call(m.add, pod)
		if err == nil {
			break
		}
		if undone := m.call(m.cni.DelNetworkList, pod); undone != nil || !multusSaysLater(err) || time.Now().After(deadline) {
			return errors.Join(err, undone)
		}
		time.Sleep(laterPause)
	}
	pod.Attachments = nil
	for rail := range m.network.Config.Rails {
		a, err := m.find(pod, rail)
		if err != nil {
			return err
		}
		if err := pod.NS.DisableChecksumOffload(a.Interface); err != nil {
			return err
		}
		pod.Attachments = append(pod.Attachments, a)
	}
	return nil
}

// later are the reasons whose code is "try again later" (docs/cni/interfaces.md). Multus passes on a plugin's words, not its code.
var later = regexp.MustCompile(`\b(NOT_READY|RAIL_DOWN|RDMA_NOT_READY|TENANCY_STALE)\b|the node agent does not answer`)

func multusSaysLater(err error) bool { return IsLater(err) || later.MatchString(err.Error()) }

// call has Multus do one thing for a pod.
func (m *Multus) call(do func(context.Context, *libcni.NetworkConfigList, *libcni.RuntimeConf) error, pod *Pod) error {
	list, err := parseList(m.config())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallLimit)
	defer cancel()
	return do(ctx, list, m.Config(pod, "eth0"))
}

func (m *Multus) add(ctx context.Context, list *libcni.NetworkConfigList, config *libcni.RuntimeConf) error {
	_, err := m.cni.AddNetworkList(ctx, list, config)
	return err
}

// Remove stops a pod.
func (m *Multus) Remove(pod *Pod) error {
	if err := m.call(m.cni.DelNetworkList, pod); err != nil {
		return err
	}
	return m.Discard(pod)
}

// find looks up what a pod has on a rail: the interface in its namespace, and the port that ovs-cni made for it.
func (m *Multus) find(pod *Pod, rail int) (Attachment, error) {
	a := Attachment{Rail: rail, Interface: RailInterface(rail)}
	port, err := m.Node.OVS.VSCtl("--format=json", "--columns=name", "find", "Port", "external_ids:contIface="+a.Interface,
		fmt.Sprintf("external_ids:contNetns=%q", pod.NS.Path()))
	if err != nil {
		return a, err
	}
	var table struct {
		Data [][]string `json:"data"`
	}
	if err := json.Unmarshal([]byte(port), &table); err != nil || len(table.Data) != 1 {
		return a, fmt.Errorf("%v has not one port for %s: %s (%w)", pod, a.Interface, strings.TrimSpace(port), err)
	}
	a.Port = table.Data[0][0]
	return a, pod.NS.Do(func() error {
		link, err := netlink.LinkByName(a.Interface)
		if err != nil {
			return fmt.Errorf("%v: %s: %w", pod, a.Interface, err)
		}
		a.MAC = link.Attrs().HardwareAddr.String()
		addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		pool4, pool6 := testnet.Pool(rail)
		for _, found := range addresses {
			addr, _ := netip.AddrFromSlice(found.IP)
			if addr = addr.Unmap(); pool4.Contains(addr) || pool6.Contains(addr) {
				a.Addresses = append(a.Addresses, addr)
			}
		}
		return nil
	})
}
