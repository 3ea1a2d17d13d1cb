// Package nodeconfig reads and checks the node file: the one configuration of the agent.
package nodeconfig

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	apiVersion = "railweave.io/v1"
	kind       = "NodeConfig"

	// DefaultSocket is where the agent listens and the plugins call.
	DefaultSocket = "/run/railweave/node.sock"
	// DefaultStateDir holds the store and the tombstones.
	DefaultStateDir = "/var/lib/railweave"
	// DefaultMetricsListen is where the chart's probes ask.
	DefaultMetricsListen = ":9477"
)

// Config is the node file. docs/cni/interfaces.md explains each key.
type Config struct {
	APIVersion       string  `json:"apiVersion"`
	Kind             string  `json:"kind"`
	Node             string  `json:"node,omitempty"`
	ASN              uint32  `json:"asn"`
	RouterID         string  `json:"routerID"`
	Socket           string  `json:"socket,omitempty"`
	StateDir         string  `json:"stateDir,omitempty"`
	OVS              OVS     `json:"ovs,omitempty"`
	FRR              FRR     `json:"frr,omitempty"`
	Tenancy          Tenancy `json:"tenancy,omitempty"`
	MetricsListen    string  `json:"metricsListen,omitempty"`
	ReconcileSeconds int     `json:"reconcileSeconds,omitempty"`
	Rails            []Rail  `json:"rails"`
}

// OVS says which Open vSwitch.
type OVS struct {
	RunDir       string `json:"runDir,omitempty"`
	DatapathType string `json:"datapathType,omitempty"`
	HWOffload    bool   `json:"hwOffload,omitempty"`
}

// FRR says which FRR and how it peers.
type FRR struct {
	Pathspace              string `json:"pathspace,omitempty"`
	RunDir                 string `json:"runDir,omitempty"`
	ConfDir                string `json:"confDir,omitempty"`
	BinDir                 string `json:"binDir,omitempty"`
	BFD                    bool   `json:"bfd,omitempty"`
	GracefulRestartSeconds int    `json:"gracefulRestartSeconds,omitempty"`
	MaximumPrefixes        int    `json:"maximumPrefixes,omitempty"`
}

// Tenancy says where Namespaces and addresses are heard of.
type Tenancy struct {
	Source    string `json:"source,omitempty"`
	Directory string `json:"directory,omitempty"`
}

// Rail is one NIC, its bridge and its leaf.
type Rail struct {
	Name      string   `json:"name"`
	Bridge    string   `json:"bridge"`
	Uplink    string   `json:"uplink"`
	RouterMAC string   `json:"routerMAC,omitempty"`
	Table     int      `json:"table,omitempty"`
	MTU       int      `json:"mtu,omitempty"`
	Pools     []Pool   `json:"pools"`
	Addresses []string `json:"addresses,omitempty"`
	Peer      Peer     `json:"peer"`
}

// Pool is a prefix that the rail's pods have addresses of, on all nodes.
type Pool struct {
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway"`
}

// Peer is the rail's leaf.
type Peer struct {
	Unnumbered bool         `json:"unnumbered,omitempty"`
	Addresses  []netip.Addr `json:"addresses,omitempty"`
	ASN        uint32       `json:"asn,omitempty"`
}

// Error names the key of the node file that is wrong.
type Error struct {
	File, Key, Problem string
}

func (e *Error) Error() string { return fmt.Sprintf("node file %s: %s: %s", e.File, e.Key, e.Problem) }

// Load reads a node file (JSON or YAML), fills in the defaults and checks it.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path) // #nosec G304 -- the operator names the file
	if err != nil {
		return nil, fmt.Errorf("node file: %w", err)
	}
	return Parse(path, data)
}

// Parse is Load for data already read; name is for error messages.
func Parse(name string, data []byte) (*Config, error) {
	var config Config
	if err := yaml.UnmarshalStrict(data, &config, yaml.DisallowUnknownFields); err != nil {
		return nil, &Error{name, "(document)", err.Error()}
	}
	if err := config.setDefaults(); err != nil {
		return nil, err
	}
	if err := config.validate(); err != nil {
		err.File = name
		return nil, err
	}
	return &config, nil
}

func setDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}

