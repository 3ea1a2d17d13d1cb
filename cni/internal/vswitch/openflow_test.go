package vswitch

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestMegaflows reads a dump in the form ovs-dpctl(8) documents for `dump-flows -m --names`; no machine with an offloading
// NIC was at hand to record one.
func TestMegaflows(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "megaflows-tc.txt"))
	if err != nil {
		t.Fatal(err)
	}
	flows := parseMegaflows(string(data))
	if len(flows) != 3 {
		t.Fatalf("%d flows", len(flows))
	}
	first := flows[0]
	if first.InPort != "p0" || first.Packets != 1048576 || !first.Offloaded || first.Layer != "tc" {
		t.Errorf("%+v", first)
	}
	if flows[1].Offloaded || flows[1].Layer != "ovs" || flows[2].Offloaded {
		t.Errorf("in software, and partially: %+v, %+v", flows[1], flows[2])
	}
}

func TestDatapaths(t *testing.T) {
	text := "netdev@ovs-netdev: hit:78 missed:10\n  br-rail0:\n    br-rail0 65534/1: (tap)\nsystem@ovs-system: hit:0 missed:0\n"
	if got := parseDatapaths(text); !slices.Equal(got, []string{"netdev@ovs-netdev", "system@ovs-system"}) {
		t.Errorf("%v", got)
	}
}

// TestCommand speaks with a control socket as ovs-vswitchd has one.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ovs-vswitchd.pid"), []byte("42\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "ovs-vswitchd.42.ctl"))
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
			var request struct {
				Method string   `json:"method"`
				Params []string `json:"params"`
			}
			answer := map[string]any{"id": 0, "result": nil, "error": "\"nonsense\" is not a valid command"}
			if json.NewDecoder(connection).Decode(&request) == nil && request.Method == "revalidator/wait" && len(request.Params) == 0 {
				answer = map[string]any{"id": 0, "result": "", "error": nil}
			}
			_ = json.NewEncoder(connection).Encode(answer)
			_ = connection.Close()
		}
	}()
	s := NewSwitch(dir)
	if err := s.Revalidate(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if _, err := s.Command(t.Context(), "nonsense"); err == nil {
		t.Error("an error was taken for an answer")
	}
	if _, err := NewSwitch(t.TempDir()).Command(t.Context(), "x"); err == nil {
		t.Error("no daemon answered")
	}
}

// TestSilentSwitch: no answer is another error than a refusal.
func TestSilentSwitch(t *testing.T) {
	for script, silent := range map[string]bool{"exec sleep 60": true, "echo unknown field >&2; exit 1": false} {
		s := NewSwitch(t.TempDir())
		s.program = filepath.Join(t.TempDir(), "ovs-ofctl")
		if err := os.WriteFile(s.program, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		if silent {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			ctx = short
		}
		if err := s.Apply(ctx, "br0", "add flow"); err == nil || errors.Is(err, ErrSilent) != silent {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestIncarnationChangesWithTheSocket(t *testing.T) {
	dir := t.TempDir()
	s := NewSwitch(dir)
	if s.Incarnation("br0") != 0 {
		t.Error("a bridge that is not there has an incarnation")
	}
	seen := map[uint64]bool{}
	var made syscall.Timespec
	for range 3 {
		made = makeLater(t, s.Socket("br0"), made)
		now := s.Incarnation("br0")
		if now == 0 || seen[now] || now != s.Incarnation("br0") {
			t.Errorf("incarnation %d of %v", now, seen)
		}
		seen[now] = true
	}
}

// makeLater makes a file anew, at another time than the one before by the file system's clock, which on some kernels ticks every
// 10 ms only: no daemon restarts that fast.
func makeLater(t *testing.T, path string, before syscall.Timespec) syscall.Timespec {
	t.Helper()
	for {
		_ = os.Remove(path)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if made := info.Sys().(*syscall.Stat_t).Ctim; made != before {
			return made
		}
	}
}
