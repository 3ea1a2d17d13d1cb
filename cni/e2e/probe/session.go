package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railweave/railweave/cni/e2e/testnet"
)

// Watch is an interface other than an endpoint's at which no forbidden probe may be seen: a leaf's port, a node's own
// interfaces.
type Watch struct {
	Name      string
	NS        testnet.Namespace
	Interface string
	// Transit marks places that allowed probes pass on their way.
	Transit bool
	// Outside marks places off the rails, where outsiders' own packets, and the ICMP errors they draw, are at home.
	Outside bool
}

// observer counts marked frames that an interface receives.
type observer struct {
	watch    Watch
	endpoint *Endpoint // nil at a Watch
	fd       int
	done     chan struct{}

	mu   sync.Mutex
	seen map[uint32]int
}

// Relation is how two endpoints stand to each other when a probe is sent.
type Relation int

// The relations.
const (
	Strangers Relation = iota // of different tenants, or not pods at all
	Friends                   // of the same tenant
	Unsettled                 // their tenants are being changed
)

// sent is a probe that is on its way, or was.
type sent struct {
	kind      string
	from, to  *Endpoint
	expect    Expectation
	discovery bool
	outsider  bool // sent off the rails
	at        time.Time
}

// Session is a set of endpoints that send to each other and are all watched.
type Session struct {
	endpoints []*Endpoint
	observers []*observer
	senders   map[*Endpoint]int // packet sockets
	awaitRoom func() error

	mu       sync.Mutex
	relation func(from, to *Endpoint) Relation
	first    uint32 // id of the first probe
	probes   []sent // by id, less first
}

// sessions numbers sessions, so that no two have probes with the same id: a receiver's kernel quotes a first fragment
// in an ICMP error as late as half a minute after it.
var sessions atomic.Uint32

// idsPerSession is more probes than a session can send in the time a test has.
const idsPerSession = 1 << 24

// NewSession starts watching. Close ends it. awaitRoom is called between bursts, and returns when the switches have room for
// another.
func NewSession(endpoints []*Endpoint, watches []Watch, relation func(from, to *Endpoint) Relation, awaitRoom func() error) (*Session, error) {
	s := &Session{endpoints: endpoints, relation: relation, awaitRoom: awaitRoom, senders: map[*Endpoint]int{},
		first: sessions.Add(1) * idsPerSession}
	for _, e := range endpoints {
		if !e.SendOnly {
			if err := s.observe(Watch{Name: e.Name, NS: e.NS, Interface: e.Interface}, e); err != nil {
				return nil, errors.Join(err, s.Close())
			}
		}
		fd, err := packetSocket(e.NS, e.Interface, 0)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.senders[e] = fd
	}
	for _, w := range watches {
		if err := s.observe(w, nil); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func (s *Session) observe(w Watch, e *Endpoint) error {
	fd, err := packetSocket(w.NS, w.Interface, unix.ETH_P_ALL)
	if err != nil {
		return err
	}
	o := &observer{watch: w, endpoint: e, fd: fd, done: make(chan struct{}), seen: map[uint32]int{}}
	s.observers = append(s.observers, o)
	go o.receive()
	return nil
}

// packetSocket opens an AF_PACKET socket bound to an interface; with protocol 0 it receives nothing.
func packetSocket(ns testnet.Namespace, ifname string, protocol uint16) (int, error) {
	fd := -1
	err := ns.Do(func() error {
		i, err := net.InterfaceByName(ifname)
		if err != nil {
			return fmt.Errorf("%s/%s: %w", ns.Name, ifname, err)
		}
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		// Room for a burst, so that a count of zero is not an overflow; needs CAP_NET_ADMIN, which the suite has.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
			return err
		}
		// Lets the receiver notice that it has been asked to end.
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: i.Index})
	})
	if err != nil && fd >= 0 {
		_ = unix.Close(fd)
	}
	return fd, err
}

func (o *observer) receive() {
	defer func() { _ = unix.Close(o.fd) }()
	buffer := make([]byte, 65536)
	for {
		select {
		case <-o.done:
			return
		default:
		}
		n, from, err := unix.Recvfrom(o.fd, buffer, 0)
		if err != nil {
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENETDOWN) {
				continue // nothing for 100 ms, or the interface went away: both are part of the game
			}
			return
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		o.record(buffer[:n])
	}
}

func (o *observer) record(frame []byte) {
	at := bytes.Index(frame, magic)
	if at < 0 || len(frame) < at+markSize {
		return
	}
	id := binary.BigEndian.Uint32(frame[at+len(magic):])
	o.mu.Lock()
	o.seen[id]++
	o.mu.Unlock()
}

