package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// diagnose prints where packets can be lost: sessions and their age, the leafs' routes, flows and what they carried, and the
// counters of drops.
func (f *field) diagnose(t *testing.T) {
	t.Helper()
	var text strings.Builder
	say := func(what string, run func() (string, error)) {
		out, err := run()
		fmt.Fprintf(&text, "--- %s\n%s\n", what, strings.TrimSpace(out))
		if err != nil {
			fmt.Fprintln(&text, err)
		}
	}
	routing := func(name string, frr testnet.FRR) {
		say(name+": BGP sessions", func() (string, error) { return frr.VTYSH("show bgp summary") })
		say(name+": BFD", func() (string, error) { return frr.VTYSH("show bfd peers brief") })
	}
	for rail, leaf := range f.Network.Leaves {
		routing(leaf.Name, leaf.FRR)
		say(leaf.Name+": routes, neighbours, drops of interfaces", func() (string, error) {
			return leaf.NS.Output("sh", "-c", "ip -4 route; ip -6 route; ip neigh; ip -s link; nstat -as | grep -E 'NoRoutes|Discards|AddrErrors'")
		})
		for _, node := range f.Network.Nodes {
			say(fmt.Sprintf("%s: flows of %s", node.Name, testnet.Bridge(rail)), func() (string, error) { return node.OVS.OFCtl("dump-flows", testnet.Bridge(rail)) })
		}
	}
	for _, node := range f.Network.Nodes {
		routing(node.Name, node.FRR)
		for _, command := range [][]string{{"dpctl/show", "-s"}, {"coverage/show"}, {"upcall/show"}} {
			say(node.Name+": "+command[0], func() (string, error) { return node.OVS.AppCtl(command...) })
		}
	}
	t.Log(text.String())
}
