package tenancy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/store"
)

// TestRemembering: what was heard before a restart is there without the source, and gives way to the source once it is reached.
func TestRemembering(t *testing.T) {
	shared, state := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "namespaces.json"), []byte(`{"namespaces":{"team-a":{"tenant":""}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(ctx context.Context) (Source, error) { return OpenDirectory(ctx, shared, "node1") }
	failed := func(err error) { t.Log(err) }
	address := netip.MustParseAddr("10.64.0.5")
	before, stop := context.WithCancel(t.Context())
	first := Remember(before, state, open, failed)
	await(t, "the source is reached", func() bool { return first.Reached() == nil })
	if err := first.Publish(t.Context(), Entry{Address: address, Node: "node1", Rail: "rail0", Namespace: "team-a", Generation: 7}); err != nil {
		t.Fatal(err)
	}
	await(t, "the memory is written", func() bool {
		ended, end := context.WithCancel(t.Context())
		second := Remember(ended, state, never, failed)
		end()
		second.Wait()
		return second.View().Entries[address].Generation == 7
	})
	stop()
	first.Wait()

	var mutex sync.Mutex
	away := true
	second := Remember(t.Context(), state, func(ctx context.Context) (Source, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if away {
			return nil, errors.New("connection refused")
		}
		return open(ctx)
	}, failed)
	t.Cleanup(second.Wait) // the test's context has ended then: nothing is said or written after the test
	if _, exists := second.View().Namespaces["team-a"]; !exists || second.View().Entries[address].Node != "node1" {
		t.Errorf("remembered: %+v", second.View())
	}
	if since, why := second.Stale(); since.IsZero() || !errors.Is(why, ErrNotReached) || !errors.Is(second.Reached(), ErrNotReached) {
		t.Error("it claims to hear of the others")
	}
	for what, err := range map[string]error{"Publish": second.Publish(t.Context(), Entry{Address: address}), "Remove": second.Remove(t.Context(), address),
		"Report": second.Report(t.Context(), Node{}), "VerifyPod": second.VerifyPod(t.Context(), attachment.Pod{Namespace: "team-a"})} {
		if !errors.Is(err, ErrNotReached) {
			t.Errorf("%s without the source: %v", what, err)
		}
	}
	mutex.Lock()
	away = false
	mutex.Unlock()
	<-second.Changed()
	err := second.Remove(t.Context(), address)
	if since, why := second.Stale(); err != nil || second.Reached() != nil || !since.IsZero() || why != nil {
		t.Errorf("after it was reached: %v, %v, %v, %v", err, second.Reached(), since, why)
	}
	await(t, "the view is the source's", func() bool { return len(second.View().Entries) == 0 })
}

func never(ctx context.Context) (Source, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestDamagedMemory is nothing remembered, and said; so is one of another release.
func TestDamagedMemory(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"cut off":            func(path string) error { return os.WriteFile(path, []byte(`{"checksum":"sha256:`), 0o600) },
		"of another version": func(path string) error { return store.WriteSealed(path, memory{Version: memoryVersion + 1}) },
	} {
		state := t.TempDir()
		if err := spoil(filepath.Join(state, memoryFile)); err != nil {
			t.Fatal(err)
		}
		said := make(chan error, 8)
		r := Remember(t.Context(), state, never, func(err error) { said <- err })
		if err := <-said; err == nil || len(r.View().Entries) != 0 {
			t.Errorf("%s: %v, %+v", name, err, r.View())
		}
	}
}

// TestOrderlyEnd: what was published just before the end is remembered, and the end is not called a failure.
func TestOrderlyEnd(t *testing.T) {
	shared, state := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "namespaces.json"), []byte(`{"namespaces":{"team-a":{"tenant":""}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	failed := func(err error) { t.Error(err) }
	address := netip.MustParseAddr("10.64.0.5")
	ctx, end := context.WithCancel(t.Context())
	r := Remember(ctx, state, func(ctx context.Context) (Source, error) { return OpenDirectory(ctx, shared, "node1") }, failed)
	await(t, "the source is reached", func() bool { return r.Reached() == nil })
	if err := r.Publish(ctx, Entry{Address: address, Node: "node1", Rail: "rail0", Namespace: "team-a", Generation: 9}); err != nil {
		t.Fatal(err)
	}
	end()
	r.Wait()
	ctx, end = context.WithCancel(t.Context())
	after := Remember(ctx, state, never, failed)
	if entry := after.View().Entries[address]; entry.Generation != 9 {
		t.Errorf("remembered: %+v", after.View())
	}
	end()
	after.Wait()
}
