package worker

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Health knows the backends whose services make no sandboxes for now. The worker offers
// their sandboxes to no request until a check succeeds.
type Health struct {
	log     zerolog.Logger
	toCheck chan sandboxes.Backend // that began to fail; each is in it once at most

	mu       sync.Mutex
	backends map[string]sandboxes.Backend
	failures map[string]int    // in a row, by backend
	reasons  map[string]string // of the backends that fail
	spared   map[schema.ID]bool
}

// NewHealth returns the health of backends, which work.
func NewHealth(all []sandboxes.Backend, log zerolog.Logger) *Health {
	h := &Health{
		log: log, toCheck: make(chan sandboxes.Backend, len(all)),
		backends: map[string]sandboxes.Backend{}, failures: map[string]int{}, reasons: map[string]string{}, spared: map[schema.ID]bool{},
	}
	for _, b := range all {
		h.backends[b.Name()] = b
	}
	return h
}

const (
	inARow    = 2 // failures without a refusal of the account, after which a backend counts as failing
	maxReason = 300
	maxSpared = 10_000
)

// failed notes that a service made no sandbox for a rollout. It returns true if the rollout's
// try does not count: its agent's sandbox was not made yet, its backend counts as failing, and
// this happens to the rollout here for the first time. So a rollout that fails although the
// checks succeed comes to its end.
func (h *Health) failed(id schema.ID, begun bool, e *sandboxes.ServiceError) bool {
	if h == nil || e == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures[e.Backend]++
	if !e.Refused && h.failures[e.Backend] < inARow {
		return false
	}
	if h.reasons[e.Backend] == "" {
		h.toCheck <- h.backends[e.Backend] // has room
		h.log.Warn().Err(e).Str("backend", e.Backend).Msg("no sandboxes can be made; rollouts with them wait, and the worker tries again")
	}
	h.reasons[e.Backend] = reasonOf(e)
	if begun || h.spared[id] {
		return false
	}
	if len(h.spared) >= maxSpared { // too many: start again for all of them
		clear(h.spared)
	}
	h.spared[id] = true
	return true
}

func reasonOf(err error) string {
	return schema.Clip(strings.Join(strings.Fields(err.Error()), " "), maxReason)
}

// made notes that a sandbox was made.
func (h *Health) made(backend string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.failures, backend)
}

// failing returns the reasons of the backends that fail.
func (h *Health) failing() map[string]string {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.reasons)
}

// run checks the backends that began to fail, until the context ends.
func (h *Health) run(ctx context.Context) {
	if h == nil {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-h.toCheck:
			all.Go(func() { h.checkUntil(ctx, b) })
		}
	}
}

// Bounds of the checks of a backend that fails.
const (
	firstCheck = 2 * time.Second // after it became so; later ones take twice the pause
	mostPause  = time.Minute
	checkTime  = 10 * time.Minute
)

// checkUntil checks a backend until it works.
func (h *Health) checkUntil(ctx context.Context, b sandboxes.Backend) {
	for pause := firstCheck; ; pause = min(2*pause, mostPause) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		limited, cancel := context.WithTimeout(ctx, checkTime)
		err := b.Check(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		if err != nil {
			h.reasons[b.Name()] = reasonOf(err)
		} else {
			delete(h.reasons, b.Name())
			delete(h.failures, b.Name())
		}
		h.mu.Unlock()
		if err == nil {
			h.log.Info().Str("backend", b.Name()).Msg("sandboxes can be made again")
			return
		}
	}
}
