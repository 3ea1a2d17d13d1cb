// Package testnet builds a GPU network out of network namespaces: nodes with real Open vSwitch (userspace datapath)
// and real FRR, one leaf per rail and a spine, joined by veth pairs. An instance has a unique name, so that several run
// side by side, and leaves nothing behind, however its owner ends.
package testnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// StateDir holds one directory per instance.
const StateDir = "/run/railweave-testnet"

// RailMTU is the MTU of the rails and the pods' interfaces on them.
const RailMTU = 9000

// Config is the shape of a network.
type Config struct {
	Nodes   int
	Rails   int
	Peering Peering
	BFD     bool // between nodes and leafs; FRR 10 begins no session of which one end alone has it
}

// Validate reports what is wrong with a shape.
func (c Config) Validate() error {
	switch {
	case c.Nodes < 1 || c.Nodes > MaxNodes:
		return fmt.Errorf("nodes: %d is not between 1 and %d", c.Nodes, MaxNodes)
	case c.Rails < 1 || c.Rails > MaxRails:
		return fmt.Errorf("rails: %d is not between 1 and %d", c.Rails, MaxRails)
	case c.Peering != Unnumbered && c.Peering != Numbered:
		return fmt.Errorf("peering: %q is neither %q nor %q", c.Peering, Unnumbered, Numbered)
	}
	return nil
}

// Network is one running instance.
type Network struct {
	ID         string
	Config     Config
	Dir        string
	Nodes      []*Node
	Leaves     []*Router
	Spine      *Router
	Management Namespace

	lock  *instanceLock
	guard *guard
}

// Node is one GPU server.
type Node struct {
	Index int // from 1, as in the address plan
	Name  string
	NS    Namespace
	Dir   string
	OVS   OpenVSwitch
	FRR   FRR
}

// Rail is the name of a rail.
func Rail(rail int) string { return fmt.Sprintf("rail%d", rail) }

// Bridge is the name of a rail's bridge on every node; its LOCAL port has the same name.
func Bridge(rail int) string { return "br-" + Rail(rail) }

// Uplink is the name of the interface that stands for a rail's physical function on every node.
func Uplink(rail int) string { return fmt.Sprintf("uplink%d", rail) }

// LeafPort is the name of a leaf's interface to a node.
func LeafPort(node int) string { return fmt.Sprintf("node%d", node) }

// describe fills in everything that follows from the id and the shape, without touching the system.
func describe(id string, config Config) *Network {
	n := &Network{ID: id, Config: config, Dir: filepath.Join(StateDir, id)}
	n.Management = Namespace{Name: id + "-mgmt"}
	n.Spine = n.router("spine", SpineASN)
	for rail := range config.Rails {
		n.Leaves = append(n.Leaves, n.router(fmt.Sprintf("leaf%d", rail), LeafASN(rail)))
	}
	for i := 1; i <= config.Nodes; i++ {
		name := fmt.Sprintf("node%d", i)
		ns := Namespace{Name: id + "-" + name}
		dir := filepath.Join(n.Dir, name)
		n.Nodes = append(n.Nodes, &Node{Index: i, Name: name, NS: ns, Dir: dir,
			OVS: OpenVSwitch{ns: ns, dir: filepath.Join(dir, "ovs")}, FRR: FRR{ns: ns, dir: filepath.Join(dir, "frr")}})
	}
	return n
}

func (n *Network) router(name string, asn uint32) *Router {
	ns := Namespace{Name: n.ID + "-" + name}
	return &Router{Name: name, ASN: asn, NS: ns, FRR: FRR{ns: ns, dir: filepath.Join(n.Dir, name, "frr")}}
}

// Namespaces lists the instance's namespaces other than pods'.
func (n *Network) Namespaces() []Namespace {
	all := []Namespace{n.Management, n.Spine.NS}
	for _, l := range n.Leaves {
		all = append(all, l.NS)
	}
	for _, node := range n.Nodes {
		all = append(all, node.NS)
	}
	return all
}

// Up builds a network that ends with the calling process: a guard process takes it down when the caller is gone,
// whatever the reason. Strays of earlier owners are swept first.
func Up(config Config) (*Network, error) {
	n, err := up(config, true)
	if err != nil {
		return nil, err
	}
	return n, nil
}

// UpDetached builds a network that stays until Open and Down.
func UpDetached(config Config) (*Network, error) { return up(config, false) }

func up(config Config, owned bool) (*Network, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if err := Requirements(); err != nil {
		return nil, err
	}
	if _, err := Sweep(); err != nil {
		return nil, fmt.Errorf("sweep strays: %w", err)
	}
	n, err := claim(config, owned)
	if err != nil {
		return nil, err
	}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Down())
	}
	return n, nil
}

func (n *Network) build() error {
	for _, ns := range n.Namespaces() {
		if _, err := CreateNamespace(ns.Name); err != nil {
			return err
		}
	}
	if err := n.wireRails(); err != nil {
		return err
	}
	if err := n.wireManagement(); err != nil {
		return err
	}
	group, _ := errgroup.WithContext(context.Background())
	for _, node := range n.Nodes {
		group.Go(func() error { return n.startNode(node) })
	}
	for rail, leaf := range n.Leaves {
		group.Go(func() error { return leaf.FRR.create(n.leafConfig(rail)) })
	}
	group.Go(func() error { return n.Spine.FRR.create(n.spineConfig()) })
	return group.Wait()
}

