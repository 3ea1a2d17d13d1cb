package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/railweave/railweave/cni/internal/attachment"
	"github.com/railweave/railweave/cni/internal/store"
)

// ErrNotReached: the source was not heard of since the agent's start.
var ErrNotReached = errors.New("tenancy: the API server was not reached yet")

const (
	memoryFile    = "tenancy.json"
	memoryVersion = 1
	// openRetry: a cluster that starts, with its nodes, is asked by every agent.
	openRetry = 2 * time.Second
	// memoryPeriod is how often the memory is written if something changed: a file of 10,000 addresses takes some 10 ms. What was
	// published in the last one before a crash is missing from the memory: it is denied to others until the source is reached. An
	// orderly end writes what is left.
	memoryPeriod = time.Second
)

// memory is the file's contents.
type memory struct {
	Version int  `json:"version"`
	View    View `json:"view"`
}

// Remembering is a Source that has a view before the source behind it can be reached: the one it had last. A node whose agent
// and switch start while the API server is away would otherwise cut off all its pods. It is no worse than an agent that ran on
// without the API server: addresses heard of since then are denied, and the nodes that own addresses enforce their changes.
type Remembering struct {
	path    string
	failed  func(error)
	changed chan struct{}
	ended   chan struct{} // closed when nothing is written any more

	mutex  sync.Mutex
	source Source // nil until it could be opened
	view   View   // until then
	began  time.Time
}

// Remember opens a source in the background, until the context ends, and keeps its view in a directory. failed hears what
// goes wrong.
func Remember(ctx context.Context, dir string, open func(context.Context) (Source, error), failed func(error)) *Remembering {
	r := &Remembering{path: filepath.Join(dir, memoryFile), failed: failed, changed: make(chan struct{}, 1), ended: make(chan struct{}), view: emptyView(), began: time.Now()}
	var last memory
	switch err := store.ReadSealed(r.path, &last); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		failed(fmt.Errorf("what was heard of other nodes is lost until the API server is reached: %w", err))
	case last.Version != memoryVersion:
		failed(fmt.Errorf("what another release remembered of other nodes (version %d, expected %d) is not used", last.Version, memoryVersion))
	default:
		r.view = last.View
	}
	go r.run(ctx, open)
	return r
}

func (r *Remembering) run(ctx context.Context, open func(context.Context) (Source, error)) {
	defer close(r.ended)
	source, err := open(ctx)
	for err != nil {
		if ctx.Err() != nil {
			return // the end is no failure of the source
		}
		r.failed(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(openRetry):
		}
		source, err = open(ctx)
	}
	r.mutex.Lock()
	r.source = source
	r.mutex.Unlock()
	r.notify()
	outdated := true
	write := func() {
		err := store.WriteSealed(r.path, memory{memoryVersion, source.View()})
		if outdated = err != nil; outdated {
			r.failed(fmt.Errorf("what was heard of other nodes was not written: %w", err))
		}
	}
	ticker := time.NewTicker(memoryPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if outdated {
				write()
			}
			return
		case <-source.Changed():
			outdated = true
			r.notify()
		case <-ticker.C:
			if outdated {
				write()
			}
		}
	}
}

// Wait until the context of Remember has ended and the memory is written.
func (r *Remembering) Wait() { <-r.ended }

func (r *Remembering) notify() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *Remembering) reached() (Source, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.source == nil {
		return nil, ErrNotReached
	}
	return r.source, nil
}

// View of the source, or the one it had before.
func (r *Remembering) View() View {
	if source, err := r.reached(); err == nil {
		return source.View()
	}
	return r.view // not changed since Remember
}

// Changed is signalled after the view changed, and when the source was reached.
func (r *Remembering) Changed() <-chan struct{} { return r.changed }

// Publish needs the source.
func (r *Remembering) Publish(ctx context.Context, entry Entry) error {
	source, err := r.reached()
	if err != nil {
		return err
	}
	return source.Publish(ctx, entry)
}

// Remove needs the source.
func (r *Remembering) Remove(ctx context.Context, address netip.Addr) error {
	source, err := r.reached()
	if err != nil {
		return err
	}
	return source.Remove(ctx, address)
}

// Report needs the source.
func (r *Remembering) Report(ctx context.Context, node Node) error {
	source, err := r.reached()
	if err != nil {
		return err
	}
	return source.Report(ctx, node)
}

// VerifyPod needs the source: nobody else knows who a pod is.
func (r *Remembering) VerifyPod(ctx context.Context, pod attachment.Pod) error {
	source, err := r.reached()
	if err != nil {
		return err
	}
	return source.VerifyPod(ctx, pod)
}

// Stale since the start, if the source was not reached.
func (r *Remembering) Stale() (time.Time, error) {
	source, err := r.reached()
	if err == nil {
		return source.Stale()
	}
	return r.began, err
}

// Reached tells why the source does not answer at all; nil if it was heard of since the start.
func (r *Remembering) Reached() error {
	_, err := r.reached()
	return err
}
