package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listLimit is how many entries of one of the kernel's lists are looked at. A pod has some ten of a kind, but one that may configure
// its network can make millions, which must cost the agent neither memory nor time: what lies beyond is as if it were not there. 10,000 are
// read in some 5 ms.
const listLimit = 10_000

// list looks at what the kernel has of a kind (RTM_GETADDR and the like) and a family in the calling thread's namespace, entry by entry,
// until there is no more to see. Package netlink's lists are whole, and have to fit into memory.
func list(kind, family int, look func(entry []byte) (more bool, err error)) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer socket.Close() // in the middle of a list too: the kernel forgets the rest
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
	request.AddData(&nl.RtGenMsg{RtGenmsg: unix.RtGenmsg{Family: uint8(family)}}) // #nosec G115 -- a constant
	if err := socket.Send(request); err != nil {
		return err
	}
	for seen := 0; ; {
		messages, _, err := socket.Receive()
		if err != nil {
			return err
		}
		for _, message := range messages {
			switch message.Header.Type {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				return syscall.Errno(-int32(binary.NativeEndian.Uint32(message.Data))) // #nosec G115 -- the kernel's negative number
			}
			more, err := look(message.Data)
			if seen++; err != nil || !more || seen == listLimit {
				return err
			}
		}
	}
}

// attributes of an entry, which come after a header, by their type.
func attributes(entry []byte, header int) (map[uint16][]byte, error) {
	if len(entry) < header {
		return nil, fmt.Errorf("netlink: an entry of %d octets", len(entry))
	}
	parsed, err := nl.ParseRouteAttr(entry[header:])
	found := map[uint16][]byte{}
	for _, attribute := range parsed {
		found[attribute.Attr.Type] = attribute.Value
	}
	return found, err
}

func addressOf(value []byte) netip.Addr {
	address, _ := netip.AddrFromSlice(value) // not valid, and nobody's, if it is missing
	return address
}

func numberOf(value []byte) int {
	if len(value) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(value))
}

// neighbour asks for one alone (Linux 5.0 and newer answer that); nil if there is none.
func neighbour(link int, address netip.Addr) (*netlink.Neigh, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: uint8(familyOf(address)), Index: uint32(link)}) // #nosec G115 -- a constant, and the kernel's
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, address.AsSlice()))
	answer, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil || len(answer) == 0 {
		return nil, err
	}
	return netlink.NeighDeserialize(answer[0])
}
