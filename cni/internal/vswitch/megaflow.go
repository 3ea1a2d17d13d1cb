package vswitch

import (
	"context"
	"regexp"
	"strconv"
	"strings"
)

// Megaflow is one cached flow of a datapath, with what it carried.
type Megaflow struct {
	InPort    string
	Packets   uint64
	Offloaded bool   // in hardware
	Layer     string // ovs, tc, dpdk
	Text      string
}

var (
	megaflowPort    = regexp.MustCompile(`in_port\(([^)]*)\)`)
	megaflowPackets = regexp.MustCompile(`packets:(\d+)`)
	megaflowLayer   = regexp.MustCompile(`dp:([a-z]+)`)
)

// Megaflows of all datapaths, with port names and where each flow is handled (dpctl/dump-flows -m --names).
func (s *Switch) Megaflows(ctx context.Context) ([]Megaflow, error) {
	datapaths, err := s.Command(ctx, "dpif/show")
	if err != nil {
		return nil, err
	}
	var flows []Megaflow
	for _, datapath := range parseDatapaths(datapaths) {
		text, err := s.Command(ctx, "dpctl/dump-flows", "-m", "--names", datapath)
		if err != nil {
			return nil, err
		}
		flows = append(flows, parseMegaflows(text)...)
	}
	return flows, nil
}

// parseDatapaths finds the datapaths in dpif/show: lines at the margin, "system@ovs-system: hit:... missed:...".
func parseDatapaths(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if name, _, found := strings.Cut(line, ": "); found && !strings.HasPrefix(line, " ") && strings.Contains(name, "@") {
			names = append(names, name)
		}
	}
	return names
}

func parseMegaflows(text string) []Megaflow {
	var flows []Megaflow
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		packets := megaflowPackets.FindStringSubmatch(line)
		port := megaflowPort.FindStringSubmatch(line)
		if packets == nil || port == nil {
			continue // headings such as "flow-dump from the main thread:"
		}
		count, err := strconv.ParseUint(packets[1], 10, 64)
		if err != nil {
			continue
		}
		flow := Megaflow{InPort: port[1], Packets: count, Offloaded: strings.Contains(line, "offloaded:yes"), Text: line}
		if layer := megaflowLayer.FindStringSubmatch(line); layer != nil {
			flow.Layer = layer[1]
		}
		flows = append(flows, flow)
	}
	return flows
}
