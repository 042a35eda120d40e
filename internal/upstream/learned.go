package upstream

import (
	"slices"
	"sync"
	"time"
)

// learned has the limits that the refusals of an upstream showed. They expire,
// because another version of the upstream may be started.
type learned struct {
	forget time.Duration

	mu      sync.Mutex
	unknown map[string]time.Time // unknown parameters, with the time of the refusal
	tops    int                  // largest top_logprobs of the upstream; 0: unknown
	topsAt  time.Time
}

// maxUnknown bounds the number of learned parameters.
const maxUnknown = 32

// refuse adds a parameter that the upstream does not know.
func (l *learned) refuse(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unknown == nil {
		l.unknown = map[string]time.Time{}
	}
	if len(l.unknown) < maxUnknown {
		l.unknown[name] = time.Now()
	}
}

// refuses lists the unknown parameters in order.
func (l *learned) refuses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for name, at := range l.unknown {
		if time.Since(at) > l.forget {
			delete(l.unknown, name)
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// limitTops sets the upstream's largest top_logprobs.
func (l *learned) limitTops(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tops, l.topsAt = most, time.Now()
}

// mostTops returns the upstream's largest top_logprobs, if known.
func (l *learned) mostTops() (most int, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tops, !l.topsAt.IsZero() && time.Since(l.topsAt) <= l.forget
}