func (c *Config) setDefaults() error {
	if c.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("node file: node is not set and the host has no name: %w", err)
		}
		c.Node = nodeName(host)
	}
	setDefault(&c.Socket, DefaultSocket)
	setDefault(&c.StateDir, DefaultStateDir)
	setDefault(&c.OVS.RunDir, "/run/openvswitch")
	setDefault(&c.OVS.DatapathType, "system")
	setDefault(&c.FRR.RunDir, "/run/frr")
	setDefault(&c.FRR.ConfDir, "/etc/frr")
	setDefault(&c.FRR.BinDir, "/usr/lib/frr")
	setDefault(&c.FRR.GracefulRestartSeconds, 120)
	setDefault(&c.FRR.MaximumPrefixes, 20000)
	setDefault(&c.Tenancy.Source, "kubernetes")
	setDefault(&c.MetricsListen, DefaultMetricsListen)
	setDefault(&c.ReconcileSeconds, 30)
	for i := range c.Rails {
		rail := &c.Rails[i]
		setDefault(&rail.Table, 1000+i)
		setDefault(&rail.RouterMAC, derivedMAC(c.Node, rail.Name))
		if mac, err := net.ParseMAC(rail.RouterMAC); err == nil {
			rail.RouterMAC = mac.String() // one way of writing it: it is compared with what switch, kernel and plugins say
		}
	}
	return nil
}

// nodeName is what a kubelet makes of the host's name.
func nodeName(host string) string { return strings.ToLower(strings.TrimSpace(host)) }

// derivedMAC is a locally administered unicast address that depends on the names only, so it survives reinstallation.
func derivedMAC(node, rail string) string {
	sum := sha256.Sum256([]byte("railweave router " + node + "/" + rail))
	return net.HardwareAddr{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}.String()
}

