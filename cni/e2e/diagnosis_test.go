package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// dropping prints the interfaces of a namespace that dropped packets; the numbers are columns of /proc/net/dev.
const dropping = `NR > 2 && $5 + $13 > 0 { print $1, $5, "dropped as received,", $13, "as sent" }`

// diagnose prints where packets can be lost. Drops come first, as what is long is cut short in some reports: those of interfaces, and
// the machine's (softnet_stat's second column is packets for which a processor's backlog, which all namespaces share, had no room).
// Then sessions and their age, the leafs' routes, flows and what they carried.
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
	say("the machine's load, and packets that its processors took and dropped", func() (string, error) {
		return f.Network.Management.Output("sh", "-c", "cat /proc/loadavg; awk '{ print $1, $2 }' /proc/net/softnet_stat")
	})
	drops := func(name string, ns testnet.Namespace) {
		say(name+": interfaces that dropped", func() (string, error) { return ns.Output("awk", dropping, "/proc/net/dev") })
	}
	for _, leaf := range f.Network.Leaves {
		drops(leaf.Name, leaf.NS)
	}
	for _, node := range f.Network.Nodes {
		drops(node.Name, node.NS)
	}
	for _, pod := range f.pods {
		drops(pod.String(), pod.NS)
	}
	for rail, leaf := range f.Network.Leaves {
		routing(leaf.Name, leaf.FRR)
		say(leaf.Name+": routes, neighbours, interfaces", func() (string, error) {
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
