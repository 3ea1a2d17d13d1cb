// Package attachment is the noun everything here is about: one interface of one pod on one rail.
package attachment

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Key names an attachment to the runtime. With the netns inode and the boot id, which the attachment carries, it is unique.
type Key struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	Interface   string `json:"interface"`
}

func (k Key) String() string { return k.Network + "/" + k.ContainerID + "/" + k.Interface }

// Compare orders keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(strings.Compare(k.Network, other.Network), strings.Compare(k.ContainerID, other.ContainerID),
		strings.Compare(k.Interface, other.Interface))
}

// Pod is whose attachment it is.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Attachment is all that is needed to build its datapath, routes and in-pod configuration again.
type Attachment struct {
	Key
	Netns      string         `json:"netns"`
	NetnsInode uint64         `json:"netnsInode"`
	BootID     string         `json:"bootID"`
	Rail       string         `json:"rail"`
	Pod        Pod            `json:"pod"`
	Port       string         `json:"port"`
	MAC        string         `json:"mac"`
	Device     string         `json:"device,omitempty"`
	Addresses  []netip.Prefix `json:"addresses"`
	Gateways   []netip.Addr   `json:"gateways,omitempty"`
	Announced  bool           `json:"announced"`
	// PortIDs are the external_ids ovs-cni gave the port; a port that is restored gets them back, else ovs-cni's DEL would not find it.
	PortIDs map[string]string `json:"portExternalIDs,omitempty"`
}

// Hosts are the addresses without their prefix lengths.
func (a *Attachment) Hosts() []netip.Addr {
	hosts := make([]netip.Addr, len(a.Addresses))
	for i, prefix := range a.Addresses {
		hosts[i] = prefix.Addr()
	}
	return hosts
}

// Clone shares nothing with the original.
func (a *Attachment) Clone() *Attachment {
	other := *a
	other.Addresses = slices.Clone(a.Addresses)
	other.Gateways = slices.Clone(a.Gateways)
	other.PortIDs = maps.Clone(a.PortIDs)
	return &other
}

// SameRequest tells whether two attachments come from the same request: what the agent or ovs-cni adds later does not count.
func (a *Attachment) SameRequest(b *Attachment) bool {
	return a.Key == b.Key && a.NetnsInode == b.NetnsInode && a.BootID == b.BootID && a.Rail == b.Rail && a.Pod == b.Pod &&
		a.Port == b.Port && a.MAC == b.MAC && a.Device == b.Device && slices.Equal(a.Addresses, b.Addresses)
}

// Limits on what callers may put into names; they go into file contents, OVSDB and logs, never into a shell.
const (
	maxName = 253
	maxLink = 15
)

// Validate checks the form of all that a caller or a file may have got wrong.
func (a *Attachment) Validate() error {
	if err := a.Key.Validate(); err != nil {
		return err
	}
	mac, err := net.ParseMAC(a.MAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("mac %q is no MAC address", a.MAC)
	}
	if a.MAC != mac.String() {
		return fmt.Errorf("mac %q must be written in lower case with colons", a.MAC)
	}
	for _, name := range []struct{ what, value string }{{"rail", a.Rail}, {"pod namespace", a.Pod.Namespace}, {"pod name", a.Pod.Name}} {
		if name.value == "" || len(name.value) > maxName || !printable(name.value) {
			return fmt.Errorf("%s %q must be 1 to %d printable characters", name.what, name.value, maxName)
		}
	}
	if len(a.Pod.UID) > maxName || !printable(a.Pod.UID) {
		return fmt.Errorf("pod uid %q must be at most %d printable characters", a.Pod.UID, maxName)
	}
	if !LinkName(a.Port) {
		return fmt.Errorf("port %q is no interface name", a.Port)
	}
	if a.Netns == "" || len(a.Netns) > 4096 || !printable(a.Netns) || a.Netns[0] != '/' {
		return fmt.Errorf("netns %q must be an absolute path", a.Netns)
	}
	if len(a.Device) > 64 || !printable(a.Device) || strings.ContainsAny(a.Device, "/") || a.Device == "." || a.Device == ".." {
		return fmt.Errorf("device %q is no PCI address", a.Device)
	}
	return validateAddresses(a.Addresses)
}

func validateAddresses(addresses []netip.Prefix) error {
	if len(addresses) == 0 {
		return fmt.Errorf("addresses: at least one is needed")
	}
	seen := map[netip.Addr]bool{}
	for _, prefix := range addresses {
		if !prefix.IsValid() || prefix.Addr().Is4In6() {
			return fmt.Errorf("address %q must be an address with prefix length", prefix)
		}
		if seen[prefix.Addr()] {
			return fmt.Errorf("address %s is given twice", prefix.Addr())
		}
		seen[prefix.Addr()] = true
	}
	return nil
}

// Validate checks the form of a key.
func (k Key) Validate() error {
	if k.Network == "" || len(k.Network) > maxName || !printable(k.Network) {
		return fmt.Errorf("network %q must be 1 to %d printable characters", k.Network, maxName)
	}
	if k.ContainerID == "" || len(k.ContainerID) > maxName || !printable(k.ContainerID) {
		return fmt.Errorf("container id %q must be 1 to %d printable characters", k.ContainerID, maxName)
	}
	if !LinkName(k.Interface) {
		return fmt.Errorf("interface %q is no interface name", k.Interface)
	}
	return nil
}

// LinkName tells whether a name can be a Linux interface's.
func LinkName(name string) bool {
	return name != "" && len(name) <= maxLink && name != "." && name != ".." && printable(name) && !strings.ContainsAny(name, "/: ")
}

func printable(text string) bool {
	for _, r := range text {
		if r < 0x20 || r == 0x7f || r == '\uFFFD' {
			return false
		}
	}
	return true
}
