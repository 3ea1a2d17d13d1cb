package probe

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
)

func testEndpoint(n byte) *Endpoint {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, n}
	return &Endpoint{Name: string('a' + rune(n)), MAC: mac, LinkLocal: linkLocal(mac),
		Addr4: netip.AddrFrom4([4]byte{10, 100, 1, n}), Addr6: netip.MustParseAddr("fd00:64:1::").Next(),
		gateway4: net.HardwareAddr{2, 1, 1, 1, 1, 1}, gateway6: net.HardwareAddr{2, 1, 1, 1, 1, 1}}
}

// TestEveryKindIsWellFormed checks what a switch and a receiver look at: a forged frame that is dropped for a wrong
// checksum would prove nothing.
func TestEveryKindIsWellFormed(t *testing.T) {
	s := scene{from: testEndpoint(1), to: testEndpoint(2), third: testEndpoint(3), mark: markOf(0x01020304)}
	names := map[string]bool{}
	for _, kind := range Kinds {
		if names[kind.Name] {
			t.Errorf("%s: twice", kind.Name)
		}
		names[kind.Name] = true
		frame := kind.build(s)
		if bytes.Count(frame, s.mark) != 1 {
			t.Errorf("%s: the mark is in it %d times", kind.Name, bytes.Count(frame, s.mark))
		}
		at := 12
		for {
			if e := binary.BigEndian.Uint16(frame[at:]); e != etherDot1Q && e != etherDot1AD {
				break
			}
			at += 4
		}
		packet := frame[at+2:]
		switch binary.BigEndian.Uint16(frame[at:]) {
		case etherIPv4:
			checkIPv4(t, kind.Name, packet)
		case etherIPv6:
			checkIPv6(t, kind.Name, packet)
		}
	}
}

func checkIPv4(t *testing.T, name string, packet []byte) {
	t.Helper()
	if finish(sum(0, packet[:20])) != 0 {
		t.Errorf("%s: IPv4 header checksum", name)
	}
	if int(binary.BigEndian.Uint16(packet[2:])) != len(packet) {
		t.Errorf("%s: IPv4 length %d of %d", name, binary.BigEndian.Uint16(packet[2:]), len(packet))
	}
	if binary.BigEndian.Uint16(packet[6:])&0x1fff != 0 {
		return // a later fragment has no transport header
	}
	src, _ := netip.AddrFromSlice(packet[12:16])
	dst, _ := netip.AddrFromSlice(packet[16:20])
	checkTransport(t, name, src, dst, packet[9], packet[20:])
}

func checkIPv6(t *testing.T, name string, packet []byte) {
	t.Helper()
	if int(binary.BigEndian.Uint16(packet[4:])) != len(packet)-40 {
		t.Errorf("%s: IPv6 length", name)
	}
	src, _ := netip.AddrFromSlice(packet[8:24])
	dst, _ := netip.AddrFromSlice(packet[24:40])
	proto, payload := packet[6], packet[40:]
	if proto == protoIPv6Frag {
		if binary.BigEndian.Uint16(payload[2:])>>3 != 0 {
			return
		}
		proto, payload = payload[0], payload[8:]
	}
	checkTransport(t, name, src, dst, proto, payload)
}

func checkTransport(t *testing.T, name string, src, dst netip.Addr, proto uint8, segment []byte) {
	t.Helper()
	s := sum(0, segment)
	if proto != protoICMP {
		s = sum(sum(s, src.AsSlice()), dst.AsSlice()) + uint32(proto) + uint32(len(segment))
	}
	if finish(s) != 0 {
		t.Errorf("%s: transport checksum", name)
	}
}
