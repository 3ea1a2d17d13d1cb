package audit

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

var (
	addressPattern = regexp.MustCompile(`(?:nw|ipv6)_(?:src|dst)=([0-9a-f.:]+)`)
	sourceMAC      = regexp.MustCompile(`dl_src=([0-9a-f:]{17})`)
	inputPort      = regexp.MustCompile(`in_port="?([^",\s]+)"?`)
)

// auditOVS looks at ports, flows and the bridges' safety settings.
func auditOVS(e *expectation) ([]Finding, error) {
	var findings []Finding
	bridges, err := e.node.OVS.VSCtl("list-br")
	if err != nil {
		return nil, err
	}
	var want []string
	for rail := range e.rails {
		want = append(want, testnet.Bridge(rail))
	}
	findings = append(findings, e.compare("ovs", "bridge", want, strings.Fields(bridges))...)
	for rail := range e.rails {
		ports, err := auditPorts(e, rail)
		if err != nil {
			return nil, err
		}
		flows, err := auditFlows(e, rail)
		if err != nil {
			return nil, err
		}
		findings = append(append(findings, ports...), flows...)
	}
	return findings, nil
}

func auditPorts(e *expectation, rail int) ([]Finding, error) {
	ovs, bridge := e.node.OVS, testnet.Bridge(rail)
	listed, err := ovs.VSCtl("list-ports", bridge)
	if err != nil {
		return nil, err
	}
	want := []string{testnet.Uplink(rail)}
	for _, a := range e.onRail(rail) {
		want = append(want, a.Port)
	}
	findings := e.compare("ovs", "port of "+bridge, want, strings.Fields(listed))
	mode, err := ovs.VSCtl("get-fail-mode", bridge)
	if err != nil {
		return nil, err
	}
	if mode != "secure" {
		findings = append(findings, e.finding("ovs", "%s has fail_mode %q", bridge, mode))
	}
	interfaces, err := ovs.VSCtl("--format=csv", "--no-headings", "--data=bare", "--columns=name,ofport,error", "list", "Interface")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(interfaces, "\n") {
		fields := strings.SplitN(line, ",", 3)
		if len(fields) != 3 || !slices.Contains(want, fields[0]) {
			continue
		}
		if fields[1] == "" || strings.HasPrefix(fields[1], "-") || fields[2] != "" {
			findings = append(findings, e.finding("ovs", "port %s of %s has no OpenFlow number (%s)", fields[0], bridge, fields[2]))
		}
	}
	return findings, nil
}

// auditFlows checks that every address, source MAC and port that a flow names is somebody's, and that every attachment
// has flows that let it send and receive.
func auditFlows(e *expectation, rail int) ([]Finding, error) {
	bridge := testnet.Bridge(rail)
	text, err := e.node.OVS.OFCtl("--names", "--no-stats", "dump-flows", bridge)
	if err != nil {
		return nil, err
	}
	flows := flowLines(text)
	var findings []Finding
	macs := map[string]bool{}
	ports := map[string]bool{testnet.Uplink(rail): true, "LOCAL": true, bridge: true}
	for _, a := range e.onRail(rail) {
		macs[a.MAC], ports[a.Port] = true, true
	}
	for _, link := range []string{bridge, testnet.Uplink(rail)} {
		mac, err := e.node.NS.HardwareAddr(link)
		if err != nil {
			return nil, err
		}
		macs[mac] = true
	}
	for _, flow := range flows {
		for _, m := range addressPattern.FindAllStringSubmatch(flow, -1) {
			addr, err := netip.ParseAddr(m[1])
			if err == nil && inPools(addr, e.rails) && !e.everywhere[addr] {
				findings = append(findings, e.finding("ovs", "%s: a flow for %s, which no pod has: %s", bridge, addr, flow))
			}
		}
		if m := sourceMAC.FindStringSubmatch(flow); m != nil && !macs[m[1]] {
			findings = append(findings, e.finding("ovs", "%s: a flow for MAC %s, which no pod here has: %s", bridge, m[1], flow))
		}
		if m := inputPort.FindStringSubmatch(flow); m != nil && !ports[m[1]] {
			findings = append(findings, e.finding("ovs", "%s: a flow for port %s, which is no pod's: %s", bridge, m[1], flow))
		}
		if strings.Contains(flow, "NORMAL") || strings.Contains(flow, "FLOOD") {
			findings = append(findings, e.finding("ovs", "%s: a flow that floods: %s", bridge, flow))
		}
	}
	for _, a := range e.onRail(rail) {
		for _, addr := range a.Addresses {
			if problem := lacks(flows, a, addr); problem != "" {
				findings = append(findings, e.finding("ovs", "%s: %v: %s", bridge, a.pod, problem))
			}
		}
	}
	return findings, nil
}

// lacks says which of the two flows that an address cannot do without is not there.
func lacks(flows []string, a expected, addr netip.Addr) string {
	family := "nw"
	if addr.Is6() {
		family = "ipv6"
	}
	sends := slices.ContainsFunc(flows, func(f string) bool {
		m := inputPort.FindStringSubmatch(f)
		return m != nil && m[1] == a.Port && strings.Contains(f, "dl_src="+a.MAC) && names(f, family+"_src", addr)
	})
	receives := slices.ContainsFunc(flows, func(f string) bool {
		return names(f, family+"_dst", addr) && strings.Contains(f, "output:") &&
			strings.Contains(f, a.Port) && strings.Contains(f, a.MAC)
	})
	switch {
	case !sends:
		return fmt.Sprintf("no flow lets it send from %s", addr)
	case !receives:
		return fmt.Sprintf("no flow delivers %s to it", addr)
	}
	return ""
}

// names reports whether a flow matches a field on exactly one address.
func names(flow, field string, addr netip.Addr) bool {
	_, rest, ok := strings.Cut(flow, field+"="+addr.String())
	return ok && (rest == "" || strings.ContainsRune(", ", rune(rest[0])))
}

// flowLines are the flows of a dump, without its heading.
func flowLines(text string) []string {
	var flows []string
	for _, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); strings.Contains(line, "actions=") {
			flows = append(flows, line)
		}
	}
	return flows
}

func inPools(addr netip.Addr, rails int) bool {
	for rail := range rails {
		pool4, pool6 := testnet.Pool(rail)
		if pool4.Contains(addr) || pool6.Contains(addr) {
			return true
		}
	}
	return false
}
