package probe

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// tcpExchangeSize is more than a segment of the largest MTU and more than the initial window, so that a checksum or MTU
// fault shows.
const tcpExchangeSize = 256 << 10

// ExchangeTCP opens a connection with the kernel's own stack from one namespace to an address in another, sends data
// and waits for all of it to come back.
func ExchangeTCP(from, to testnet.Namespace, src, dst netip.Addr, limit time.Duration) error {
	var listener net.Listener
	err := to.Do(func() error {
		var err error
		listener, err = net.Listen("tcp", netip.AddrPortFrom(dst, 0).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("listen on %v: %w", dst, err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(limit))
		_, _ = io.Copy(conn, conn)
	}()
	var conn net.Conn
	err = from.Do(func() error {
		var err error
		// A plain address and no name: the resolver would leave this thread, and with it the namespace.
		dialer := net.Dialer{Timeout: limit, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, 0))}
		conn, err = dialer.Dial("tcp", listener.Addr().String())
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(limit))
	return exchange(conn)
}

func exchange(conn net.Conn) error {
	data := bytes.Repeat([]byte("railweave"), tcpExchangeSize/9)
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		failed <- err
	}()
	back := make([]byte, len(data))
	if _, err := io.ReadFull(conn, back); err != nil {
		return fmt.Errorf("TCP %v: %w", conn.RemoteAddr(), err)
	}
	if !bytes.Equal(back, data) {
		return fmt.Errorf("TCP %v: data came back changed", conn.RemoteAddr())
	}
	return <-failed
}

// SendUDP sends marked datagrams, which must vanish, with the kernel's own stack and routing, as a program on a host
// would. A send that the kernel refuses (no route) is not an error: the packet did not get anywhere.
func (s *Session) SendUDP(ns testnet.Namespace, name string, to *Endpoint, port uint16) error {
	for _, dst := range []netip.Addr{to.Addr4, to.Addr6} {
		s.mu.Lock()
		mark := s.add(sent{kind: "udp-by-kernel", from: &Endpoint{Name: name, NS: ns}, to: to, expect: Vanish, outsider: true})
		s.mu.Unlock()
		err := ns.Do(func() error {
			conn, err := net.Dial("udp", netip.AddrPortFrom(dst, port).String())
			if err != nil {
				return nil
			}
			defer func() { _ = conn.Close() }()
			_, _ = conn.Write(padded(mark))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
