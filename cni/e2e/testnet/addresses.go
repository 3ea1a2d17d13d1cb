package testnet

import (
	"fmt"
	"net/netip"
)

// The address plan. Everything an instance uses is a function of (rail, node), so that the tests, the auditor and the
// routers agree without asking each other. Instances may all use the same plan: their namespaces never meet.
const (
	// SpineASN, LeafASNBase and NodeASNBase follow RFC 7938's private two- and four-byte ranges.
	SpineASN    = 65000
	LeafASNBase = 65100
	NodeASNBase = 4200000000

	// MaxNodes and MaxRails bound the plan: one octet each.
	MaxNodes = 16
	MaxRails = 8
)

// LeafASN is the AS number of a rail's leaf.
func LeafASN(rail int) uint32 { return LeafASNBase + uint32(rail) }

// NodeASN is the AS number of a node; nodes are numbered from 1.
func NodeASN(node int) uint32 { return NodeASNBase + uint32(node) }

// Pool is the address range of a whole rail, which the nodes' prefix lists and the leaf's import filter are made of.
func Pool(rail int) (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 100+rail)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/32", 100+rail))
}

// NodeRange is the part of a rail's pool from which a node's IPAM hands out pod addresses.
func NodeRange(rail, node int) (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 100+rail, node)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:%x:%x::/64", 100+rail, node))
}

// Gateway is the address pods of a rail use as the next hop to the rest of the rail, the same on every node. No
// interface carries it: pods get a permanent neighbour for it.
func Gateway(rail int) (v4, v6 netip.Addr) {
	p4, p6 := Pool(rail)
	return p4.Addr().Next(), p6.Addr().Next()
}

// Link is the point-to-point subnet between a node and its leaf on one rail.
type Link struct {
	Leaf4, Node4 netip.Prefix // a /31 each
	Leaf6, Node6 netip.Prefix // a /127 each
}

// NodeLink returns the subnet between a node and the leaf of a rail.
func NodeLink(rail, node int) Link {
	return Link{
		Leaf4: netip.MustParsePrefix(fmt.Sprintf("172.20.%d.%d/31", rail, 2*node)),
		Node4: netip.MustParsePrefix(fmt.Sprintf("172.20.%d.%d/31", rail, 2*node+1)),
		Leaf6: netip.MustParsePrefix(fmt.Sprintf("fd20:%x:%x::/127", rail, node)),
		Node6: netip.MustParsePrefix(fmt.Sprintf("fd20:%x:%x::1/127", rail, node)),
	}
}

// ManagementAddress is a node's address on the management network, which stands for the cluster's ordinary network.
func ManagementAddress(node int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("192.168.77.%d/24", 10+node))
}

// ManagementGateway is the router of the management network.
func ManagementGateway() netip.Prefix { return netip.MustParsePrefix("192.168.77.1/24") }

// DefaultNetwork is the range of the default (non-GPU) pod network of a node; the first address is the node's.
func DefaultNetwork(node int) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", node))
}