// Close ends all observers.
func (s *Session) Close() error {
	for _, o := range s.observers {
		close(o.done)
	}
	for _, fd := range s.senders {
		_ = unix.Close(fd)
	}
	return nil
}

// SetRelation changes what is expected of the probes sent from now on.
func (s *Session) SetRelation(relation func(from, to *Endpoint) Relation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relation = relation
}

// Send sends one probe.
func (s *Session) Send(kind Kind, from, to *Endpoint) error {
	// Sending under the lock orders it against SetRelation: a probe expected under the old relation is not sent later.
	s.mu.Lock()
	defer s.mu.Unlock()
	p := sent{kind: kind.Name, from: from, to: to, expect: Vanish, discovery: kind.Discovery, outsider: from.Rail == OffRails, at: time.Now()}
	switch s.relation(from, to) {
	case Friends:
		p.expect = kind.SameTenant
	case Unsettled:
		p.expect = Neither
	}
	frame := kind.build(scene{from: from, to: to, third: s.third(from, to), mark: s.add(p)})
	_, err := unix.Write(s.senders[from], frame)
	if err != nil && from.Fleeting {
		// Its interface may be another one by now, or none.
		if fd, reopened := packetSocket(from.NS, from.Interface, 0); reopened == nil {
			_ = unix.Close(s.senders[from])
			s.senders[from] = fd
			_, _ = unix.Write(fd, frame)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s sends %s: %w", from.Name, kind.Name, err)
	}
	return nil
}

// add records a probe and returns its mark. The caller holds the lock.
func (s *Session) add(p sent) []byte {
	s.probes = append(s.probes, p)
	return markOf(s.first + uint32(len(s.probes)-1))
}

// third finds an endpoint whose identity would be useful to a spoofer who wants to reach to.
func (s *Session) third(from, to *Endpoint) *Endpoint {
	for _, e := range s.endpoints {
		// Not an impostor of the sender either: with its own address nothing would be spoofed.
		if e.Addr4 != from.Addr4 && e.Addr4 != to.Addr4 && e.Rail == to.Rail && s.relation(e, to) == Friends {
			return e
		}
	}
	return to
}

// Burst is how many frames are sent before the switches must have room for another burst: Open vSwitch's userspace
// datapath reads its ports through sockets of limited size, a few hundred frames each.
const Burst = 100

// Matrix sends the given kinds from each sender to each receiver of the same rail.
func (s *Session) Matrix(kinds []Kind, senders, receivers []*Endpoint, burst int) error {
	return s.each(kinds, senders, receivers, burst, func(from, to *Endpoint) bool { return from.Rail == to.Rail })
}

// Across sends the given kinds from each sender to each receiver that is not on its rail.
func (s *Session) Across(kinds []Kind, senders, receivers []*Endpoint, burst int) error {
	return s.each(kinds, senders, receivers, burst, func(from, to *Endpoint) bool { return from.Rail != to.Rail })
}

func (s *Session) each(kinds []Kind, senders, receivers []*Endpoint, burst int, chosen func(from, to *Endpoint) bool) error {
	count := 0
	for _, kind := range kinds {
		for _, from := range senders {
			for _, to := range receivers {
				if from == to || !chosen(from, to) {
					continue
				}
				if err := s.Send(kind, from, to); err != nil {
					return err
				}
				if count++; count%burst == 0 {
					if err := s.awaitRoom(); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// Traffic is who sends which kinds to whom: of one rail, or from off the rails to all.
type Traffic struct {
	Kinds    []Kind
	From, To []*Endpoint
}

// Stream sends probes of all traffic, in turn and some thousands a second, until done is closed.
func (s *Session) Stream(all []Traffic, done <-chan struct{}) error {
	const burst = 25 // small, so that SetRelation and the end find little on its way
	count := 0
	for turn := 0; ; turn++ {
		traffic, i := all[turn%len(all)], turn/len(all)
		from := traffic.From[i%len(traffic.From)]
		for j, to := range traffic.To {
			if from == to || from.Rail != to.Rail && from.Rail != OffRails {
				continue
			}
			select {
			case <-done:
				return nil
			default:
			}
			if err := s.Send(traffic.Kinds[(i/len(traffic.From)+j)%len(traffic.Kinds)], from, to); err != nil {
				return err
			}
			if count++; count%burst == 0 {
				if err := s.awaitRoom(); err != nil {
					return err
				}
			}
			time.Sleep(300 * time.Microsecond) // room for everything else on the machine
		}
	}
}

// Sent is the number of probes sent so far.
func (s *Session) Sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.probes)
}

// Settle waits until every probe that must arrive has arrived, for at most limit, and then a moment longer for those
// that must not.
func (s *Session) Settle(limit time.Duration) {
	const grace = 300 * time.Millisecond
	deadline := time.Now().Add(limit)
	for len(s.missing()) > 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(grace)
}

// missing lists the probes that must arrive and have not.
func (s *Session) missing() []sent {
	at := map[*Endpoint]map[uint32]int{}
	for _, o := range s.observers {
		if o.endpoint != nil {
			at[o.endpoint] = o.snapshot()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []sent
	for i, p := range s.probes {
		if p.expect == Arrive && at[p.to][s.first+uint32(i)] == 0 {
			lost = append(lost, p)
		}
	}
	return lost
}

func (o *observer) snapshot() map[uint32]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	copied := make(map[uint32]int, len(o.seen))
	for id, n := range o.seen {
		copied[id] = n
	}
	return copied
}

// Dropped is the number of packets that the observers' own sockets had no room for since the last call. Unless it is
// zero, absence proves nothing.
func (s *Session) Dropped() (uint32, error) {
	var all uint32
	for _, o := range s.observers {
		stats, err := unix.GetsockoptTpacketStats(o.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", o.watch.Name, err)
		}
		all += stats.Drops
	}
	return all, nil
}

// Leaks describes every probe that was seen where it must not be seen, most telling first, and counts the rest.
func (s *Session) Leaks() []string {
	var leaks []string
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.observers {
		for id, n := range o.snapshot() {
			i := id - s.first
			if i >= uint32(len(s.probes)) {
				continue // an echo of an earlier session
			}
			p := s.probes[i]
			if o.mayHave(p) {
				continue
			}
			leaks = append(leaks, fmt.Sprintf("%s from %s to %s: %d at %s", p.kind, p.from.Name, p.to.Name, n, o.watch.Name))
		}
	}
	slices.Sort(leaks)
	return leaks
}

// mayHave reports whether an observer may see a probe. The sender may see one that was let through, because the receiver
// answers: an echo reply, or an ICMP error that quotes it. So may who an impostor plays.
func (o *observer) mayHave(p sent) bool {
	if p.outsider && o.watch.Outside || p.discovery && p.from.Leaf != "" && o.watch.Name == p.from.Leaf {
		return true
	}
	return p.expect != Vanish && (o.watch.Transit || o.endpoint == p.to || o.endpoint == p.from || o.endpoint != nil && o.endpoint == p.from.Plays)
}

// Resend sends every probe again that had to arrive and did not, one at a time, and expects it anew. Whether it may have
// been lost is for the caller to judge.
func (s *Session) Resend() error {
	lost := s.missing()
	s.mu.Lock()
	for i, p := range s.probes {
		if p.expect == Arrive && slices.Contains(lost, p) {
			s.probes[i].expect = Neither
		}
	}
	s.mu.Unlock()
	for _, p := range lost {
		i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.Name == p.kind })
		if err := s.Send(Kinds[i], p.from, p.to); err != nil {
			return err
		}
		if err := s.awaitRoom(); err != nil {
			return err
		}
	}
	return nil
}

// Expected is the number of probes that must arrive.
func (s *Session) Expected() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.probes {
		if p.expect == Arrive {
			n++
		}
	}
	return n
}

// Losses describes every probe that had to arrive and did not.
func (s *Session) Losses() []string {
	var losses []string
	for _, p := range s.missing() {
		losses = append(losses, fmt.Sprintf("%s from %s to %s", p.kind, p.from.Name, p.to.Name))
	}
	return losses
}

// Timeline tells when, in tenths of a second from the first probe on, probes that had to arrive were sent, and how many of them
// were lost: a gap lies together, drops of a busy machine do not.
func (s *Session) Timeline() string {
	lost := map[int]int{}
	var start time.Time
	s.mu.Lock()
	if len(s.probes) > 0 {
		start = s.probes[0].at
	}
	s.mu.Unlock()
	tenth := func(p sent) int { return int(p.at.Sub(start) / (100 * time.Millisecond)) }
	for _, p := range s.missing() {
		lost[tenth(p)]++
	}
	expected := map[int]int{}
	s.mu.Lock()
	for _, p := range s.probes {
		if p.expect == Arrive {
			expected[tenth(p)]++
		}
	}
	s.mu.Unlock()
	var parts []string
	for _, at := range slices.Sorted(maps.Keys(expected)) {
		parts = append(parts, fmt.Sprintf("%.1f s: %d of %d", float64(at)/10, lost[at], expected[at]))
	}
	return "lost by time of sending: " + strings.Join(parts, ", ")
}

// Summary shortens a list for a message.
func Summary(list []string) string {
	const most = 20
	if len(list) <= most {
		return strings.Join(list, "\n")
	}
	return fmt.Sprintf("%s\n... and %d more", strings.Join(list[:most], "\n"), len(list)-most)
}
