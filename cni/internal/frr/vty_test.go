package frr

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/internal/nodeconfig"
)

// answers has a daemon's socket give each question, in pieces, the answer that is listed for it, and end the connection
// after one that is not.
func answers(t *testing.T, daemon string, known map[string]string) *Daemon {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, daemon+".vty"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			for reader := bufio.NewReader(connection); ; {
				question, err := reader.ReadString(0)
				if err != nil {
					break
				}
				if question == "enable\x00" {
					_, _ = connection.Write([]byte("\x00\x00\x00\x00"))
					continue
				}
				for piece := range strings.SplitSeq(known[strings.TrimSuffix(question, "\x00")], "|") {
					_, _ = connection.Write([]byte(piece))
				}
				break
			}
			_ = connection.Close()
		}
	}()
	return New(&nodeconfig.Config{FRR: nodeconfig.FRR{RunDir: dir}})
}

func TestAsk(t *testing.T) {
	const done = "\x00\x00\x00\x00"
	d := answers(t, "bgpd", map[string]string{
		"whole": "text\n" + done, "empty": done, "pieces": "te|xt\n\x00|\x00\x00|\x00", "refused": "% Unknown command\n\x00\x00\x00\x02", "cut off": "text\n\x00\x00",
	})
	for question, want := range map[string]string{"whole": "text\n", "empty": "", "pieces": "text\n"} {
		if got, err := d.ask(t.Context(), "bgpd", question); err != nil || got != want {
			t.Errorf("%s: %q, %v", question, got, err)
		}
	}
	for question, says := range map[string]string{"refused": "code 2: % Unknown command", "cut off": "incomplete", "anything": "incomplete"} {
		if got, err := d.ask(t.Context(), "bgpd", question); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, %v", question, got, err)
		}
	}
	if _, err := d.ask(t.Context(), "zebra", "whole"); err == nil {
		t.Error("a daemon that does not run has answered")
	}
}

// TestAskSilence: a daemon that is stopped answers nothing; whoever asks must not wait for it for ever.
func TestAskSilence(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "bgpd.vty")) // connects, and nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := New(&nodeconfig.Config{FRR: nodeconfig.FRR{RunDir: dir}}).ask(ctx, "bgpd", "show version"); err == nil {
		t.Errorf("silence was read as %q", got)
	}
}

// TestOriginated reads what FRR 8.4.4 answered: one route that is this node's own in IPv4, none in IPv6.
func TestOriginated(t *testing.T) {
	own4, own6 := read(t, "own4.json"), read(t, "own6.json")
	const question4, question6, done = "show bgp ipv4 unicast filter-list RW-OWN json", "show bgp ipv6 unicast filter-list RW-OWN json", "\x00\x00\x00\x00"
	found, err := answers(t, "bgpd", map[string]string{question4: own4 + done, question6: own6 + done}).Originated(t.Context())
	if want := netip.MustParseAddr("10.100.1.7"); err != nil || len(found) != 1 || !found[want] {
		t.Errorf("want %v alone, have %v, %v", want, found, err)
	}
	for what, text := range map[string]string{
		"nothing": done, "cut off": own4[:len(own4)/2] + done, "no instance": `{"warning":"Default BGP instance not found"}` + done,
		"not configured yet": "% RW-OWN AS-path access-list not found\n" + done, // with exit status 0
	} {
		if found, err := answers(t, "bgpd", map[string]string{question4: own4 + done, question6: text}).Originated(t.Context()); err == nil {
			t.Errorf("%s was read as %v", what, found)
		}
	}
}
