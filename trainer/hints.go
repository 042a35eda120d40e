package trainer

import (
	"sync"

	"github.com/turngate/turngate/schema"
)

// hints has the outstanding rollouts that may have a result, and wakes the callers that
// wait for results.
type hints struct {
	mu     sync.Mutex
	ready  map[string]map[schema.ID]string // rollouts that may have a result, with their groups: by group, and under "" all
	unread map[schema.ID]string            // rollouts with results that could not be read, with their groups
	news   map[string]chan struct{}        // a channel for each group, and under "" for all groups; closed and removed at the next news
}

func newHints() *hints {
	return &hints{ready: map[string]map[schema.ID]string{}, unread: map[schema.ID]string{}, news: map[string]chan struct{}{}}
}

// add notes that a rollout may have a result.
func (h *hints) add(group string, id schema.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.put(group, id)
	h.signal(group)
}

// put adds a hint. The caller holds the lock.
func (h *hints) put(group string, id schema.ID) {
	for _, of := range []string{group, ""} {
		if h.ready[of] == nil {
			h.ready[of] = map[schema.ID]string{}
		}
		h.ready[of][id] = group
	}
}

// take returns a rollout of a group, or of any if its name is empty, that may have a
// result, and removes its hint. ok is false if there is none.
func (h *hints) take(group string) (id schema.ID, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, of := range h.ready[group] {
		h.delete(of, id)
		return id, true
	}
	return "", false
}

// delete removes a hint. The caller holds the lock.
func (h *hints) delete(group string, id schema.ID) {
	delete(h.ready[""], id)
	delete(h.ready[group], id)
	if len(h.ready[group]) == 0 {
		delete(h.ready, group)
	}
}

// remove removes a rollout that is not outstanding any more.
func (h *hints) remove(group string, id schema.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.delete(group, id)
	delete(h.unread, id)
	h.signal(group)
}

// postpone keeps a rollout until retry, since its result could not be read.
func (h *hints) postpone(group string, id schema.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unread[id] = group
}

// retry makes the postponed rollouts ready again, and wakes all callers.
func (h *hints) retry() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, group := range h.unread {
		h.put(group, id)
	}
	clear(h.unread)
	for group := range h.news {
		h.signal(group)
	}
}

// wake wakes the callers that wait for results of a group, or for all results.
func (h *hints) wake(group string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.signal(group)
}

// signal is wake for a caller that holds the lock.
func (h *hints) signal(group string) {
	for _, of := range []string{group, ""} {
		if c := h.news[of]; c != nil {
			close(c)
			delete(h.news, of)
		}
	}
}

// coming returns a channel that is closed when a group, or with an empty name any
// rollout, may have a result, or has one rollout fewer that is outstanding.
func (h *hints) coming(group string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.news[group] == nil {
		h.news[group] = make(chan struct{})
	}
	return h.news[group]
}
