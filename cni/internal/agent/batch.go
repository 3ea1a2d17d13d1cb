package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	nodev1 "github.com/railweave/railweave/cni/api/v1"
	"github.com/railweave/railweave/cni/internal/failure"
)

// batch runs one piece of work for many who wait for it: whoever asks while it runs is served by the next run. Two hundred
// pods that start at once so cost a few bundles and a few writes of the store, not two hundred.
type batch struct {
	work func(context.Context) error
	wake chan struct{}
	// ended is closed when nothing is served any more.
	ended chan struct{}

	// due: a run is to come after a while.
	due atomic.Bool

	mutex   sync.Mutex
	waiting []chan error
}

func newBatch(work func(context.Context) error) *batch {
	return &batch{work: work, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// poke asks for a run and waits for nothing.
func (b *batch) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// later asks for a run after a while. Asked for again meanwhile it is one: else each run that somebody asks for and that fails would
// be tried again for ever beside the others.
func (b *batch) later(wait time.Duration) {
	if b.due.CompareAndSwap(false, true) {
		time.AfterFunc(wait, func() {
			b.due.Store(false)
			b.poke()
		})
	}
}

// do asks for a run that starts after now, and waits for its result.
func (b *batch) do(ctx context.Context) error {
	done := make(chan error, 1)
	b.mutex.Lock()
	b.waiting = append(b.waiting, done)
	b.mutex.Unlock()
	b.poke()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.ended:
	}
	select {
	case err := <-done: // served in the last run
		return err
	default:
		return failure.New(nodev1.Reason_NOT_READY, "railweave-node", "the runtime tries again", "it is being stopped")
	}
}

// run serves, once, until the context ends. failed hears of errors, not of what the end interrupted.
func (b *batch) run(ctx context.Context, failed func(error)) {
	defer close(b.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		b.mutex.Lock()
		served := b.waiting
		b.waiting = nil
		b.mutex.Unlock()
		err := b.work(ctx)
		for _, done := range served {
			done <- err
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}
