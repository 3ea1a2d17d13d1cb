package probe

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Expectation is what must happen to a probe between endpoints of the same tenant. Between tenants every probe must
// vanish, whatever its kind.
type Expectation int

// The expectations.
const (
	Vanish  Expectation = iota // zero frames anywhere
	Arrive                     // exactly at its destination
	Neither                    // no promise is made
)

// Kind is a sort of probe: a frame, and what should become of it inside a tenant.
type Kind struct {
	Name       string
	SameTenant Expectation
	// Discovery is how neighbours find each other, which a node and its leaf do too.
	Discovery bool
	build     func(scene) []byte
}

// scene is what a frame is made from.
type scene struct {
	from, to *Endpoint
	// third is another endpoint of the destination's tenant and rail, whose identity a spoofer would borrow; with no
	// such endpoint, the destination itself.
	third *Endpoint
	mark  []byte
}

// Kinds are all probes. Names ending in 4 and 6 are the same probe in both families.
var Kinds = kinds()

func kinds() []Kind {
	var all []Kind
	both := func(name string, expect Expectation, build func(s scene, src, dst netip.Addr) []byte) {
		all = append(all,
			Kind{name + "4", expect, false, func(s scene) []byte { return build(s, s.from.Addr4, s.to.Addr4) }},
			Kind{name + "6", expect, false, func(s scene) []byte { return build(s, s.from.Addr6, s.to.Addr6) }})
	}
	plain := func(name string, build func(s scene) []byte) {
		all = append(all, Kind{name, Vanish, false, build})
	}
	neighbours := func(name string, build func(s scene) []byte) {
		all = append(all, Kind{name, Vanish, true, build})
	}

	both("icmp-echo", Arrive, func(s scene, src, dst netip.Addr) []byte {
		proto, message := echo(src, dst, s.mark)
		return s.routed(dst, ip(src, dst, proto, 64, fragment{}, message))
	})
	both("tcp-syn", Arrive, func(s scene, src, dst netip.Addr) []byte {
		return s.routed(dst, ip(src, dst, protoTCP, 64, fragment{}, tcpSYN(src, dst, portIperf, s.mark)))
	})
	both("udp-rocev2", Arrive, func(s scene, src, dst netip.Addr) []byte { return s.routed(dst, s.roce(src, dst)) })
	both("first-fragment", Arrive, func(s scene, src, dst netip.Addr) []byte {
		return s.routed(dst, ip(src, dst, protoUDP, 64, fragment{more: true}, udp(src, dst, 49152, portRoCEv2, padded(s.mark))))
	})
	both("later-fragment", Arrive, func(s scene, src, dst netip.Addr) []byte {
		return s.routed(dst, ip(src, dst, protoUDP, 64, fragment{offset: 64}, padded(s.mark)))
	})
	both("straight-to-mac", Neither, func(s scene, src, dst netip.Addr) []byte {
		return ethernet(s.to.MAC, s.from.MAC, etherOf(dst), s.roce(src, dst))
	})
	both("dot1q", Vanish, func(s scene, src, dst netip.Addr) []byte {
		return tagged(s.routed(dst, s.roce(src, dst)), etherDot1Q, 100)
	})
	both("priority-tag", Vanish, func(s scene, src, dst netip.Addr) []byte {
		return tagged(s.routed(dst, s.roce(src, dst)), etherDot1Q, 3<<13)
	})
	both("qinq", Vanish, func(s scene, src, dst netip.Addr) []byte {
		return tagged(tagged(s.routed(dst, s.roce(src, dst)), etherDot1Q, 100), etherDot1AD, 200)
	})
	both("spoofed-mac", Vanish, func(s scene, src, dst netip.Addr) []byte {
		return ethernet(s.from.gatewayMAC(dst), s.third.MAC, etherOf(dst), s.roce(src, dst))
	})
	both("spoofed-ip", Vanish, func(s scene, _, dst netip.Addr) []byte {
		return s.routed(dst, s.roce(s.third.addr(dst.Is6()), dst))
	})
	both("spoofed-mac-ip", Vanish, func(s scene, _, dst netip.Addr) []byte {
		return ethernet(s.from.gatewayMAC(dst), s.third.MAC, etherOf(dst), s.roce(s.third.addr(dst.Is6()), dst))
	})
	both("foreign-ip", Vanish, func(s scene, _, dst netip.Addr) []byte {
		outside := netip.MustParseAddr("203.0.113.9")
		if dst.Is6() {
			outside = netip.MustParseAddr("2001:db8::9")
		}
		return s.routed(dst, s.roce(outside, dst))
	})
	both("multicast-mac", Vanish, func(s scene, src, dst netip.Addr) []byte {
		return ethernet(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, s.from.MAC, etherOf(dst), s.roce(src, dst))
	})
	both("multicast-ip", Vanish, func(s scene, src, dst netip.Addr) []byte {
		group := netip.MustParseAddr("224.0.0.251")
		if dst.Is6() {
			group = netip.MustParseAddr("ff02::1")
		}
		return ethernet(multicastMAC(group), s.from.MAC, etherOf(dst), s.roce(src, group))
	})

	plain("broadcast-ip", func(s scene) []byte {
		dst := netip.MustParseAddr("255.255.255.255")
		return ethernet(broadcast, s.from.MAC, etherIPv4, s.roce(s.from.Addr4, dst))
	})
	neighbours("arp-request", func(s scene) []byte {
		return ethernet(broadcast, s.from.MAC, etherARP, arp(1, s.from.MAC, make(net.HardwareAddr, 6), s.from.Addr4, s.to.Addr4, s.mark))
	})
	neighbours("arp-request-unicast", func(s scene) []byte {
		return ethernet(s.to.MAC, s.from.MAC, etherARP, arp(1, s.from.MAC, make(net.HardwareAddr, 6), s.from.Addr4, s.to.Addr4, s.mark))
	})
	neighbours("arp-gratuitous", func(s scene) []byte {
		return ethernet(broadcast, s.from.MAC, etherARP, arp(2, s.from.MAC, broadcast, s.third.Addr4, s.third.Addr4, s.mark))
	})
	neighbours("arp-reply-poison", func(s scene) []byte {
		return ethernet(s.to.MAC, s.from.MAC, etherARP, arp(2, s.from.MAC, s.to.MAC, s.third.Addr4, s.to.Addr4, s.mark))
	})
	neighbours("nd-solicitation", func(s scene) []byte {
		group, target := solicitedNode(s.to.Addr6), s.to.Addr6.As16()
		m := discovery(s.from.LinkLocal, group, icmpv6NeighSol, append(make([]byte, 4), target[:]...), option(1, s.from.MAC), markOption(s.mark))
		return ethernet(multicastMAC(group), s.from.MAC, etherIPv6, ip(s.from.LinkLocal, group, protoICMPv6, 255, fragment{}, m))
	})
	neighbours("nd-advertisement", func(s scene) []byte {
		target := s.third.Addr6.As16()
		m := discovery(s.from.LinkLocal, s.to.LinkLocal, icmpv6NeighAdv, append([]byte{0x20, 0, 0, 0}, target[:]...), option(2, s.from.MAC), markOption(s.mark))
		return ethernet(s.to.MAC, s.from.MAC, etherIPv6, ip(s.from.LinkLocal, s.to.LinkLocal, protoICMPv6, 255, fragment{}, m))
	})
	neighbours("ra-multicast", func(s scene) []byte {
		group := netip.MustParseAddr("ff02::1")
		return ethernet(multicastMAC(group), s.from.MAC, etherIPv6, ip(s.from.LinkLocal, group, protoICMPv6, 255, fragment{},
			routerAdvertisement(s.from.LinkLocal, group, s.from.MAC, s.mark)))
	})
	neighbours("ra-unicast", func(s scene) []byte {
		return ethernet(s.to.MAC, s.from.MAC, etherIPv6, ip(s.from.LinkLocal, s.to.LinkLocal, protoICMPv6, 255, fragment{},
			routerAdvertisement(s.from.LinkLocal, s.to.LinkLocal, s.from.MAC, s.mark)))
	})
	plain("link-local", func(s scene) []byte {
		return ethernet(s.to.MAC, s.from.MAC, etherIPv6, s.roce(s.from.LinkLocal, s.to.LinkLocal))
	})
	plain("link-local-by-gateway", func(s scene) []byte {
		return s.routed(s.to.LinkLocal, s.roce(s.from.LinkLocal, s.to.LinkLocal))
	})
	plain("link-local-source", func(s scene) []byte {
		return s.routed(s.to.Addr6, s.roce(s.from.LinkLocal, s.to.Addr6))
	})
	for _, e := range []struct {
		name      string
		etherType uint16
	}{{"rocev1", etherRoCEv1}, {"lldp", etherLLDP}, {"slow-protocol", etherSlow}, {"unknown-ethertype", etherTest}} {
		plain(e.name, func(s scene) []byte { return ethernet(s.to.MAC, s.from.MAC, e.etherType, padded(s.mark)) })
	}
	plain("llc-bpdu", func(s scene) []byte {
		body := append([]byte{0x42, 0x42, 0x03}, padded(s.mark)...)
		return ethernet(net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}, s.from.MAC, uint16(len(body)), body)
	})
	return all
}

// routed is a frame to the gateway, which is how a pod sends to anything on the rail.
func (s scene) routed(dst netip.Addr, packet []byte) []byte {
	return ethernet(s.from.gatewayMAC(dst), s.from.MAC, etherOf(dst), packet)
}

// roce is an RoCEv2 datagram: UDP to port 4791.
func (s scene) roce(src, dst netip.Addr) []byte {
	return ip(src, dst, protoUDP, 64, fragment{}, udp(src, dst, 49152, portRoCEv2, s.mark))
}

func etherOf(addr netip.Addr) uint16 {
	if addr.Is4() {
		return etherIPv4
	}
	return etherIPv6
}

// padded fills a mark up to 64 bytes: a fragment's length must be a multiple of 8, and Ethernet has a minimum.
func padded(mark []byte) []byte {
	return append(append([]byte{}, mark...), make([]byte, 64-len(mark))...)
}

// magic starts every mark. It is random so that no other traffic contains it.
var magic = []byte{0x9d, 0x52, 0x57, 0x50, 0x52, 0x4f, 0x42, 0xe3}

const markSize = 12

func markOf(id uint32) []byte {
	return binary.BigEndian.AppendUint32(append(make([]byte, 0, markSize), magic...), id)
}
