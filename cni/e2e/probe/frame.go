package probe

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Ethernet types.
const (
	etherIPv4   = 0x0800
	etherARP    = 0x0806
	etherDot1Q  = 0x8100
	etherIPv6   = 0x86dd
	etherDot1AD = 0x88a8
	etherLLDP   = 0x88cc
	etherRoCEv1 = 0x8915
	etherSlow   = 0x8809 // LACP
	etherTest   = 0x88b5 // IEEE 802 local experimental
)

// IP protocols.
const (
	protoICMP       = 1
	protoTCP        = 6
	protoUDP        = 17
	protoIPv6Frag   = 44
	protoICMPv6     = 58
	portRoCEv2      = 4791
	portBGP         = 179
	portIperf       = 5201
	icmpv6RouterAdv = 134
	icmpv6NeighSol  = 135
	icmpv6NeighAdv  = 136
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ethernet(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	frame := make([]byte, 0, 14+len(payload))
	frame = append(frame, dst...)
	frame = append(frame, src...)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	return append(frame, payload...)
}

// tagged puts a VLAN tag into a frame.
func tagged(frame []byte, tpid, vid uint16) []byte {
	out := append([]byte{}, frame[:12]...)
	out = binary.BigEndian.AppendUint16(out, tpid)
	out = binary.BigEndian.AppendUint16(out, vid)
	return append(out, frame[12:]...)
}

// fragment says which part of a datagram an IP packet is; the zero value is all of it.
type fragment struct {
	offset uint16 // in 8-byte units
	more   bool
}

// ip makes an IPv4 or IPv6 packet, by the family of dst.
func ip(src, dst netip.Addr, proto uint8, ttl uint8, frag fragment, payload []byte) []byte {
	if dst.Is4() {
		return ipv4(src, dst, proto, ttl, frag, payload)
	}
	if frag != (fragment{}) {
		more := uint16(0)
		if frag.more {
			more = 1
		}
		header := []byte{proto, 0}
		header = binary.BigEndian.AppendUint16(header, frag.offset<<3|more)
		header = binary.BigEndian.AppendUint32(header, 0x52570001)
		payload, proto = append(header, payload...), protoIPv6Frag
	}
	packet := []byte{0x60, 0, 0, 0}
	packet = binary.BigEndian.AppendUint16(packet, uint16(len(payload)))
	packet = append(packet, proto, ttl)
	packet = append(packet, src.AsSlice()...)
	packet = append(packet, dst.AsSlice()...)
	return append(packet, payload...)
}

func ipv4(src, dst netip.Addr, proto uint8, ttl uint8, frag fragment, payload []byte) []byte {
	header := make([]byte, 20)
	header[0] = 0x45
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(header[4:], 0x5257)
	flags := frag.offset
	if frag.more {
		flags |= 0x2000
	}
	binary.BigEndian.PutUint16(header[6:], flags)
	header[8], header[9] = ttl, proto
	copy(header[12:], src.AsSlice())
	copy(header[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(header[10:], finish(sum(0, header)))
	return append(header, payload...)
}

func sum(start uint32, data []byte) uint32 {
	for i := 0; i+1 < len(data); i += 2 {
		start += uint32(data[i])<<8 | uint32(data[i+1])
	}
	if len(data)%2 == 1 {
		start += uint32(data[len(data)-1]) << 8
	}
	return start
}

func finish(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}

// checksum fills in a transport checksum at offset at, over the pseudo header and the segment.
func checksum(src, dst netip.Addr, proto uint8, segment []byte, at int) []byte {
	s := sum(sum(0, src.AsSlice()), dst.AsSlice()) + uint32(proto) + uint32(len(segment))
	binary.BigEndian.PutUint16(segment[at:], finish(sum(s, segment)))
	return segment
}

func udp(src, dst netip.Addr, srcPort, dstPort uint16, payload []byte) []byte {
	segment := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(segment[0:], srcPort)
	binary.BigEndian.PutUint16(segment[2:], dstPort)
	binary.BigEndian.PutUint16(segment[4:], uint16(8+len(payload)))
	return checksum(src, dst, protoUDP, append(segment, payload...), 6)
}

// tcpSYN makes a connection request. It carries data, which is legal and lets the mark ride along.
func tcpSYN(src, dst netip.Addr, dstPort uint16, payload []byte) []byte {
	segment := make([]byte, 20, 20+len(payload))
	binary.BigEndian.PutUint16(segment[0:], 40000)
	binary.BigEndian.PutUint16(segment[2:], dstPort)
	binary.BigEndian.PutUint32(segment[4:], 1)
	segment[12], segment[13] = 5<<4, 0x02
	binary.BigEndian.PutUint16(segment[14:], 65535)
	return checksum(src, dst, protoTCP, append(segment, payload...), 16)
}

// echo makes an ICMP or ICMPv6 echo request, by the family of dst.
func echo(src, dst netip.Addr, payload []byte) (proto uint8, message []byte) {
	message = append([]byte{8, 0, 0, 0, 0x52, 0x57, 0, 1}, payload...)
	if dst.Is4() {
		binary.BigEndian.PutUint16(message[2:], finish(sum(0, message)))
		return protoICMP, message
	}
	message[0] = 128
	return protoICMPv6, checksum(src, dst, protoICMPv6, message, 2)
}

// arp makes an ARP message with the mark in what would be padding.
func arp(operation uint16, sender, target net.HardwareAddr, senderIP, targetIP netip.Addr, mark []byte) []byte {
	m := []byte{0, 1, 8, 0, 6, 4}
	m = binary.BigEndian.AppendUint16(m, operation)
	m = append(m, sender...)
	m = append(m, senderIP.AsSlice()...)
	m = append(m, target...)
	m = append(m, targetIP.AsSlice()...)
	return append(m, mark...)
}

// option makes an ICMPv6 neighbour discovery option with a link-layer address.
func option(kind byte, mac net.HardwareAddr) []byte { return append([]byte{kind, 1}, mac...) }

// markOption carries the mark in a discovery option of an unassigned type, which receivers must skip.
func markOption(mark []byte) []byte {
	size := (2 + len(mark) + 7) / 8
	o := make([]byte, size*8)
	o[0], o[1] = 253, byte(size)
	copy(o[2:], mark)
	return o
}

// discovery makes an ICMPv6 neighbour discovery message.
func discovery(src, dst netip.Addr, kind byte, body []byte, options ...[]byte) []byte {
	m := append([]byte{kind, 0, 0, 0}, body...)
	for _, o := range options {
		m = append(m, o...)
	}
	return checksum(src, dst, protoICMPv6, m, 2)
}

// routerAdvertisement offers the sender as a default router and a prefix for autoconfiguration.
func routerAdvertisement(src, dst netip.Addr, mac net.HardwareAddr, mark []byte) []byte {
	body := []byte{64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	prefix := make([]byte, 32)
	prefix[0], prefix[1], prefix[2], prefix[3] = 3, 4, 64, 0xc0
	binary.BigEndian.PutUint32(prefix[4:], 86400)
	binary.BigEndian.PutUint32(prefix[8:], 14400)
	copy(prefix[16:], []byte{0xfd, 0xba, 0xdb, 0xad})
	return discovery(src, dst, icmpv6RouterAdv, body, option(1, mac), prefix, markOption(mark))
}

// multicastMAC is the Ethernet address of an IP multicast group.
func multicastMAC(group netip.Addr) net.HardwareAddr {
	if group.Is4() {
		b := group.As4()
		return net.HardwareAddr{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	b := group.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedNode is the multicast group that neighbour solicitations for an address go to.
func solicitedNode(addr netip.Addr) netip.Addr {
	b := addr.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 10: 0, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}