// Names become file names, bridge names and arguments of programs.
var (
	nameRule      = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	nodeRule      = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`) // as long as Kubernetes allows
	linkRule      = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)
	pathspaceRule = regexp.MustCompile(`^[a-zA-Z0-9_-]{0,40}$`)
)

type check struct {
	ok           bool
	key, problem string
}

func firstFailed(checks []check) *Error {
	for _, c := range checks {
		if !c.ok {
			return &Error{Key: c.key, Problem: c.problem}
		}
	}
	return nil
}

func (c *Config) validate() *Error {
	id, idErr := netip.ParseAddr(c.RouterID)
	problem := firstFailed([]check{
		{c.APIVersion == apiVersion, "apiVersion", "must be " + apiVersion},
		{c.Kind == kind, "kind", "must be " + kind},
		{nodeRule.MatchString(c.Node), "node", "must be a DNS name in lower case, of at most 253 characters"},
		{c.ASN != 0, "asn", "must be the node's autonomous system number"},
		{idErr == nil && id.Is4() && !id.IsUnspecified(), "routerID", "must be an IPv4 address, unique among the nodes"},
		{filepath.IsAbs(c.Socket) && len(c.Socket) < 100, "socket", "must be an absolute path shorter than 100 characters"},
		{filepath.IsAbs(c.StateDir), "stateDir", "must be an absolute path"},
		{filepath.IsAbs(c.OVS.RunDir), "ovs.runDir", "must be an absolute path"},
		{c.OVS.DatapathType == "system" || c.OVS.DatapathType == "netdev", "ovs.datapathType", "must be system or netdev"},
		{pathspaceRule.MatchString(c.FRR.Pathspace), "frr.pathspace", "must be letters, digits, - and _"},
		{filepath.IsAbs(c.FRR.RunDir), "frr.runDir", "must be an absolute path"},
		{filepath.IsAbs(c.FRR.ConfDir), "frr.confDir", "must be an absolute path"},
		{filepath.IsAbs(c.FRR.BinDir), "frr.binDir", "must be an absolute path"},
		{c.FRR.GracefulRestartSeconds >= 1 && c.FRR.GracefulRestartSeconds <= 4095, "frr.gracefulRestartSeconds", "must be 1 to 4095"},
		{c.FRR.MaximumPrefixes >= 1 && int64(c.FRR.MaximumPrefixes) <= math.MaxUint32, "frr.maximumPrefixes", "must be 1 to 4294967295"}, // FRR's range
		{c.ReconcileSeconds >= 1 && c.ReconcileSeconds <= 86400, "reconcileSeconds", "must be 1 to 86400, a day"},
		{len(c.Rails) > 0, "rails", "at least one rail is needed"},
	})
	if problem != nil {
		return problem
	}
	switch c.Tenancy.Source {
	case "kubernetes":
		if c.Tenancy.Directory != "" {
			return &Error{Key: "tenancy.directory", Problem: "contradicts source kubernetes"}
		}
	case "directory":
		if !filepath.IsAbs(c.Tenancy.Directory) {
			return &Error{Key: "tenancy.directory", Problem: "must be an absolute path with source directory"}
		}
	default:
		return &Error{Key: "tenancy.source", Problem: "must be kubernetes or directory"}
	}
	for i := range c.Rails {
		if problem := c.Rails[i].validate(); problem != nil {
			problem.Key = fmt.Sprintf("rails[%d].%s", i, problem.Key)
			return problem
		}
	}
	return c.validateDistinct()
}

func (r *Rail) validate() *Error {
	mac, macErr := net.ParseMAC(r.RouterMAC)
	problem := firstFailed([]check{
		{nameRule.MatchString(r.Name) && len(r.Name) <= 32, "name", "must be a short name in lower case"},
		{linkRule.MatchString(r.Bridge), "bridge", "must be an interface name (at most 15 characters)"},
		{linkRule.MatchString(r.Uplink), "uplink", "must be an interface name (at most 15 characters)"},
		{macErr == nil && len(mac) == 6 && mac[0]&1 == 0 && r.RouterMAC != "00:00:00:00:00:00", "routerMAC", "must be a unicast MAC address"},
		{r.Table > 0 && r.Table < 32766 && (r.Table < 253 || r.Table > 255), "table", "must be 1 to 32765 and none of 253, 254, 255"},
		{r.MTU == 0 || (r.MTU >= 1280 && r.MTU <= 65535), "mtu", "must be 1280 to 65535"},
		{len(r.Pools) > 0, "pools", "at least one pool is needed"},
	})
	if problem != nil {
		return problem
	}
	for i, pool := range r.Pools {
		key := fmt.Sprintf("pools[%d]", i)
		if !pool.Prefix.IsValid() || pool.Prefix != pool.Prefix.Masked() || pool.Prefix.Addr().Is4In6() || pool.Prefix.Bits() == 0 {
			return &Error{Key: key + ".prefix", Problem: "must be a prefix without host bits, longer than /0"}
		}
		if a := pool.Prefix.Addr(); a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback() {
			return &Error{Key: key + ".prefix", Problem: "must be unicast, neither link-local nor loopback"}
		}
		if !pool.Prefix.Contains(pool.Gateway) {
			return &Error{Key: key + ".gateway", Problem: fmt.Sprintf("must lie in %s", pool.Prefix)}
		}
		// The kernel takes no broadcast address for a gateway, which the network address is, too, before Linux 5.14: no pod could be set
		// up. In IPv6 the latter is the routers' anycast address (RFC 4291, 2.6.1).
		allHosts := pool.Gateway.Is6() || pool.Prefix.Bits() >= 31
		if !allHosts && pool.Gateway == pool.Prefix.Addr() {
			return &Error{Key: key + ".gateway", Problem: fmt.Sprintf("must not be the network address of %s", pool.Prefix)}
		}
		if !allHosts && !pool.Prefix.Contains(pool.Gateway.Next()) {
			return &Error{Key: key + ".gateway", Problem: fmt.Sprintf("must not be the broadcast address of %s", pool.Prefix)}
		}
	}
	return r.validatePeer()
}

func (r *Rail) validatePeer() *Error {
	for i, text := range r.Addresses {
		if prefix, err := netip.ParsePrefix(text); err != nil || prefix.Addr().Is4In6() {
			return &Error{Key: fmt.Sprintf("addresses[%d]", i), Problem: "must be an address with prefix length"}
		}
	}
	if r.Peer.Unnumbered == (len(r.Peer.Addresses) > 0) {
		return &Error{Key: "peer", Problem: "must be either unnumbered or have addresses"}
	}
	seen := map[bool]bool{}
	for i, peer := range r.Peer.Addresses {
		key := fmt.Sprintf("peer.addresses[%d]", i)
		if !peer.IsValid() || peer.Zone() != "" || peer.Is4In6() {
			return &Error{Key: key, Problem: "must be an address"}
		}
		if seen[peer.Is4()] {
			return &Error{Key: key, Problem: "at most one address of each family"}
		}
		seen[peer.Is4()] = true
		if !r.nodeAddressFor(peer).IsValid() {
			return &Error{Key: key, Problem: "no prefix in addresses contains it"}
		}
	}
	// A session over IPv6 carries both families (RFC 8950), one over IPv4 its own alone.
	for i, pool := range r.Pools {
		if pool.Prefix.Addr().Is6() && !r.Peer.Unnumbered && !seen[false] {
			return &Error{Key: fmt.Sprintf("pools[%d].prefix", i), Problem: "no session would announce its addresses: give peer.addresses an IPv6 address, too"}
		}
	}
	return nil
}

func (r *Rail) nodeAddressFor(peer netip.Addr) netip.Addr {
	for _, text := range r.Addresses {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Contains(peer) && prefix.Addr() != peer {
			return prefix.Addr()
		}
	}
	return netip.Addr{}
}

// validateDistinct refuses what two rails may not share.
func (c *Config) validateDistinct() *Error {
	owner := map[string]int{}
	for i, rail := range c.Rails {
		for _, unique := range []string{"name " + rail.Name, "bridge " + rail.Bridge, "uplink " + rail.Uplink,
			"routerMAC " + rail.RouterMAC, fmt.Sprintf("table %d", rail.Table)} {
			if other, taken := owner[unique]; taken {
				return &Error{Key: fmt.Sprintf("rails[%d]", i), Problem: fmt.Sprintf("%s is also of rails[%d]", unique, other)}
			}
			owner[unique] = i
		}
		for j := range c.Rails {
			if rail.Uplink == c.Rails[j].Bridge {
				return &Error{Key: fmt.Sprintf("rails[%d].uplink", i), Problem: fmt.Sprintf("%s is the bridge of rails[%d]", rail.Uplink, j)}
			}
		}
		if problem := c.validateFabric(i, owner); problem != nil {
			return problem
		}
		for j := range i + 1 {
			for a, mine := range rail.Pools {
				for b, theirs := range c.Rails[j].Pools {
					if (i != j || a != b) && mine.Prefix.Overlaps(theirs.Prefix) {
						return &Error{Key: fmt.Sprintf("rails[%d].pools[%d]", i, a), Problem: fmt.Sprintf("overlaps rails[%d].pools[%d]", j, b)}
					}
				}
			}
		}
	}
	return nil
}

// validateFabric refuses addresses of the node and of leafs that two rails have, or that a pod might be given: other nodes have
// theirs in the same prefix, and an agent knows only its own.
func (c *Config) validateFabric(i int, owner map[string]int) *Error {
	rail := &c.Rails[i]
	used := map[string]netip.Addr{}
	for j, prefix := range rail.NodeAddresses() {
		used[fmt.Sprintf("addresses[%d]", j)] = prefix.Addr()
	}
	for j, peer := range rail.Peer.Addresses {
		used[fmt.Sprintf("peer.addresses[%d]", j)] = peer
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		refuse := func(format string, args ...any) *Error {
			return &Error{Key: fmt.Sprintf("rails[%d].%s", i, key), Problem: fmt.Sprintf(format, args...)}
		}
		unique := "address " + used[key].String()
		if other, taken := owner[unique]; taken {
			return refuse("%s is given twice, also in rails[%d]", used[key], other)
		}
		owner[unique] = i
		for j := range c.Rails {
			if pool, inside := c.Rails[j].PoolOf(used[key]); inside {
				return refuse("must lie outside the pools; %s of rails[%d] contains it", pool.Prefix, j)
			}
		}
	}
	return nil
}

// Rail finds a rail by name.
func (c *Config) Rail(name string) (*Rail, bool) {
	for i := range c.Rails {
		if c.Rails[i].Name == name {
			return &c.Rails[i], true
		}
	}
	return nil, false
}

// ReconcilePeriod is how often everything is compared with what it should be.
func (c *Config) ReconcilePeriod() time.Duration {
	return time.Duration(c.ReconcileSeconds) * time.Second
}

// PoolOf finds the rail's pool that contains an address.
func (r *Rail) PoolOf(address netip.Addr) (Pool, bool) {
	for _, pool := range r.Pools {
		if pool.Prefix.Contains(address) {
			return pool, true
		}
	}
	return Pool{}, false
}

// NeedsIPv6 tells whether the rail's session or its pods use it. A session that is unnumbered is between link-local addresses.
func (r *Rail) NeedsIPv6() bool {
	is6 := netip.Addr.Is6
	return r.Peer.Unnumbered || slices.ContainsFunc(r.Peer.Addresses, is6) ||
		slices.ContainsFunc(r.Pools, func(pool Pool) bool { return is6(pool.Gateway) }) ||
		slices.ContainsFunc(r.NodeAddresses(), func(prefix netip.Prefix) bool { return is6(prefix.Addr()) })
}

// NodeAddresses are the LOCAL port's.
func (r *Rail) NodeAddresses() []netip.Prefix {
	var prefixes []netip.Prefix
	for _, text := range r.Addresses {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, prefix)
		}
	}
	return prefixes
}

// MAC is RouterMAC in its binary form.
func (r *Rail) MAC() net.HardwareAddr {
	mac, err := net.ParseMAC(r.RouterMAC)
	if err != nil {
		return nil // validate refused it
	}
	return mac
}
