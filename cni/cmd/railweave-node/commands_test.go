package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railweave/railweave/cni/internal/durable"
)

// withoutDatabase is a node file for a node where Open vSwitch does not run, and the address of its probes.
func withoutDatabase(t *testing.T) (file, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file = filepath.Join(dir, "node.json")
	text := fmt.Sprintf(`{"apiVersion":"railweave.io/v1","kind":"NodeConfig","node":"node1","asn":65001,"routerID":"10.255.0.1","ovs":{"runDir":%q},"metricsListen":%q,
"rails":[{"name":"rail0","bridge":"br-rail0","uplink":"p0","pools":[{"prefix":"10.64.0.0/16","gateway":"10.64.0.1"}],"peer":{"unnumbered":true}}]}`, dir, address)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, address
}

// TestEndWhileWaitingForTheDatabase: who is asked to end before Open vSwitch runs ends in order.
func TestEndWhileWaitingForTheDatabase(t *testing.T) {
	file, _ := withoutDatabase(t)
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := serve(ctx, []string{"--config", file}); err != nil {
		t.Errorf("an orderly end: %v", err)
	}
}

// TestProbesWhileWaitingForTheDatabase: the agent is alive, so that kubelet does not restart it, but not ready.
func TestProbesWhileWaitingForTheDatabase(t *testing.T) {
	file, address := withoutDatabase(t)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, []string{"--config", file}) }()
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/metrics": http.StatusOK} {
		var answer *http.Response
		var err error
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if answer, err = http.Get("http://" + address + path); err == nil { // #nosec G107 -- the test's own server
				break
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := answer.Body.Close(); err != nil || answer.StatusCode != want {
			t.Errorf("%s: %d, want %d, %v", path, answer.StatusCode, want, err)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Errorf("an orderly end: %v", err)
	}
}

// TestProbesShareAnAnswer: who floods the probes' port does not flood Open vSwitch.
func TestProbesShareAnAnswer(t *testing.T) {
	var asked atomic.Int64
	answer := remembered(func(context.Context) error {
		return fmt.Errorf("answer %d", asked.Add(1))
	})
	var asking sync.WaitGroup
	began := time.Now()
	for range 100 {
		asking.Go(func() {
			if err := answer(t.Context()); err == nil {
				t.Error("no answer")
			}
		})
	}
	asking.Wait()
	if most := 1 + int64(time.Since(began)/readyPeriod); asked.Load() > most {
		t.Errorf("asked %d times, at most %d", asked.Load(), most)
	}
	before := asked.Load()
	for end := time.Now().Add(time.Minute); asked.Load() == before && time.Now().Before(end); {
		_ = answer(t.Context())
	}
	if asked.Load() == before {
		t.Error("a later question is answered by what was said for ever")
	}
}

// TestReadinessThatHangs: while nobody knows, the answer is no, with what was known; one question is asked, and its answer counts.
func TestReadinessThatHangs(t *testing.T) {
	answers := make(chan error)
	var asked atomic.Int64
	ready := remembered(func(context.Context) error { asked.Add(1); return <-answers })
	hangsAfter := func(text string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if err := ready(t.Context()); err != nil && strings.Contains(err.Error(), text) {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%v, want %s", err, text)
			}
		}
	}
	hangsAfter("nothing was answered yet")
	answers <- nil
	hangsAfter("ago it was: ready")
	answers <- errors.New("rail0 is down")
	hangsAfter("ago it was: rail0 is down")
	if asked.Load() != 3 {
		t.Errorf("asked %d times", asked.Load())
	}
	close(answers)
}

func TestInstall(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, name := range plugins {
		if err := os.WriteFile(filepath.Join(from, name), []byte("new "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := install(t.Context(), []string{"--from", from, "--to", to, "railweave-ovs"}); err == nil || !strings.Contains(err.Error(), `"railweave-ovs"`) {
		t.Errorf("an argument too many: %v", err)
	}
	if err := install(t.Context(), []string{"--from", from, "--to", to}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(to)
	if err != nil || len(left) != len(plugins) {
		t.Errorf("%v, %v", left, err)
	}
	for _, name := range plugins {
		path := filepath.Join(to, name)
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != "new "+name || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %q, %v, %v, %v", name, got, info, err, statErr)
		}
	}
	// What a killed install has left goes; what one is writing, and what is somebody else's, stays.
	killed, writing, other := filepath.Join(to, ".railweave-ovs-1"), filepath.Join(to, ".railweave-ovs-2"), filepath.Join(to, ".bridge-1")
	old := time.Now().Add(-2 * durable.Unfinished)
	for _, path := range []string{killed, writing, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chtimes(killed, old, old), os.Chtimes(other, old, old), install(t.Context(), []string{"--from", from, "--to", to})); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", killed, err)
	}
	if err := errors.Join(os.Remove(writing), os.Remove(other)); err != nil {
		t.Error(err)
	}
	// A plugin that is not there leaves what was, and no half file.
	if err := os.Remove(filepath.Join(from, plugins[1])); err != nil {
		t.Fatal(err)
	}
	if err := install(t.Context(), []string{"--from", from, "--to", to}); err == nil {
		t.Error("a missing plugin is not told")
	}
	if left, err := os.ReadDir(to); err != nil || len(left) != len(plugins) {
		t.Errorf("%v, %v", left, err)
	}
}
