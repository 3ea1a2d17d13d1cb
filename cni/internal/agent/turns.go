package agent

import (
	"context"
	"sync"
)

// turns lets one at a time work on a key.
type turns[K comparable] struct {
	mutex sync.Mutex
	taken map[K]chan struct{}
}

func newTurns[K comparable]() *turns[K] { return &turns[K]{taken: map[K]chan struct{}{}} }

// take waits until nobody works on the key.
func (t *turns[K]) take(ctx context.Context, key K) (release func(), err error) {
	for {
		t.mutex.Lock()
		other, busy := t.taken[key]
		if !busy {
			done := make(chan struct{})
			t.taken[key] = done
			t.mutex.Unlock()
			return func() {
				t.mutex.Lock()
				delete(t.taken, key)
				t.mutex.Unlock()
				close(done)
			}, nil
		}
		t.mutex.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// busy tells whether somebody works on the key.
func (t *turns[K]) busy(key K) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	_, busy := t.taken[key]
	return busy
}
