package flow

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// packet is what the flows can tell apart.
type packet struct {
	inPort      string
	source      string // MAC addresses
	destination string
	tagged      bool
	kind        string // arp, ip, tcp, udp, icmp, ipv6, tcp6, udp6, icmp6, or any other ethertype's name
	from, to    netip.Addr
	sourcePort  int
	targetPort  int
	icmpType    int
	ttl         int
}

var above = map[string][]string{ // which kinds a kind is too
	"tcp": {"ip"}, "udp": {"ip"}, "icmp": {"ip"}, "tcp6": {"ipv6"}, "udp6": {"ipv6"}, "icmp6": {"ipv6"},
}

// switched evaluates a program as the switch would: in each table the matching flow of the highest priority, from table 0 on.
// It returns the port the packet leaves by ("" if it is dropped) and the MAC addresses it then has.
func switched(t *testing.T, flows []Flow, p packet) (output, source, destination string) {
	t.Helper()
	registers := map[string]string{"reg0": "0", "reg1": "0"}
	source, destination = p.source, p.destination
	for table := 0; table >= 0; {
		best := -1
		for i, flow := range flows {
			if flow.Table == table && matches(t, flow.Match, p, registers) && (best < 0 || flow.Priority > flows[best].Priority) {
				best = i
			} else if best >= 0 && flow.Table == table && flow.Priority == flows[best].Priority && flow.Actions != flows[best].Actions && matches(t, flow.Match, p, registers) {
				t.Errorf("two flows of one priority match: %s and %s", flow, flows[best])
			}
		}
		if best < 0 {
			return "", "", ""
		}
		table = -1
		for action := range strings.SplitSeq(flows[best].Actions, ",") {
			switch verb, rest, _ := strings.Cut(action, ":"); verb {
			case "drop":
				return "", "", ""
			case "goto_table":
				next, err := strconv.Atoi(rest)
				if err != nil {
					t.Fatal(err)
				}
				table = next
			case "output":
				output = rest
			case "dec_ttl":
				if p.ttl <= 1 {
					return "", "", ""
				}
			case "set_field":
				value, field, _ := strings.Cut(rest, "->")
				switch field {
				case "eth_src":
					source = value
				case "eth_dst":
					destination = value
				default:
					registers[field] = value
				}
			default:
				t.Fatalf("unknown action %q", action)
			}
		}
	}
	return output, source, destination
}

func matches(t *testing.T, match string, p packet, registers map[string]string) bool {
	t.Helper()
	for field := range strings.SplitSeq(match, ",") {
		name, value, valued := strings.Cut(field, "=")
		ok := false
		switch {
		case !valued:
			ok = p.kind == name || slices.Contains(above[p.kind], name)
		case name == "vlan_tci":
			ok = p.tagged
		case name == "in_port":
			ok = p.inPort == value
		case name == "dl_src":
			ok = p.source == value
		case name == "dl_dst":
			ok = macMatches(t, p.destination, value)
		case name == "nw_src" || name == "ipv6_src":
			ok = addressMatches(t, p.from, value)
		case name == "nw_dst" || name == "ipv6_dst":
			ok = addressMatches(t, p.to, value)
		case name == "tp_src":
			ok = fmt.Sprint(p.sourcePort) == value
		case name == "tp_dst":
			ok = fmt.Sprint(p.targetPort) == value
		case name == "icmp_type":
			ok = fmt.Sprint(p.icmpType) == value
		case name == "nw_ttl":
			ok = fmt.Sprint(p.ttl) == value
		case name == "reg0" || name == "reg1":
			ok = registers[name] == value
		default:
			t.Fatalf("unknown field %q", field)
		}
		if !ok {
			return false
		}
	}
	return true
}

func macMatches(t *testing.T, mac, value string) bool {
	t.Helper()
	wanted, mask, masked := strings.Cut(value, "/")
	if !masked {
		return mac == value
	}
	have, err1 := net.ParseMAC(mac)
	want, err2 := net.ParseMAC(wanted)
	bits, err3 := net.ParseMAC(mask)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(mac, value)
	}
	for i := range have {
		if have[i]&bits[i] != want[i]&bits[i] {
			return false
		}
	}
	return true
}

func addressMatches(t *testing.T, address netip.Addr, value string) bool {
	t.Helper()
	if !strings.Contains(value, "/") {
		return address.IsValid() && address.String() == value
	}
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		t.Fatal(err)
	}
	return prefix.Contains(address)
}
