package agent

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/flow"
	"github.com/railweave/railweave/cni/internal/podnet"
	"github.com/railweave/railweave/cni/internal/tenancy"
	"github.com/railweave/railweave/cni/internal/vswitch"
)

// markKey in a port's external_ids holds the attachment, so that a lost store can be rebuilt.
const markKey = "railweave"

func mark(held *attachment.Attachment) string {
	plain := held.Clone()
	plain.PortIDs = nil     // they are beside it
	plain.Announced = false // the kernel's routes say it
	text, err := json.Marshal(plain)
	if err != nil {
		return "" // a struct of strings and addresses always encodes
	}
	return string(text)
}

// railState is all that a rail's flows depend on.
func (a *Agent) railState(r *rail, bridge *vswitch.Bridge, mine []*attachment.Attachment) flow.Rail {
	view := a.Source.View()
	r.mutex.Lock()
	state := flow.Rail{UplinkOFPort: bridge.Ports[r.config.Uplink].OFPort, RouterMAC: r.config.RouterMAC, LeafMAC: r.leafMAC, Peers: r.config.Peer.Addresses}
	r.mutex.Unlock()
	for _, prefix := range r.config.NodeAddresses() {
		state.Addresses = append(state.Addresses, prefix.Addr())
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	here := map[netip.Addr]bool{}
	for _, held := range mine {
		if a.attachments[held.Key] == nil {
			continue // detached since
		}
		pod := flow.Pod{Key: held.Key, OFPort: bridge.Ports[held.Port].OFPort, MAC: held.MAC, Hosts: held.Hosts()}
		for _, host := range held.Hosts() {
			here[host] = true
		}
		if tenant, has := a.tenantOf(held); has {
			pod.Tenant = a.tenantNumber(tenant)
		}
		state.Pods = append(state.Pods, pod)
	}
	member := func(address netip.Addr, tenant tenancy.Tenant, rail string) {
		if number, served := a.tenants[tenant]; served && !here[address] && a.plausible(address, rail) {
			state.Members = append(state.Members, flow.Member{Address: address, Tenant: number})
		}
	}
	for address, entry := range view.Entries {
		if entry.Node != a.Config.Node && !entry.Revoked {
			member(address, entry.Tenant, entry.Rail)
		}
	}
	for _, held := range a.attachments { // of this node's other rails
		if tenant, has := a.tenantOf(held); has && held.Rail != r.config.Name {
			for _, host := range held.Hosts() {
				member(host, tenant, held.Rail)
			}
		}
	}
	return state
}

// plausible refuses published addresses that no pod may have, whoever published them. Called with the mutex held or not.
func (a *Agent) plausible(address netip.Addr, railName string) bool {
	rail, known := a.Config.Rail(railName)
	if !known {
		return false
	}
	pool, inside := rail.PoolOf(address)
	return inside && pool.Gateway != address
}

// tenantNumber is the tenant's number in the switch's registers, given out on first use. It is not given to another tenant when the
// last pod of this one here has ended: flows with it may be left on a bridge that cannot be changed then. Called with the mutex held.
func (a *Agent) tenantNumber(tenant tenancy.Tenant) uint32 {
	number, known := a.tenants[tenant]
	if !known {
		used := map[uint32]bool{}
		for taken := range maps.Values(a.tenants) {
			used[taken] = true
		}
		number = 1
		for used[number] {
			number++
		}
		a.tenants[tenant] = number
	}
	return number
}

// railMTU is the MTU of a rail's interfaces at both ends, in the pod and on the bridge; 0 while it is not known.
func (a *Agent) railMTU(name string) int {
	r := a.rails[name]
	if r.config.MTU > 0 {
		return r.config.MTU
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.mtu
}

// podInterface is how an attachment's interface must be in the pod.
func (a *Agent) podInterface(held *attachment.Attachment) *podnet.Interface {
	r := a.rails[held.Rail]
	wanted := &podnet.Interface{
		Netns: held.Netns, Name: held.Interface, MAC: held.MAC, MTU: a.railMTU(held.Rail), Table: r.config.Table,
		Addresses: slices.Clone(held.Addresses), RouterMAC: r.config.RouterMAC,
	}
	gateways := map[bool]netip.Addr{} // by "is IPv4"
	for _, pool := range r.config.Pools {
		if _, known := gateways[pool.Gateway.Is4()]; !known {
			gateways[pool.Gateway.Is4()] = pool.Gateway
		}
		wanted.Own = append(wanted.Own, podnet.Way{Pool: pool.Prefix, Gateway: pool.Gateway})
	}
	for i := range a.Config.Rails {
		other := &a.Config.Rails[i]
		for _, pool := range other.Pools {
			if gateway, known := gateways[pool.Gateway.Is4()]; known && other.Name != held.Rail {
				wanted.Other = append(wanted.Other, podnet.Way{Pool: pool.Prefix, Gateway: gateway})
			}
		}
	}
	return wanted
}