func (n *Network) wireRails() error {
	for rail, leaf := range n.Leaves {
		if err := prepareForwarding(leaf.NS); err != nil {
			return err
		}
		for _, node := range n.Nodes {
			port := LeafPort(node.Index)
			err := connect(end{ns: node.NS, name: Uplink(rail), mtu: RailMTU}, end{ns: leaf.NS, name: port, mtu: RailMTU})
			if err != nil {
				return err
			}
			if err := leaf.NS.DisableChecksumOffload(port); err != nil {
				return err
			}
			if n.Config.Peering == Numbered {
				link := NodeLink(rail, node.Index)
				if err := leaf.NS.addAddresses(port, link.Leaf4, link.Leaf6); err != nil {
					return err
				}
			}
		}
		err := connect(end{ns: leaf.NS, name: "spine", mtu: RailMTU},
			end{ns: n.Spine.NS, name: fmt.Sprintf("leaf%d", rail), mtu: RailMTU})
		if err != nil {
			return err
		}
	}
	return prepareForwarding(n.Spine.NS)
}

// wireManagement gives every node an ordinary network: a default route, and a bridge for pods of the default network
// that the node routes for. It exists to show that nothing passes between it and the rails.
func (n *Network) wireManagement() error {
	gateway := ManagementGateway()
	if err := n.Management.Run("ip", "link", "add", "br0", "type", "bridge"); err != nil {
		return err
	}
	if err := n.Management.addAddresses("br0", gateway); err != nil {
		return err
	}
	if err := n.Management.Run("ip", "link", "set", "br0", "up"); err != nil {
		return err
	}
	for _, node := range n.Nodes {
		err := connect(end{ns: node.NS, name: "eth0", mtu: 1500}, end{ns: n.Management, name: node.Name, mtu: 1500})
		if err != nil {
			return err
		}
		if err := n.Management.Run("ip", "link", "set", node.Name, "master", "br0"); err != nil {
			return err
		}
		address, pods := ManagementAddress(node.Index), DefaultNetwork(node.Index)
		if err := node.NS.addAddresses("eth0", address); err != nil {
			return err
		}
		for _, args := range [][]string{
			{"route", "add", "default", "via", gateway.Addr().String()},
			{"link", "add", "cni0", "type", "bridge"},
			{"addr", "add", netip.PrefixFrom(pods.Addr().Next(), pods.Bits()).String(), "dev", "cni0"},
			{"link", "set", "cni0", "up"},
		} {
			if err := node.NS.Run("ip", args...); err != nil {
				return err
			}
		}
		if err := n.Management.Run("ip", "route", "add", pods.String(), "via", address.Addr().String()); err != nil {
			return err
		}
		if err := prepareForwarding(node.NS); err != nil {
			return err
		}
	}
	return prepareForwarding(n.Management)
}

// startNode starts a node's Open vSwitch and FRR, both empty: the bridges and FRR's configuration are the node agent's.
func (n *Network) startNode(node *Node) error {
	if err := node.OVS.create(); err != nil {
		return err
	}
	return node.FRR.create("frr defaults datacenter\nhostname " + node.Name + "\nservice integrated-vtysh-config\n")
}

// nodeRouteLimit is the leaf's limit of routes from one node: every address of the node's range.
const nodeRouteLimit = 256

func (n *Network) leafConfig(rail int) string {
	neighbors := []neighbor{{ifname: "spine"}}
	for _, node := range n.Nodes {
		peer := neighbor{ifname: LeafPort(node.Index), isNode: true, bfd: n.Config.BFD, maxRoute: nodeRouteLimit}
		if n.Config.Peering == Numbered {
			link := NodeLink(rail, node.Index)
			peer.peer4, peer.peer6 = link.Node4.Addr(), link.Node6.Addr()
		}
		neighbors = append(neighbors, peer)
	}
	pool4, pool6 := Pool(rail)
	return routerConfig(*n.Leaves[rail], netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + rail)}), pool4, pool6, neighbors)
}

func (n *Network) spineConfig() string {
	var neighbors []neighbor
	for rail := range n.Leaves {
		neighbors = append(neighbors, neighbor{ifname: fmt.Sprintf("leaf%d", rail)})
	}
	all4, all6 := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")
	return routerConfig(*n.Spine, netip.AddrFrom4([4]byte{192, 0, 2, 1}), all4, all6, neighbors)
}

// WaitFabric waits until every leaf's session with the spine is up.
func (n *Network) WaitFabric(limit time.Duration) error {
	var sessions []Session
	var err error
	ok := waitUntil(limit, 200*time.Millisecond, func() bool {
		sessions, err = n.Spine.Sessions()
		if err != nil || len(sessions) < len(n.Leaves) {
			return false
		}
		for _, s := range sessions {
			if !s.Established() {
				return false
			}
		}
		return true
	})
	if !ok {
		return fmt.Errorf("spine sessions not established within %v: %v (last error: %w)", limit, sessions, err)
	}
	return nil
}

// Down removes everything the instance has made. It goes on after failures and reports them together.
func (n *Network) Down() error {
	err := remove(n.ID)
	if n.lock != nil {
		err = errors.Join(err, n.lock.release())
	}
	if n.guard != nil {
		err = errors.Join(err, n.guard.dismiss())
	}
	return err
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
