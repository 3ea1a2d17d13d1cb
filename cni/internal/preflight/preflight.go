// Package preflight judges a node before pods are put on its rails. What the node is like comes in as Facts; the judgement
// is a table, so it is tested without a node.
package preflight

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

// Level of a finding.
type Level string

// Levels. A failure means that pods cannot be served, a warning that they may be served badly.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is one check's result.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"`
	Rail   string `json:"rail,omitempty"` // empty: it is about the whole node
}

// FirstFailure among those about the whole node or a rail; nil if there is none.
func FirstFailure(findings []Finding, rail string) *Finding {
	for i := range findings {
		if found := &findings[i]; found.Level == Fail && (found.Rail == "" || found.Rail == rail) {
			return found
		}
	}
	return nil
}

// about makes a finding of the whole node.
func about(check string, level Level, found, remedy string) Finding {
	return Finding{Check: check, Level: level, Found: found, Remedy: remedy}
}

// RailFacts are a rail's.
type RailFacts struct {
	UplinkMTU int    // 0: there is no such link
	Eswitch   string // devlink's mode; empty: no such device
	Firmware  string
	Overlap   []netip.Prefix // routes in the main table that lead into the rail's pools
}

// Facts are what the checks judge.
type Facts struct {
	OFCtl       string // where ovs-ofctl is; empty: not found
	DatabaseErr error
	OVSVersion  string // as ovs-vswitchd says it; empty: it does not answer
	OtherConfig map[string]string
	Daemons     map[string]bool // FRR daemons that answer in the pathspace
	FRRVersion  string          // as bgpd says it; empty: it does not answer
	Reload      bool            // frr-reload.py is there
	Zebras      []int           // process ids in this network namespace
	RDMAMode    string
	RDMADevices int
	StateErr    error
	IPv6        bool // the kernel has it
	Rails       map[string]RailFacts
}

// Judge all facts. Findings come in a fixed order.
func Judge(config *nodeconfig.Config, facts *Facts) []Finding {
	findings := []Finding{judgeTools(facts), judgeDatabase(facts), judgeOVSVersion(facts)}
	if facts.DatabaseErr == nil { // else nobody knows what is set in it
		findings = append(findings, judgeOffload(config, facts), judgeMaxIdle(facts))
	}
	findings = append(findings, judgeDaemons(config, facts), judgeFRRVersion(facts), judgeZebras(facts), judgeRDMA(facts), judgeState(config, facts))
	for i := range config.Rails {
		findings = append(findings, judgeRail(config, &config.Rails[i], facts, facts.Rails[config.Rails[i].Name])...)
	}
	return findings
}

// Failed tells whether any finding is a failure.
func Failed(findings []Finding) bool {
	for _, finding := range findings {
		if finding.Level == Fail {
			return true
		}
	}
	return false
}

func judgeTools(facts *Facts) Finding {
	switch {
	case facts.OFCtl == "":
		return about("programs", Fail, "ovs-ofctl is not in PATH", "install openvswitch-switch (or its client programs) beside the agent")
	case !facts.Reload:
		return about("programs", Fail, "frr-reload.py is not in frr.binDir", "install frr-pythontools beside the agent")
	default:
		return about("programs", OK, facts.OFCtl, "")
	}
}

func judgeDatabase(facts *Facts) Finding {
	if facts.DatabaseErr != nil {
		return about("ovsdb", Fail, facts.DatabaseErr.Error(), "start ovsdb-server, or correct ovs.runDir")
	}
	return about("ovsdb", OK, "answers", "")
}

var numbers = regexp.MustCompile(`(\d+)\.(\d+)`)

// version is major*1000+minor; 0 if the text has none.
func version(text string) int {
	found := numbers.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	major, err := strconv.Atoi(found[1])
	minor, err2 := strconv.Atoi(found[2])
	if err != nil || err2 != nil {
		return 0
	}
	return major*1000 + minor
}

func judgeOVSVersion(facts *Facts) Finding {
	switch found := version(facts.OVSVersion); {
	case found == 0:
		return about("ovs-vswitchd", Fail, "it does not answer on its control socket", "start ovs-vswitchd, or correct ovs.runDir")
	case found < 2017: // 2.17: the oldest long-term release with bundles over OpenFlow 1.4 as used here
		return about("ovs-vswitchd", Fail, facts.OVSVersion, "use Open vSwitch 2.17 or newer; 3.1 is what the tests run")
	default:
		return about("ovs-vswitchd", OK, facts.OVSVersion, "")
	}
}

func judgeOffload(config *nodeconfig.Config, facts *Facts) Finding {
	requested := facts.OtherConfig["hw-offload"] == "true"
	switch {
	case config.OVS.HWOffload && !requested:
		return about("hardware offload", Warn, "other_config:hw-offload is not set yet", "the agent sets it; restart ovs-vswitchd after that, it is read at its start only")
	case !config.OVS.HWOffload && config.OVS.DatapathType == "system":
		return about("hardware offload", Warn, "not requested: all packets take the CPU", "set ovs.hwOffload in the node file")
	default:
		return about("hardware offload", OK, fmt.Sprintf("requested: %t (what is offloaded, railweave_megaflows tells)", requested), "")
	}
}

// defaultMaxIdle is Open vSwitch's, in ms.
const defaultMaxIdle = 10000

func judgeMaxIdle(facts *Facts) Finding {
	text, set := facts.OtherConfig["max-idle"]
	if !set {
		return about("max-idle", OK, fmt.Sprintf("%d ms (default)", defaultMaxIdle), "")
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < defaultMaxIdle {
		return about("max-idle", Warn, text+" ms", "flows leave the hardware between a job's bursts, and each burst begins in software: use 10000 or more")
	}
	return about("max-idle", OK, text+" ms", "")
}

func judgeDaemons(config *nodeconfig.Config, facts *Facts) Finding {
	needed := []string{"zebra", "bgpd"}
	if config.FRR.BFD {
		needed = append(needed, "bfdd")
	}
	var missing []string
	for _, name := range needed {
		if !facts.Daemons[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return about("frr", Fail, strings.Join(missing, ", ")+" not running, or hanging: no answer in the pathspace", "`systemctl status frr`; enable them in FRR's `daemons` file, or correct frr.runDir and frr.pathspace")
	}
	return about("frr", OK, strings.Join(needed, ", "), "")
}

func judgeFRRVersion(facts *Facts) Finding {
	switch found := version(facts.FRRVersion); {
	case found == 0:
		return about("frr version", Fail, "bgpd does not tell it", "see whether bgpd runs: `systemctl status frr`")
	case found < 8004: // 8.4 is what the tests run
		return about("frr version", Fail, facts.FRRVersion, "use FRR 8.4 or newer")
	default:
		return about("frr version", OK, facts.FRRVersion, "")
	}
}

func judgeZebras(facts *Facts) Finding {
	if len(facts.Zebras) > 1 {
		return about("one zebra", Fail, fmt.Sprintf("processes %v are all zebra in this network namespace", facts.Zebras),
			"two zebras remove each other's routes: give the other one (an FRR of another CNI, MetalLB) its own namespace, or use its FRR for the rails too")
	}
	if len(facts.Zebras) == 0 && facts.Daemons["zebra"] {
		return about("one zebra", Warn, "zebra answers, but is not among the processes seen here: nobody can tell whether there is a second one",
			"let the agent see the host's processes (hostPID) and run it in zebra's network namespace")
	}
	return about("one zebra", OK, fmt.Sprint(facts.Zebras), "")
}

func judgeRDMA(facts *Facts) Finding {
	switch {
	case facts.RDMADevices == 0:
		return about("rdma", Warn, "no RDMA device", "pods can use TCP only")
	case facts.RDMAMode != "exclusive":
		return about("rdma", Warn, "RDMA namespaces are "+facts.RDMAMode, "with `rdma system set netns exclusive` (and rdma-cni in the chain) a pod sees its own device only")
	default:
		return about("rdma", OK, fmt.Sprintf("%d devices, exclusive namespaces: rdma-cni must be in the chain", facts.RDMADevices), "")
	}
}

func judgeState(config *nodeconfig.Config, facts *Facts) Finding {
	if facts.StateErr != nil {
		return about("state directory", Fail, facts.StateErr.Error(), "make "+config.StateDir+" writable and durable across reboots")
	}
	return about("state directory", OK, config.StateDir, "")
}

func judgeRail(config *nodeconfig.Config, rail *nodeconfig.Rail, node *Facts, facts RailFacts) []Finding {
	var findings []Finding
	add := func(check string, level Level, found, remedy string) {
		findings = append(findings, Finding{Check: rail.Name + " " + check, Level: level, Found: found, Remedy: remedy, Rail: rail.Name})
	}
	switch {
	case facts.UplinkMTU == 0:
		add("uplink", Fail, "there is no link "+rail.Uplink, "correct rails[].uplink; the physical function must be in the agent's network namespace")
	case rail.MTU > facts.UplinkMTU:
		add("uplink", Fail, fmt.Sprintf("MTU %d, the pods' is to be %d", facts.UplinkMTU, rail.MTU), "raise the uplink's MTU or lower rails[].mtu")
	case facts.UplinkMTU < 4200: // a verbs MTU of 4096 needs a link MTU of 4200 or more
		add("uplink", Warn, fmt.Sprintf("MTU %d", facts.UplinkMTU), "RoCE with an MTU of 4096 needs 4200 or more")
	default:
		add("uplink", OK, fmt.Sprintf("MTU %d", facts.UplinkMTU), "")
	}
	switch {
	case !config.OVS.HWOffload:
	case facts.Eswitch == "switchdev":
		add("eswitch", OK, "switchdev, firmware "+facts.Firmware, "")
	default:
		add("eswitch", Fail, fmt.Sprintf("mode %q", facts.Eswitch), "`devlink dev eswitch set pci/... mode switchdev` before any virtual function is bound")
	}
	if rail.NeedsIPv6() && !node.IPv6 {
		add("ipv6", Fail, "the kernel has no IPv6", "start it without ipv6.disable=1; or give the rail IPv4 pools, and its peer an IPv4 address")
	}
	if len(facts.Overlap) > 0 {
		add("isolation", Fail, fmt.Sprintf("the main table has routes into the pools: %v", facts.Overlap), "remove them: with them the host and pods of the default network are routed into the GPU network")
	} else {
		add("isolation", OK, "no route of the host leads into the pools", "")
	}
	return findings
}
